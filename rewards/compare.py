"""Whether an answer equals a gold. Parses with latex2sympy2_extended, falls back on math_verify. Runs in workers only.

The verdict of each pair of shapes is decided here; numbers are compared in `rewards.evaluate`. Where the values cannot
be computed (undefined functions, sets given by conditions), math_verify's symbolic comparison decides.
"""

from __future__ import annotations

import re
from functools import lru_cache

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from math_verify import verify
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from rewards.evaluate import Env, Undefined, as_complex, evaluate, points, same_number
from rewards.rational import plain, plain_match
from rewards.structure import Based, Choice, Items, Node, Ratio, Relation, Value, Words, enclosed, is_name, parse, word_key
from rewards.units import units_match

_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none", equations=False
)
_IMAGINARY = ("i", "imath")
_FLIPPED = {"<": ">", ">": "<", r"\leq": r"\geq", r"\geq": r"\leq", "=": "=", r"\neq": r"\neq"}
POINTS = 6


class Unreadable(Exception):
    """latex2sympy does not understand an expression."""


@lru_cache(maxsize=512)
def to_sympy(latex: str):
    """The (unevaluated) sympy object of one expression. Raises Unreadable."""
    text = re.sub(r"(?<![0-9A-Za-z}])([0-9]+) ([0-9]+) ?/ ?([0-9]+)", r"\1\\frac{\2}{\3}", latex)  # a mixed number
    text = normalize_latex(text.replace("¤", ""), config=_NORMALIZATION)
    try:
        expr = latex2sympy(text, is_real=True, convert_degrees=False, normalization_config=None)
    except (MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # antlr, sympy and RecursionError: the library raises bare Exception
        raise Unreadable(str(error)[:200]) from None
    if isinstance(expr, (list, str)) or expr is None:
        raise Unreadable(f"parsed to {type(expr).__name__}")
    if isinstance(expr, sympy.Basic) and not isinstance(expr, (sympy.Set, Relational)):
        free = {s for s in expr.free_symbols if s.name in _IMAGINARY}
        if free:
            expr = expr.xreplace(dict.fromkeys(free, sympy.I))
    return expr


class Comparison:
    """One gold against one answer. `plain_shortcut` False sends plain numbers through sympy, too (for the fuzz)."""

    def __init__(self, seed: str, plain_shortcut: bool = True):
        self.seed = seed
        self.plain_shortcut = plain_shortcut

    # -- shapes ------------------------------------------------------------------------------------------------------

    def nodes(self, gold: Node, answer: Node) -> bool:
        if isinstance(gold, Choice) or isinstance(answer, Choice):
            return self._choices(gold, answer)
        if isinstance(gold, Words) or isinstance(answer, Words):
            return _words_of(gold) == _words_of(answer) != ""
        if isinstance(gold, Relation) or isinstance(answer, Relation):
            return self._relations(gold, answer)
        if isinstance(gold, Ratio) or isinstance(answer, Ratio):
            return self._ratios(gold, answer)
        if isinstance(gold, Based) or isinstance(answer, Based):
            return self._bases(gold, answer)
        if isinstance(gold, Items) or isinstance(answer, Items):
            return self._items(gold, answer)
        return self._values(gold, answer)

    def _choices(self, gold: Node, answer: Node) -> bool:
        if isinstance(gold, Choice):
            if isinstance(answer, Choice):
                return gold.letter == answer.letter
            if _words_of(answer).upper() == gold.letter:
                return True
            return bool(gold.rest) and self.nodes(parse(gold.rest), answer)
        if answer.rest:
            return self.nodes(gold, parse(answer.rest))
        return isinstance(gold, Value) and self._values(gold, Value(answer.letter))

    def _ratios(self, gold: Node, answer: Node) -> bool:
        if not (isinstance(gold, Ratio) and isinstance(answer, Ratio)):
            ratio, other = (gold, answer) if isinstance(gold, Ratio) else (answer, gold)
            if len(ratio.parts) != 2 or not isinstance(other, Value) or ratio.clock and ratio.parts[0].latex == "0":
                return False
            return self._values(Value(rf"\frac{{{ratio.parts[0].latex}}}{{{ratio.parts[1].latex}}}"), other)
        if len(gold.parts) != len(answer.parts):
            return False
        if all(self._values(a, b) for a, b in zip(gold.parts, answer.parts, strict=True)):
            return True
        if gold.clock and answer.clock:
            return False
        first_gold, first_answer = gold.parts[0], answer.parts[0]
        return all(
            self._leaves(f"({a.latex}) \\cdot ({first_answer.latex})", f"({b.latex}) \\cdot ({first_gold.latex})")
            for a, b in zip(gold.parts[1:], answer.parts[1:], strict=True)
        )

    def _bases(self, gold: Node, answer: Node) -> bool:
        if isinstance(gold, Based) and isinstance(answer, Based):
            return int(gold.digits, gold.base) == int(answer.digits, answer.base)
        based, other = (gold, answer) if isinstance(gold, Based) else (answer, gold)
        return isinstance(other, Value) and other.latex.lstrip("0").upper() == based.digits  # a missing base

    def _items(self, gold: Node, answer: Node) -> bool:
        if not isinstance(gold, Items) or not isinstance(answer, Items):
            items, other = (gold, answer) if isinstance(gold, Items) else (answer, gold)
            if items.brackets in ("", "{}") and all(self.nodes(part, other) for part in items.parts):
                return True
            return isinstance(other, Value) and self._sets(gold, answer)
        g, a = gold.brackets, answer.brackets
        if g in ("", "{}") and a in ("", "{}"):
            if _is_conditions(gold) or _is_conditions(answer):
                return self._sets(gold, answer) or self._unordered(gold.parts, answer.parts)
            return self._unordered(gold.parts, answer.parts)
        if "{}" in (g, a) or len(gold.parts) != len(answer.parts):
            return self._sets(gold, answer)
        if not (g == a or "" in (g, a) and {g, a} <= {"", "()", "[]"} or len(gold.parts) > 2):
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
        if isinstance(gold, Relation) and isinstance(answer, Relation):
            return self._two_relations(gold, answer)
        relation, other = (gold, answer) if isinstance(gold, Relation) else (answer, gold)
        if set(relation.ops) != {"="}:
            return isinstance(other, (Items, Value)) and self._sets(gold, answer)
        if isinstance(other, Items) and len(other.parts) == 1 and other.brackets in ("", "{}"):
            other = other.parts[0]
        value = parse(relation.sides[-1])
        if not (is_name(relation.sides[0]) or self._true_chain(relation)):
            return False
        return self.nodes(value, other) if isinstance(gold, Relation) else self.nodes(other, value)

    def _true_chain(self, relation: Relation) -> bool:
        """2+1 = 3 states a true equality between numbers; 5 = 3 does not, and x+y = 1 is no number."""
        try:
            sides = [evaluate(to_sympy(side), {}) for side in relation.sides]
        except (Unreadable, Undefined):
            return False
        return all(s is not None for s in sides) and all(same_number(s, sides[-1], False) for s in sides[:-1])

    def _two_relations(self, gold: Relation, answer: Relation) -> bool:
        equations = set(gold.ops) == {"="} == set(answer.ops)
        if equations and is_name(gold.sides[0]) and is_name(answer.sides[0]):
            if _name_key(gold.sides[0]) == _name_key(answer.sides[0]) or r"\text" in gold.sides[0] + answer.sides[0]:
                return self.nodes(parse(gold.sides[-1]), parse(answer.sides[-1]))
        if len(gold.ops) != len(answer.ops) or len(gold.ops) > 1:
            return self._chains(gold, answer) or (not equations and self._sets(gold, answer))
        if any(enclosed(side) for relation in (gold, answer) for side in relation.sides):
            pairs = zip(gold.sides, answer.sides, strict=True)
            return gold.ops == answer.ops and all(self.nodes(parse(a), parse(b)) for a, b in pairs)
        sign = self._proportional(gold, answer)
        if sign and (equations or gold.ops[0] == r"\neq" == answer.ops[0]):
            return True
        if sign and not equations:
            wanted = answer.ops[0] if sign > 0 else _FLIPPED[answer.ops[0]]
            if gold.ops[0] == wanted:
                return True
        if not equations:
            return self._sets(gold, answer)
        return self._by_math_verify(_relation_latex(gold), _relation_latex(answer))

    def _chains(self, gold: Relation, answer: Relation) -> bool:
        if len(gold.ops) != len(answer.ops):
            return False
        flipped = Relation(answer.sides[::-1], tuple(_FLIPPED.get(op, op) for op in answer.ops[::-1]))
        return any(
            gold.ops == other.ops
            and all(self._leaves(a, b) for a, b in zip(gold.sides, other.sides, strict=True))
            for other in (answer, flipped)
        )

    def _proportional(self, gold: Relation, answer: Relation) -> int:
        """The sign of c where (lhs - rhs) of the gold is c times that of the answer at every point; 0 if there is none."""
        try:
            g, a = (to_sympy(f"{r.sides[0]} - ({r.sides[1]})") for r in (gold, answer))
            if not isinstance(g, sympy.Expr) or not isinstance(a, sympy.Expr) or g.free_symbols != a.free_symbols:
                return 0
            ratios = []
            for env in points(list(g.free_symbols), self.seed, POINTS, positive=True):
                x, y = evaluate(g, env), evaluate(a, env)
                if x is None or y is None or as_complex(x) == 0 or as_complex(y) == 0:
                    return 0
                ratios.append(x / y if type(x) is type(y) else as_complex(x) / as_complex(y))
        except (Unreadable, Undefined):
            return 0
        decimal = _has_float(g) or _has_float(a)
        if not all(same_number(ratio, ratios[0], decimal) for ratio in ratios):
            return 0
        return 1 if as_complex(ratios[0]).real > 0 else -1

    # -- sets --------------------------------------------------------------------------------------------------------

    def _sets(self, gold: Node, answer: Node) -> bool:
        try:
            g, a = to_set(gold), to_set(answer)
        except (Unreadable, NotImplementedError, TypeError, ValueError, AttributeError, IndexError):
            return False
        if g is None or a is None:
            return False
        if g == a:
            return True
        x, y = _intervals(g), _intervals(a)
        if x is None or y is None:
            return bool(verify([g], [a], timeout_seconds=None))
        return len(x) == len(y) and all(
            p[2:] == q[2:] and self._expressions(p[0], q[0]) and self._expressions(p[1], q[1])
            for p, q in zip(x, y, strict=True)
        )

    # -- values ------------------------------------------------------------------------------------------------------

    def _values(self, gold: Value, answer: Value) -> bool:
        factor = units_match(gold.unit, answer.unit)
        if factor is None:
            return False
        if factor != 1:
            scaled = Value(rf"({gold.latex}) \cdot \frac{{{factor.numerator}}}{{{factor.denominator}}}")
            return self._leaves(scaled.latex, answer.latex)
        if self._leaves(gold.latex, answer.latex):
            return True
        if gold.percent != answer.percent:
            divided, other = (gold, answer) if gold.percent else (answer, gold)
            return self._leaves(rf"\frac{{{divided.latex}}}{{100}}", other.latex)
        angle = [v for v in (gold, answer) if v.unit is not None and v.unit.dimensions == (("angle", 1),)]
        if len(angle) == 1:
            other = answer if angle[0] is gold else gold
            return r"\pi" in other.latex and self._leaves(rf"({angle[0].latex}) \cdot \frac{{\pi}}{{180}}", other.latex)
        return False

    def _leaves(self, gold: str, answer: str) -> bool:
        if self.plain_shortcut:
            g, a = plain(gold), plain(answer)
            if g is not None and a is not None:
                return plain_match(g, a)
        try:
            return self._expressions(to_sympy(gold), to_sympy(answer))
        except Unreadable:
            # Notation that the parser does not know can still be the same notation.
            return gold.replace(" ", "") == answer.replace(" ", "")

    def _expressions(self, gold, answer) -> bool:
        if isinstance(gold, (sympy.Set, sympy.Tuple)) or isinstance(answer, (sympy.Set, sympy.Tuple)):
            return bool(verify([gold], [answer], timeout_seconds=None, allow_set_relation_comp=True))
        if isinstance(gold, sympy.MatrixBase) or isinstance(answer, sympy.MatrixBase):
            if not (isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase)):
                return False
            return gold.shape == answer.shape and all(
                self._expressions(p, q) for p, q in zip(gold.flat(), answer.flat(), strict=True)
            )
        if not isinstance(gold, sympy.Expr) or not isinstance(answer, sympy.Expr):
            return bool(verify([gold], [answer], timeout_seconds=None, allow_set_relation_comp=True))
        try:
            same = self._identical(gold, answer)
        except Undefined:
            return False
        return bool(verify([gold], [answer], timeout_seconds=None)) if same is None else same

    def _identical(self, gold: sympy.Expr, answer: sympy.Expr) -> bool | None:
        """Equality of value at random points, where both are real for any sign of the symbols. None: not computable.

        Unequal at one point is unequal. Equal at POINTS random points of a grid, to 45 digits, is equal but for odds
        that no fuzz will see (Schwartz-Zippel).
        """
        infinite = (sympy.oo, -sympy.oo)
        if gold in infinite or answer in infinite:
            return gold == answer
        if gold.has(AppliedUndef) or answer.has(AppliedUndef):
            return None
        symbols = list(gold.free_symbols | answer.free_symbols)
        decimal = _has_float(gold) or _has_float(answer)
        agreed = 0
        for positive in (True, False) if symbols else (True,):
            for env in points(symbols, self.seed, POINTS if symbols else 1, positive):
                same = self._same_at(gold, answer, env, decimal, positive)
                if same is False:
                    return False
                agreed += same is True
        return True if agreed >= (3 if symbols else 1) else None

    def _same_at(self, gold: sympy.Expr, answer: sympy.Expr, env: Env, decimal: bool, positive: bool) -> bool | None:
        try:
            x, y = evaluate(gold, env), evaluate(answer, env)
        except Undefined:
            if env:
                return None  # a pole that the random point happens to hit
            raise
        if x is None or y is None:
            return None
        if not positive and (as_complex(x).imag != 0 or as_complex(y).imag != 0):
            return None  # outside the real domain: sqrt(1/n) and 1/sqrt(n) differ there by convention only
        return same_number(x, y, decimal)

    def _by_math_verify(self, gold: str, answer: str) -> bool:
        try:
            return bool(verify([to_sympy(gold)], [to_sympy(answer)], timeout_seconds=None))
        except Unreadable:
            return gold.replace(" ", "") == answer.replace(" ", "")


def _words_of(node: Node) -> str:
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


def _has_float(expr) -> bool:
    return bool(expr.atoms(sympy.Float))


def _is_conditions(node: Items) -> bool:
    return any(isinstance(p, Relation) and set(p.ops) != {"="} or isinstance(p, Items) and p.brackets for p in node.parts)


def _values_of(items: Items) -> list[Node]:
    """The parts; of a=1, b=2 the values, which stand for the tuple (1, 2)."""
    if items.brackets == "" and all(isinstance(p, Relation) and set(p.ops) == {"="} for p in items.parts):
        return [parse(p.sides[-1]) for p in items.parts]
    return list(items.parts)


def to_set(node: Node) -> sympy.Set | None:
    """A node as a sympy set of real numbers: interval, finite set, union, solutions of inequalities. Else None."""
    match node:
        case Value():
            expr = to_sympy(node.latex)
            return expr if isinstance(expr, sympy.Set) else None
        case Relation():
            return _solutions(node)
        case Items(brackets=brackets, parts=parts):
            if brackets in ("", "{}") and not _is_conditions(node):
                return sympy.FiniteSet(*(to_sympy(part.latex) for part in parts))
            if brackets == "":
                sets = [to_set(part) for part in parts]
                if any(s is None for s in sets):
                    return None
                return sympy.Intersection(*sets) if node.all_hold else sympy.Union(*sets)
            if len(parts) == 2 and all(isinstance(part, Value) for part in parts):
                start, end = (to_sympy(part.latex) for part in parts)
                return sympy.Interval(start, end, brackets[0] == "(", brackets[1] == ")")
    return None


def _solutions(relation: Relation) -> sympy.Set | None:
    """The real solutions of an inequality, or of a chain of them, in one variable."""
    makers = {"<": sympy.Lt, ">": sympy.Gt, r"\leq": sympy.Le, r"\geq": sympy.Ge, r"\neq": sympy.Ne, "=": sympy.Eq}
    sides = [to_sympy(side) for side in relation.sides]
    if len(set().union(*(side.free_symbols for side in sides))) != 1 or any(op not in makers for op in relation.ops):
        return None
    sets = []
    for left, op, right in zip(sides[:-1], relation.ops, sides[1:], strict=True):
        condition = makers[op](left, right)
        if condition in (sympy.true, sympy.false):
            continue
        sets.append(condition.as_set())
    return sympy.Intersection(*sets)


def _intervals(value: sympy.Set) -> list[tuple] | None:
    """A union of intervals and points as sorted (start, end, left open, right open); None for any other set."""
    parts = value.args if isinstance(value, sympy.Union) else (value,)
    found = []
    for part in parts:
        if isinstance(part, sympy.FiniteSet):
            found += [(point, point, False, False) for point in part.args]
        elif part is sympy.S.Reals:
            found.append((-sympy.oo, sympy.oo, True, True))
        elif isinstance(part, sympy.Interval):
            found.append((part.start, part.end, bool(part.left_open), bool(part.right_open)))
        else:
            return None
    try:
        return sorted(found, key=lambda part: (float(part[0]), float(part[1])))
    except TypeError:
        return None


UNUSABLE_WORDS = {"proof", "figure", "diagram", "omitted", "see", "solution", "solutions", "explanation", "vary"}
UNUSABLE_MAX_WORDS = 8


def usable(gold: Node) -> bool:
    """Whether a gold allows a verdict: it has a value, and it equals itself. Prose that refers elsewhere does not."""
    words = [word for part in _flatten(gold) if isinstance(part, Words) for word in part.text.split()]
    if len(words) > UNUSABLE_MAX_WORDS or (len(words) > 2 and UNUSABLE_WORDS & set(words)):
        return False
    if any(isinstance(part, Value) and not part.latex.strip() for part in _flatten(gold)):
        return False
    return Comparison("gold", plain_shortcut=False).nodes(gold, gold)


def _flatten(node: Node) -> list[Node]:
    return [leaf for part in node.parts for leaf in _flatten(part)] if isinstance(node, Items) else [node]


def check_gold(gold: str) -> tuple[bool, Node]:
    """(usable, shape) of a gold's canonical text."""
    node = parse(gold)
    return usable(node), node


def grade(gold: str, answer: str, plain_shortcut: bool = True) -> tuple[bool, Node]:
    """(verdict, shape of the answer) for two canonical texts; the gold is usable."""
    node = parse(answer)
    return Comparison(f"{gold}\0{answer}", plain_shortcut).nodes(parse(gold), node), node
