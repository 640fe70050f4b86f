"""The verdict on every committed case, by kind: reports from other projects (see each case's source) and our own."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from rewards.grading import grade_batch

HERE = Path(__file__).parent
CASES: dict[tuple[str, str], list[dict]] = defaultdict(list)
for name in ("reward_cases", "own_cases"):
    for line in (HERE / f"{name}.jsonl").read_text().splitlines():
        case = json.loads(line)
        CASES[name, case["kind"]].append(case)
WANTED = {True: 1.0, False: 0.0, "skip": None}


@pytest.fixture(scope="module")
def graded(pool):
    """The verdict on each case, by (file, id), all graded in one batch."""
    keys = [(name, case["id"], case) for (name, _), cases in CASES.items() for case in cases]
    verdicts = grade_batch([c["gold"] for *_, c in keys], [c["completion"] for *_, c in keys], pool=pool)
    return {(name, case_id): verdict for (name, case_id, _), verdict in zip(keys, verdicts, strict=True)}


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_kind(graded, name, kind):
    wrong = []
    for case in CASES[name, kind]:
        verdict = graded[name, case["id"]]
        # In these two kinds the gold itself may be the bomb: then no verdict is possible.
        gold_is_the_bomb = kind in ("hang", "crash") and verdict.reason == "unusable_gold"
        if verdict.reward != WANTED[case["expected"]] and not gold_is_the_bomb:
            wrong.append((case["id"], case["gold"][:80], case["completion"][-80:], case["expected"], verdict))
    assert not wrong


def test_no_case_runs_a_completion_as_code(graded, tmp_path):
    """huggingface: verl#7603, CVE-2026-6878: model text reached eval()."""
    target = tmp_path / "made"
    payload = rf'\boxed{{__import__("pathlib").Path("{target}").touch()}}'
    assert [v.reward for v in grade_batch(["5", r"\sin 1"], [payload, payload])] == [0.0, 0.0]
    assert not target.exists()


def test_gold_may_be_a_number():
    assert [v.reward for v in grade_batch([4, 4.0, 2.5], [r"\boxed{4}", r"\boxed{4}", r"\boxed{\frac52}"])] == [1.0] * 3
    assert grade_batch([float("nan"), True, ["4"]], [r"\boxed{4}"] * 3)[1].reason == "unusable_gold"


def test_gold_comes_first(pool):
    """open-r1#557: verify(answer, gold) is another question. An assignment answers a value, an equation does not."""
    pairs = [("x+y=1", "1"), ("1", "x+y=1"), ("5", "x=5"), ("x=5", "5"), (r"\frac{1}{3}", "0.33"), ("3", "5=3")]
    verdicts = grade_batch([gold for gold, _ in pairs], [rf"\boxed{{{answer}}}" for _, answer in pairs], pool=pool)
    assert [v.reward for v in verdicts] == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
