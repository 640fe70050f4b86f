"""Runs whose disk is full or cannot be written: a small tmpfs as the runs folder."""

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from record import read_lines
from record.checkpoints import checkpoints, faults
from tests.real_runs import SHORT, launch, processes_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root"),
]

# A checkpoint has 7.8 MB. Every second step is saved, and nothing is rotated away.
OVERRIDES = [*SHORT, "grpo.max_steps=8", "grpo.save_strategy=steps", "grpo.save_steps=2", "data.eval_split=null"]


def mount(path: Path, options: str) -> bool:
    return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(path)], check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    if not mount(runs, "size=20m"):
        pytest.skip("no tmpfs can be mounted here")
    yield runs
    subprocess.run(["umount", "--lazy", str(runs)], check=True)


def fill_at_step(runs: Path, step: int) -> None:
    """Takes all that is left of the disk as soon as a step is in the record (again)."""
    since = time.time()
    while True:
        for path in runs.glob("*/*/metrics.jsonl"):
            if any(row["step"] >= step and row["unix_seconds"] > since for row in read_lines(path)[0]):
                with open(runs / "ballast", "wb", buffering=0) as file:
                    try:
                        while True:
                            file.write(bytes(4096))
                    except OSError:
                        return
        time.sleep(0.02)


def test_a_full_disk_costs_nothing_that_was_whole_and_the_next_start_goes_on(small_disk):
    full = launch("recipes/tiny_generate.yaml", small_disk, OVERRIDES)
    assert full.code == 1, full.output
    assert "checkpoint-6" in full.output
    assert "no room for a checkpoint" in full.output
    assert "checkpoint-4 takes 0.01 GB and is intact" in full.output
    assert "free some space" in full.output
    assert processes_of(small_disk) == []
    left = checkpoints(full.folder)
    assert [path.name for path in left] == ["checkpoint-4", "checkpoint-2"], "the part of the third made room again"
    assert all(faults(path) == [] for path in left)
    assert read_lines(full.folder / "metrics.jsonl")[1] == 0

    filling = threading.Thread(target=fill_at_step, args=(small_disk, 5), daemon=True)
    shutil.rmtree(left[1])
    subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
    rows = read_lines(full.folder / "metrics.jsonl")[0]
    assert max(row["step"] for row in rows) >= 5, "lost with the checkpoint, and done again"
    filling.start()
    record_full = launch("recipes/tiny_generate.yaml", small_disk, OVERRIDES)
    assert record_full.code == 1, record_full.output
    assert str(small_disk) in record_full.output.split("failed: ")[1].splitlines()[0]
    assert "No space left" in record_full.output or "no room left" in record_full.output
    assert faults(left[0]) == []

    (small_disk / "ballast").unlink()
    done = launch("recipes/tiny_generate.yaml", small_disk, OVERRIDES)
    assert done.code == 0, done.output
    assert [row["step"] for row in done.run.train_steps()] == list(range(1, 9))
    assert done.run.torn_lines == 0
    assert len(list(small_disk.glob("*/*/manifest.json"))) == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    if not mount(runs, "ro"):
        pytest.skip("no tmpfs can be mounted here")
    try:
        outcome = launch("recipes/tiny_generate.yaml", runs, OVERRIDES)
        assert outcome.code == 1
        assert f"error: {runs}" in outcome.output
        assert "Read-only file system" in outcome.output
        assert "Traceback" not in outcome.output
    finally:
        subprocess.run(["umount", str(runs)], check=True)
