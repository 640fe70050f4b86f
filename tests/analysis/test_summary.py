"""Known answers: records whose figures are set by hand come back as set."""

import json
import re

import pytest

from analysis.frames import frames
from analysis.load import load_run
from analysis.metrics import phase_shares
from analysis.style import ARMS, HELD_OUT
from analysis.summary import draw_reward_curve, summarize, table
from record import LineWriter, RunFolder


def make_run(path, metrics, phases=None, status="finished"):
    path.mkdir()
    folder = RunFolder(path)
    folder.update(
        recipe={"name": "made_up", "recipe": {"arm": "colocate"}, "rewards": {"accuracy_boxed": {"weight": 1.0}}},
        seed=7,
        data={"eval": {"kept_rows": 100}},
        exit={"status": status, "cause": None},
    )
    writer = LineWriter(folder.metrics_path)
    for row in metrics:
        writer.write(row)
    for rank, intervals in (phases or {}).items():
        writer = LineWriter(folder.phases_path(rank))
        for interval in intervals:
            writer.write(interval)
    return load_run(path)


def step(number, seconds, tokens, reward=0.5):
    return {"step": number, "split": "train", "seconds": seconds, "completion_tokens": tokens, "reward": reward}


def evaluation(number, accuracy):
    return {"step": number, "split": "eval", "seconds": 1.0, "rewards/accuracy_boxed/mean": accuracy}


def interval(phase, number, seconds, split="train"):
    return {"phase": phase, "step": number, "split": split, "start_unix_seconds": 0.0, "seconds": seconds}


def test_throughput_and_accuracy_come_back_as_set(tmp_path):
    # the first step carries compilation, and is left out: 300 tokens in 3 s remain
    run = make_run(
        tmp_path / "run",
        [evaluation(0, 0.25), step(1, 60.0, 10), step(2, 1.0, 100), step(3, 2.0, 200), evaluation(3, 0.75)],
    )
    figures = summarize(run)
    assert figures["tokens_per_second"] == pytest.approx(100.0)
    assert figures["median_step_seconds"] == pytest.approx(1.5)
    assert (figures["accuracy_before"], figures["accuracy_after"]) == (0.25, 0.75)
    assert figures["steps"] == 3
    text = table(run)
    assert "0.750  (100 problems)" in text
    assert "made_up (colocate), seed 7, finished" in text


def test_phase_shares_are_of_training_steps_after_the_first(tmp_path):
    phases = {
        0: [
            interval("generate", 1, 50),
            interval("generate", 2, 3),
            interval("grade", 2, 1),
            interval("score", 2, 9, "eval"),
        ],
        1: [interval("generate", 2, 1), interval("wait", 2, 3)],
    }
    run = make_run(tmp_path / "run", [step(1, 1.0, 1), step(2, 1.0, 1)], phases)
    assert phase_shares(frames(run)) == {"generate": 0.5, "wait": 0.375, "grade": 0.125}


def test_what_is_missing_is_none_and_shown_as_a_dash_never_zero(tmp_path):
    run = make_run(tmp_path / "run", [step(1, None, 5, reward=None)], status="failed")
    figures = summarize(run)
    assert figures["tokens_per_second"] is None
    assert figures["accuracy_before"] is None
    assert figures["accuracy_after"] is None
    text = table(run)
    assert "failed" in text
    assert re.search(r"completion tokens/s +-$", text, re.MULTILINE)


def test_an_evaluation_before_training_is_not_one_after(tmp_path):
    run = make_run(tmp_path / "run", [evaluation(0, 0.25)])
    assert summarize(run)["accuracy_after"] is None


def test_torn_lines_are_counted(tmp_path):
    run = make_run(tmp_path / "run", [step(1, 1.0, 1)])
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(step(2, 1.0, 1))[:20])
    again = load_run(run.path)
    assert again.torn_lines == 1
    assert len(again.train_steps()) == 1


def test_the_reward_curve_is_a_picture_with_its_points(tmp_path):
    from matplotlib import image
    from matplotlib.colors import to_rgb

    run = make_run(
        tmp_path / "run", [evaluation(0, 0.2), *[step(n, 1.0, 1, n / 20) for n in range(1, 20)], evaluation(19, 0.9)]
    )
    pixels = image.imread(draw_reward_curve(run, tmp_path / "reward.png"))[:, :, :3]
    assert pixels.shape[0] > 300
    for color in (ARMS["colocate"].color, HELD_OUT):
        assert (abs(pixels - to_rgb(color)).sum(axis=2) < 0.05).sum() > 100, "the reward's line and the held-out points"
