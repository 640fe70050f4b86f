"""pass@k against exhaustive counting, and intervals with known answers."""

import itertools
import random
from statistics import NormalDist, stdev

import pytest

from training.estimates import bootstrap, estimate, pass_at_k, wilson


@pytest.mark.parametrize("samples", range(1, 9))
def test_pass_at_k_is_what_counting_every_draw_gives(samples):
    for correct in range(samples + 1):
        verdicts = [True] * correct + [False] * (samples - correct)
        for k in range(1, samples + 1):
            draws = [any(draw) for draw in itertools.combinations(verdicts, k)]
            assert pass_at_k(samples, correct, k) == pytest.approx(sum(draws) / len(draws), abs=1e-12)


def test_pass_at_k_does_not_overflow():
    assert pass_at_k(100_000, 1, 50_000) == pytest.approx(0.5)
    assert pass_at_k(100_000, 50_000, 1) == pytest.approx(0.5)
    assert 0.999 < pass_at_k(10_000, 100, 1_000) < 1


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_what_cannot_be_estimated_is_refused(samples, correct, k):
    with pytest.raises(ValueError, match="1 <= k <= samples"):
        pass_at_k(samples, correct, k)


# Newcombe 1998, Statistics in Medicine 17, 857-872, table I, method 3
@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0000, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_published_intervals(successes, trials, low, high):
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)
    mirrored = wilson(trials - successes, trials)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_the_bootstrap_is_as_wide_as_the_normal_theory_says_for_many_problems():
    values = [random.Random(1).random() for _ in range(1)] + [random.Random(seed).random() for seed in range(400)]
    low, high = bootstrap(values)
    half = NormalDist().inv_cdf(0.975) * stdev(values) / len(values) ** 0.5
    mean = sum(values) / len(values)
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=0.05 * half)
    assert bootstrap(values) == (low, high), "seeded"


def test_an_estimate_names_its_interval():
    correct = [0, 1, 2, 4]
    one, four = estimate(correct, 4, 1), estimate(correct, 4, 4)
    assert (one["value"], one["interval"]) == (pytest.approx(7 / 16), "bootstrap")
    assert (four["value"], four["interval"]) == (pytest.approx(3 / 4), "wilson")
    assert one["low"] < one["value"] < one["high"]
    sure = estimate([4, 4, 4], 4, 2)
    assert (sure["value"], sure["interval"]) == (1.0, "wilson")
    assert sure["low"] < 0.5, "three problems solved each time are no certainty"
