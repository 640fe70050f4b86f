"""Peak memory and step time of many configurations on one GPU, each a run of this project's own launcher.

    python benchmarks/measure_memory.py --out results/memory_h200            # all that are not there yet
    python benchmarks/measure_memory.py --out OUT --only colocate_ddp --seconds 300
    python benchmarks/measure_memory.py --list                               # the split, before anything is measured

Models are random, at the true 1.5B and 7B shapes; prompts are of two lengths, so that a batch is padded; a random model
never ends a completion, so that all have the full length. Each configuration trains 3 steps. One that fails is a row with its
cause. Which half is fitted is drawn by the seed in the YAML file. Left out: runs on several GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import psutil
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from launch.recipe import SOURCED  # noqa: E402
from launch.shapes import KNOWN  # noqa: E402
from record import RunFolder, read_lines, write_json  # noqa: E402

CAMPAIGN = Path(__file__).with_suffix(".yaml")
TOKENIZER = ROOT / "tiny" / "checkpoint"  # spells the prompts; the models have the true vocabularies all the same
MODELS = {"1.5b": "Qwen/Qwen2.5-Math-1.5B", "7b": "Qwen/Qwen2.5-Math-7B"}
GENERATIONS, STEPS, ROWS, SHORTER_TOKENS = 4, 3, 64, 60
AHEAD = 2  # configurations that import their libraries while another has the GPU
PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes")


def configurations() -> dict[str, dict]:
    """Name -> every setting, with `half`: "fitted" or "held_out"."""
    content = YAML(typ="safe").load(CAMPAIGN.read_text())
    named = content["configurations"]
    fitted = set(random.Random(content["split_seed"]).sample(sorted(named), len(named) // 2))
    return {
        name: content["defaults"] | (given or {}) | {"half": "fitted" if name in fitted else "held_out"}
        for name, given in named.items()
    }


def recipe(item: dict, model: Path, data: Path) -> dict:
    """The recipe of a configuration: the shape's own, on one GPU, with the configuration's settings and without a save."""
    content = YAML(typ="safe").load((ROOT / f"recipes/qwen{item['shape']}_{item['arm']}.yaml").read_text())
    content["model"] |= {"path": str(model), "dtype": item["dtype"]}
    content["data"] |= {"path": str(data), "config": None, "revision": None, "system_prompt": "tiny_boxed",
                        "max_prompt_tokens": item["prompt"]}  # fmt: skip
    content["rewards"] = {"accuracy_boxed": 1.0}
    content["cluster"] = {"nodes": 1, "gpus_per_node": 1, "gpu": item.get("gpu", "H200-141GB")}
    content["accelerate"] = item["accelerate"]
    grpo = content["grpo"]
    for name in ("num_train_epochs", "save_steps", "save_total_limit", "generation_batch_size"):
        grpo.pop(name, None)
    grpo |= {
        "max_steps": STEPS, "shuffle_dataset": False, "num_generations": GENERATIONS, "save_strategy": "no",
        "per_device_train_batch_size": item["batch"], "gradient_accumulation_steps": item["accumulation"],
        "max_completion_length": item["completion"], "gradient_checkpointing": item["checkpointing"],
    }  # fmt: skip
    if not item["checkpointing"]:
        del grpo["gradient_checkpointing_kwargs"]
    if item["arm"] == "colocate":
        grpo |= {"vllm_max_model_length": item["prompt"] + item["completion"],
                 "vllm_gpu_memory_utilization": item["utilization"], "vllm_enable_sleep_mode": item["sleep"]}  # fmt: skip
    content["sources"] = dict.fromkeys(SOURCED, "ours: benchmarks/measure_memory.yaml")
    return content


def make_models(shapes: set[str], folder: Path, device: str) -> None:
    """Random models with the shapes of published ones, made on the device by processes of their own."""
    started = []
    for shape in sorted(shapes):
        config = {
            **KNOWN[MODELS[shape]],
            "dtype": "bfloat16",
            "bos_token_id": None,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }
        arguments = [str(folder / shape), str(TOKENIZER), json.dumps(config), device]
        if not (folder / shape / "config.json").is_file():
            started.append(subprocess.Popen([sys.executable, "-m", "training.random_model", *arguments], cwd=ROOT))
    if any(process.wait() for process in started):
        raise RuntimeError("a model could not be made")


def make_data(folder: Path, prompt_tokens: int) -> None:
    """Sums whose prompts have exactly `prompt_tokens` tokens, and in turn 60 fewer, under the tiny tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)

    def length(text: str) -> int:
        system = {
            "role": "system",
            "content": YAML(typ="safe").load((ROOT / "launch/system_prompts.yaml").read_text())["tiny_boxed"],
        }
        messages = [system, {"role": "user", "content": text}]
        return len(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])

    def text_of(tokens: int) -> str:
        return "7+" * ((tokens - length("")) // 2) + "7" * ((tokens - length("")) % 2)

    folder.mkdir(parents=True, exist_ok=True)
    texts = [text_of(prompt_tokens), text_of(prompt_tokens - SHORTER_TOKENS)]
    assert [length(text) for text in texts] == [prompt_tokens, prompt_tokens - SHORTER_TOKENS]
    rows = [{"problem": texts[index % 2], "solution": r"\boxed{7}"} for index in range(ROWS)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


class Run:
    """One configuration under the launcher. It may start while another still has the GPU: importing takes longer than
    anything else in so short a run. Its rank is then stopped (SIGSTOP) when its libraries are loaded, before it has touched the
    GPU, and goes on when the GPU is free. So is its launcher, which would take a stopped rank for a fault."""

    def __init__(self, name: str, command: list[str], folder: Path, log: Path):
        self.name, self.folder = name, folder
        self.began, self.resident_bytes, self.rank, self.paused = time.monotonic(), 0, None, False
        self.released, self.gpu_seconds = None, 0.0  # when it was given the GPU, and for how long
        with open(log, "wb") as file:
            self.launcher = subprocess.Popen(
                command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | {"WANDB_MODE": "disabled", "VLLM_LOGGING_LEVEL": "INFO"},
            )  # fmt: skip

    def poll(self) -> None:
        """Looks for the rank, and stops it at its border if the GPU is not its own yet."""
        if self.rank is None:
            self.rank = _rank(self.launcher.pid)
        elif self.released is None and not self.paused and self._loaded():
            with contextlib.suppress(psutil.Error):
                self.launcher.send_signal(signal.SIGSTOP)
                self.paused = True
                self.rank.suspend()

    def _loaded(self) -> bool:
        return any('"libraries loaded"' in path.read_text() for path in self.folder.glob("*/events.jsonl"))

    def release(self) -> None:
        self.released = time.monotonic()
        self._go_on()

    def _go_on(self) -> None:
        if self.paused:
            with contextlib.suppress(psutil.Error):
                self.rank.resume()
            self.launcher.send_signal(signal.SIGCONT)

    def has_the_gpu(self) -> bool:
        if self.launcher.poll() is not None:
            return False
        try:
            return self.rank is None or self.rank.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def seconds(self) -> float:
        return time.monotonic() - (self.released or time.monotonic())

    def watch_memory(self) -> None:
        self.resident_bytes = max(self.resident_bytes, _resident_bytes(self.launcher.pid))

    def stop(self) -> None:
        """The launcher stops its ranks in order; what is left after 20 seconds is killed."""
        if self.released is None:
            self._go_on()
        self.launcher.send_signal(signal.SIGINT)
        self.wait(20)

    def wait(self, seconds: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.launcher.wait(timeout=seconds)
        for process in _descendants(self.launcher.pid):
            with contextlib.suppress(psutil.Error):
                process.kill()
        return self.launcher.wait()


def _rank(launcher: int) -> psutil.Process | None:
    """The training rank: the child of torchrun, which is the child of the launcher."""
    for process in _descendants(launcher):
        with contextlib.suppress(psutil.Error):
            if (
                "torch.distributed.run" in process.parent().cmdline()
                and "torch.distributed.run" not in process.cmdline()
            ):
                return process
    return None


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _resident_bytes(pid: int) -> int:
    total = 0
    for process in _descendants(pid):
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


def summary(folder: RunFolder | None) -> dict:
    """What a run's record says of memory and time: peaks and seconds of each phase, over all steps and by step."""
    if folder is None:
        return {"status": "no record", "cause": "the launcher refused it"}
    manifest = folder.manifest()
    result = {key: manifest["exit"].get(key) for key in ("status", "cause")} | {
        "derived": manifest["derived"], "work": manifest["work"], "git": manifest["git"], "data": manifest.get("data"),
        "hardware": manifest.get("hardware"), "packages": manifest.get("packages"), "overrides": manifest["overrides"],
    }  # fmt: skip
    phases = read_lines(folder.phases_path(0))[0] if folder.phases_path(0).exists() else []
    result["phases"] = {}
    for row in phases:
        where = result["phases"].setdefault(row["phase"], {}).setdefault(str(row["step"]), {"seconds": 0.0})
        where["seconds"] += row["seconds"]
        for name in PEAKS:
            seen = [value for value in (where.get(name), row.get(name)) if value is not None]
            where[name] = max(seen, default=None)
    metrics = read_lines(folder.metrics_path)[0] if folder.metrics_path.exists() else []
    wanted = {"step": "step", "seconds": "seconds", "tokens": "tokens", "completion_tokens": "completion_tokens",
              "max_completion_tokens": "completions/max_length"}  # fmt: skip
    result["steps"] = [
        {key: row.get(name) for key, name in wanted.items()} for row in metrics if row["split"] == "train"
    ]
    events = read_lines(folder.events_path)[0] if folder.events_path.exists() else []
    result["events"] = {row["event"]: row["seconds"] for row in events}
    return result


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
    except pynvml.NVMLError:
        return None
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return {"total_bytes": info.total, "reserved_bytes": info.reserved, "used_bytes": info.used}


def start(name: str, item: dict, arguments) -> Run:
    model, data = arguments.work / "models" / item["shape"], arguments.work / "data" / str(item["prompt"])
    runs, file = arguments.work / "runs", arguments.work / f"{name}.yaml"
    file.write_text(json.dumps(recipe(item, model, data), indent=1))  # JSON is YAML
    command = [sys.executable, "-m", "launch", "run", str(file), "--runs", str(runs)]
    return Run(name, command, runs / name, arguments.work / f"{name}.log")


def conclude(run: Run, item: dict, idle: dict | None, stopped: bool, arguments) -> dict:
    """Waits for the launcher and writes the configuration's row."""
    code, log = run.wait(60), arguments.work / f"{run.name}.log"
    folders = sorted(path.parent for path in run.folder.glob("*/manifest.json"))
    folder = RunFolder(folders[-1]) if folders else None
    result = {"name": run.name, "settings": item, "exit_code": code, "gpu_seconds": round(run.gpu_seconds, 1),
              "host_resident_bytes": run.resident_bytes, "idle_device": idle}  # fmt: skip
    result |= summary(folder)
    if stopped:
        result |= {"status": "failed", "cause": f"stopped after {run.gpu_seconds:.0f} seconds"}
    result["engine_lines"] = engine_lines(folder.logs_path) if folder else []
    if result["status"] != "finished":
        result["last_lines"] = log.read_text(errors="replace").splitlines()[-25:]
    write_json(arguments.out / f"{run.name}.json", result)
    if folder:
        with tarfile.open(arguments.work / "records.tar", "a") as archive:
            for file in sorted(folder.path.glob("*.json*")):
                archive.add(file, f"{run.name}/{file.name}")
    return result


def campaign(items: dict[str, dict], arguments) -> list[str]:
    """Runs the configurations one after the other, each importing while the one before it has the GPU. A row each."""
    begun, lines, waiting, ended = time.monotonic(), [], dict(items), []

    def left() -> float:
        return arguments.seconds - (time.monotonic() - begun)

    def next_run(after: float) -> Run | None:
        for name, item in list(waiting.items()):
            del waiting[name]
            if item["seconds"] + after <= left():
                return start(name, item, arguments)
        return None

    def close(entry) -> None:
        try:
            lines.append(shown(conclude(entry[0], items[entry[0].name], *entry[1:], arguments)))
        except Exception as error:  # one configuration is never the end of the campaign
            lines.append(f"{entry[0].name:34} campaign: {type(error).__name__}: {error}")
        print(lines[-1], flush=True)

    run, following = next_run(0), []
    while run:
        idle = idle_device()
        run.release()
        limit = min(2.0 * items[run.name]["seconds"], left())
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "memory_h200")
    parser.add_argument("--work", type=Path, default=Path("/tmp/measure_memory"), help="models, data, runs and logs")
    parser.add_argument("--device", default="cuda", help="where the random models are made")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="start nothing that would not end within them"
    )
    parser.add_argument("--only", nargs="*", help="names, in this order; all by default")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of every configuration, in YAML"
    )
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    arguments.out, arguments.work = arguments.out.resolve(), arguments.work.resolve()
    items = configurations()
    if arguments.list:
        print("\n".join(f"{item['half']:9} {name}" for name, item in items.items()))
        return 0
    for folder in (arguments.out, arguments.work):
        folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    changes = {key: YAML(typ="safe").load(value) for key, _, value in (item.partition("=") for item in arguments.set)}
    chosen = {
        name: items[name] | changes for name in arguments.only or items if not (arguments.out / f"{name}.json").exists()
    }
    make_models({item["shape"] for item in chosen.values()}, arguments.work / "models", arguments.device)
    for tokens in sorted({item["prompt"] for item in chosen.values()}):
        make_data(arguments.work / "data" / str(tokens), tokens)
    arguments.seconds -= time.monotonic() - begun
    print(f"models and data: {time.monotonic() - begun:.0f} s", flush=True)
    lines = campaign(chosen, arguments)
    print(f"\n{time.monotonic() - begun:.0f} s\n" + "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
