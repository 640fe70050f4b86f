"""The checks of a trainer and its engine, run without a GPU as a person would run them there."""

import json
import os
import subprocess
import sys

import pytest

from launch.recipe import ROOT


def run(script: str, folder, *arguments: str, **environment: str) -> dict:
    """The record that a check leaves."""
    command = [sys.executable, f"benchmarks/{script}.py", "--device", "cpu", "--work", str(folder),
               "--out", str(folder / "record.json"), *arguments]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "record.json").read_text())


@pytest.mark.slow
def test_the_sleep_check_finds_the_layer_that_a_broken_sync_leaves_out_and_no_other(tmp_path):
    broken = {"PYTHONPATH": str(ROOT / "tests/training/break_sync"), "BREAK_SYNC": "layer"}
    record = run("check_sleep", tmp_path, "--cycles", "2", **broken)
    for cycle in record["cycles"]:
        weights = cycle["weights"]
        assert weights["unmatched"] == []
        assert 0 < len(weights["different_in"]) < weights["tensors"]
        assert all(".layers.1." in name for name in weights["different_in"])
        assert cycle["completion_tokens"] > 0
    assert record["summary"]["bit_equal"] is False
    assert record["git"]["commit"] and record["packages"]["trl"]


@pytest.mark.slow
def test_all_levers_together_compute_what_the_default_does_and_another_algorithm_is_found_out(tmp_path):
    record = run("check_equal", tmp_path, "--only", "all", "control")
    assert all(row["same_tokens"] and row["same_logps"] for row in record["generation"])
    assert len(record["generation"]) == 3 and record["generation"][0]["tokens"] > 0
    variants = {row["name"]: row for row in record["variants"]}
    assert list(variants) == ["default", "reference", "all", "control"]
    assert variants["default"]["gradient_norm"] > 0
    assert variants["all"]["from_default"]["gradient_relative_l2"] < 1e-5  # a few roundings of float32
    assert variants["all"]["from_default"]["gradient_cosine"] == pytest.approx(1, abs=1e-9)
    assert variants["all"]["from_default"]["loss"] < 1e-5
    assert variants["all"]["engine_logps"]["mean"] < 1e-5
    assert 0 < record["tolerance"]["gradient_relative_l2"] < 1e-5
    assert record["within"]["control"]["gradient_relative_l2"] is False
