r"""Values of short arithmetic LaTeX without sympy: + - \cdot / \frac \sqrt \ln ^ \pi e, brackets, one-letter symbols.

For the trainer's process, so everything is bounded: the length, the depth, the exponents and the size of every value.
What lies outside the grammar, or could be read in two ways (2\frac12, 1/2x, f(x), x^12), raises Undecided: sympy decides.
"""

from __future__ import annotations

import random
import re
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from math import isqrt

MAX_CHARS = 160
MAX_DEPTH = 12
MAX_EXPONENT = 40
MAX_SIZE = 10**20  # of irrational intermediates, so that 80 digits leave more than 45 after any cancellation
POINTS = 6

_CONTEXT = Context(prec=80)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798")
_TOKEN = re.compile(
    r" *(?:([0-9]{1,30}(?:\.[0-9]{1,30})?)|\\(frac|sqrt|pi|ln|cdot|times)(?![A-Za-z])|([a-z])|([-+*/^(){}]))"
)
_LETTERS = frozenset("abcfghjklmnopqrstuvwxyz")  # not d (differentials), e (the constant), i (the imaginary unit)

Number = Fraction | Decimal
Tree = tuple


class Undecided(Exception):
    """Not decidable here; ask sympy."""


def _tokens(text: str) -> list[str]:
    tokens, position, text = [], 0, text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Undecided
        tokens.append(match.group(match.lastindex))
        position = match.end()
    return tokens


class _Parser:
    """Recursive descent over tokens, depth-limited."""

    def __init__(self, tokens: list[str]):
        self.tokens, self.at, self.depth = tokens, 0, 0
        self.symbols: set[str] = set()
        self.decimal = False

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str | None = None) -> str:
        token = self.peek()
        if not token or (wanted is not None and token != wanted):
            raise Undecided
        self.at += 1
        return token

    def sum(self) -> Tree:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Undecided
        sign = self.take() if self.peek() in ("+", "-") else "+"
        tree = self.product()
        tree = ("neg", tree) if sign == "-" else tree
        while self.peek() in ("+", "-"):
            sign = self.take()
            tree = ("add" if sign == "+" else "sub", tree, self.product())
        self.depth -= 1
        return tree

    def product(self) -> Tree:
        tree, last = self.power()
        while True:
            token = self.peek()
            if last == "ln" and token not in ("", "+", "-", ")", "}"):
                raise Undecided  # \ln 2x and \ln 1/2 could end their argument anywhere
            if token in ("cdot", "times", "*"):
                self.take()
                right, last = self.power()
                tree = ("mul", tree, right)
            elif token == "/":
                self.take()
                right, last = self.power()
                tree, last = ("div", tree, right), "quotient"
            elif token and (token in _LETTERS or token in ("pi", "e", "ln", "sqrt", "(")):
                # Juxtaposition. x(x+1) may be a function, 1/2x is ambiguous.
                if last == "quotient" or (token == "(" and last not in ("number", ")")):
                    raise Undecided
                right, last = self.power()
                tree = ("mul", tree, right)
            elif token in ("", "+", "-", ")", "}"):
                return tree
            else:
                raise Undecided

    def power(self) -> tuple[Tree, str]:
        tree, kind = self.base()
        if self.peek() != "^":
            return tree, kind
        self.take()
        if self.peek() == "{":
            self.take()
            sign = -1 if self.peek() == "-" and self.take() else 1
            exponent = self.take()
            self.take("}")
        else:
            sign, exponent = 1, self.take()
            if len(exponent) > 1:
                raise Undecided
        if not exponent.isdigit() or int(exponent) > MAX_EXPONENT or self.peek() == "^":
            raise Undecided
        return ("pow", tree, sign * int(exponent)), "power"

    def base(self) -> tuple[Tree, str]:  # noqa: PLR0911
        token = self.take()
        if token[0].isdigit():
            self.decimal |= "." in token
            return ("num", Fraction(token)), "number"
        if token in ("pi", "e"):
            return (token,), "symbol"
        if token == "ln":
            return ("ln", self.argument()), "ln"
        if token in _LETTERS:
            self.symbols.add(token)
            return ("var", token), "symbol"
        if token == "(":
            tree = self.sum()
            self.take(")")
            return tree, ")"
        if token == "frac":
            return ("div", self.group(), self.group()), "fraction"
        if token == "sqrt":
            return ("sqrt", self.group()), "root"
        raise Undecided

    def argument(self) -> Tree:
        if self.peek() in ("{", "("):
            closing = {"{": "}", "(": ")"}[self.take()]
            tree = self.sum()
            self.take(closing)
        else:
            token = self.take()
            if not token[0].isdigit():
                raise Undecided
            tree = ("num", Fraction(token))
        if self.peek() == "^":
            raise Undecided
        return tree

    def group(self) -> Tree:
        self.take("{")
        tree = self.sum()
        self.take("}")
        return tree


@lru_cache(maxsize=2048)
def parse(text: str) -> tuple[Tree, frozenset[str], bool] | None:
    """(tree, symbols, whether a decimal point occurs), or None where the text is outside the grammar."""
    if len(text) > MAX_CHARS:
        return None
    try:
        parser = _Parser(_tokens(text))
        tree = parser.sum()
    except Undecided:
        return None
    return (tree, frozenset(parser.symbols), parser.decimal) if parser.at == len(parser.tokens) else None


def value(tree: Tree, env: dict[str, Fraction]) -> Number:  # noqa: PLR0911, PLR0912
    """Exact while rational, to 80 digits after a root or pi. Raises Undecided at poles, negative roots and large sizes."""
    kind = tree[0]
    if kind == "num":
        return tree[1]
    if kind == "var":
        return env[tree[1]]
    if kind == "pi":
        return _PI
    if kind == "e":
        return Decimal(1).exp()
    if kind == "ln":
        return _logarithm(value(tree[1], env))
    if kind == "pow":
        return _power(value(tree[1], env), tree[2])
    if kind == "neg":
        return -value(tree[1], env)
    if kind == "sqrt":
        return _root(value(tree[1], env))
    left, right = value(tree[1], env), value(tree[2], env)
    if isinstance(left, Decimal) != isinstance(right, Decimal):
        left, right = _decimal(left), _decimal(right)
    if kind == "add":
        result = left + right
    elif kind == "sub":
        result = left - right
    elif kind == "mul":
        result = left * right
    else:
        if right == 0 or (isinstance(right, Decimal) and abs(right) < Decimal("1e-8")):
            raise Undecided
        result = left / right
    if isinstance(result, Decimal) and abs(result) > MAX_SIZE:
        raise Undecided
    return result


def _decimal(number: Number) -> Decimal:
    if isinstance(number, Decimal):
        return number
    result = Decimal(number.numerator) / Decimal(number.denominator)
    if abs(result) > MAX_SIZE:
        raise Undecided
    return result


def _power(base: Number, exponent: int) -> Number:
    if (base == 0 and exponent <= 0) or (
        isinstance(base, Decimal) and not Decimal("1e-8") < abs(base) ** abs(exponent)
    ):
        raise Undecided
    if (
        isinstance(base, Fraction)
        and (base.numerator.bit_length() + base.denominator.bit_length()) * abs(exponent) > 1e5
    ):
        raise Undecided
    result = base**exponent
    if isinstance(result, Decimal) and abs(result) > MAX_SIZE:
        raise Undecided
    return result


def _root(number: Number) -> Number:
    if number < 0 or (isinstance(number, Decimal) and number < Decimal("1e-8")):
        raise Undecided
    if isinstance(number, Fraction):
        top, bottom = isqrt(number.numerator), isqrt(number.denominator)
        if top * top == number.numerator and bottom * bottom == number.denominator:
            return Fraction(top, bottom)
    return _decimal(number).sqrt()


def _logarithm(number: Number) -> Number:
    if number == 1:
        return Fraction(0)
    if number <= 0:
        raise Undecided
    number = _decimal(number)
    if abs(number - 1) < Decimal("1e-8") or number < Decimal("1e-8"):
        raise Undecided
    return number.ln()


def same(a: Number, b: Number, decimal: bool) -> bool:
    """Whether two values are one. Raises Undecided in the gap between surely equal and surely different."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        if a == b or not decimal:
            return a == b
        if abs(a - b) * 1000 > max(abs(a), abs(b)):
            return False
        raise Undecided
    a, b = _decimal(a), _decimal(b)
    size, gap = max(abs(a), abs(b)), abs(a - b)
    if min(abs(a), abs(b)) < Decimal("1e-8"):
        raise Undecided
    if gap * 1000 > size:
        return False
    if decimal:
        raise Undecided
    if gap > size * Decimal("1e-20"):
        return False
    if gap < size * Decimal("1e-45"):
        return True
    raise Undecided


def points(symbols: frozenset[str], seed: str) -> list[dict[str, Fraction]]:
    """Random rational values of the symbols: POINTS times positive, POINTS times with random signs."""
    source = random.Random(seed)
    envs = []
    for i in range(2 * POINTS if symbols else 1):
        env = {}
        for symbol in sorted(symbols):
            magnitude = Fraction(source.randint(3, 397), source.choice((7, 11, 13, 97)))
            env[symbol] = magnitude if i < POINTS or source.random() < 0.5 else -magnitude
        envs.append(env)
    return envs


def equal(a: str, b: str, seed: str) -> bool:
    """Whether two expressions are equal in value. Raises Undecided."""
    first, second = parse(a), parse(b)
    if first is None or second is None:
        raise Undecided
    decimal = first[2] or second[2]
    with localcontext(_CONTEXT):
        return all(
            same(value(first[0], env), value(second[0], env), decimal) for env in points(first[1] | second[1], seed)
        )


def ratio_sign(a: tuple[str, str], b: tuple[str, str], seed: str) -> int:
    """The sign of c where a[0] - a[1] is c (b[0] - b[1]) at all points, 0 where there is no c. Raises Undecided."""
    trees = [parse(side) for side in (*a, *b)]
    if None in trees or any(tree[2] for tree in trees):
        raise Undecided
    if trees[0][1] | trees[1][1] != trees[2][1] | trees[3][1]:
        raise Undecided
    ratios = []
    with localcontext(_CONTEXT):
        for env in points(trees[0][1] | trees[1][1], seed):
            left, right, left_b, right_b = (value(tree[0], env) for tree in trees)
            if not all(isinstance(v, Fraction) for v in (left, right, left_b, right_b)) or left_b == right_b:
                raise Undecided
            ratios.append((left - right) / (left_b - right_b))
    if any(ratio != ratios[0] for ratio in ratios):
        return 0
    return (ratios[0] > 0) - (ratios[0] < 0)
