"""Units behind a number: a missing one is accepted, a wrong one is not, the same quantity in another unit is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

F = Fraction
# word -> (factor to the base unit, {dimension: power})
_BASE: dict[str, tuple[Fraction, dict[str, int]]] = {}


def _define(dimension: dict[str, int], **words: Fraction | int) -> None:
    for names, factor in words.items():
        for name in names.split("__"):
            _BASE[name] = (F(factor), dimension)


_define({"length": 1}, m__meter__metre=1, km__kilometer__kilometre=1000, cm__centimeter__centimetre=F(1, 100))
_define({"length": 1}, mm__millimeter__millimetre=F(1, 1000), nm__nanometer=F(1, 10**9), dm__decimeter=F(1, 10))
_define({"length": 1}, inch__in=F(254, 10**4), ft__foot__feet=F(3048, 10**4), yd__yard=F(9144, 10**4))
_define({"length": 1}, mile__mi=F(1609344, 1000))
_define({"mass": 1}, kg__kilogram=1, g__gram__gm=F(1, 1000), mg__milligram=F(1, 10**6), ton__tonne=1000)
_define({"mass": 1}, lb__pound=F(45359237, 10**8), oz__ounce=F(45359237, 16 * 10**8))
_define({"time": 1}, s__sec__second=1, ms__millisecond=F(1, 1000), min__minute=60, h__hr__hour=3600, day=86400)
_define({"time": 1}, week=604800)
_define({"month": 1}, month=1, year__yr=12)
_define({"length": 3}, L__liter__litre=F(1, 1000), ml__mL__milliliter=F(1, 10**6), cc=F(1, 10**6))
_define({"gallon": 1}, gallon__gal=1, quart__qt=F(1, 4), pint__pt=F(1, 8))
_define({"length": 2}, hectare__ha=10**4)
_define({"length": 1, "time": -1}, mph=F(1609344, 3600 * 1000), kph__kmh__kmph=F(1000, 3600))
_define({"angle": 1}, degree__deg=1)
_define({"dollar": 1}, dollar__usd=1, cent=F(1, 100))
_define({"euro": 1}, euro=1)
_define({"sterling": 1}, gbp=1)
_define({"celsius": 1}, celsius=1)
_define({"fahrenheit": 1}, fahrenheit=1)
_define({"force": 1}, N__newton=1)
_define({"energy": 1}, J__joule=1, kJ=1000)
_define({"power": 1}, W__watt=1, kW=1000)

_CASED = {"N", "J", "W", "L", "kJ", "kW", "mL"}  # as a capital these are units, in lower case they may be others
_IRREGULAR = {"inches": "inch", "feet": "foot", "centuries": "century", "men": "man", "people": "person"}
_NOT_UNITS = {"and", "or", "is", "the", "a", "an", "of", "in", "to", "unit", "about", "approximately", "total"}
_TOKEN = re.compile(r"[A-Za-z]+|\^ ?\{? ?-?[0-9] ?\}?|/|[^\s]")
# Words are possessive: inside a repeated group a word that gives back letters would be exponential.
_UNIT_TAIL = re.compile(r"(?:\\text\{[^{}]*\}|/ ?[A-Za-z]++|m(?= ?/)|[A-Za-z]{2,}+|\^ ?\{? ?-?[0-9] ?\}?|[ .]){1,12}")
_DEGREE = re.compile(r"\^ ?\{? ?\\circ ?\}? ?(?:\\text\{ ?)?([CF]?)(?: ?\})?$")
_TRIGONOMETRY = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)")
_MONEY = {"¤": "dollar", "€": "euro", "£": "gbp"}


@dataclass(frozen=True)
class Unit:
    """`factor` to the base units, `dimensions` as sorted (name, power), `words` that are no known unit."""

    factor: Fraction
    dimensions: tuple[tuple[str, int], ...]
    words: frozenset[str]


def _singular(word: str) -> str:
    if word in _CASED or word in _BASE:
        return word
    word = word.lower()
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word not in _BASE and word.endswith("s") and not word.endswith("ss") and len(word) > 2:
        return word[:-1]
    return word


def parse_unit(text: str) -> Unit | None:  # noqa: PLR0912
    r"""Read `cm^2`, `square meters`, `miles per hour`, `m/s`, `apples`. None where nothing is left to read."""
    factor, dimensions, words = F(1), {}, set()
    sign, power_of_next, last = 1, 1, None
    for token in _TOKEN.findall(text.replace("\\text", " ").replace("{", " { ").replace("}", " } ")):
        if token in "{}" or token in {"\\", ".", "cdot"}:
            continue
        if token == "/" or token.lower() == "per":
            sign = -1
        elif token.lower() in {"square", "sq", "squared"}:
            power_of_next = 2
        elif token.lower() in {"cubic", "cu", "cubed"}:
            power_of_next = 3
        elif token == "^":
            power_of_next = 0  # "^ { 2 }" after the braces were set apart: the number comes next
        elif token.lstrip("-").isdigit() or token[0] == "^":
            if last is not None:
                extra = sign * (int(re.sub(r"[^0-9-]", "", token)) - 1)
                factor *= last[0] ** extra
                for name, power in last[1].items():
                    dimensions[name] = dimensions.get(name, 0) + extra * power
            power_of_next = 1
        elif (word := _singular(token)) in _BASE:
            last = _BASE[word]
            times = sign * power_of_next
            factor *= last[0] ** times
            for name, power in last[1].items():
                dimensions[name] = dimensions.get(name, 0) + times * power
            power_of_next = 1
        elif token.isalpha() and word not in _NOT_UNITS:
            words.add(word)
            last = None
    if not dimensions and not words:
        return None
    return Unit(factor, tuple(sorted((name, power) for name, power in dimensions.items() if power)), frozenset(words))


def split_unit(text: str) -> tuple[str, Unit | None]:
    r"""(number, unit) of a canonical text such as 5\text{ cm}, 12 km/h, ¤12.50, 90^\circ. The unit is None without one.

    A bare word counts as a unit only after a number and from two letters on: 5m may be five times m.
    """
    money = None
    for mark, word in _MONEY.items():
        if mark in text:
            money, text = Unit(*_known(word), frozenset()), text.replace(mark, "", 1).strip()
            break
    degree = _DEGREE.search(text[-40:])
    if degree and not _TRIGONOMETRY.search(text):
        body = text[: len(text) - (len(text[-40:]) - degree.start())].strip()
        scale = {"C": "celsius", "F": "fahrenheit"}.get(degree.group(1), "degree")
        return body, Unit(*_known(scale), frozenset())
    start = _tail_start(text)
    if start is None:
        return text, money
    body, tail = text[:start].strip(), text[start:]
    unit = parse_unit(tail)
    return (body, unit or money) if body else (text, money)


def _known(word: str) -> tuple[Fraction, tuple[tuple[str, int], ...]]:
    factor, dimensions = _BASE[word]
    return factor, tuple(dimensions.items())


def _tail_start(text: str) -> int | None:
    """Where the unit begins: the first \\text or bare word that runs to the end of the text and follows a value."""
    for match in re.finditer(r"\\text\{|(?<![A-Za-z\\{/])(?:[A-Za-z]{2,}|m(?= ?/ ?[A-Za-z]))", text[-200:]):
        start = max(0, len(text) - 200) + match.start()
        if not _UNIT_TAIL.fullmatch(text, start):
            continue
        before = text[:start].rstrip()
        if not before or before[-1] in "^_=<>+-*/(,":
            return None
        bare = match.group() if match.group() != "\\text{" else None
        if bare and not before[-1].isdigit() and before[-1] not in "})":
            return None
        if (
            bare
            and _singular(bare) not in _BASE
            and not bare.startswith("m")
            and (len(bare) < 4 or before == text[:start])
        ):
            return None  # 2ab is a product
        return start
    return None


def units_match(a: Unit | None, b: Unit | None) -> Fraction | None:
    """The factor that turns a number in `a` into one in `b`; 1 where either has none; None where they cannot agree."""
    if a is None or b is None:
        return F(1)
    if a.dimensions or b.dimensions:
        return a.factor / b.factor if a.dimensions == b.dimensions else None
    return F(1) if a.words <= b.words or b.words <= a.words else None
