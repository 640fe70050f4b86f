"""Real runs for the tests: started through the launcher, as a person starts them."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from analysis.load import Run, load_run
from launch.recipe import ROOT

# A few small steps: what is tested is the path, not the learning.
SHORT = ("grpo.max_steps=3", "grpo.per_device_train_batch_size=8", "grpo.max_completion_length=24")

CASES = {
    "one rank": ("recipes/tiny_colocate.yaml", ["cluster.gpus_per_node=1", "grpo.per_device_train_batch_size=16"]),
    "two ranks": ("recipes/tiny_colocate.yaml", []),
    "two ranks, TP 2": ("recipes/tiny_colocate.yaml", ["grpo.vllm_tensor_parallel_size=2"]),
    "ZeRO-3, TP 2": ("recipes/tiny_zero3_tp2.yaml", []),
    "LoRA, ZeRO-3, TP 2": (
        "recipes/tiny_lora.yaml",
        ["grpo.save_strategy=steps", "grpo.save_steps=10", "grpo.save_total_limit=1"],
    ),
    "server": ("recipes/tiny_server.yaml", ["grpo.per_device_train_batch_size=16"]),
    "generate": ("recipes/tiny_generate.yaml", []),
    "continuous batching": ("recipes/tiny_continuous_batching.yaml", []),
}


@dataclass
class Outcome:
    """A finished run: exit code, output, and its record (None if no run folder was made)."""

    code: int
    output: str
    runs: Path

    @property
    def folder(self) -> Path | None:
        return folder_of(self.runs)

    @property
    def run(self) -> Run:
        return load_run(self.folder)


def folder_of(runs: Path) -> Path | None:
    """The newest run's folder; None while there is none."""
    manifests = sorted(runs.glob("*/*/manifest.json"))
    return manifests[-1].parent if manifests else None


def sets(overrides) -> list[str]:
    """The arguments that a command takes for overrides."""
    return [part for override in overrides for part in ("--set", override)]


def launch_command(recipe: str, runs: Path, overrides=()) -> list[str]:
    return [
        sys.executable, "-m", "launch", "run", recipe, "--runs", str(runs),
        *sets(overrides),
    ]  # fmt: skip


def launch(recipe: str, runs: Path, overrides=SHORT, **environment) -> Outcome:
    """Runs a recipe to its end through `python -m launch run`."""
    done = subprocess.run(
        launch_command(recipe, runs, overrides), cwd=ROOT, env=os.environ | environment, capture_output=True, text=True,
        timeout=400, check=False,
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout + done.stderr, runs)


def processes_of(runs: Path) -> list[psutil.Process]:
    """The live processes whose command line, working folder or environment names a run below `runs`."""
    found = []
    for process in psutil.process_iter():
        try:
            named = [*process.cmdline(), process.environ().get("WANDB_DIR", "")]
            if any(str(runs) in text for text in named) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until(condition, seconds: float, what: str):
    """The condition's first true value; fails the test after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.1)
    import pytest  # not where drills run beside a GPU

    pytest.fail(f"no {what} within {seconds} s")
