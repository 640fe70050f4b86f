"""Many runs of this project's own launcher, one after the other, each with a row of what it came to.

benchmarks/measure_memory.py and benchmarks/bench_gpu.py say what is run; here is the loop, in which the next configurations on
one GPU import their libraries while one has it (benchmarks/staged_run.py). One that fails is a row with its cause.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.staged_run import StagedRun
from record import RunFolder, read_lines, write_json

AHEAD = 2  # configurations that import their libraries while another has the GPU
PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes")


def summary(folder: RunFolder | None) -> dict:
    """What a run's record says of memory and time: peaks over all ranks and rank 0's seconds of each phase, by step."""
    if folder is None:
        return {"status": "no record", "cause": "the launcher refused it"}
    manifest = folder.manifest()
    result = {key: manifest["exit"].get(key) for key in ("status", "cause")} | {
        "derived": manifest["derived"], "work": manifest["work"], "git": manifest["git"], "data": manifest.get("data"),
        "hardware": manifest.get("hardware"), "packages": manifest.get("packages"), "overrides": manifest["overrides"],
    }  # fmt: skip
    result["phases"] = {}
    for rank in range(manifest["derived"]["ranks"]):
        path = folder.phases_path(rank)
        for row in read_lines(path)[0] if path.exists() else []:
            where = result["phases"].setdefault(row["phase"], {}).setdefault(str(row["step"]), {"seconds": 0.0})
            where["seconds"] += 0.0 if rank else row["seconds"]
            for name in PEAKS:
                seen = [value for value in (where.get(name), row.get(name)) if value is not None]
                where[name] = max(seen, default=None)
    metrics = read_lines(folder.metrics_path)[0] if folder.metrics_path.exists() else []
    wanted = {"step": "step", "seconds": "seconds", "tokens": "tokens", "completion_tokens": "completion_tokens",
              "max_completion_tokens": "completions/max_length", "sentinel_level": "sentinel/level",
              "sentinel_limit": "sentinel/limit"}  # fmt: skip
    result["steps"] = [
        {key: row.get(name) for key, name in wanted.items()} for row in metrics if row["split"] == "train"
    ]
    events = read_lines(folder.events_path)[0] if folder.events_path.exists() else []
    result["events"] = {row["event"]: row["seconds"] for row in events}
    return result


def figures(folder: RunFolder, warm_up_steps: int) -> dict:
    """What `launch compare` says of a run, from the records of all its ranks and its server: throughput in three readings and
    the idle shares (analysis/metrics.py), and how near the sentinel came to its limit, all of the steps after the warm-up.
    `figures_missing` names what the record does not hold, or why there are none at all."""
    try:
        from analysis.compare import FIGURES
        from analysis.frames import read_frames
        from analysis.metrics import measure

        tables, first = read_frames(folder.path), max(warm_up_steps, 1)
        tables.steps, tables.phases = (each[each["step"] > first] for each in (tables.steps, tables.phases))
        values, missing = measure(tables, (*FIGURES, "sentinel_nearest"))
    except Exception as error:  # of a run that ended before its first step, say: its row is worth more than its figures
        values, missing = {}, {"all": f"{type(error).__name__}: {error}"}
    return {"figures": values, "figures_missing": missing}


def engine_lines(logs: Path) -> list[str]:
    """What vLLM itself says of its memory (its own accounting, beside the driver's)."""
    wanted = ("GiB", "KV cache", "Graph captur", "sleep", "concurrency")
    lines = [line for log in logs.rglob("std*.log") for line in log.read_text(errors="replace").splitlines()]
    return [line[-300:] for line in lines if any(word in line for word in wanted)][:40]


def idle_device() -> dict | None:
    """The device's memory by NVML before a run: total, what the driver keeps, and what is used."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(chosen) if chosen.isdecimal() else 0)
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:
        return None
    return {"total_bytes": info.total, "reserved_bytes": info.reserved, "used_bytes": info.used}


@dataclass
class Campaign:
    """The loop over configurations, and where it puts things.

    Args:
        recipe: a configuration's settings -> its recipe. The loop itself reads `seconds`, a guess, for the budget,
            `limit_seconds`, after which a run is stopped: twice the guess where it is not given; and `gpus` (1).
        out: where a configuration's row goes, as NAME.json.
        work: recipes, runs and logs; two campaigns at a time need two.
        added: more fields for every row, by name.
    """

    recipe: Callable[[dict], dict]
    out: Path
    work: Path
    added: Callable[[str], dict] = field(default=lambda name: {})

    def start(self, name: str, item: dict) -> StagedRun:
        stem = name.replace("/", "--")
        self.work.mkdir(parents=True, exist_ok=True)
        file = self.work / f"{stem}.yaml"
        file.write_text(json.dumps(self.recipe(item), indent=1))  # JSON is YAML
        command = [sys.executable, "-m", "launch", "run", str(file), "--runs", str(self.work / "runs")]
        early = item.get("gpus", 1) == 1
        return StagedRun(name, command, self.work / "runs" / stem, self.work / f"{stem}.log", early)

    def conclude(self, run: StagedRun, item: dict, idle: dict | None, stopped: bool) -> dict:
        """Waits for the launcher and writes the configuration's row."""
        code, log = run.wait(60), self.work / f"{run.folder.name}.log"
        folders = sorted(path.parent for path in run.folder.glob("*/manifest.json"))
        folder = RunFolder(folders[-1]) if folders else None
        result = {"name": run.name, "settings": item, "exit_code": code, "gpu_seconds": round(run.gpu_seconds, 1),
                  "host_resident_bytes": run.resident_bytes, "idle_device": idle}  # fmt: skip
        result |= summary(folder) | self.added(run.name)
        if folder and item.get("gpus", 1) > 1:
            result |= figures(folder, item.get("warm_up", 0))
        if stopped:
            result |= {"status": "failed", "cause": f"stopped after {run.gpu_seconds:.0f} seconds"}
        result["engine_lines"] = engine_lines(folder.logs_path) if folder else []
        if result["status"] != "finished":
            result["last_lines"] = log.read_text(errors="replace").splitlines()[-25:]
        target = self.out / f"{run.name}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        write_json(target, result)
        if folder:
            with tarfile.open(self.work / "records.tar", "a") as archive:
                for file in sorted(folder.path.glob("*.json*")):
                    archive.add(file, f"{run.name}/{file.name}")
        return result

    def measure(self, items: dict[str, dict], seconds: float) -> list[str]:
        """Runs the configurations one after the other, each importing while the one before it has the GPU. A line each.

        Args:
            seconds: nothing is started that would not end within them.
        """
        begun, lines, waiting, ended = time.monotonic(), [], dict(items), []

        def left() -> float:
            return seconds - (time.monotonic() - begun)

        def next_run(after: float) -> StagedRun | None:
            for name, item in list(waiting.items()):
                if item["seconds"] + after <= left():
                    del waiting[name]
                    return self.start(name, item)
            return None

        def close(entry) -> None:
            try:
                lines.append(shown(self.conclude(entry[0], items[entry[0].name], *entry[1:])))
            except Exception as error:  # one configuration is never the end of the campaign
                lines.append(f"{entry[0].name:34} campaign: {type(error).__name__}: {error}")
            print(lines[-1], flush=True)

        run, following = next_run(0), []
        while run:
            if left() < items[run.name]["seconds"] / 2:  # those before it took longer than was guessed
                run.stop()
                print(f"{run.name:34} not run: {left():.0f} seconds are left", flush=True)
                run = following.pop(0) if following else next_run(0)
                continue
            idle = idle_device()
            run.release()
            limit = min(items[run.name].get("limit_seconds", 2.0 * items[run.name]["seconds"]), left())
            while len(following) < AHEAD:
                queued = items[run.name]["seconds"] + sum(items[other.name]["seconds"] for other in following)
                if (another := next_run(queued)) is None:
                    break
                following.append(another)
            ticks = 0
            while run.has_the_gpu() and run.seconds() < limit:
                for each in (run, *following):
                    each.poll()
                if ended and ended[0][0].launcher.poll() is not None:
                    close(ended.pop(0))
                if ticks % 20 == 0:
                    run.watch_memory()
                ticks += 1
                time.sleep(0.02)
            run.gpu_seconds, stopped = run.seconds(), run.has_the_gpu()
            if stopped:
                run.stop()
            ended.append((run, idle, stopped))
            run = following.pop(0) if following else next_run(0)
        for entry in ended:
            close(entry)
        return lines


def shown(result: dict) -> str:
    device = [step["peak_device_bytes"] for phase in result.get("phases", {}).values() for step in phase.values()]
    peak = max((value for value in device if value is not None), default=0) / 2**30
    steps = [step["seconds"] for step in result.get("steps", [])[1:] if step["seconds"]]
    mean = sum(steps) / len(steps) if steps else float("nan")
    return (f"{result['name']:34} {result['status']:9} {peak:7.2f} GiB step {mean:6.2f} s  run {result['gpu_seconds']:3.0f} s "
            f"{(result.get('cause') or '')[:90]}")  # fmt: skip
