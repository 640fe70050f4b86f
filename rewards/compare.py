"""The leaves of a comparison with sympy: parsed by latex2sympy2_extended, with math_verify to fall back on. Workers only.

Numbers are compared in `rewards.evaluate`. Where values cannot be computed (undefined functions, sets given by
conditions), math_verify's symbolic comparison decides.
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
from rewards.rational import plain, plain_verdict
from rewards.shapes import Shapes, is_conditions, states_an_answer
from rewards.structure import Items, Node, Relation, Value, parse

_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none", equations=False
)
_DEGREES = re.compile(r"([0-9]+(?:\.[0-9]+)?|[a-z]|\\[a-z]+) ?\^ ?\{? ?\\circ ?\}?")
_JUXTAPOSED = re.compile(r"((?<![_^0-9.])[0-9]+(?:\.[0-9]+)?|\)) ?\(")  # latex2sympy adds the factors of 2(3)
_IMAGINARY = ("i", "imath")
POINTS = 6
_DISCRETE = (sympy.Sum, sympy.Product, sympy.factorial, sympy.binomial)  # of symbols that count


class Unreadable(Exception):
    """latex2sympy does not understand an expression."""


@lru_cache(maxsize=512)
def to_sympy(latex: str):
    """The (unevaluated) sympy object of one expression. Raises Unreadable."""
    text = re.sub(r"(?<![0-9A-Za-z}])([0-9]+) ([0-9]+) ?/ ?([0-9]+)", r"\1\\frac{\2}{\3}", latex)  # a mixed number
    text = _DEGREES.sub(r"(\1 \\cdot \\frac{\\pi}{180})", text)  # inside a function: sin(45^\circ)
    text = _JUXTAPOSED.sub(r"\1\\cdot (", text)
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


class Comparison(Shapes):
    """Leaves compared with sympy. `plain_shortcut` False sends plain numbers through sympy, too (for the fuzz)."""

    def __init__(self, seed: str, plain_shortcut: bool = True):
        self.seed = seed
        self.plain_shortcut = plain_shortcut

    def expressions(self, gold: str, answer: str) -> bool:
        if self.plain_shortcut:
            verdict = plain_verdict(gold, answer)
            if verdict is not None:
                return verdict
        try:
            return self._objects(to_sympy(gold), to_sympy(answer))
        except Unreadable:
            # Notation that the parser does not know can still be the same notation.
            return gold.replace(" ", "") == answer.replace(" ", "")

    def true_chain(self, sides: tuple[str, ...]) -> bool:
        try:
            values = [evaluate(to_sympy(side), {}) for side in sides]
        except (Unreadable, Undefined):
            return False
        return all(v is not None for v in values) and all(same_number(v, values[-1], False) for v in values[:-1])

    def rounds_to(self, exact: str, rounded: str) -> bool:
        if (shown := plain(rounded)) is None:
            return False
        try:
            value = evaluate(to_sympy(exact), {})
        except (Unreadable, Undefined):
            return False
        decimals = len(rounded.partition(".")[2])
        return value is not None and abs(as_complex(value) - as_complex(shown.value)) <= 0.500001 * 10.0**-decimals

    def equations(self, gold: str, answer: str) -> bool:
        try:
            return bool(verify([to_sympy(gold)], [to_sympy(answer)], timeout_seconds=None))
        except Unreadable:
            return gold.replace(" ", "") == answer.replace(" ", "")

    def proportional(self, gold: Relation, answer: Relation) -> int:
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

    def sets(self, gold: Node, answer: Node) -> bool:
        try:
            g, a = to_set(gold), to_set(answer)
        except (Unreadable, NotImplementedError, TypeError, ValueError, AttributeError, IndexError):
            return False
        if g is None or a is None:
            return False
        g, a = (sympy.Union(*s.args) if isinstance(s, sympy.Union) else s for s in (g, a))  # merges (0,1] and (1,2)
        if g == a:
            return True
        x, y = _intervals(g), _intervals(a)
        if x is None or y is None:
            return bool(verify([g], [a], timeout_seconds=None))
        return len(x) == len(y) and all(
            p[2:] == q[2:] and self._objects(p[0], q[0]) and self._objects(p[1], q[1])
            for p, q in zip(x, y, strict=True)
        )

    def _objects(self, gold, answer) -> bool:
        if isinstance(gold, (sympy.Set, sympy.Tuple)) or isinstance(answer, (sympy.Set, sympy.Tuple)):
            return bool(verify([gold], [answer], timeout_seconds=None, allow_set_relation_comp=True))
        if isinstance(gold, sympy.MatrixBase) or isinstance(answer, sympy.MatrixBase):
            if not (isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase)):
                return False
            return gold.shape == answer.shape and all(
                self._objects(p, q) for p, q in zip(gold.flat(), answer.flat(), strict=True)
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
        agreed, discrete = 0, gold.has(*_DISCRETE) or answer.has(*_DISCRETE)
        for positive in (True, False) if symbols and not discrete else (True,):
            for env in points(symbols, self.seed, POINTS if symbols else 1, positive, integer=discrete):
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


def _has_float(expr) -> bool:
    return bool(expr.atoms(sympy.Float))


def to_set(node: Node) -> sympy.Set | None:  # noqa: PLR0911
    """A node as a sympy set of real numbers: interval, finite set, union, solutions of inequalities. Else None."""
    match node:
        case Value():
            expr = to_sympy(node.latex)
            return expr if isinstance(expr, sympy.Set) else None
        case Relation():
            return _solutions(node)
        case Items(brackets=brackets, parts=parts):
            if brackets in ("", "{}") and not is_conditions(node):
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


def check_gold(gold: str) -> tuple[bool, Node]:
    """(usable, shape) of a gold's canonical text. Usable: it states an answer, has a value, and equals itself."""
    node = parse(gold)
    return states_an_answer(node) and Comparison("gold", plain_shortcut=False).nodes(node, node), node


def grade(gold: str, answer: str, plain_shortcut: bool = True) -> tuple[bool, Node]:
    """(verdict, shape of the answer) for two canonical texts; the gold is usable."""
    node = parse(answer)
    return Comparison(f"{gold}\0{answer}", plain_shortcut).nodes(parse(gold), node), node
