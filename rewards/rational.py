"""Plain rational numbers: read from text and compared exactly, without sympy. The one place that decides closeness."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

# Two unequal numbers still match when one was written as a decimal, as 0.333333 is for 1/3: by at most half a unit in
# the sixth decimal (math-verify's float_rounding=6), and, so that tiny numbers stay apart (huggingface/Math-Verify#14),
# by at most 5 in 100,000 of their size.
ABSOLUTE_TOLERANCE = Fraction(5, 10**7)
RELATIVE_TOLERANCE = Fraction(5, 10**5)

_DIGITS = r"[0-9]{1,400}"  # int() is quadratic in its digits: longer numbers are left to the worker and its limits
_PLAIN = re.compile(
    rf"(?P<sign>[-+]?) ?(?:"
    rf"(?P<int>{_DIGITS})(?:\.(?P<dec>[0-9]{{0,400}}))?"
    rf"(?: ?\\(?:times|cdot) ?10\^(?:\{{(?P<exp>-?[0-9]{{1,3}})\}}|(?P<e>[0-9]))|[eE](?P<e2>[-+]?[0-9]{{1,3}}))?"
    rf"|(?:(?P<whole>{_DIGITS}) ?)?\\frac ?\{{(?P<ts>-?)(?P<top>{_DIGITS})\}} ?\{{(?P<bottom>{_DIGITS})\}}"
    rf"|(?:(?P<whole2>{_DIGITS}) )?(?P<top2>{_DIGITS}) ?/ ?(?P<bottom2>{_DIGITS})"
    rf") ?(?P<percent>\\%)?"
)


_LONG_INTEGER = re.compile(r"[-+]?0*[1-9][0-9]{1500,}")  # larger than any number that `plain` reads (below 10^1400)


@dataclass(frozen=True)
class Plain:
    """A rational number as written. `decimal`: written with a decimal point. `percent`: followed by %, not divided."""

    value: Fraction
    decimal: bool
    percent: bool


def plain(text: str) -> Plain | None:
    r"""Read 12, -3.50, 7/3, \frac{7}{3}, 2\frac{1}{3}, 2 1/3, 1.2\times 10^{5}, each with an optional \%. Else None.

    `text` is canonical (see `rewards.latex`). A whole number before an improper fraction is ambiguous (a product?): None.
    """
    match = _PLAIN.fullmatch(text)
    if match is None:
        return None
    part = match.groupdict()
    if part["int"] is not None:
        decimals = part["dec"] or ""
        value = Fraction(int(part["int"] + decimals), 10 ** len(decimals))
        exponent = part["exp"] or part["e"] or part["e2"]
        value *= Fraction(10) ** int(exponent) if exponent else 1
        decimal = "." in match.group() and bool(decimals)
    else:
        top, bottom = int(part["top"] or part["top2"]), int(part["bottom"] or part["bottom2"])
        whole = part["whole"] or part["whole2"]
        if bottom == 0 or (whole is not None and (top >= bottom or part["ts"])):
            return None
        value = Fraction(-top if part["ts"] else top, bottom) + int(whole or 0)
        decimal = False
    return Plain(-value if part["sign"] == "-" else value, decimal, part["percent"] is not None)


def close(a: Fraction, b: Fraction, decimal: bool) -> bool:
    """Whether two numbers match; `decimal` says that at least one was written as a decimal."""
    if a == b:
        return True
    if not decimal:
        return False
    gap = abs(a - b)
    return gap <= ABSOLUTE_TOLERANCE and gap <= RELATIVE_TOLERANCE * max(abs(a), abs(b))


def plain_match(a: Plain, b: Plain) -> bool:
    """28% matches 28 and 0.28; two percentages match as their numbers do."""
    decimal = a.decimal or b.decimal
    if close(a.value, b.value, decimal):
        return True
    if a.percent == b.percent:
        return False
    return close(a.value / 100, b.value, decimal) if a.percent else close(a.value, b.value / 100, decimal)


def plain_verdict(gold: str, answer: str) -> bool | None:
    """The verdict on two canonical texts if both are plain numbers; None if sympy has to be asked."""
    g = plain(gold)
    if g is None:
        return None
    if (a := plain(answer)) is not None:
        return plain_match(g, a)
    return False if _LONG_INTEGER.fullmatch(answer) else None
