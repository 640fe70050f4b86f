"""A killed rank, as benchmarks/kill_gpu.py strikes it: without GPUs, on two tiny ranks."""

import json
import subprocess
import sys

import pytest

from benchmarks.kill_gpu import SLACK_BYTES, still_held
from launch.recipe import ROOT


def test_memory_that_a_gpu_still_holds_is_told_from_the_drivers_own():
    before = {"0": 600, "1": 600}
    assert still_held(before, {"0": 600 + SLACK_BYTES, "1": 500}) == {}
    assert still_held(before, {"0": 600, "1": 601 + SLACK_BYTES}) == {"1": SLACK_BYTES + 1}
    assert still_held(None, None) == {}


@pytest.mark.slow
def test_a_rank_killed_in_backward_ends_the_job_which_says_so_and_runs_again(tmp_path):
    command = [sys.executable, "benchmarks/kill_gpu.py", "--device", "cpu", "--only", "backward"]
    command += ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads((tmp_path / "out" / "backward.json").read_text())
    assert row["shortfalls"] == []
    assert row["cause"] == "rank 1 was killed by SIGKILL (exit code -9)"
    assert row["code"] == 1
    assert row["end_seconds"] < 60
    assert (row["again_code"], row["again_steps"]) == (0, [1, 2, 3, 4])
    assert row["derived"]["ranks"] == 2
    assert row["gpu_used_bytes_after"] is None  # missing, not 0
