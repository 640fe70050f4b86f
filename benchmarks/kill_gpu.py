"""A rank killed during generation and during backward: does the job end within 60 s and say why, does anything hold the GPUs
afterwards, and does the same command run again?

    python benchmarks/kill_gpu.py --gpu 0,1                 # NCCL, the 1.5B shape: results/multi_gpu/2/kill/*.json
    python benchmarks/kill_gpu.py --device cpu --out OUT    # gloo, two tiny ranks on the CPU

The moments, the blow and what is looked at are those of the fault drills (tests/drills); here is the run that they strike:
colocated, random weights, a rank with an engine of its own or two with one. One row a case; one that cannot be struck is a row
with its cause. Exit code 1 if anything was not as it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.bench_gpu import CONTENT, recipe  # noqa: E402
from benchmarks.inputs import make_data, make_models  # noqa: E402
from launch.machine import gpus  # noqa: E402
from record import RunFolder, utc_now, write_json  # noqa: E402
from record.provenance import git_state  # noqa: E402
from tests.drills.drill import STEPS, Job, drill  # noqa: E402
from tests.drills.scenarios import Scenario  # noqa: E402
from tests.real_runs import folder_of, launch_command  # noqa: E402

# Case -> the drill's moment, and over how many ranks an engine is split: with 2 the other one is in its collectives, too.
CASES = {"generation": ("generation", 1), "backward": ("training", 1), "generation_tp2": ("generation", 2)}
DEVICES = {
    "cuda": {"shape": "1.5b", "completion": 128},
    "cpu": {"shape": "tiny", "completion": 8, "gpu": "cpu", "accelerate": "cpu", "dtype": "float32"},
}
SLACK_BYTES = 64 * 2**20  # the driver's own account moves by some MiB
FREE_SECONDS = 10  # after the last process is gone


def used_bytes() -> dict[str, int] | None:
    """Memory in use on each visible GPU, by NVML; None without GPUs."""
    found = gpus()
    return {str(gpu.index): gpu.memory_bytes - gpu.free_bytes for gpu in found} if found else None


def still_held(before: dict[str, int] | None, after: dict[str, int] | None) -> dict[str, int]:
    """The bytes that a GPU holds more than before, where that is more than nothing."""
    grown = {index: after[index] - held for index, held in (before or {}).items()} if after else {}
    return {index: more for index, more in grown.items() if more > SLACK_BYTES}


class GpuJob(Job):
    """The drills' job, with the recipe that lies beside its runs folder, and a look at the GPUs when it is over."""

    def __init__(self, scenario: Scenario, runs: Path, environment: dict[str, str] | None = None):
        self.before = used_bytes()
        super().__init__(scenario, runs, environment)

    def command(self, scenario: Scenario) -> list[str]:
        return launch_command(str(self.runs.parent / "recipe.yaml"), self.runs)

    def seen(self) -> dict:
        began, after = time.monotonic(), used_bytes()
        while still_held(self.before, after) and time.monotonic() - began < FREE_SECONDS:
            time.sleep(0.2)
            after = used_bytes()
        return {
            "gpu_used_bytes_before": self.before,
            "gpu_used_bytes_after": after,
            "gpu_free_after_seconds": round(time.monotonic() - began, 1) if after else None,
            "gpu_processes_after": {str(gpu.index): gpu.processes for gpu in gpus() or []},
        }


def item_of(name: str, device: str, count: int) -> dict:
    """The settings of the run that a case strikes, as bench_gpu.py takes them."""
    work = {"gpus": count, "tp": CASES[name][1], "batch": 8 * count, "warm_up": 0, "steps": STEPS}
    return CONTENT["defaults"] | DEVICES[device] | work


def case_row(name: str, device: str, count: int, work: Path) -> dict:
    """Strikes one case in a folder of its own below `work`, which has the model and the prompts as bench_gpu.py makes them."""
    item, moment = item_of(name, device, count), CASES[name][0]
    folder = Path(tempfile.mkdtemp(prefix=f"kill-{name}-", dir=work))
    content = recipe(item, work / "models" / item["shape"], work / "data" / str(item["prompt"]))
    (folder / "recipe.yaml").write_text(json.dumps(content, indent=1))  # JSON is YAML
    row = {"case": name, "settings": item, "gpus": count, "git": git_state(), "start": utc_now()}
    scenario, runs = Scenario("colocate", "rank", "SIGKILL", moment), folder / "runs"
    try:
        row |= drill(scenario, runs, GpuJob)
    except Exception as error:  # one case is never the end of the others
        log = folder / "runs.log"
        lines = log.read_text(errors="replace").splitlines()[-25:] if log.exists() else []
        row |= {"shortfalls": [f"{type(error).__name__}: {error}"], "last_lines": lines}
    held = still_held(row.get("gpu_used_bytes_before"), row.get("gpu_used_bytes_after"))
    row["shortfalls"] += [f"GPU {index} holds {more} bytes more than before" for index, more in held.items()]
    if run := folder_of(runs):
        manifest = RunFolder(run).manifest()
        row |= {key: manifest.get(key) for key in ("derived", "hardware", "packages")}
    return row | {"end": utc_now()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="default: results/multi_gpu/N/kill on N GPUs")
    parser.add_argument("--work", type=Path, default=Path("/tmp/bench_gpu"), help="model, prompts, runs and logs")
    parser.add_argument("--device", choices=DEVICES, default="cuda")
    parser.add_argument("--gpu", default="0,1", help="indices, for CUDA_VISIBLE_DEVICES; on the CPU as many ranks")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="cases, in this order")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no case after them")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what is running, too
    count, work, begun = len(arguments.gpu.split(",")), arguments.work.resolve(), time.monotonic()
    out = (arguments.out or ROOT / "results" / "multi_gpu" / str(count) / "kill").resolve()
    if arguments.device == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = arguments.gpu
    make_models({(DEVICES[arguments.device]["shape"], None)}, work / "models", arguments.device)
    make_data(work / "data" / str(CONTENT["defaults"]["prompt"]), CONTENT["defaults"]["prompt"], distinct=True)
    print(f"model and data: {time.monotonic() - begun:.0f} s", flush=True)
    wrong = False
    for name in arguments.only:
        if time.monotonic() - begun > arguments.seconds:
            print(f"{name:16} not run: {arguments.seconds:.0f} seconds are over", flush=True)
            continue
        row = case_row(name, arguments.device, count, work)
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / f"{name}.json", row)
        wrong = wrong or bool(row["shortfalls"])
        print(f"{name:16} ended in {row.get('end_seconds')} s, code {row.get('code')}, {row.get('cause')}; again: code "
              f"{row.get('again_code')}; {'; '.join(row['shortfalls']) or 'as it should be'}", flush=True)  # fmt: skip
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
