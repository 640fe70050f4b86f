"""The sentinel on the weights: what it lets pass, what it stops, and three real faults in real runs."""

import json
import math
import random

import pytest

from launch.recipe import ROOT
from tests.real_runs import launch, processes_of
from training.sentinel import FIRST_LIMIT, LEAST_FACTOR, MOST_FACTOR, Sentinel, WeightsOutOfSync, sampling_is_cut


def feed(sentinel: Sentinel, levels) -> int | None:
    """The step at which the sentinel stops a run with these levels, counted from 1; None if it does not."""
    for step, level in enumerate(levels, start=1):
        try:
            sentinel.observe(step, level)
        except WeightsOutOfSync:
            return step
    return None


def scattered(level: float, scatter: float, count: int, seed: int) -> list[float]:
    """Levels whose logarithm has this standard deviation."""
    generator = random.Random(seed)
    return [level * math.exp(generator.gauss(0, scatter)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("dtype", "level"), [("float32", 3e-7), ("bfloat16", 1e-4), ("bfloat16", 1e-3)])
def test_levels_as_measured_raise_no_alarm_in_a_thousand_steps(dtype, level, seed):
    assert feed(Sentinel(dtype), scattered(level, 0.4, 1000, seed)) is None


@pytest.mark.parametrize(("dtype", "level", "fault"), [("float32", 3e-7, 1e-3), ("bfloat16", 5e-4, 2e-2)])
@pytest.mark.parametrize("clean_steps", [1, 2, 5, 50])
def test_a_fault_is_caught_at_its_second_step_however_early_it_comes(dtype, level, fault, clean_steps):
    levels = scattered(level, 0.3, clean_steps, 0) + scattered(fault, 0.3, 5, 1)
    assert feed(Sentinel(dtype), levels) == clean_steps + 2


def test_one_step_over_the_limit_is_forgiven_and_not_learnt_from():
    sentinel = Sentinel("float32")
    assert feed(sentinel, [3e-7, 1e-3, 3e-7, 1e-3, 3e-7]) is None
    assert sentinel.limit == pytest.approx(3e-6)


def test_a_leak_that_grows_slowly_is_caught_when_it_is_a_decade_above_the_start():
    levels = [3e-7 * 1.05**step for step in range(500)]
    stopped = feed(Sentinel("float32"), levels)
    assert stopped is not None
    assert levels[stopped - 1] < 3e-7 * 2 * LEAST_FACTOR


def test_a_run_that_scatters_widely_gets_a_wider_limit_but_never_beyond_the_most():
    wide = Sentinel("bfloat16")
    feed(wide, [1e-3, 3e-3, 1e-3, 2e-4, 5e-4, 3e-3, 2e-4, 1e-3, 4e-3, 3e-4])
    assert 1e-3 * LEAST_FACTOR < wide.limit <= 1.001e-3 * MOST_FACTOR


def test_sides_that_never_agree_are_stopped_at_the_second_step_unless_sampling_is_cut():
    apart = [FIRST_LIMIT["bfloat16"] * 2] * 5
    assert feed(Sentinel("bfloat16"), apart) == 2
    assert feed(Sentinel("bfloat16", cut=True), apart) is None


def test_steps_without_a_token_say_nothing():
    sentinel = Sentinel("float32")
    assert feed(sentinel, [None, 3e-7, None, 1e-3, None, 1e-3]) == 6


def test_the_error_names_the_step_the_level_the_limit_and_the_meaning():
    sentinel = Sentinel("float32")
    with pytest.raises(
        WeightsOutOfSync, match=r"step 9: .* 0\.0023 .* limit of 3e-06.* own level is 3e-07.*weight sync"
    ):
        for step, level in ((7, 3e-7), (8, 2e-3), (9, 2.3e-3)):
            sentinel.observe(step, level)


def test_what_cuts_the_sampled_distribution():
    plain = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
    assert not sampling_is_cut(plain)
    for change in ({"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.1}, {"repetition_penalty": 1.1}):
        assert sampling_is_cut(plain | change)


SMALL = (
    "grpo.max_steps=8", "grpo.max_completion_length=24", "data.eval_split=null", "grpo.per_device_train_batch_size=16",
)  # fmt: skip
COLOCATE, ZERO3_TP2, SERVER = "recipes/tiny_colocate.yaml", "recipes/tiny_zero3_tp2.yaml", "recipes/tiny_server.yaml"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "fault", "overrides"),
    [
        (COLOCATE, "skip", ()),
        (COLOCATE, "stale", ()),
        (COLOCATE, "layer", ()),
        (COLOCATE, "skip", ("grpo.vllm_importance_sampling_correction=false",)),
        (ZERO3_TP2, "layer", ()),
        (SERVER, "stale", ()),
    ],
)
def test_a_fault_in_a_real_run_stops_it_within_three_steps(tmp_path, recipe, fault, overrides):
    """The faults are there from the start. They can be seen from the second step on, when the trainer has moved."""
    outcome = launch(
        recipe,
        tmp_path,
        [*SMALL, *overrides],
        PYTHONPATH=str(ROOT / "tests" / "training" / "break_sync"),
        BREAK_SYNC=fault,
    )
    assert outcome.code == 1, outcome.output
    assert "WeightsOutOfSync" in outcome.output
    run = outcome.run
    assert run.manifest["exit"]["status"] == "failed"
    assert "the weight sync is broken" in run.manifest["exit"]["cause"]
    levels = [row["sentinel/level"] for row in run.train_steps()]
    first_visible = next(step for step, level in enumerate([*levels, math.inf], start=1) if level > 1e-5)
    stopped = len(levels) + 1
    assert stopped - first_visible + 1 <= 3
    assert run.torn_lines == 0
    errors = [json.loads(path.read_text()) for path in run.path.glob("error.rank*.json")]
    own = [error for error in errors if error["kind"] == "WeightsOutOfSync"]
    assert {error["message"].split(":")[0] for error in own} == {f"step {stopped}"}, "every rank stops at the same step"
    assert processes_of(tmp_path) == []
