"""pass@k and its interval, from how many of each problem's samples are right."""

import math
from statistics import NormalDist

import numpy

LEVEL = 0.95
RESAMPLES = 10_000


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """The chance that at least one of `k` samples, drawn without replacement from `samples` of which `correct` are right, is
    right: the unbiased estimator of pass@k (Chen et al. 2021, arXiv 2107.03374, equation 1). It is 1 - C(n-c, k) / C(n, k),
    taken as a product, since the binomials overflow.

    Raises:
        ValueError: k is not in 1 to `samples`, or `correct` not in 0 to `samples`.
    """
    if not 1 <= k <= samples or not 0 <= correct <= samples:
        raise ValueError(
            f"pass@k needs 1 <= k <= samples and 0 <= correct <= samples, not {k=}, {samples=}, {correct=}"
        )
    if samples - correct < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(samples - correct + 1, samples + 1))


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson 1927; Brown, Cai and DasGupta 2001, equation 4)."""
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    share, spread = successes / trials, z * z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / trials + spread / (4 * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap(values: list[float]) -> tuple[float, float]:
    """The 95 % interval of the mean, by resampling `values` (percentile method, seeded)."""
    random, values = numpy.random.default_rng(0), numpy.asarray(values)
    means = numpy.array([random.choice(values, size=len(values)).mean() for _ in range(RESAMPLES)])
    low, high = numpy.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def estimate(correct: list[int], samples: int, k: int) -> dict:
    """pass@k over problems, with its 95 % interval over the choice of problems.

    Where each problem's value is 0 or 1, as it is with k = samples, the interval is Wilson's; else it is a bootstrap over
    problems, which takes in both the problems' difference and the samples' luck. (Over equal values a bootstrap has no width.)

    Args:
        correct: of each problem, how many of its samples are right. Not empty.
    """
    values = [pass_at_k(samples, count, k) for count in correct]
    mean = sum(values) / len(values)
    binary = set(values) <= {0.0, 1.0}
    low, high = wilson(round(sum(values)), len(values)) if binary else bootstrap(values)
    return {"k": k, "value": mean, "low": low, "high": high, "interval": "wilson" if binary else "bootstrap"}
