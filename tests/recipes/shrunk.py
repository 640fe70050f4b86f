"""Shrunk recipes for the tests, and their runs in a process of their own."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from launch.recipe import ROOT, resolve
from launch.shrink import shrink
from tests.recipes.rehearse import without_engine


def rehearsal(content: dict, name: str) -> dict:
    """The resolved recipe that rehearse.py trains for a recipe's sections."""
    small, _ = shrink(content, name)
    return resolve(without_engine(small), name, name)


def run_rehearsals(recipes: list[dict], folder: Path, timeout_seconds: float) -> dict[str, dict]:
    """Trains resolved recipes in one process. Returns the outcome of each by name."""
    file = folder / "recipes.json"
    file.write_text(json.dumps(recipes), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    one_rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    settings = one_rank | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.recipes.rehearse", str(file)], cwd=ROOT, env=os.environ | settings, capture_output=True,
        text=True, timeout=timeout_seconds, check=False,
    )  # fmt: skip
    outcomes = [
        json.loads(line.removeprefix("outcome ")) for line in done.stdout.splitlines() if line.startswith("outcome ")
    ]
    assert len(outcomes) == len(recipes), done.stderr[-3000:]
    return {outcome["name"]: outcome for outcome in outcomes}
