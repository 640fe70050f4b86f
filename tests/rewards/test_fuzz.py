"""A small fuzz in each run; the long one's figures are in results/rewards/fuzz.json."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewards.extract import final_answer, gold_answer
from rewards.latex import canonical
from rewards.limits import Limits
from rewards.structure import describe, parse
from tests.rewards.fuzz_rewards import FRAGMENTS, fuzz


def test_a_thousand_mutations():
    figures = fuzz(1000, seed=1, limits=Limits(time_seconds=2.0, workers=2))
    assert figures["failures"] == []
    assert sum(figures["reasons"].values()) == 1000


latex = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=3)), max_size=40).map("".join)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(latex)
def test_reading_never_raises_and_settles(text):
    """The trainer's side reads anything; a canonical text is its own canonical form, or becomes so by the second time."""
    final_answer(text)
    gold_answer(text)
    once = canonical(text)
    describe(parse(once))
    twice = canonical(once)
    assert canonical(twice) == twice or canonical(canonical(twice)) == canonical(twice)
