"""Which shapes of answer can be equal, and which of their parts have to be. No sympy.

`Shapes` decides everything but the leaves: `rewards.quick` fills them in for plain arithmetic, in the trainer's process,
and `rewards.compare` with sympy, in a worker. Both follow the same rules because they are the same code.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from rewards.structure import (
    Based,
    Choice,
    Items,
    Matrix,
    Node,
    Ratio,
    Relation,
    Value,
    Words,
    enclosed,
    is_name,
    parse,
    word_key,
)
from rewards.units import units_match

FLIPPED = {"<": ">", ">": "<", r"\leq": r"\geq", r"\geq": r"\leq", "=": "=", r"\neq": r"\neq"}
_INFINITY = re.compile(r"([+-]?) ?\\infty ?")
_COMMAND = re.compile(r"\\[A-Za-z]+")

Interval = tuple[str, str, bool, bool]  # start, end (LaTeX), left open, right open


class Shapes(ABC):
    """One gold against one answer. The subclass compares the leaves."""

    @abstractmethod
    def expressions(self, gold: str, answer: str) -> bool:
        """Whether two expressions (LaTeX) are equal in value."""

    @abstractmethod
    def sets(self, gold: Node, answer: Node) -> bool:
        """Whether two nodes are the same set of real numbers."""

    @abstractmethod
    def proportional(self, gold: Relation, answer: Relation) -> int:
        """The sign of c if gold's lhs - rhs is c times the answer's, for all values of the symbols; 0 if there is no c."""

    @abstractmethod
    def equations(self, gold: str, answer: str) -> bool:
        """Whether two equations (LaTeX) that are not proportional have the same solutions."""

    @abstractmethod
    def true_chain(self, sides: tuple[str, ...]) -> bool:
        """Whether all sides are numbers and equal: 2+1 = 3 is such a chain, 5 = 3 and x+y = 1 are not."""

    @abstractmethod
    def rounds_to(self, exact: str, rounded: str) -> bool:
        """Whether `rounded` is `exact` rounded to the decimals it shows."""

    def nodes(self, gold: Node, answer: Node) -> bool:  # noqa: PLR0911
        if isinstance(gold, Choice) or isinstance(answer, Choice):
            return self._choices(gold, answer)
        if isinstance(gold, Words) or isinstance(answer, Words):
            return words_of(gold) == words_of(answer) != ""
        if isinstance(gold, Relation) or isinstance(answer, Relation):
            return self._relations(gold, answer)
        if isinstance(gold, Ratio) or isinstance(answer, Ratio):
            return self._ratios(gold, answer)
        if isinstance(gold, Based) or isinstance(answer, Based):
            return self._bases(gold, answer)
        if isinstance(gold, Matrix) or isinstance(answer, Matrix):
            return self._matrices(gold, answer)
        if isinstance(gold, Items) or isinstance(answer, Items):
            return self._items(gold, answer)
        return self._values(gold, answer)

    def _choices(self, gold: Node, answer: Node) -> bool:
        if isinstance(gold, Choice):
            if isinstance(answer, Choice):
                return gold.letter == answer.letter
            if words_of(answer).upper() == gold.letter:
                return True
            return bool(gold.rest) and self.nodes(parse(gold.rest), answer)
        if answer.rest:
            return self.nodes(gold, parse(answer.rest))
        return isinstance(gold, Value) and self._values(gold, Value(answer.letter))

    def _ratios(self, gold: Node, answer: Node) -> bool:
        if not (isinstance(gold, Ratio) and isinstance(answer, Ratio)):
            ratio, other = (gold, answer) if isinstance(gold, Ratio) else (answer, gold)
            if len(ratio.parts) != 2 or not isinstance(other, Value) or (ratio.clock and ratio.parts[0].latex == "0"):
                return False
            return self._values(Value(rf"\frac{{{ratio.parts[0].latex}}}{{{ratio.parts[1].latex}}}"), other)
        if len(gold.parts) != len(answer.parts) or (gold.half and answer.half and gold.half != answer.half):
            return False
        if all(self._values(a, b) for a, b in zip(gold.parts, answer.parts, strict=True)):
            return True
        if gold.clock and answer.clock:
            return False
        first_gold, first_answer = gold.parts[0], answer.parts[0]
        return all(
            self._leaf(f"({a.latex}) \\cdot ({first_answer.latex})", f"({b.latex}) \\cdot ({first_gold.latex})")
            for a, b in zip(gold.parts[1:], answer.parts[1:], strict=True)
        )

    def _bases(self, gold: Node, answer: Node) -> bool:
        if isinstance(gold, Based) and isinstance(answer, Based):
            return int(gold.digits, gold.base) == int(answer.digits, answer.base)
        based, other = (gold, answer) if isinstance(gold, Based) else (answer, gold)
        return isinstance(other, Value) and other.latex.lstrip("0").upper() == based.digits  # a missing base

    def _matrices(self, gold: Node, answer: Node) -> bool:
        if not (isinstance(gold, Matrix) and isinstance(answer, Matrix)):
            return False
        if [len(row) for row in gold.rows] != [len(row) for row in answer.rows]:
            return False
        cells = zip(sum(gold.rows, ()), sum(answer.rows, ()), strict=True)
        return all(self._leaf(a, b) for a, b in cells)

    def _items(self, gold: Node, answer: Node) -> bool:  # noqa: PLR0911
        if not isinstance(gold, Items) or not isinstance(answer, Items):
            items, other = (gold, answer) if isinstance(gold, Items) else (answer, gold)
            if items.brackets in ("", "{}") and all(self.nodes(part, other) for part in items.parts):
                return True
            return isinstance(other, Value) and self._same_set(gold, answer)
        g, a = gold.brackets, answer.brackets
        if g in ("", "{}") and a in ("", "{}"):
            if is_conditions(gold) or is_conditions(answer):
                return self._same_set(gold, answer) or self._unordered(gold.parts, answer.parts)
            return self._unordered(gold.parts, answer.parts)
        if "{}" in (g, a) or len(gold.parts) != len(answer.parts):
            return self._same_set(gold, answer)
        if not (g == a or ("" in (g, a) and {g, a} <= {"", "()", "[]"}) or len(gold.parts) > 2):
            return False
        return all(self.nodes(p, q) for p, q in zip(_values_of(gold), _values_of(answer), strict=True))

    def _unordered(self, gold: tuple[Node, ...], answer: tuple[Node, ...]) -> bool:
        """Equality of sets: each gold has its answer and each answer its gold."""
        unmatched = list(answer)
        for part in gold:
            same = next((i for i, other in enumerate(unmatched) if self.nodes(part, other)), None)
            if same is not None:
                unmatched.pop(same)
            elif not any(self.nodes(part, other) for other in answer):
                return False
        return all(any(self.nodes(part, other) for part in gold) for other in unmatched)

    # -- relations ---------------------------------------------------------------------------------------------------

    def _relations(self, gold: Node, answer: Node) -> bool:
        for node in (gold, answer):
            if isinstance(node, Relation) and r"\approx" in node.ops:
                return self._approximations(gold, answer)
        if isinstance(gold, Relation) and isinstance(answer, Relation):
            return self._two_relations(gold, answer)
        relation, other = (gold, answer) if isinstance(gold, Relation) else (answer, gold)
        if set(relation.ops) != {"="}:
            return isinstance(other, (Items, Value)) and self._same_set(gold, answer)
        if isinstance(other, Items) and len(other.parts) == 1 and other.brackets in ("", "{}"):
            other = other.parts[0]
        value = parse(relation.sides[-1])
        if not (is_name(relation.sides[0]) or self.true_chain(relation.sides)):
            return False
        middle = [side for side in relation.sides[1:-1] if not re.search("[A-Za-z]", _COMMAND.sub("", side))]
        if not all(self.nodes(value, parse(side)) for side in middle):
            return False  # x = 8 = 7 states no value
        return self.nodes(value, other) if isinstance(gold, Relation) else self.nodes(other, value)

    def _approximations(self, gold: Node, answer: Node) -> bool:
        """17/21 = x \\approx 0.81 states both of its sides, where the right one is the left one rounded."""
        sides = [_exact_and_rounded(node) for node in (gold, answer)]
        for exact, rounded in sides:
            if rounded is not None and not self._rounded(exact, rounded):
                return False
        (g, g_rounded), (a, a_rounded) = sides
        if self.nodes(g, a):
            return True
        return self.nodes(g_rounded or g, a_rounded or a)

    def _rounded(self, exact: Node, rounded: Node) -> bool:
        exact = parse(exact.sides[-1]) if isinstance(exact, Relation) else exact
        return isinstance(exact, Value) and isinstance(rounded, Value) and self.rounds_to(exact.latex, rounded.latex)

    def _two_relations(self, gold: Relation, answer: Relation) -> bool:  # noqa: PLR0911
        equations = set(gold.ops) == {"="} == set(answer.ops)
        named = equations and is_name(gold.sides[0]) and is_name(answer.sides[0])
        if named and (
            _name_key(gold.sides[0]) == _name_key(answer.sides[0]) or r"\text" in gold.sides[0] + answer.sides[0]
        ):
            return self.nodes(parse(gold.sides[-1]), parse(answer.sides[-1]))
        if len(gold.ops) != len(answer.ops) or len(gold.ops) > 1:
            return self._chains(gold, answer) or (not equations and self._same_set(gold, answer))
        if any(enclosed(side) for relation in (gold, answer) for side in relation.sides):
            pairs = zip(gold.sides, answer.sides, strict=True)
            return gold.ops == answer.ops and all(self.nodes(parse(a), parse(b)) for a, b in pairs)
        sign = self.proportional(gold, answer)
        if sign and (equations or gold.ops[0] == r"\neq" == answer.ops[0]):
            return True
        if sign and not equations:
            wanted = answer.ops[0] if sign > 0 else FLIPPED[answer.ops[0]]
            if gold.ops[0] == wanted:
                return True
        if not equations:
            return self._same_set(gold, answer)
        return self.equations(_relation_latex(gold), _relation_latex(answer))

    def _chains(self, gold: Relation, answer: Relation) -> bool:
        if len(gold.ops) != len(answer.ops):
            return False
        flipped = Relation(answer.sides[::-1], tuple(FLIPPED.get(op, op) for op in answer.ops[::-1]))
        return any(
            gold.ops == other.ops and all(self._leaf(a, b) for a, b in zip(gold.sides, other.sides, strict=True))
            for other in (answer, flipped)
        )

    # -- sets --------------------------------------------------------------------------------------------------------

    def _same_set(self, gold: Node, answer: Node) -> bool:
        g, a = intervals_of(gold), intervals_of(answer)
        if g is None or a is None or len(g) != len(a) or (len(g) > 1 and not self._same_intervals(g, a)):
            return self.sets(gold, answer)
        return self._same_intervals(g, a)

    def _same_intervals(self, gold: list[Interval], answer: list[Interval]) -> bool:
        return all(
            any(g[2:] == a[2:] and self._leaf(g[0], a[0]) and self._leaf(g[1], a[1]) for a in answer) for g in gold
        )

    # -- values ------------------------------------------------------------------------------------------------------

    def _values(self, gold: Value, answer: Value) -> bool:  # noqa: PLR0911
        if r"\cup" in gold.latex and r"\cup" in answer.latex:
            return self._same_set(gold, answer)
        factor = units_match(gold.unit, answer.unit)
        if factor is None:
            return False
        if factor != 1:
            scaled = Value(rf"({gold.latex}) \cdot \frac{{{factor.numerator}}}{{{factor.denominator}}}")
            return self._leaf(scaled.latex, answer.latex)
        if self._leaf(gold.latex, answer.latex):
            return True
        if gold.percent != answer.percent:
            divided, other = (gold, answer) if gold.percent else (answer, gold)
            return self._leaf(rf"\frac{{{divided.latex}}}{{100}}", other.latex)
        angle = [v for v in (gold, answer) if v.unit is not None and v.unit.dimensions == (("angle", 1),)]
        if len(angle) == 1:
            other = answer if angle[0] is gold else gold
            return r"\pi" in other.latex and self._leaf(rf"({angle[0].latex}) \cdot \frac{{\pi}}{{180}}", other.latex)
        return False

    def _leaf(self, gold: str, answer: str) -> bool:
        g, a = _INFINITY.fullmatch(gold), _INFINITY.fullmatch(answer)
        if g and a:
            return (g.group(1) == "-") == (a.group(1) == "-")
        return self.expressions(gold, answer)


def _exact_and_rounded(node: Node) -> tuple[Node, Node | None]:
    if not isinstance(node, Relation) or r"\approx" not in node.ops:
        return node, None
    cut = node.ops.index(r"\approx")
    exact = Relation(node.sides[: cut + 1], node.ops[:cut]) if cut else parse(node.sides[0])
    if cut == 0 and is_name(node.sides[0]):
        return parse(node.sides[-1]), None  # x \\approx 0.81 states one value
    return exact, parse(node.sides[-1])


def words_of(node: Node) -> str:
    match node:
        case Words():
            return node.text
        case Value():
            return word_key(node.latex)
        case Choice():
            return node.letter.lower()
    return ""


def _name_key(text: str) -> str:
    return re.sub(r"[\s{}]", "", text)


def _relation_latex(relation: Relation) -> str:
    return " ".join(f"{side} {op}" for side, op in zip(relation.sides, (*relation.ops, ""), strict=True)).strip()


def is_conditions(node: Items) -> bool:
    return any(
        (isinstance(p, Relation) and set(p.ops) != {"="}) or (isinstance(p, Items) and p.brackets) for p in node.parts
    )


def _values_of(items: Items) -> list[Node]:
    """The parts; of a=1, b=2 the values, which stand for the tuple (1, 2)."""
    if items.brackets == "" and all(isinstance(p, Relation) and set(p.ops) == {"="} for p in items.parts):
        return [parse(p.sides[-1]) for p in items.parts]
    return list(items.parts)


def intervals_of(node: Node) -> list[Interval] | None:
    """The intervals of a union, as written; one for an interval or a simple inequality; None for any other node."""
    if isinstance(node, Value) and r"\cup" in node.latex and node.unit is None:
        parts = [parse(part) for part in node.latex.split(r"\cup")]
    elif isinstance(node, Items) and node.brackets == "" and not node.all_hold:
        parts = list(node.parts)
    else:
        parts = [node]
    intervals = [interval_of(part) for part in parts]
    return None if None in intervals else intervals


def interval_of(node: Node) -> Interval | None:  # noqa: PLR0911
    r"""An interval, or a chain such as a < x \leq b or x > a in one named variable with bounds without letters."""
    if isinstance(node, Items) and len(node.parts) == 2 and node.brackets in ("()", "[]", "[)", "(]"):
        if all(isinstance(part, Value) and part.unit is None and not part.percent for part in node.parts):
            return node.parts[0].latex, node.parts[1].latex, node.brackets[0] == "(", node.brackets[1] == ")"
        return None
    if not isinstance(node, Relation) or (not set(node.ops) <= {"<", r"\leq"} and not set(node.ops) <= {">", r"\geq"}):
        return None
    sides, ops = node.sides, node.ops
    if ops[0] in (">", r"\geq"):
        sides, ops = sides[::-1], tuple(FLIPPED[op] for op in ops[::-1])
    variable = [i for i, side in enumerate(sides) if re.fullmatch("[A-Za-z]", side.strip())]
    bounds = [side for i, side in enumerate(sides) if i not in variable]
    if len(variable) != 1 or any(re.search("[A-Za-z]", _COMMAND.sub("", bound)) for bound in bounds):
        return None
    if len(sides) == 3 and variable == [1]:
        return sides[0], sides[2], ops[0] == "<", ops[1] == "<"
    if len(sides) == 2 and variable == [0]:
        return r"-\infty", sides[1], True, ops[0] == "<"
    if len(sides) == 2 and variable == [1]:
        return sides[0], r"\infty", ops[0] == "<", True
    return None


UNUSABLE_WORDS = {"proof", "figure", "diagram", "omitted", "see", "solution", "solutions", "explanation", "vary"}
UNUSABLE_MAX_WORDS = 8


def states_an_answer(gold: Node) -> bool:
    """False for a gold that is prose, refers elsewhere, or has nothing where a value should be."""
    leaves = _flatten(gold)
    words = [word for leaf in leaves if isinstance(leaf, Words) for word in leaf.text.split()]
    if len(words) > UNUSABLE_MAX_WORDS or (len(words) > 2 and UNUSABLE_WORDS & set(words)):
        return False
    if words_of(gold) in {"nan", "null", "n a", "n/a"}:
        return False
    return not any(isinstance(leaf, Value) and not leaf.latex.strip() for leaf in leaves)


def _flatten(node: Node) -> list[Node]:
    return [leaf for part in node.parts for leaf in _flatten(part)] if isinstance(node, Items) else [node]
