"""Which run a command takes up again, and what it does about damaged checkpoints."""

import json
import os
import subprocess
import sys

import pytest

from launch.recipe import ROOT, load
from launch.resume import StillGoing, changes, locked, newest, take_up, unfinished
from launch.run import make_run_folder, opened
from record import RunFolder, read_lines, write_lines
from record.checkpoints import WHOLE, checksum, file_names, seal

RECIPE = load(ROOT / "recipes" / "tiny_generate.yaml")


def add_checkpoint(folder: RunFolder, step: int, sealed: bool = True):
    path = folder.path / f"checkpoint-{step}"
    (path / "global_step").mkdir(parents=True)
    (path / "model.safetensors").write_bytes(os.urandom(100_000))
    (path / "global_step" / "optimizer.pt").write_bytes(os.urandom(1_000))
    if sealed:
        seal(path, {name: checksum(path / name, to_disk=True) for name in file_names(path)})
    return path


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    """A run that failed, with two whole checkpoints."""
    made = make_run_folder(RECIPE, tmp_path, [])
    add_checkpoint(made, 9)
    add_checkpoint(made, 10)
    made.finish("failed", "a reason")
    return made


def test_the_newest_unfinished_run_of_the_same_recipe_is_taken_up(folder, tmp_path):
    assert unfinished(RECIPE, tmp_path).path == folder.path
    assert unfinished(load(ROOT / "recipes" / "tiny_generate.yaml", ["grpo.seed=1"]), tmp_path) is None
    assert unfinished(RECIPE, tmp_path / "elsewhere") is None


def test_a_run_that_finished_since_has_overtaken_it(folder, tmp_path):
    make_run_folder(RECIPE, tmp_path, []).finish("finished")
    assert unfinished(RECIPE, tmp_path) is None


def test_a_later_run_without_a_checkpoint_does_not_hide_it(folder, tmp_path):
    make_run_folder(RECIPE, tmp_path, []).finish("failed", "early")
    assert unfinished(RECIPE, tmp_path).path == folder.path


def truncate(path):
    os.truncate(path / "model.safetensors", 99_999)


def flip(path):
    with open(path / "global_step" / "optimizer.pt", "r+b") as file:
        file.seek(500)
        byte = file.read(1)[0]
        file.seek(500)
        file.write(bytes([byte ^ 1]))


def remove(path):
    (path / "global_step" / "optimizer.pt").unlink()


def unseal(path):
    (path / WHOLE).unlink()


def damage_seal(path):
    os.truncate(path / WHOLE, 40)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "model.safetensors has 99999 bytes, not 100000"),
        (flip, "global_step/optimizer.pt is damaged (checksum)"),
        (remove, "global_step/optimizer.pt is missing"),
        (unseal, "no whole.json: it was cut short"),
        (damage_seal, "whole.json is damaged"),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_set_aside_and_the_one_before_is_taken(
    folder, tmp_path, capsys, damage, words
):
    damage(folder.path / "checkpoint-10")
    assert unfinished(RECIPE, tmp_path).path == folder.path
    assert f"checkpoint-10 is not whole ({words}): set aside as broken-checkpoint-10" in capsys.readouterr().err
    assert newest(folder) == folder.path / "checkpoint-9"
    assert (folder.path / "broken-checkpoint-10").is_dir(), "set aside, not deleted"


def test_without_a_whole_checkpoint_the_command_starts_anew_and_says_so(folder, tmp_path, capsys):
    flip(folder.path / "checkpoint-9")
    unseal(folder.path / "checkpoint-10")
    assert unfinished(RECIPE, tmp_path) is None
    assert "no whole checkpoint is left: starting from the beginning, in a new folder" in capsys.readouterr().err


HOLD = "import sys, time\nfrom launch.resume import locked\nfrom record import RunFolder\n" \
    "with locked(RunFolder(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)"  # fmt: skip


def test_a_run_that_is_going_is_not_taken_up_and_one_whose_launcher_dies_is(folder, tmp_path, capsys):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder.path)], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StillGoing), locked(folder):
            pass
        assert unfinished(RECIPE, tmp_path) is None
        assert "is still going: not resumed" in capsys.readouterr().err
    finally:
        holder.kill()
        holder.wait()
    assert unfinished(RECIPE, tmp_path).path == folder.path


def step_row(step: int, seconds: float, split: str = "train") -> dict:
    return {"step": step, "split": split, "unix_seconds": seconds}


def test_rows_after_the_checkpoint_are_moved_and_a_second_time_changes_nothing(folder, tmp_path):
    sealed = json.loads((folder.path / "checkpoint-10" / WHOLE).read_text())["unix_seconds"]
    kept = [step_row(9, sealed - 2), step_row(10, sealed - 1, "eval"), step_row(10, sealed - 1)]
    late = [step_row(10, sealed + 1, "eval"), step_row(11, sealed + 2)]
    write_lines(folder.metrics_path, kept + late)
    folder.write_error(0, "RuntimeError", "old", "")
    (folder.logs_path / "torchrun.log").write_text("old")
    git = {"commit": "0" * 40, "dirty": False}
    assert take_up(folder, git) == 10
    assert read_lines(folder.metrics_path)[0] == kept
    assert read_lines(folder.attempt_path(1) / "metrics.jsonl")[0] == late
    assert folder.errors() == []
    assert (folder.attempt_path(1) / "logs" / "torchrun.log").read_text() == "old"
    assert list(folder.logs_path.iterdir()) == []
    attempt = folder.manifest()["attempts"][-1]
    assert (attempt["from_step"], attempt["checkpoint"], attempt["exit"]["status"]) == (10, "checkpoint-10", "running")
    assert attempt["changed"]["git"][1] == "0000000", "another commit is recorded"
    take_up(folder, git)
    assert read_lines(folder.metrics_path)[0] == kept
    assert read_lines(folder.attempt_path(1) / "metrics.jsonl")[0] == late


def test_a_run_from_before_a_section_existed_gets_it_when_it_is_taken_up(folder, tmp_path):
    old = {name: value for name, value in RECIPE.items() if name not in ("lora", "speedups")} | {
        "tracking": {"project": "old"}
    }
    folder.update(recipe=old)
    with opened(RECIPE, tmp_path, [], unfinished(RECIPE, tmp_path)) as (taken_up, _):
        recipe = taken_up.manifest()["recipe"]
    assert taken_up.path == folder.path
    assert (recipe["lora"], recipe["speedups"]) == (RECIPE["lora"], RECIPE["speedups"])
    assert recipe["tracking"] == {"project": "old"}, "what the record says stays"


def test_a_launcher_killed_while_it_moves_rows_loses_none(folder):
    """It writes them where they go before it takes them from where they were."""
    sealed = json.loads((folder.path / "checkpoint-10" / WHOLE).read_text())["unix_seconds"]
    rows = [step_row(10, sealed - 1), step_row(11, sealed + 2)]
    write_lines(folder.metrics_path, rows)
    folder.attempt_path(1).mkdir(parents=True)
    write_lines(folder.attempt_path(1) / "metrics.jsonl", rows[1:])
    take_up(folder, {"commit": None, "dirty": None})
    assert read_lines(folder.attempt_path(1) / "metrics.jsonl")[0] == rows[1:]
    assert read_lines(folder.metrics_path)[0] == rows[:1]


def test_other_packages_are_named(folder):
    folder.update(packages={"torch": "1.0", "python": "2.7"})
    found = changes(folder.manifest(), folder.manifest()["git"])
    assert found["torch"][0] == "1.0"
    assert found["python"][0] == "2.7"
    assert "git" not in found
