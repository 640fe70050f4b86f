r"""The shape of an answer: number with unit, list, set, tuple, interval, relation, ratio, words, choice letter.

Splits canonical text (see `rewards.latex`) at its top level only; what is left at the leaves is one expression for
sympy. No sympy here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rewards.units import Unit, split_unit


@dataclass(frozen=True)
class Value:
    """One expression, its unit, and whether a percent sign follows."""

    latex: str
    unit: Unit | None = None
    percent: bool = False


@dataclass(frozen=True)
class Words:
    """A verbal answer, in lower case."""

    text: str


@dataclass(frozen=True)
class Choice:
    """A multiple-choice letter, and the text behind it, if any ("C: 12")."""

    letter: str
    rest: str = ""


@dataclass(frozen=True)
class Based:
    """Digits with a base subscript: 2516_8."""

    digits: str
    base: int


@dataclass(frozen=True)
class Ratio:
    """2:3, or 1:2:3."""

    parts: tuple[Value, ...]
    clock: bool  # written like a time (3:45), which does not scale
    half: str = ""  # "a" or "p" of a time with a.m. or p.m.


@dataclass(frozen=True)
class Items:
    """Several answers. `brackets`: "" for a bare list, "{}" for a set, "()", "[]", "[)", "(]" for tuple or interval."""

    brackets: str
    parts: tuple[Node, ...]
    all_hold: bool = False  # joined by "and": several conditions at once


@dataclass(frozen=True)
class Relation:
    """sides[0] ops[0] sides[1] ops[1] ...: equations, inequalities and their chains."""

    sides: tuple[str, ...]
    ops: tuple[str, ...]


@dataclass(frozen=True)
class Matrix:
    """Rows of cells (LaTeX), whatever the brackets; a determinant is a `Value`."""

    rows: tuple[tuple[str, ...], ...]


Node = Value | Words | Choice | Based | Ratio | Items | Relation | Matrix

MAX_ITEMS = 1000  # a longer list is kept as one expression: comparing lists is quadratic

_TOKEN = re.compile(
    r"\\begin\{[a-z]+\}|\\end\{[a-z]+\}|\\(?:leq|geq|neq|approx|in|text|setminus|cup|cap)(?![A-Za-z])|\\[{}]|\\.|[()\[\]{},;:=<>]"
    r"|(?<![A-Za-z\\])(?:and|or|to)(?![A-Za-z])"
)
_OPEN = {"(", "[", "{", r"\{"}
_CLOSE = {")", "]", "}", r"\}"}
_RELATIONS = {"=", "<", ">", r"\leq", r"\geq", r"\neq", r"\in", r"\approx"}
_LIST_SEPARATORS = {",", ";", "and", "or"}

_MATRIX = re.compile(r"\\begin\{((?:[pbB]|small)?matrix|array)\}(.*)\\end\{\1\}", re.DOTALL)
_COLUMNS = re.compile(r"\{[lcr| ]*\}")  # of an array
_CHOICE = re.compile(r"(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer):? )?\(?([A-J])\)?")
_CHOICE_REST = re.compile(r"(?:\(([A-J])\)|([A-J])[.:)]) ?([^\s+\-*/^=_(].*)", re.DOTALL)
_BASED = re.compile(r"\(?([0-9A-Fa-f]{1,400})\)?_ ?\{? ?(?:\\text\{ ?([a-z]+) ?\}|([0-9]{1,2})) ?\}?")
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_BASES |= {"eleven": 11, "twelve": 12, "sixteen": 16}
_NAME = re.compile(
    r"(?:\\text\{[^{}]*\}|\\(?:angle|triangle|vec|overline|overrightarrow|bar|hat|operatorname|Delta)|\\[A-Za-z]++(?=$|[_' ])"
    r"|[A-Za-z]\([^()]{1,20}\)|[A-Za-z]|_ ?[0-9A-Za-z]|_ ?\{[^{}]{1,20}\}|'|\{[A-Za-z]{1,4}\}|[ |])+"
)
_TRIG_NAME = re.compile(
    r"\\(?:sin|cos|tan|cot|sec|csc|log|ln)(?:\^ ?\{?2\}?)? ?[({]? ?(?:[A-Za-z]|\\[a-z]+|\\angle [A-Z]+) ?[)}]?"
)
_DERIVATIVE = re.compile(r"\\frac\{d(?:\^?2)? ?[a-z]?\}\{d ?[a-z](?:\^2)?\}|[a-z]'+(?:\([a-z]\))?")
_BARE_WORD = re.compile(r"(?<![\\A-Za-z{_])[A-Za-z]{4,}")
_TEXT = re.compile(r"\\(?:text|operatorname)\{([^{}]*)\}")
_CLOCK = re.compile(r"[0-2]?[0-9] ?: ?[0-5][0-9]")
_TIME = re.compile(r"([0-2]?[0-9]) ?: ?([0-5][0-9]) ?(?:\\text\{)? ?([ap])\.? ?m\.? ?\}?", re.IGNORECASE)
_SENTENCE_START = re.compile(r"\\text\{[^{}]*(?:is|are|:|=) ?\} ?(?=.)")
_PUNCTUATION = re.compile(r"[\s.,;:!?\"'()\[\]{}\\¤-]+")


def top_level(text: str, wanted: set[str]) -> Iterator[re.Match]:
    """The tokens of `wanted` that stand outside all brackets, environments and groups."""
    depth = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in _OPEN or token.startswith(r"\begin"):
            depth += 1
        elif token in _CLOSE or token.startswith(r"\end"):
            depth = max(0, depth - 1)
        elif depth == 0 and token in wanted:
            yield match


def _split(text: str, wanted: set[str]) -> tuple[list[str], list[str]]:
    """(pieces, separators) at the top level; empty pieces are kept."""
    pieces, separators, start = [], [], 0
    for match in top_level(text, wanted):
        pieces.append(text[start : match.start()].strip())
        separators.append(match.group())
        start = match.end()
    return [*pieces, text[start:].strip()], separators


def parse(text: str) -> Node:  # noqa: PLR0911
    """The shape of a canonical text. Never raises; what has no shape is one `Value`."""
    if (lead := _SENTENCE_START.match(text)) is not None:
        text = text[lead.end() :]  # \text{The answer is } 4
    if (choice := _choice(text)) is not None:
        return choice
    inner = _TEXT.fullmatch(text)
    if (time := _TIME.fullmatch(inner.group(1).strip() if inner else text)) is not None:
        return Ratio((Value(time.group(1)), Value(time.group(2))), True, time.group(3).lower())
    pieces, separators = _split(text, _LIST_SEPARATORS)
    pieces = [piece for piece in pieces if piece]
    if 1 < len(pieces) <= MAX_ITEMS:
        return _items("", pieces, all_hold="and" in separators and "or" not in separators)
    text = pieces[0] if len(pieces) == 1 else text
    if "\\pm" in text or "\\mp" in text:
        plus = re.sub(r"\\(pm|mp)(?![A-Za-z])", lambda m: "+" if m.group(1) == "pm" else "-", text)
        minus = re.sub(r"\\(pm|mp)(?![A-Za-z])", lambda m: "-" if m.group(1) == "pm" else "+", text)
        if plus != minus:
            return _items("", [plus, minus])
    if (inside := enclosed(text)) is not None:
        brackets, content = inside
        parts = _split(content, {",", ";"})[0]
        if all(parts) and 1 < len(parts) <= MAX_ITEMS:
            return _items(brackets, parts)
        if brackets == "{}" and len(parts) == 1 and not re.search(r"[|:<>=]|\\(?:in|leq|geq|neq)(?![a-z])", content):
            return _items(brackets, parts) if parts[0] else Value(r"\emptyset")
        if brackets == "()" and len(parts) == 1 and parts[0]:
            return parse(content)
        if brackets == "[]" and (matrix := _matrix(content)):  # \left[\begin{matrix} ..., as sympy prints it
            return matrix
    return _matrix(text) or _relation(text) or _ratio(text) or _based(text) or _value(text)


def _items(brackets: str, pieces: list[str], all_hold: bool = False) -> Items:
    parts: list[Node] = []
    for piece in pieces:
        part = parse(piece)
        nested = isinstance(part, Items) and not part.brackets and not brackets
        parts.extend(part.parts if nested else [part])
    if not brackets:
        parts = _same_name(parts)
    return Items(brackets, tuple(parts), all_hold)


def _same_name(parts: list[Node]) -> list[Node]:
    """x=1, x=2 and x=1, 2 are the values 1, 2; a=1, b=2 stays."""
    assigned = [part for part in parts if isinstance(part, Relation)]
    names = {part.sides[0] for part in assigned if set(part.ops) == {"="} and is_name(part.sides[0])}
    if len(names) != 1 or not isinstance(parts[0], Relation) or any(set(part.ops) != {"="} for part in assigned):
        return parts
    if len(assigned) not in (1, len(parts)) or any(part.sides[0] not in names for part in assigned):
        return parts
    return [parse(part.sides[-1]) if isinstance(part, Relation) else part for part in parts]


def enclosed(text: str) -> tuple[str, str] | None:
    """(brackets, content) where one pair of brackets encloses the whole text: "()" "[]" "[)" "(]" or "{}" for a set."""
    first = r"\{" if text.startswith(r"\{") else text[:1]
    last = r"\}" if text.endswith(r"\}") else text[-1:]
    if first not in {"(", "[", r"\{"} or last not in {")", "]", r"\}"} or (first == r"\{") != (last == r"\}"):
        return None
    depth = 0
    for match in _TOKEN.finditer(text):
        depth += (match.group() in _OPEN) - (match.group() in _CLOSE)
        if depth == 0 and match.end() < len(text):
            return None
    return (first + last).replace("\\", ""), text[len(first) : len(text) - len(last)].strip()


def is_name(text: str) -> bool:
    r"""Whether a side of an equation only names the quantity: x, a_5, f(x), AB, \angle ABC, P(A), \text{Area}, \cos x."""
    text = text.strip()
    if not text or len(text) > 60:
        return False
    if (inside := enclosed(text)) is not None and inside[0] == "()" and "," in inside[1]:
        return all(_NAME.fullmatch(part) for part in _split(inside[1], {","})[0])
    return any(pattern.fullmatch(text) for pattern in (_NAME, _TRIG_NAME, _DERIVATIVE))


def _choice(text: str) -> Choice | None:
    inner = _TEXT.fullmatch(text)
    plain = (inner.group(1) if inner else text).strip()
    if match := _CHOICE.fullmatch(plain):
        return Choice(match.group(1))
    if match := _CHOICE_REST.fullmatch(plain.replace(r"\text{", "", 1) if plain.startswith(r"\text{") else plain):
        rest = match.group(3).strip()
        return Choice(match.group(1) or match.group(2), rest) if not _CHOICE.fullmatch(rest) else None
    return None


def _matrix(text: str) -> Matrix | None:
    match = _MATRIX.fullmatch(text)
    if match is None or "\\begin" in match.group(2) or len(text) > 20_000:
        return None
    cells = match.group(2).strip()
    if match.group(1) == "array" and (columns := _COLUMNS.match(cells)):
        cells = cells[columns.end() :]
    lines = [line for line in cells.split(r"\\") if line.strip()]
    return Matrix(tuple(tuple(cell.strip() for cell in line.split("&")) for line in lines))


def _relation(text: str) -> Node | None:
    sides, ops = _split(text, _RELATIONS)
    if not ops or not all(sides):
        return None
    if ops[0] == r"\in" and len(ops) == 1:
        return parse(sides[1])
    return Relation(tuple(sides), tuple(ops))


def _ratio(text: str) -> Ratio | None:
    parts, separators = _split(text, {":", "to"})
    if not separators:
        parts, separators = _split(re.sub(r"\\text\{ ?to ?\}", " to ", text), {":", "to"})
    if not separators or len(parts) > 8 or not all(part and re.search("[0-9A-Za-z]", part) for part in parts):
        return None
    values = [_value(part) for part in parts]
    if not all(isinstance(value, Value) for value in values):
        return None
    return Ratio(tuple(values), _CLOCK.fullmatch(text) is not None)


def _based(text: str) -> Based | None:
    match = _BASED.fullmatch(text)
    if match is None or not re.search("[0-9]", match.group(1)):
        return None
    base = _BASES.get(match.group(2) or "") or int(match.group(3) or 0)
    digits = match.group(1).upper()
    return Based(digits.lstrip("0") or "0", base) if 2 <= base <= 16 and int(max(digits), 16) < base else None


def _value(text: str) -> Value | Words:
    percent = text.endswith(r"\%")
    if percent:
        text = text[:-2].strip()
    body, unit = split_unit(text)
    if body.endswith(r"\%"):
        percent, body = True, body[:-2].strip()
    if r"\text" in body or _BARE_WORD.search(_TEXT.sub("", body).replace(r"\operatorname", "")):
        return Words(word_key(text))
    return Value(body, unit, percent)


def word_key(text: str) -> str:
    r"""A verbal answer without \text, case, punctuation and a leading article."""
    words = _PUNCTUATION.sub(" ", _TEXT.sub(r" \1 ", text)).strip().lower()
    return words.removeprefix("the ")


def describe(node: Node) -> str:  # noqa: PLR0911
    """A node as a person reads it when they debug a reward."""
    match node:
        case Value():
            unit = ""
            if node.unit is not None:
                powers = [f"{name}^{power}" if power != 1 else name for name, power in node.unit.dimensions]
                unit = " [" + " ".join(powers or sorted(node.unit.words)) + f" x {node.unit.factor}]"
            return node.latex + ("%" if node.percent else "") + unit
        case Words():
            return f'"{node.text}"'
        case Choice():
            return f"({node.letter}) {node.rest}".strip()
        case Based():
            return f"{node.digits} base {node.base}"
        case Ratio():
            return " : ".join(describe(part) for part in node.parts)
        case Relation():
            pairs = zip(node.sides, (*node.ops, ""), strict=True)
            return " ".join(f"{side} {op}".strip() for side, op in pairs)
        case Matrix():
            return "matrix[" + "; ".join(", ".join(row) for row in node.rows) + "]"
        case Items():
            left, right = node.brackets or ("list(", ")")
            return left + "; ".join(describe(part) for part in node.parts) + right
