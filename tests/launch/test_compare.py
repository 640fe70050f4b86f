"""Comparing arms: the order of runs, what is refused, the figures from records, and a real pair."""

import json
import re
import subprocess
import sys

import numpy
import pytest

from analysis.compare import compare, figures
from analysis.frames import frames
from analysis.learning import compare as compare_learning
from analysis.learning import permutation_p_value
from analysis.load import Run
from analysis.metrics import server_idle
from launch.compare import order
from launch.recipe import ROOT
from tests.real_runs import processes_of

COLOCATE, SERVER = "recipes/tiny_colocate.yaml", "recipes/tiny_server.yaml"


def test_runs_alternate_so_that_neither_arm_is_always_first():
    assert list(order(3)) == [0, 1, 1, 0, 0, 1]
    assert list(order(4)).count(0) == list(order(4)).count(1) == 4


def compared(a, b, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "launch", "compare", a, b, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_is_no_pair_is_refused_before_anything_runs(tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(re.sub("learning_rate: .*", "learning_rate: 1.0e-6", (ROOT / SERVER).read_text()))
    done = compared(COLOCATE, str(other), "--runs", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert "grpo.learning_rate" in done.stderr
    assert "no pair" in done.stderr
    assert not (tmp_path / "runs").exists()


def run_of(path, arm, seconds, phases, server_phases=(), ranks=1):
    """A record as a run leaves it, with the given step seconds and intervals (phase, start, seconds), all of step 2."""
    server = {"nodes": 1, "gpus_per_node": 1} if arm == "server" else None
    manifest = {
        "exit": {"status": "finished"},
        "recipe": {"name": f"tiny_{arm}", "recipe": {"arm": arm}, "cluster": {"server": server}, "rewards": {}},
        "derived": {"ranks": ranks, "optimizer_batch": 64},
    }
    rows = [{"step": 1, "split": "train", "seconds": 99.0}]
    rows += [{"step": step, "split": "train", "seconds": value} for step, value in enumerate(seconds, start=2)]

    def intervals(entries):
        return [
            {"phase": phase, "step": 2, "split": "train", "start_unix_seconds": start, "seconds": length}
            for phase, start, length in entries
        ]

    return Run(
        path, manifest, rows, {rank: intervals(phases) for rank in range(ranks)}, intervals(server_phases), [], 0
    )


def test_the_figures_of_a_record_worked_out_by_hand(tmp_path):
    phases = [("sync", 0.0, 1.0), ("generate", 1.0, 3.0), ("forward_backward", 4.0, 4.0), ("wait", 8.0, 2.0)]
    run = run_of(tmp_path / "s", "server", [10.0, 6.0], phases, [("sync", 0.25, 0.5), ("generate", 1.0, 2.5)], ranks=3)
    found = figures(run)
    assert found["completions_per_second"] == pytest.approx(2 * 64 / 16)
    assert found["devices"] == 4
    assert found["per_device"] == pytest.approx(8 / 4)
    assert found["normalised"] == pytest.approx(8 * 4 / 3), "the post's 8/7 with 3 training devices"
    assert found["trainers_idle"] == pytest.approx((3 + 2) / 10)
    assert found["server_idle"] == pytest.approx(1 - 3 / 10)
    assert found["devices_idle"] == pytest.approx((0.5 * 3 + 0.7) / 4)
    colocated = figures(run_of(tmp_path / "c", "colocate", [8.0], phases, ranks=4))
    assert colocated["trainers_idle"] == pytest.approx(0.2), "a colocated rank computes while it generates"
    assert colocated["server_idle"] is None
    assert colocated["normalised"] == colocated["completions_per_second"]


def test_busy_time_outside_training_does_not_count(tmp_path):
    run = run_of(
        tmp_path / "s", "server", [10.0], [("generate", 10.0, 4.0)], [("generate", 8.0, 3.0), ("generate", 13.5, 9.0)]
    )
    assert 1 - server_idle(frames(run)) == pytest.approx((1.0 + 0.5) / 4)


def test_ratios_are_of_neighbours_and_come_with_their_range(tmp_path):
    phases = [("generate", 0.0, 1.0)]
    seconds = {"colocate": (4.0, 8.0), "server": (2.0, 2.0)}
    runs = [
        run_of(tmp_path / f"{arm}{turn}", arm, [seconds[arm][turn]], phases, [("generate", 0, 1)])
        for turn, arms in enumerate((("colocate", "server"), ("server", "colocate")))
        for arm in arms
    ]
    ratio = compare(runs)["ratios"]["completions_per_second"]
    assert (ratio["least"], ratio["most"]) == (2.0, 4.0)
    with pytest.raises(ValueError, match="equally many"):
        compare(runs[:3])


def exported(arm, seed, accuracy, reward):
    figures = {"arm": arm, "seed": seed, "recipe": f"tiny_{arm}", "status": "finished", "accuracy_after": accuracy}
    return {"figures": figures, "curve": [{"step": 1, "reward": reward}, {"step": 2, "reward": reward}]}


def test_arms_that_differ_are_told_apart_and_arms_that_do_not_are_not():
    seeds = range(6)
    same = [
        exported(arm, seed, 0.8 + 0.02 * ((seed * 7 + len(arm)) % 5), 0.5)
        for arm in ("colocate", "server")
        for seed in seeds
    ]
    assert compare_learning(same)["p_values"]["held_out_accuracy"] > 0.05
    better = {"colocate": 0.0, "server": 0.2, "generate": 0.0}
    apart = [exported(arm, seed, 0.5 + gain + 0.02 * (seed % 3), 0.5) for arm, gain in better.items() for seed in seeds]
    result = compare_learning(apart)
    assert result["p_values"]["held_out_accuracy"] < 0.05
    server = result["arms"]["server"]["held_out_accuracy"]
    assert server["low"] <= server["mean"] <= server["high"]
    assert result["arms"]["colocate"]["held_out_accuracy"]["high"] < server["low"]
    with pytest.raises(ValueError, match="same two seeds"):
        compare_learning(apart[:-1])
    with pytest.raises(ValueError, match="two runs of colocate have seed 0"):
        compare_learning([*apart, exported("colocate", 0, 0.5, 0.5)])


def test_the_permutation_test_says_yes_to_noise_as_often_as_it_should():
    random = numpy.random.default_rng(1)
    p_values = [permutation_p_value(random.normal(size=(3, 5)), random) for _ in range(100)]
    assert sum(value < 0.05 for value in p_values) <= 12  # 5 expected; above 12 with probability 0.0015
    assert 0.35 < numpy.mean(p_values) < 0.65


@pytest.mark.slow
def test_a_real_pair_is_compared_from_its_records(tmp_path):
    export = tmp_path / "result.json"
    small = ("grpo.max_steps=3", "grpo.max_completion_length=24", "data.eval_split=null")
    overrides = [part for item in small for part in ("--set", item)]
    done = compared(
        COLOCATE, SERVER, "--repeats", "1", "--runs", str(tmp_path / "runs"), "--export", str(export), *overrides
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for label in ("completions/s", "per device", "x all / training devices", "trainers idle", "server idle"):
        assert label in done.stdout
    result = json.loads(export.read_text())
    colocate, server = result["arms"]
    assert (colocate["arm"], server["arm"]) == ("colocate", "server")
    assert colocate["devices"] == server["devices"] == 2
    assert 0 < server["server_idle"]["median"] < 1
    assert server["normalised"]["median"] == pytest.approx(2 * server["completions_per_second"]["median"])
    assert processes_of(tmp_path) == []
