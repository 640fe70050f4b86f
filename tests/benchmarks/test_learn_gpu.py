"""The learning experiment for a GPU: its recipes are sound, and what fails is a row. What runs is tests/training's business."""

import argparse
import json
import subprocess
import sys

import pytest

from benchmarks.learn_gpu import ARMS, DEVICES, ROOT, overrides
from launch.__main__ import checked

POSSIBLE = [(arm, device) for arm in ARMS for device in DEVICES if (arm, device) != ("colocate_sleep", "cpu")]


@pytest.mark.parametrize(("arm", "device"), POSSIBLE)
def test_every_arm_is_the_same_work_of_64_completions_a_step(arm, device):
    given = argparse.Namespace(model=ROOT / "tiny/checkpoint", device=device, learning_rate=1.5e-5, steps=50, set=[])
    recipe = checked(ROOT / f"recipes/{ARMS[arm][0]}.yaml", overrides(arm, 2, given))
    grpo = recipe["grpo"]
    assert recipe["model"]["path"] == "./tiny/checkpoint"  # below the project, so that the command works elsewhere
    assert grpo["per_device_train_batch_size"] * grpo["gradient_accumulation_steps"] == 64
    assert (grpo["seed"], grpo["max_steps"], grpo["learning_rate"]) == (2, 50, 1.5e-5)
    assert (recipe["model"]["dtype"], grpo["bf16"]) == ("float32", False)  # the module's docstring says why
    assert recipe["cluster"]["gpu"] == {"cuda": "H200-141GB", "cpu": "cpu"}[device]
    assert grpo.get("vllm_enable_sleep_mode", False) == (arm == "colocate_sleep")


def test_a_run_that_fails_is_done_once_more_and_leaves_its_rows(tmp_path):
    (tmp_path / "work" / "model-tiny").mkdir(parents=True)
    (tmp_path / "work" / "model-tiny" / "tokenizer_config.json").write_text("{}")  # no model: the check refuses the run
    command = [sys.executable, "benchmarks/learn_gpu.py", "--device", "cpu", "--size", "tiny", "--arms", "generate"]
    command += ["--seeds", "1", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    result = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("generate-s0 ") == 2
    rows = sorted((tmp_path / "out" / "failed").glob("*.json"))
    assert [row.name for row in rows] == ["generate-s0-1.json", "generate-s0-2.json"]
    assert json.loads(rows[0].read_text())["exit"]["status"] == "refused"
    assert "model.path" in rows[0].with_suffix(".txt").read_text()
    assert "no comparison" in result.stdout
