"""training/example.py stays short, and runs."""

import os
import subprocess
import sys

import pytest

from launch.recipe import ROOT


def test_it_is_forty_lines():
    assert len((ROOT / "training" / "example.py").read_text().splitlines()) <= 40


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_it_trains(processes):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(processes),
        "-m",
        "training.example",
    ]
    settings = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("2 steps, reward") == processes
