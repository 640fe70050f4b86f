"""Runs in wandb as rows of the table: offline files that the real wandb wrote, and its real client against a server of ours."""

import json
import os
import subprocess
import sys

import numpy
import pytest

from analysis.wandb_runs import from_offline
from launch.recipe import ROOT
from tests.analysis.wandb_server import node, wandb_server

DERIVED = {"ranks": 2, "gpus": 2, "optimizer_batch": 64, "generation_batch": 64}
RECIPE = {
    "name": "mirrored", "recipe": {"arm": "colocate"}, "model": {"path": "made/up"}, "rewards": {"accuracy": {"weight": 1.0}},
    "cluster": {"gpu": "H100-80GB", "server": None}, "grpo": {}, "tracking": {"project": "p", "group": None, "tags": []},
}  # fmt: skip
CONFIG = {"recipe": RECIPE, "recipe_hash": "h", "derived": DERIVED, "seed": 3, "git": {"commit": "c", "dirty": False}}
PHASES = {"generate": 3.0, "wait": 1.0}


def history(steps=3):
    """A run's history in wandb's rows: what TRL times during a step, TRL's metrics, then the record's mirror."""
    rows = [{"train/global_step": 0, "eval/rewards/accuracy/mean": 0.25}]
    for step in range(1, steps + 1):
        rows += [{"train/global_step": step - 1, "profiling/Time taken: Trainer.compute_loss": 0.5} for _ in range(7)]
        rows.append({"train/global_step": step, "train/reward": 0.5, "train/completions/max_length": 9.0})
        mirrored = {"record/seconds": 2.0, "record/tokens": 300, "record/completion_tokens": 200}
        rows.append(mirrored | {f"record/phase_seconds/{phase}": value for phase, value in PHASES.items()}
                    | {"train/global_step": step})  # fmt: skip
    return [*rows, {"train/global_step": steps, "eval/rewards/accuracy/mean": 0.75}]


def assert_as_set(run):
    assert (run["source"], run["recipe"], run["arm"], run["seed"], run["commit"]) == (
        "wandb",
        "mirrored",
        "colocate",
        3,
        "c",
    )
    assert run["steps"] == 3
    assert run["completions_per_second"] == pytest.approx(2 * 64 / 4.0), "nine rows a step are one step"
    assert run["per_device"] == pytest.approx(16)
    assert run["tokens_per_second"] == pytest.approx(100)
    assert run["trainers_idle"] == pytest.approx(0.25)
    assert (run["accuracy_before"], run["accuracy_after"], run["reward_area"]) == (0.25, 0.75, 0.5)
    assert numpy.isnan(run["peak_device_bytes"])


WRITE = """
import json, os, sys
from pathlib import Path
from training import tracking
manifest, rows, code = json.loads(sys.argv[2])
tracking.start(manifest, Path(sys.argv[1]))
import wandb
for row in rows:
    wandb.log(row)
if code is None:
    os._exit(9)
tracking.finish(code)
"""


def write_offline(folder, rows, code):

    folder.mkdir(parents=True)
    manifest = CONFIG | {"wandb_id": folder.name.split("-")[0]}
    command = [sys.executable, "-c", WRITE, str(folder), json.dumps([manifest, rows, code])]
    environment = os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=code is not None)


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wandb")
    write_offline(folder / "whole-1", history(), 0)
    write_offline(folder / "failing-1", history(2), 1)
    return folder


def test_offline_runs_that_wandb_wrote_come_back_as_logged(offline):
    found = from_offline(offline)
    assert found.problems == []
    runs = found.runs.set_index("status")
    assert_as_set(runs.loc["finished"])
    assert runs.loc["failed", "cause"] == "exit code 1"
    assert runs.loc["failed", "steps"] == 2
    assert runs.loc["finished", "hours"] >= 0
    assert any("peak_device_bytes" in line for line in found.lacking)


def test_a_torn_offline_file_gives_what_is_whole_and_says_so(offline, tmp_path):
    whole = next((offline / "whole-1").rglob("run-*.wandb"))
    content = whole.read_bytes()
    middle = len(content) // 2
    (tmp_path / "run-cut.wandb").write_bytes(content[: len(content) * 2 // 3])
    (tmp_path / "run-flipped.wandb").write_bytes(
        content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    )
    (tmp_path / "run-other.wandb").write_bytes(b"no file of wandb")
    found = from_offline(tmp_path)
    told = "\n".join(found.problems)
    assert "run-other.wandb: left out: not a file of wandb" in told
    assert "run-cut: 1 torn records left out" in told
    assert "run-flipped: 1 torn records left out" in told
    assert set(found.runs["status"]) == {"failed"}
    assert found.runs["cause"].tolist() == ["no exit code: killed, or going on"] * len(found.runs)
    assert (found.runs["steps"] <= 3).all()
    with pytest.raises(FileNotFoundError):
        from_offline(tmp_path / "nothing")


def test_the_second_attempt_of_a_run_counts_and_not_what_it_did_again(tmp_path):
    write_offline(tmp_path / "same-1", [*history(2), {"train/global_step": 3, "record/seconds": 99.0}], 1)
    write_offline(tmp_path / "same-2", history()[17:], 0)
    found = from_offline(tmp_path)
    assert len(found.runs) == 1
    assert_as_set(found.runs.iloc[0])


API = """
import json, sys
from analysis.wandb_runs import from_api
found = from_api("me/project")
try:
    from_api("me/nothing")
except ValueError as error:
    print(error, file=sys.stderr)
print(json.dumps({"runs": json.loads(found.runs.to_json(orient="records")), "problems": found.problems}))
"""


def test_the_api_gives_the_same_table(tmp_path):
    foreign = {"use_vllm": True, "vllm_mode": "colocate", "_name_or_path": "some/model", "max_completion_length": 64}
    trl = [{"train/global_step": step, "train/reward": 0.5, "train/step_time": 4.0, "train/num_tokens": 300.0 * step,
            "train/rewards/accuracy_reward/mean": 0.5} for step in (1, 2, 3)]  # fmt: skip
    nodes = [node("ours", "finished", CONFIG, history()), node("crashed", "crashed", CONFIG, history(2)),
             node("theirs", "finished", foreign, trl), node("empty", "failed", CONFIG, [{"loss": 1.0}])]  # fmt: skip
    with wandb_server(nodes) as address:
        environment = os.environ | {"WANDB_BASE_URL": address, "WANDB_API_KEY": "a" * 40, "WANDB_DIR": str(tmp_path),
                                    "WANDB_CACHE_DIR": str(tmp_path / "cache"), "WANDB_SILENT": "true"}  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", API], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "me/nothing" in done.stderr, "a project that is not there is refused in a sentence"
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    runs = {run["path"].split("/")[-1]: {key: numpy.nan if value is None else value for key, value in run.items()}
            for run in found["runs"]}  # fmt: skip
    assert set(runs) == {"ours", "crashed", "theirs"}
    assert_as_set(runs["ours"])
    assert runs["ours"]["gpu_hours"] == pytest.approx(3.0)
    assert (runs["crashed"]["status"], runs["crashed"]["cause"]) == ("failed", "wandb says crashed")
    assert (runs["theirs"]["arm"], runs["theirs"]["model"]) == ("colocate", "some/model")
    assert runs["theirs"]["steps_per_second"] == pytest.approx(1 / 4), (
        "TRL's own step_time, where no record is mirrored"
    )
    assert numpy.isnan(runs["theirs"]["completions_per_second"]), "nothing says how many completions a step has"
    assert found["problems"] == [
        "wandb:me/project/empty: left out: no row of its history has a step (train/global_step)"
    ]
