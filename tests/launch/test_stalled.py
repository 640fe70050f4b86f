"""Processes that are stopped: found after 20 s, killed, and named as the cause."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from launch import stalled
from launch.recipe import ROOT
from tests.real_runs import SHORT, launch, processes_of, wait_until

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def child():
    process = subprocess.Popen(SLEEP)
    yield process
    process.kill()
    process.wait()


def test_a_process_that_stays_stopped_is_named_and_killed(child, monkeypatch):
    monkeypatch.setattr(stalled, "STOPPED_SECONDS", 2)
    watch = stalled.StoppedProcesses()
    child.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    cause = wait_until(watch, 30, "finding")
    assert time.monotonic() - began > 2, "a short stop is nobody's fault"
    assert f"(process {child.pid}) has been stopped (SIGSTOP)" in cause
    assert child.wait(5) == -signal.SIGKILL


def test_one_that_goes_on_is_left_alone(child, monkeypatch):
    monkeypatch.setattr(stalled, "STOPPED_SECONDS", 2)
    watch = stalled.StoppedProcesses()
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED, 5, "stop")
    assert watch() is None
    child.send_signal(signal.SIGCONT)
    end = time.monotonic() + 4
    while time.monotonic() < end:
        assert watch() is None
        time.sleep(0.1)
    assert child.poll() is None


@pytest.mark.slow
def test_a_rank_that_is_stopped_ends_the_job_and_is_named(tmp_path):
    began = time.time()
    outcome = launch(
        "recipes/tiny_generate.yaml", tmp_path, [*SHORT, "grpo.save_strategy=steps", "grpo.save_steps=1"],
        PYTHONPATH=str(ROOT / "tests" / "training" / "signal_at"), SIGNAL_AT="training 2 SIGSTOP",
    )  # fmt: skip
    assert outcome.code == 1, outcome.output
    cause = outcome.run.manifest["exit"]["cause"]
    assert cause.startswith("rank 0 (process ")
    assert cause.endswith("has been stopped (SIGSTOP) for 20 s")
    assert f"failed: {cause}" in outcome.output
    assert processes_of(tmp_path) == []
    stopped_at = max(row["unix_seconds"] for row in outcome.run.metrics)  # its last step's line
    assert time.time() - stopped_at < 60
    assert began < stopped_at
