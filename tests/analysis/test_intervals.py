"""Intervals: they hold the truth as often as they say, in 1,000 experiments of the sizes that the results have."""

import numpy
import pytest

from analysis.intervals import estimate, mean_interval, ratio_estimate

EXPERIMENTS = 1000


def accuracies(random, count):
    """Held-out accuracies of 256 problems at temperature 1, of policies that differ a little by seed."""
    return random.binomial(256, numpy.clip(random.normal(0.96, 0.01, size=count), 0, 1)) / 256


def times(random, count):
    """Step times, skewed as those of a shared machine are."""
    return random.lognormal(0.0, 0.2, size=count)


@pytest.mark.parametrize(("draw", "truth"), [(accuracies, 0.96), (times, numpy.exp(0.02))])
@pytest.mark.parametrize("count", [5, 8])
def test_the_interval_of_a_mean_covers_the_truth_in_93_to_97_of_100_experiments(draw, truth, count):
    random, covered = numpy.random.default_rng(1), 0
    for experiment in range(EXPERIMENTS):
        low, high = mean_interval(draw(random, count), resamples=2000, seed=experiment)
        covered += low <= truth <= high
    assert 0.93 <= covered / EXPERIMENTS <= 0.97


def test_the_interval_of_a_ratio_of_pairs_covers_the_truth_too():
    random, covered = numpy.random.default_rng(2), 0
    for _ in range(EXPERIMENTS):
        machine = random.lognormal(0.0, 0.3, size=5)  # how busy it was, shared by a pair
        first, second = (machine * speed * random.lognormal(0.0, 0.05, size=5) for speed in (1.43, 1.0))
        found = ratio_estimate(first / second)
        covered += found.low <= 1.43 <= found.high
    assert 0.93 <= covered / EXPERIMENTS <= 0.97


def test_the_plain_percentile_interval_would_not_pass():
    """What the bootstrap-t is for: the check above can fail."""
    random, covered = numpy.random.default_rng(1), 0
    for _ in range(EXPERIMENTS):
        values = accuracies(random, 5)
        low, high = numpy.quantile(random.choice(values, size=(2000, 5)).mean(axis=1), [0.025, 0.975])
        covered += low <= 0.96 <= high
    assert covered / EXPERIMENTS < 0.9


def test_few_equal_and_missing_values():
    assert estimate([]) is None
    assert estimate([None, float("nan")]) is None
    few = estimate([0.2, None, 0.4])
    assert (few.mean, few.low, few.high, few.count) == (pytest.approx(0.3), None, None, 2)
    assert few.bounds == (0.2, 0.4), "the range stands where no interval is"
    same = estimate([0.5] * 5)
    assert (same.low, same.high) == (0.5, 0.5)
    tied = estimate([0.5, 0.5, 0.5, 0.5, 0.6])
    assert tied.low < tied.mean < tied.high < numpy.inf, "resamples without spread make no infinite interval"
    assert estimate([1, 2, 3, 4, 9]) == estimate([1, 2, 3, 4, 9]), "the same values, the same interval"
    assert ratio_estimate([2.0, 0.5]).mean == pytest.approx(1.0)
    with pytest.raises(ValueError, match="positive"):
        ratio_estimate([1.0, 0.0])
