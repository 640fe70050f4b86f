"""The verdicts that need no sympy: the leaves of `rewards.shapes` as plain arithmetic, in the trainer's process.

Sound because it takes a verdict only where every leaf that the shared rules ask about is decided exactly (or to 45
digits) by `rewards.rational` and `rewards.arithmetic`; anything else is left to the workers. Bounded, because both refuse
what is long, deep or large. tests/rewards/test_shortcuts.py compares it with the workers' verdicts.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

from rewards import arithmetic
from rewards.arithmetic import Undecided
from rewards.rational import Plain, plain, plain_verdict
from rewards.shapes import Interval, Shapes, intervals_of, states_an_answer
from rewards.structure import Items, Matrix, Node, Relation, Value, describe, parse

MAX_CHARS = 300  # a longer answer is left to a worker and its limits
MAX_PARTS = 24  # so is a longer list


class Quick(Shapes):
    """Raises Undecided wherever plain arithmetic does not decide."""

    def __init__(self, seed: str):
        self.seed = seed

    def expressions(self, gold: str, answer: str) -> bool:
        verdict = plain_verdict(gold, answer)
        return arithmetic.equal(gold, answer, self.seed) if verdict is None else verdict

    def sets(self, gold: Node, answer: Node) -> bool:
        for node in (gold, answer):
            if isinstance(node, Items) and node.brackets not in ("", "{}") and len(node.parts) != 2:
                return False  # a triple is no set of numbers
            if isinstance(node, Value) and arithmetic.parse(node.latex) is not None:
                return False  # nor is a number
        unions = [disjoint(intervals_of(node)) for node in (gold, answer)]
        if None in unions:
            raise Undecided
        return unions[0] == unions[1]

    def proportional(self, gold: Relation, answer: Relation) -> int:
        return arithmetic.ratio_sign(gold.sides[:2], answer.sides[:2], self.seed)

    def equations(self, gold: str, answer: str) -> bool:
        raise Undecided

    def true_chain(self, sides: tuple[str, ...]) -> bool:
        trees = [arithmetic.parse(side) for side in sides]
        if None in trees:
            raise Undecided
        return not any(tree[1] for tree in trees) and all(arithmetic.equal(s, sides[-1], "") for s in sides[:-1])

    def rounds_to(self, exact: str, rounded: str) -> bool:
        raise Undecided


def disjoint(intervals: list[Interval] | None) -> list[tuple] | None:
    """A union in its only form: exact bounds, sorted, with gaps. None where it overlaps or a bound is no plain number."""
    if not intervals:
        return None
    found = []
    for start, end, left_open, right_open in intervals:
        low = -math.inf if start == r"-\infty" else plain(start)
        high = math.inf if end in (r"\infty", r"+\infty") else plain(end)
        if low is None or high is None or any(isinstance(b, Plain) and (b.decimal or b.percent) for b in (low, high)):
            return None
        low, high = (b.value if isinstance(b, Plain) else b for b in (low, high))
        if not low < high:
            return None
        found.append((low, high, left_open or low == -math.inf, right_open or high == math.inf))
    found.sort()
    return found if all(a[1] < b[0] for a, b in pairwise(found)) else None


@lru_cache(maxsize=4096)
def _parse(text: str) -> Node:
    return parse(text)


def _small(node: Node) -> bool:
    match node:
        case Items():
            return len(node.parts) <= MAX_PARTS and all(_small(part) for part in node.parts)
        case Matrix():
            return sum(map(len, node.rows)) <= MAX_PARTS
    return True


def usable(gold: str) -> bool | None:
    """Whether a gold (canonical text) allows a verdict; None where a worker has to evaluate it."""
    if len(gold) > MAX_CHARS:
        return None
    node = _parse(gold)
    if not states_an_answer(node):
        return False
    try:
        return (_small(node) and Quick("gold").nodes(node, node)) or None
    except (Undecided, ArithmeticError):
        return None


def verdict(gold: str, answer: str) -> bool | None:
    """Whether an answer equals a usable gold (canonical texts); None where a worker has to decide."""
    if gold == answer:
        return True
    if (decided := plain_verdict(gold, answer)) is not None:
        return decided
    if len(gold) > MAX_CHARS or len(answer) > MAX_CHARS:
        return None
    left, right = _parse(gold), _parse(answer)
    if not (_small(left) and _small(right)):
        return None
    try:
        return Quick(f"{gold}\0{answer}").nodes(left, right)
    except (Undecided, ArithmeticError):
        return None


def parsed(text: str) -> str:
    """How a text was read, for people."""
    return describe(_parse(text))[:300] if len(text) <= MAX_CHARS else text[:300]
