"""The tiny experiment's problems: golds are right, splits are apart, and the data are what the generator makes."""

import importlib.metadata
import random
import re

import pytest

from tiny.demonstrations import boxed, draw, step_by_step
from tiny.make_data import DATA, REASONING_GYM_VERSION, SPLIT_PROBLEMS, expression, make
from tiny.warm_up import load


def worked_out(chain: str) -> int:
    """The value of a chain such as "7-4+0", or of its beginning: its signed terms, added up."""
    assert re.fullmatch(r"\d([+-]\d){,4}", chain), chain
    return sum(int(term) for term in re.findall(r"[+-]?\d", chain))


@pytest.mark.parametrize("split", SPLIT_PROBLEMS)
def test_every_gold_is_the_value_of_its_chain(split):
    rows = load(split)
    assert len(rows) == SPLIT_PROBLEMS[split]
    wrong = [row for row in rows if worked_out(expression(row["problem"])) != int(row["answer"])]
    assert wrong == []


def test_no_chain_occurs_twice_within_or_across_the_splits():
    chains = {split: [expression(row["problem"]) for row in load(split)] for split in SPLIT_PROBLEMS}
    for split, listed in chains.items():
        assert len(listed) == len(set(listed)), split
    assert set(chains["train"]) & set(chains["test"]) == set()


def test_the_same_chain_worded_or_spaced_otherwise_is_the_same_problem():
    assert expression("State the final answer: 7 - 4 + 0 =") == expression("Work out: 7-4  + 0=") == "7-4+0"
    with pytest.raises(ValueError, match="not a chain of sums"):
        expression("What is the largest of 3, 5 and 1?")


@pytest.mark.parametrize("split", SPLIT_PROBLEMS)
def test_worked_demonstrations_show_every_running_total(split):
    for row in load(split):
        *steps, final = step_by_step(**row).split(" ")
        chain = expression(row["problem"])
        assert final == boxed(row["answer"]) == f"\\boxed{{{worked_out(chain)}}}"
        for i, step in enumerate(steps):
            before, after = chain[: 2 * i + 1], chain[: 2 * i + 3]
            assert step == f"{worked_out(before)}{after[-2:]}={worked_out(after)}"


def test_warm_up_draws_both_ways_of_answering_from_the_rows_it_is_given_alone():
    rows, rng = load("train")[:50], random.Random(0)
    drawn = [draw(rows, step_by_step_share=0.4, rng=rng) for _ in range(2000)]
    assert {problem for problem, _ in drawn} == {row["problem"] for row in rows}
    worked_share = sum(not demonstration.startswith("\\boxed") for _, demonstration in drawn) / len(drawn)
    assert 0.35 < worked_share < 0.45  # four standard deviations on either side


@pytest.mark.optional
def test_the_committed_data_are_what_the_generator_makes():
    try:
        installed = importlib.metadata.version("reasoning-gym")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"reasoning-gym {REASONING_GYM_VERSION} is not installed; it is needed to make the data again")
    if installed != REASONING_GYM_VERSION:
        pytest.skip(f"reasoning-gym {installed} is installed; the data are made with {REASONING_GYM_VERSION}")
    assert {split: load(split) for split in SPLIT_PROBLEMS} == make()
    assert {path.stem for path in DATA.glob("*.jsonl")} == set(SPLIT_PROBLEMS)
