"""Numbers behind sympy expressions: exact where they are rational, to 60 digits where not. Runs in workers only.

latex2sympy leaves its trees unevaluated, so nothing here calls doit() or simplify() on them: a power tower is looked at,
not computed.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction

import mpmath
import sympy

from rewards.rational import close

DIGITS = 60
EXACT_MAX_BITS = 1 << 22  # about 1.26 million decimal digits; a larger exact number is not written out
TINY = mpmath.mpf(10) ** -100
MAX_TERMS = 2000
_LEAST_BITS = 20
SAME = mpmath.mpf(10) ** -45  # relative: two different answers this close do not occur by accident


class NotRational(Exception):
    """The expression is not a rational number that can be written out."""


class Undefined(Exception):
    """The expression has no value: 1/0, 0/0, NaN."""


Env = dict[sympy.Symbol, Fraction]


def exact(expr: sympy.Basic, env: Env) -> Fraction:  # noqa: PLR0911, PLR0912
    """The exact value of a rational expression, with its symbols replaced. Raises NotRational or Undefined."""
    if isinstance(expr, sympy.Integer):
        return Fraction(int(expr.p))
    if isinstance(expr, sympy.Rational):
        return Fraction(int(expr.p), int(expr.q))
    if isinstance(expr, sympy.Float):
        return Fraction(str(expr))
    if isinstance(expr, sympy.Symbol):
        if expr in env:
            return env[expr]
        raise NotRational
    if expr in (sympy.nan, sympy.zoo):
        raise Undefined
    if isinstance(expr, (sympy.Sum, sympy.Product)):
        return _series(expr, env)
    if not isinstance(expr, _RATIONAL_NODES):
        raise NotRational
    args = [exact(arg, env) for arg in expr.args]
    if isinstance(expr, sympy.Add):
        return sum(args, Fraction(0))
    if isinstance(expr, sympy.Mul):
        return _product(args)
    if isinstance(expr, sympy.Pow):
        return _power(*args)
    if isinstance(expr, sympy.Abs):
        return abs(args[0])
    if isinstance(expr, sympy.factorial):
        n = _small_integer(args[0], 50_000)
        return Fraction(math.factorial(n))
    if isinstance(expr, sympy.binomial):
        n, k = (_small_integer(arg, 200_000) for arg in args)
        return Fraction(math.comb(n, k))
    if isinstance(expr, sympy.floor):
        return Fraction(math.floor(args[0]))
    if isinstance(expr, sympy.ceiling):
        return Fraction(math.ceil(args[0]))
    if isinstance(expr, sympy.Max):
        return max(args)
    if isinstance(expr, sympy.Min):
        return min(args)
    return args[0]  # UnevaluatedExpr


_RATIONAL_NODES = (sympy.Add, sympy.Mul, sympy.Pow, sympy.Abs, sympy.factorial, sympy.binomial, sympy.floor)
_RATIONAL_NODES += (sympy.ceiling, sympy.Max, sympy.Min, sympy.UnevaluatedExpr)


def _series(expr: sympy.Sum | sympy.Product, env: Env) -> Fraction:
    """A finite sum or product, term by term."""
    term, *limits = expr.args
    if len(limits) != 1 or len(limits[0]) != 3:
        raise NotRational
    index, start, end = limits[0]
    first, last = exact(start, env), exact(end, env)
    if first.denominator != 1 or last.denominator != 1 or last - first > MAX_TERMS:
        raise NotRational
    terms = [exact(term, {**env, index: Fraction(i)}) for i in range(int(first), int(last) + 1)]
    return sum(terms, Fraction(0)) if isinstance(expr, sympy.Sum) else _product(terms)


def _product(args: list[Fraction]) -> Fraction:
    result = Fraction(1)
    for arg in args:
        if _bits(result) + _bits(arg) > EXACT_MAX_BITS:
            raise NotRational
        result *= arg
    return result


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        return _root(base, exponent)
    if base == 0:
        if exponent < 0:
            raise Undefined
        return Fraction(0 if exponent else 1)
    if base not in (1, -1) and abs(exponent) * _bits(base) > EXACT_MAX_BITS:
        raise NotRational
    return base ** int(exponent % 2 if base in (1, -1) else exponent)


def _root(base: Fraction, exponent: Fraction) -> Fraction:
    """A square root that is rational, as in \\sqrt{16}; any other root is left to numerics."""
    if exponent.denominator == 2 and base >= 0 and _bits(base) < 10_000:
        top, bottom = math.isqrt(base.numerator), math.isqrt(base.denominator)
        if top * top == base.numerator and bottom * bottom == base.denominator:
            return _power(Fraction(top, bottom), Fraction(exponent.numerator))
    raise NotRational


def _small_integer(value: Fraction, limit: int) -> int:
    if value.denominator != 1 or not 0 <= value <= limit:
        raise NotRational
    return int(value)


def numeric(expr: sympy.Basic, env: Env) -> mpmath.mpc | None:
    """The complex value to DIGITS digits, or None where sympy finds no number. Raises Undefined for 1/0 and NaN."""
    try:
        value = expr.evalf(
            DIGITS, subs={symbol: sympy.Rational(v.numerator, v.denominator) for symbol, v in env.items()}
        )
    except (TypeError, ValueError, AttributeError, NotImplementedError, ArithmeticError, RecursionError):
        return None
    if value in (sympy.nan, sympy.zoo):
        raise Undefined
    real, imaginary = value.as_real_imag() if value.is_number else (None, None)
    if not isinstance(real, (sympy.Float, sympy.Rational)) or not isinstance(imaginary, (sympy.Float, sympy.Rational)):
        return None
    with mpmath.workdps(DIGITS):
        result = mpmath.mpc(_mpf(real), _mpf(imaginary))
        if 0 < abs(result) < TINY and not env and expr.doit().equals(0):
            return mpmath.mpc(0)  # (1 - 1 + ln 1)^2: the square of a cancelled number looks like a number
        return result


def _mpf(part: sympy.Number) -> mpmath.mpf:
    """One part of a value. Full cancellation leaves a tiny number without a correct digit (0.e-190): that is zero."""
    cancelled = isinstance(part, sympy.Float) and part._prec < _LEAST_BITS
    return mpmath.mpf(0) if cancelled else mpmath.mpf(sympy.Float(part, DIGITS)._mpf_)


Number = Fraction | mpmath.mpc


def evaluate(expr: sympy.Basic, env: Env) -> Number | None:
    """Exact where possible, else numeric, else None. Raises Undefined."""
    try:
        return exact(expr, env)
    except NotRational:
        return numeric(expr, env)
    except (OverflowError, RecursionError):
        return None


def as_complex(value: Number) -> mpmath.mpc:
    if not isinstance(value, Fraction):
        return value
    with mpmath.workdps(DIGITS):
        return mpmath.mpc(mpmath.mpf(value.numerator) / value.denominator)


def same_number(a: Number, b: Number, decimal: bool) -> bool:
    """Whether two values are one: exactly for rationals, to 45 digits otherwise, closely where a decimal was written."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return close(a, b, decimal)
    x, y = as_complex(a), as_complex(b)
    with mpmath.workdps(DIGITS):
        gap, size = abs(x - y), max(abs(x), abs(y))
        if gap <= SAME * size:
            return True
        return decimal and gap <= mpmath.mpf("5e-7") and gap <= mpmath.mpf("5e-5") * size


def points(symbols: list[sympy.Symbol], seed: str, count: int, positive: bool, integer: bool = False) -> list[Env]:
    """Random rational (or positive integer) points, the same for the same answer but not to be known beforehand."""
    source = random.Random(seed)
    envs = []
    for _ in range(count):
        env = {}
        for symbol in sorted(symbols, key=lambda s: s.name):
            if integer:
                env[symbol] = Fraction(source.randint(3, 40))
                continue
            value = Fraction(source.randint(3, 397), source.choice((7, 11, 13, 97, 101)))
            env[symbol] = value if positive or source.random() < 0.5 else -value
        envs.append(env)
    return envs


__all__ = ["NotRational", "Undefined", "as_complex", "evaluate", "exact", "numeric", "points", "same_number"]
