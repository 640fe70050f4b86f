"""Do the arms learn the same on a GPU? The tiny experiment with a model of 71M parameters: four arms, several seeds each.

    python benchmarks/learn_gpu.py --gpu 0                   # warm-up, then 12 runs, six at a time
    python -m analysis learning results/h200/learning        # the table and the figures

The model is warmed up once (tiny/warm_up.py). Each run is `python -m launch run recipes/tiny_ARM.yaml` with the overrides
below, and is exported to --out as results/arms/learning has them. What learns is measured here, not time: runs share the GPU.
So that none takes a neighbour's memory for its own, each engine has a KV cache of a fixed size.

All arms compute in float32, as the tiny experiment does. With grpo.bf16 TRL's continuous batching would cast the weights
under training themselves to bfloat16 (TRL 1.16.0, grpo_trainer.py), and that arm alone would train others.

Results are kept: a second call does what is missing. A run that fails is done once more; what it left is in --out/failed.
"""

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from record import RunFolder, read_json, read_lines, write_json  # noqa: E402

# Recipe, overrides, and whether it starts an engine.
ARMS = {
    "colocate": ("tiny_colocate", [], True),
    "continuous_batching": ("tiny_continuous_batching", [], False),
    "colocate_sleep": ("tiny_colocate", ["grpo.vllm_enable_sleep_mode=true"], True),
    "generate": ("tiny_generate", [], False),
}
# 64 completions a step, as in the tiny experiment, in four parts: what a neighbour must bear is then 3 GiB, not 10.
DEVICES = {
    "cuda": ["cluster.gpus_per_node=1", "cluster.gpu=H200-141GB", "accelerate=ddp", "grpo.vllm_gpu_memory_utilization=0.04",
             "grpo.per_device_train_batch_size=16", "grpo.gradient_accumulation_steps=4"],
    "cpu": ["cluster.gpus_per_node=1", "grpo.per_device_train_batch_size=64"],
}  # fmt: skip
# 100,000 tokens of the 71M model in float32. More than its weights, too: vLLM asserts that sleeping frees memory, and a
# neighbour may allocate meanwhile.
KV_CACHE_BYTES = {"cuda": 3 * 2**30, "cpu": 2**29}
ATTEMPTS = 2


def overrides(arm: str, seed: int, arguments) -> list[str]:
    """What a run sets over its recipe; a person's own --set has the last word."""
    _, own, has_engine = ARMS[arm]
    model = arguments.model
    if model.is_relative_to(ROOT):  # so that the command in a record works elsewhere
        model = f"./{model.relative_to(ROOT)}"
    chosen = [f"model.path={model}", *DEVICES[arguments.device], *own, f"grpo.seed={seed}"]
    chosen += [f"grpo.learning_rate={arguments.learning_rate}", f"grpo.max_steps={arguments.steps}", *arguments.set]
    return [item for item in chosen if has_engine or not item.startswith("grpo.vllm_")]


class Run:
    """One arm with one seed, under the launcher, in a runs folder of its own."""

    def __init__(self, arm: str, seed: int, attempt: int, arguments):
        recipe, _, self.has_engine = ARMS[arm]
        self.arm, self.seed, self.attempt, self.name = arm, seed, attempt, f"{arm}-s{seed}"
        self.runs, self.log = arguments.work / self.name, arguments.work / f"{self.name}-{attempt}.log"
        self.command = [sys.executable, "-m", "launch", "run", f"recipes/{recipe}.yaml", "--runs", str(self.runs)]
        self.command += [part for item in overrides(arm, seed, arguments) for part in ("--set", item)]
        variables = {"COLOCATE_KV_CACHE_BYTES": str(KV_CACHE_BYTES[arguments.device]), "WANDB_MODE": "disabled"}
        if arguments.device == "cuda":
            variables["CUDA_VISIBLE_DEVICES"] = str(arguments.gpu)
        self.earlier, self.began = set(self.runs.glob("*/*/manifest.json")), time.monotonic()
        with open(self.log, "wb") as file:
            self.launcher = subprocess.Popen(
                self.command, cwd=ROOT, env=os.environ | variables, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def folder(self) -> RunFolder | None:
        made = sorted(set(self.runs.glob("*/*/manifest.json")) - self.earlier)
        return RunFolder(made[-1].parent) if made else None

    def is_ready(self) -> bool:
        """Whether its engine, if it has one, has started."""
        folder = self.folder()
        events = read_lines(folder.events_path)[0] if folder and folder.events_path.exists() else []
        return any("engines ready" in event["event"] for event in events)

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def interrupt(self) -> None:
        if self.launcher.poll() is None:
            self.launcher.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """The launcher stops its ranks in order; it is killed, and they with it, if that takes longer than 30 seconds."""
        if self.launcher.poll() is None:
            self.interrupt()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.launcher.wait(timeout=30)
            self.launcher.kill()
            self.launcher.wait()

    def conclude(self, out: Path) -> bool:
        """Exports the record; whether the run finished. Of one that did not, the last lines of all logs are kept too.

        Raises:
            Exception: it cannot be exported here (a GPU host may lack pandas). Its files lie in --out/records then.
        """
        folder, finished = self.folder(), self.launcher.returncode == 0
        row = out / f"{self.name}.json" if finished else out / "failed" / f"{self.name}-{self.attempt}.json"
        row.parent.mkdir(parents=True, exist_ok=True)
        if folder:
            try:
                from analysis.load import load_run
                from analysis.results import export

                export(load_run(folder.path), row)
            except Exception:
                leave_out = shutil.ignore_patterns("logs", "wandb")
                shutil.copytree(folder.path, out / "records" / self.name / folder.path.name, ignore=leave_out)
                raise
        else:
            write_json(row, {"name": self.name, "exit": {"status": "refused", "cause": "the launcher made no record"}})
        if not finished:
            logs = [self.log, *(sorted(folder.path.rglob("*.log")) if folder else ())]
            ends = [f"== {log.name}\n" + "\n".join(_lines(log)[-60:]) for log in logs]
            row.with_suffix(".txt").write_text(shlex.join(self.command) + "\n" + "\n".join(ends) + "\n")
        exported = read_json(row)
        figures, status = exported.get("figures") or {}, exported["exit"]
        shown = [figures.get(name) for name in ("accuracy_before", "accuracy_after", "median_step_seconds")]
        before, after, step = ("-" if value is None else f"{value:.3f}" for value in shown)
        print(f"{self.name:24} {status['status']:11} {before} -> {after}  step {step} s  run {self.seconds():4.0f} s  "
              f"{(status['cause'] or '')[:200]}", flush=True)  # fmt: skip
        return finished


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()


def warm_up(arguments) -> None:
    """Makes the model, if it is not there, and keeps what that printed beside the results.

    Raises:
        RuntimeError: it failed.
    """
    if (arguments.model / "tokenizer_config.json").exists():  # written last
        print(f"{arguments.model} is there", flush=True)
        return
    command = [sys.executable, "-m", "tiny.warm_up", "--size", arguments.size, "--device", arguments.device]
    command += ["--output", str(arguments.model), "--share", str(arguments.share)]
    command += ["--steps", str(arguments.warm_up_steps)]
    if arguments.warm_up_learning_rate:
        command += ["--learning-rate", str(arguments.warm_up_learning_rate)]
    variables = {"CUDA_VISIBLE_DEVICES": str(arguments.gpu)} if arguments.device == "cuda" else {}
    with open(arguments.out / "warm_up.txt", "w") as file:
        file.write(f"$ python {shlex.join(command[1:])}\n")
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | variables, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            file.write(line)
            print(line, end="", flush=True)
    if process.wait():
        raise RuntimeError(f"the warm-up failed with exit code {process.returncode}")


def campaign(waiting: list[tuple[str, int, int]], arguments, until: float) -> None:
    """Runs all of (arm, seed, attempt), --jobs at a time; starts none after `until`. An arm's first engine starts alone: it
    compiles, and leaves what it compiled for the others to load."""
    running: list[Run] = []
    compiled: set[str] = set()
    try:
        while running or (waiting and time.monotonic() < until):
            for run in [run for run in running if run.launcher.poll() is not None or run.seconds() > arguments.limit]:
                run.stop()
                running.remove(run)
                try:
                    finished = run.conclude(arguments.out)
                except Exception as error:  # one run is never the end of the campaign
                    finished = False
                    print(f"{run.name:24} not exported: {type(error).__name__}: {error}", flush=True)
                if not finished and run.attempt < ATTEMPTS:
                    waiting.insert(0, (run.arm, run.seed, run.attempt + 1))
            engines = [run for run in running if run.has_engine]
            compiled |= {run.arm for run in engines if run.is_ready()}
            starting = {run.arm for run in engines if not run.is_ready()}
            startable = [
                item for item in waiting
                if not ARMS[item[0]][2] or not starting or starting | {item[0]} <= compiled
            ]  # fmt: skip
            if startable and len(running) < arguments.jobs and time.monotonic() < until:
                waiting.remove(startable[0])
                running.append(Run(*startable[0], arguments))
            time.sleep(0.5)
    finally:
        for run in running:  # all at once: whoever ends this may not wait
            run.interrupt()
        for run in running:
            run.stop()
    for arm, seed, _ in waiting:
        print(f"{arm}-s{seed}: not started, out of time", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "h200" / "learning")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "learn_gpu", help="the model, runs and logs")
    parser.add_argument("--device", choices=DEVICES, default="cuda")
    parser.add_argument("--gpu", type=int, default=0, help="which one")
    parser.add_argument("--size", default="71m", help="of the model (tiny/warm_up.py)")
    parser.add_argument("--warm-up-steps", type=int, default=1000)
    parser.add_argument("--warm-up-learning-rate", type=float, help="at its peak (default: the size's own)")
    parser.add_argument("--share", type=float, default=0.4, help="of worked demonstrations at the end of the warm-up")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--learning-rate", type=float, default=1.5e-5)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an override for every run")
    parser.add_argument("--jobs", type=int, default=6, help="runs at a time")
    parser.add_argument("--limit", type=float, default=480, help="seconds after which a run is stopped")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing after them")
    arguments = parser.parse_args()
    arguments.out, arguments.work = arguments.out.resolve(), arguments.work.resolve()
    arguments.model = arguments.work / f"model-{arguments.size}"
    for folder in (arguments.out, arguments.work):
        folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops what is running, too
    begun = time.monotonic()
    warm_up(arguments)
    print(f"model: {time.monotonic() - begun:.0f} s", flush=True)
    wanted = [(arm, seed, 1) for seed in range(arguments.seeds) for arm in arguments.arms]
    wanted = [item for item in wanted if not (arguments.out / f"{item[0]}-s{item[1]}.json").exists()]
    campaign(wanted, arguments, begun + arguments.seconds)
    print(f"{time.monotonic() - begun:.0f} s", flush=True)
    try:
        from analysis.learning import compare, draw, table
        from analysis.results import load_results

        result = compare(load_results(arguments.out))
        print(table(result))
        draw(result, arguments.out)
    except (OSError, ValueError, ImportError) as error:  # it can be made from the files at any time
        print(f"no comparison: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
