r"""One spelling for the many ways to write the same LaTeX. Pure text: every pattern here is linear in its input.

`canonical` is run on the gold and on the answer alike. It changes spelling, never value: \dfrac12 becomes \frac{1}{2},
12\,500 becomes 12500, a full-width digit becomes ASCII. Letters of other scripts that only look like Latin ones are left
as they are: a look-alike is another symbol.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# Commands that carry no value, and commands with a plainer spelling. Everything else is kept.
_SPACES = {",", ";", ":", " ", ">", "quad", "qquad", "thinspace", "enspace", "enskip", "hspace"}
_DROPPED = {"!", "(", ")", "[", "]", "left", "right", "mleft", "mright", "displaystyle", "textstyle", "scriptstyle"}
_DROPPED |= {"big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "limits", "nolimits", "bf", "rm", "it", "bm"}
_DROPPED |= {"boldsymbol", "mathbf", "mathit", "mathsf", "mathtt", "mathcal", "ensuremath", "allowbreak", "nobreak"}
_RENAMED = {
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "dbinom": r"\binom", "tbinom": r"\binom",
    "le": r"\leq ", "leqslant": r"\leq ", "ge": r"\geq ", "geqslant": r"\geq ", "ne": r"\neq ", "lt": "<", "gt": ">",
    "lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]", "lvert": "|", "rvert": "|", "vert": "|", "mid": "|",
    "colon": ":", "div": "/", "ast": r"\cdot ", "degree": r"^\circ ", "textdegree": r"^\circ ", "percent": r"\%",
    "mbox": r"\text", "textbf": r"\text", "textit": r"\text", "textrm": r"\text", "textsf": r"\text", "texttt": r"\text",
    "mathrm": r"\text", "emph": r"\text", "textnormal": r"\text", "operatorname": r"\text", "underline": r"\text",
    "lor": r"\text{ or }", "vee": r"\text{ or }", "land": r"\text{ and }", "wedge": r"\text{ and }", "And": ",",
    "dots": r"\ldots ", "cdots": r"\ldots ", "varnothing": r"\emptyset ", "bigcup": r"\cup ", "backslash": r"\setminus ",
    "langle": "(", "rangle": ")", "arcsec": r"\operatorname{arcsec}", "thickapprox": r"\approx ", "euro": "€", "pounds": "£",
    "implies": r"\text{ or }", "Reals": r"\mathbb{R}", "R": r"\mathbb{R}", "boxed": "", "fbox": "", "infin": r"\infty ",
}  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]+\*?|.)", re.DOTALL)

_UNICODE = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "×": r"\times ", "✕": r"\times ", "·": r"\cdot ",
    "⋅": r"\cdot ", "∙": r"\cdot ", "∗": r"\cdot ", "÷": "/", "∕": "/", "⁄": "/", "π": r"\pi ", "∞": r"\infty ",
    "≤": r"\leq ", "≥": r"\geq ", "⩽": r"\leq ", "⩾": r"\geq ", "≠": r"\neq ", "≈": r"\approx ", "∈": r"\in ", "∪": r"\cup ",
    "∩": r"\cap ", "∖": r"\setminus ", "∅": r"\emptyset ", "±": r"\pm ", "∓": r"\mp ", "°": r"^\circ ", "ℝ": r"\mathbb{R}",
    "∑": r"\sum ", "∫": r"\int ", "′": "'", "’": "'", "‘": "'", "“": '"', "”": '"', "√": r"\sqrt ", "∛": r"\sqrt[3] ",
    "…": r"\ldots ", "∨": r"\text{ or }", "∧": r"\text{ and }", "⟨": "(", "⟩": ")", "\u00a0": " ", "\u200b": "",
    "\u200c": "", "\u200d": "", "\u2060": "", "\ufeff": "", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ",
    "γ": r"\gamma ", "λ": r"\lambda ", "φ": r"\phi ", "ω": r"\omega ", "μ": r"\mu ", "σ": r"\sigma ", "δ": r"\delta ",
    "∠": r"\angle ", "△": r"\triangle ", "¢": r"\text{ cents}",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋₍₎", "0123456789+-()")
_SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ]+")
_SUBSCRIPT_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋₍₎]+")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_NON_ASCII = re.compile(r"[^\x00-\x7f]")
_SPECIAL = re.compile("[" + "".join(map(re.escape, _UNICODE)) + "]")

_TEXT_GROUP = re.compile(r"\\text\s*\{([^{}]*)\}")
_LONG_WORD = re.compile(r"[A-Za-z]{2,}")
_UNIT_IN_TEXT = re.compile(r"[mgshlnjw]|[a-z]{1,12} ?/ ?[a-z]{1,12}(?: ?\^ ?[0-9])?")
_SEPARATOR_IN_TEXT = re.compile(r"(?i)\s*(?:,\s*(?:and|or)\b|,|;|(?<![a-z])(?:and|or)(?![a-z]))\s*")
_SHORT_FRACTION = re.compile(r"\\(frac|binom)\s*([0-9A-Za-z](?=\s*[0-9A-Za-z{\\])|\{)")
_BARE_ROOT = re.compile(r"\\sqrt\s*(\[[^\[\]]{0,8}\])?\s*(?:([0-9]+)|([A-Za-z])|(\\[A-Za-z]+)|\()")
_WHITE = re.compile(r"\s+")
_DECIMAL_COMMA = re.compile(r"([0-9]+)\{,\}([0-9]+)")
_THOUSANDS_COMMA = re.compile(r"(?<![0-9.,A-Za-z_^])([1-9][0-9]{0,2}(?:,[0-9]{3})+)(?![0-9,])")
_THOUSANDS_SPACE = re.compile(
    r"(?<![0-9.,A-Za-z_^/}] )(?<![0-9.,A-Za-z_^/}])([1-9][0-9]{0,2}(?: [0-9]{3})+)(?! ?[0-9/])"
)
_THOUSANDS_DOT = re.compile(r"(?<![0-9.,])([1-9][0-9]{0,2}(?:\.[0-9]{3}){2,})(?![0-9.])")
_BRACKET = re.compile(r"\\[{}]|[()\[\]]")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_REPEATING = re.compile(
    r"(?<![0-9.])([0-9]{0,40})\.([0-9]{0,40})(?:\\overline|\\bar|\\dot)\s*(?:\{([0-9]{1,40})\}|([0-9]))(?![0-9\\])"
)
_BARE_FUNCTION = re.compile(
    r"(?<![\\\\A-Za-z])(sqrt|pi|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|ln|log|exp|infinity|infty|theta)(?![A-Za-z])"
)
_EMPTY_DECIMALS = re.compile(r"(?<=[0-9])\.(?=\\%|[^0-9A-Za-z.\\])")
_IDLE_SPACE = re.compile(r" ?([^0-9A-Za-z ]) ?")  # a space next to a sign has no meaning; one between digits has
_LEADING_DOT = re.compile(r"(?<![0-9A-Za-z}])\.(?=[0-9])")


def _replace_command(match: re.Match) -> str:
    name = match.group(1).rstrip("*")
    if name in _SPACES:
        return " "
    if name in _DROPPED:
        return ""
    if name == "$":
        return "¤"  # a dollar amount, told apart from the delimiter
    if name == "\\":
        return "\\\\"
    return _RENAMED.get(name, match.group())


def _replace_unicode(text: str) -> str:
    text = _SUPERSCRIPT_RUN.sub(lambda m: "^{" + m.group().translate(_SUPERSCRIPTS) + "}", text)
    text = _SUBSCRIPT_RUN.sub(lambda m: "_{" + m.group().translate(_SUBSCRIPTS) + "}", text)
    text = _SPECIAL.sub(lambda m: _UNICODE[m.group()], text)
    return _NON_ASCII.sub(lambda m: _flat_char(m.group()), text)


@lru_cache(maxsize=4096)
def _flat_char(char: str) -> str:
    """The NFKC form of one character: a full-width digit becomes ASCII, a vulgar fraction \\frac."""
    flat = unicodedata.normalize("NFKC", char)
    if "⁄" in flat:
        top, bottom = flat.split("⁄")
        return rf"\frac{{{top}}}{{{bottom}}}" if bottom else flat
    return flat if len(flat) <= 4 else char


def _unwrap_text(match: re.Match) -> str:  # noqa: PLR0911
    r"""\text{42} is 42, \text{ and } is a comma, \text{A, B} is \text{A},\text{B}; words stay \text."""
    content = match.group(1)
    word = content.strip().lower()
    if word in {"and", "or", ",", "and/or", ", and", ", or"}:
        return f" {word.strip(', ')} " if word in {"and", "or", ", and", ", or"} else " , "
    if _UNIT_IN_TEXT.fullmatch(word):
        return r"\text{ " + content.strip() + "}"
    if not _LONG_WORD.search(content):
        return content if word not in {"", "."} else " "
    if word in {"percent", "per cent", "percentage"}:
        return r"\%"
    if word in {"pi", "infinity"} and content.strip().islower():
        return {"pi": r"\pi ", "infinity": r"\infty "}[word]
    if _SEPARATOR_IN_TEXT.search(content):
        return " , ".join(_wrap_words(part) if part.strip() else "" for part in _SEPARATOR_IN_TEXT.split(content))
    return _wrap_words(content)


def _wrap_words(words: str) -> str:
    return r"\text{" + _WHITE.sub(" ", words) + "}" if _LONG_WORD.search(words) else words


def _brace_arguments(text: str) -> str:
    r"""\frac12, \frac1{2}, \frac{1}2, \sqrt2, \sqrt(2) and √x with braces around each argument."""

    def fraction(match: re.Match) -> str:
        name, first = match.groups()
        return rf"\{name}" + ("{" if first == "{" else f"{{{first}}}")

    text = _SHORT_FRACTION.sub(fraction, text)
    text = re.sub(r"(\\(?:frac|binom)\{[0-9A-Za-z]{1,40}\})\s*([0-9A-Za-z])", r"\1{\2}", text)

    def root(match: re.Match) -> str:
        index, digits, letter, command = match.groups()
        argument = digits or letter or command
        return rf"\sqrt{index or ''}" + (f"{{{argument}}}" if argument else "(")

    text = _BARE_ROOT.sub(root, text)
    return _paren_to_brace(text, r"\sqrt")


def _paren_to_brace(text: str, command: str) -> str:
    """command(...) with balanced parentheses becomes command{...}. One pass over the parentheses."""
    if command + "(" not in text:
        return text
    chars, stack = list(text), []
    for i, char in enumerate(chars):
        if char == "(":
            stack.append(i)
        elif char == ")" and stack:
            start = stack.pop()
            if text.endswith(command, 0, start):
                chars[start], chars[i] = "{", "}"
    return "".join(chars)


def _join_thousands(text: str) -> str:
    """12,500 and 12 500 and 1.234.567 without separators. Inside brackets a comma separates elements instead."""
    text = _THOUSANDS_SPACE.sub(lambda m: m.group(1).replace(" ", ""), text)
    text = _THOUSANDS_DOT.sub(lambda m: m.group(1).replace(".", ""), text)
    if "," not in text:
        return text
    depth, start, pieces = 0, 0, []
    for match in _BRACKET.finditer(text):
        opening = match.group() in ("(", "[", r"\{")
        if depth == 0:
            pieces.append(_THOUSANDS_COMMA.sub(lambda m: m.group(1).replace(",", ""), text[start : match.start()]))
            start = match.start()
        depth = depth + 1 if opening else max(0, depth - 1)
        if depth == 0:
            pieces.append(text[start : match.end()])
            start = match.end()
    tail = text[start:]
    pieces.append(_THOUSANDS_COMMA.sub(lambda m: m.group(1).replace(",", ""), tail) if depth == 0 else tail)
    return "".join(pieces)


def _repeating_decimal(match: re.Match) -> str:
    r"""0.1\overline{6} as the fraction it is."""
    whole, fixed = match.group(1) or "0", match.group(2)
    period = match.group(3) or match.group(4)
    numerator = int(whole + fixed + period) - int(whole + fixed)
    return rf"\frac{{{numerator}}}{{{(10 ** len(period) - 1) * 10 ** len(fixed)}}}"


def _decimal_comma(match: re.Match) -> str:
    """3{,}5 is 3.5; 12{,}500 is 12500 (three digits after, at most three before, and no leading zero)."""
    whole, rest = match.groups()
    thousands = len(rest) == 3 and len(whole) <= 3 and whole[0] != "0"
    return whole + rest if thousands else f"{whole}.{rest}"


@lru_cache(maxsize=4096)
def _canonical(text: str) -> str:
    if not text.isascii():
        text = _replace_unicode(text)
    text = _CONTROL.sub("", text)
    text = text.replace("$", " ") if "\\$" not in text else re.sub(r"(?<!\\)\$", " ", text)
    text = re.sub(r"(?<!\\)%", r"\\%", text)
    text = _WHITE.sub(" ", _COMMAND.sub(_replace_command, text))  # or a long run of spaces in \\text is quadratic
    for _ in range(2):  # twice: \textbf{\text{C}}
        if "\\text" not in text:
            break
        text = _TEXT_GROUP.sub(_unwrap_text, text)
    if "{,}" in text:
        text = _DECIMAL_COMMA.sub(_decimal_comma, text)
    text = _WHITE.sub(" ", text).strip()
    if "\\text" not in text:
        text = _BARE_FUNCTION.sub(lambda m: "\\" + m.group().replace("infinity", "infty") + " ", text)
    text = _brace_arguments(text)
    if "\\overline" in text or "\\bar" in text or "\\dot" in text:
        text = _REPEATING.sub(_repeating_decimal, text)
    text = text.strip(" ").rstrip(".,;:! ") if not text.endswith("!") else text.rstrip(" ")
    text = _LEADING_DOT.sub("0.", text).lstrip(",;: ")
    text = _EMPTY_DECIMALS.sub("", text)
    text = _IDLE_SPACE.sub(r"\1", _join_thousands(text))
    return _strip_outer_braces(text)


def _strip_outer_braces(text: str) -> str:
    """{{x}} is x, for each pair of braces that encloses all of it. One pass, whatever the depth."""
    opens, pair_of_end = [], {}
    if not (text.startswith("{") and text.endswith("}")):
        return text
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            opens.append(match.start())
        elif match.group() == "}" and opens:
            pair_of_end[match.start()] = opens.pop()
    first, last = 0, len(text) - 1
    while first < last and text[first] == "{" and pair_of_end.get(last) == first:
        first, last = first + 1, last - 1
        while first < last and text[first] == " ":
            first += 1
        while first < last and text[last] == " ":
            last -= 1
    return text[first : last + 1]


CANONICAL_CACHE_CHARS = 1024


def canonical(text: str) -> str:
    """The canonical spelling of a gold or an answer. Short ones are cached: generations share their golds."""
    return _canonical(text) if len(text) <= CANONICAL_CACHE_CHARS else _canonical.__wrapped__(text)
