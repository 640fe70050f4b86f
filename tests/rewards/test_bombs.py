"""Bombs: each ends within its limits, none is paid, and the completions beside it get their verdicts."""

from __future__ import annotations

import pytest

from rewards.grading import grade_batch
from rewards.limits import Limits
from rewards.pool import Pool

BOMBS = {
    "power": "10^{10^{10}}",
    "power tower": "9^{9^{9^{9^{9}}}}",
    "factorial tower": "(((10!)!)!)!",
    "large factorial": "(10^{10})!",
    "large binomial": r"\binom{10^{9}}{5\cdot 10^{8}}",
    "deep parentheses": "(" * 3000 + "1" + ")" * 3000,
    "deep fractions": r"\frac{1}{" * 500 + "2" + "}" * 500,
    "deep braces": "{" * 20_000 + "1" + "}" * 20_000,
    "deep roots": r"\sqrt{" * 800 + "2" + "}" * 800,
    "unbalanced": "(" * 20_000,
    "a megabyte of digits": "1" * 1_000_000,
    "a megabyte of decimals": "0." + "1" * 1_000_000,
    "a megabyte of commas": "1," * 500_000,
    "a long sum": "1+" * 20_000 + "1",
    "many plus-minus": r"\pm" * 5000 + "1",
    "sum": r"\sum_{k=1}^{10^{12}} \frac{1}{k^2+k+1}",
    "triple sum": r"\sum_{i=1}^{100}\sum_{j=1}^{100}\sum_{k=1}^{100} i j k",
    "product": r"\prod_{k=1}^{10^9} k",
    "integral": r"\int_0^{10^{6}} \sin(x^x) dx",
    "limit": r"\lim_{n\to\infty} \sum_{k=1}^{n} \sin(k!)",
    "expansion": "(x+1)^{100000}",
    "inequality": "x^{50}-3x^{17}+2x^3-x+1<0",
    "equation": "x^7+y^5+z^3+w^{11}=xyzw",
    "symbolic determinant": r"\begin{vmatrix}"
    + r"\\".join("&".join(f"x_{{{9 * i + j}}}" for j in range(9)) for i in range(9))
    + r"\end{vmatrix}",
    "large set": r"\{" + ",".join(map(str, range(20_000))) + r"\}",
    "large matrix": r"\begin{pmatrix}" + ("1&" * 300 + r"1\\") * 30 + r"\end{pmatrix}",
    "sine of a power": r"\sin(10^{10^{8}})",
    "modulus of a tower": r"7^{7^{7^{7}}} \mod 10",
    "cancelling towers": "5^{5^{5^{5}}} - 5^{5^{5^{5}}} + 6",
    "many unions": r"(-\infty,1)\cup" * 300 + "(2,3)",
    "open commands": r"\frac" * 20_000,
    "long product of symbols": "x" * 20_000,
}
TIME_SECONDS = 1.0


@pytest.fixture(scope="module")
def impatient():
    pool = Pool(Limits(time_seconds=TIME_SECONDS, workers=2))
    pool.run([{"gold": "x", "answer": "x+0"}])
    yield pool
    pool.close()


@pytest.mark.slow
@pytest.mark.parametrize("gold", ["5", "x^2+1"])
def test_bombs_as_answers(impatient, gold):
    completions = [text for bomb in BOMBS.values() for text in (rf"So \boxed{{{bomb}}}.", rf"So \boxed{{{gold}}}.")]
    verdicts = grade_batch([gold] * len(completions), completions, pool=impatient)
    assert [v.reason for v in verdicts[1::2]] == ["correct"] * len(BOMBS)
    for name, verdict in zip(BOMBS, verdicts[::2], strict=True):
        assert verdict.reward == 0.0, name
        assert verdict.seconds <= 1.2 * TIME_SECONDS, name


@pytest.mark.slow
def test_bombs_as_golds(impatient):
    """A gold that overruns allows no verdict; one that can be evaluated is simply not 5."""
    verdicts = grade_batch(list(BOMBS.values()), [r"\boxed{5}"] * len(BOMBS), pool=impatient)
    for name, verdict in zip(BOMBS, verdicts, strict=True):
        assert verdict.reward in (0.0, None), name
        assert verdict.seconds <= 1.2 * TIME_SECONDS, name
    assert verdicts[list(BOMBS).index("power tower")].reason == "unusable_gold"


def test_some_bombs(impatient):
    """The four that were reported most, in the run that is not slow."""
    names = ["power", "power tower", "factorial tower", "deep parentheses"]
    verdicts = grade_batch(["2"] * 5, [rf"\boxed{{{BOMBS[n]}}}" for n in names] + [r"\boxed{2}"], pool=impatient)
    assert [v.reward for v in verdicts] == [0.0] * 4 + [1.0]
    assert all(v.seconds <= 1.2 * TIME_SECONDS for v in verdicts)
