r"""Find the final answer in a completion, and the answer in a gold. Pure text, linear in its length, no sympy.

What is left out on purpose: "the last number in the text" is no answer (a derivation cut off before its end would be
paid for an intermediate value), and nothing inside the thinking is one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# One pass over these tokens finds every balanced box: escapes are consumed first, so that \{ and \} never count.
# \\boxed (two backslashes) is a model's over-escaped \boxed.
_BOX_TOKEN = re.compile(r"\\{1,2}(?:boxed|fbox)(?![A-Za-z])\s*|\\.|[{}]", re.DOTALL)
_FIRST_BOX = re.compile(r"\\{1,2}(?:boxed|fbox)")  # no brace before the first box can close in it
_BRACELESS_BOX = re.compile(r"[^\s${}]{1,64}")
_EMPTY_TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\s*\{\s*\}")
_HAS_CONTENT = re.compile(r"[^\W_]|[^\x00-\x7f]|\\[A-Za-z]")

# What may stand between two boxes of one list. Anything else means that the later box replaces the earlier one.
_LIST_GAP = re.compile(
    r"(?:\s|[,;$&]|\\[,;!()\[\] ]|\\q?quad(?![a-z])|\\text\s*\{\s*(?:and|or)\s*\}"
    r"|(?:and|or|maybe|perhaps|possibly|also|either|alternatively)(?![A-Za-z]))*"
)

_THINK_END = re.compile(r"</think(?:ing)?>")
_THINK_START = re.compile(r"<think(?:ing)?>")
_ANSWER_OPEN, _ANSWER_CLOSE = "<answer>", "</answer>"

# "answer is", "final answer:", "correct option is": the words alone (as in "the answer goes in a box") are no claim.
_STATED = re.compile(
    r"(?i)(?<![A-Za-z])(?:answer|result|correct (?:option|choice)|right (?:option|choice))(?![A-Za-z])"
    r"[*_ ]{0,4}(?:is|are|:|=)[*:]{0,3}(?![A-Za-z])"
)
_HEADING = re.compile(r"(?i)(?<![A-Za-z])final answer[*_:# ]{0,8}\n")
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*")
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{[^{}]*\}")

STATED_MAX_CHARS = 200  # a longer "final answer" is prose, and prose is not gradeable
BARE_MAX_CHARS = 64


@dataclass(frozen=True)
class Found:
    """A final answer: its text (LaTeX or plain), and where it was found: "box", "tag" or "stated"."""

    text: str
    where: str


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""All outermost balanced \boxed{...} and \fbox{...} as (start, end, content), in order; `\boxed 7` counts too.

    An unbalanced box (a completion cut off inside it) is not returned. Linear in len(text).
    """
    found: list[tuple[int, int, str]] = []
    open_braces: list[tuple[int, int] | None] = []  # (box start, content start) for a box's brace, None for others
    pending: int | None = None  # a \boxed whose next character decides whether it has braces
    position = 0
    first = _FIRST_BOX.search(text)
    if first is None:
        return found
    for token in _BOX_TOKEN.finditer(text, first.start()):
        if token.start() < position:
            continue
        value = token.group()
        if value == "{":
            open_braces.append(None if pending is None else (pending, token.end()))
            pending = None
        elif value == "}":
            pending = None
            if open_braces and (box := open_braces.pop()) is not None:
                while found and found[-1][0] > box[0]:
                    found.pop()  # a box inside a box: the outer one is the answer
                found.append((box[0], token.end(), text[box[1] : token.start()]))
        elif len(value) > 2:
            pending = token.start() if text[token.end() : token.end() + 1] == "{" else None
            if pending is None and (bare := _BRACELESS_BOX.match(text, token.end())):
                found.append((token.start(), bare.end(), bare.group().rstrip(".,;")))
                position = bare.end()
        else:
            pending = None
    return found


def _has_content(text: str) -> bool:
    return _HAS_CONTENT.search(_EMPTY_TEXT.sub("", text)) is not None


def _last_boxes(text: str) -> str | None:
    """The last non-empty box, or, where boxes stand in one list ("{1} and {2}"), all of that list."""
    found = [box for box in boxes(text) if _has_content(box[2])]
    if not found:
        return None
    first = len(found) - 1
    while first and _LIST_GAP.fullmatch(text, found[first - 1][1], found[first][0]):
        first -= 1
    parts = list(dict.fromkeys(content.strip() for _, _, content in found[first:]))
    return parts[0] if len(parts) == 1 else " , ".join(parts)


def after_thinking(text: str) -> str:
    """The part of a completion that is not thinking.

    A template may pre-fill `<think>`, so a closing tag alone ends the thinking; a tag that never closes hides the rest.
    """
    ends = list(_THINK_END.finditer(text))
    if ends:
        text = text[ends[-1].end() :]
    start = _THINK_START.search(text)
    return text[: start.start()] if start else text


def _inside_answer_tag(text: str) -> str | None:
    close = text.rfind(_ANSWER_CLOSE)
    start = text.rfind(_ANSWER_OPEN, 0, close) if close >= 0 else -1
    return text[start + len(_ANSWER_OPEN) : close] if start >= 0 else None


def _first_sentence(text: str) -> str:
    """The rest of a statement: to the end of its sentence, or the first line that is not empty."""
    text = text.lstrip("*:_ \t\r\n")
    end = _SENTENCE_END.search(text)
    return text[: end.start()] if end else text


def _stated(text: str) -> str | None:
    """A final answer stated in words: "#### 5", "final answer: 5", "the answer is (C)", a bold end, or nothing else."""
    lines = text.rstrip().rsplit("\n", 1)
    last_line = lines[-1].strip()
    if last_line.startswith("####"):
        return last_line.lstrip("# ")
    claim = None
    for pattern in (_STATED, _HEADING):
        for match in pattern.finditer(text):
            if claim is None or match.end() > claim:
                claim = match.end()
    if claim is not None:
        sentence = _first_sentence(text[claim : claim + 4 * STATED_MAX_CHARS])
        bold = _BOLD.match(sentence)
        sentence = bold.group(1) if bold else sentence.replace("**", "")
        return sentence if len(sentence) <= STATED_MAX_CHARS else None
    bold_spans = _BOLD.findall(last_line[-4 * STATED_MAX_CHARS :])
    if bold_spans and not bold_spans[-1].rstrip().endswith(":"):
        return bold_spans[-1]
    bare = text.strip()
    if (
        "boxed" not in bare
        and len(bare) <= BARE_MAX_CHARS
        and "\n" not in bare
        and len(_WORD.findall(_TEXT_COMMAND.sub("", bare))) <= 1
    ):
        return bare
    return None


def final_answer(completion: str, prompt: str | None = None, boxed_only: bool = False) -> Found | None:
    r"""The final answer of a completion, or None where it gives none.

    In this order: the last `<answer>` tag, the last balanced non-empty box (or list of boxes), a plainly stated final
    answer. Thinking is ignored, and so is a verbatim echo of the prompt. `boxed_only` takes a box alone.
    """
    if prompt and len(prompt) >= BARE_MAX_CHARS:
        completion = completion.replace(prompt, " ")
    text = after_thinking(completion)
    inside = _inside_answer_tag(text)
    for part, where in ((inside, "tag"), (text, "stated")):
        if part is None:
            continue
        if (boxed := _last_boxes(part)) is not None:
            return Found(boxed, "box")
        if boxed_only:
            continue
        stated = _stated(part)
        if where == "tag" and stated is None and len(part.strip()) <= STATED_MAX_CHARS:
            stated = part.strip()
        if stated is not None and _has_content(stated):
            return Found(stated, where)
    return None


def gold_answer(gold: object) -> str | None:
    r"""The answer in a gold: a bare answer as it is; the last box, or the "#### 5", of a worked solution.

    None where there is none (None, empty, prose without an answer).
    """
    if gold is None or isinstance(gold, (list, dict, tuple, bool)):
        return None
    text = str(gold)
    if (boxed := _last_boxes(text)) is not None:
        return boxed
    text = text.strip()
    if not _has_content(text):
        return None
    if "\n####" in text or text.startswith("####"):
        return text[text.rfind("####") + 4 :].strip() or None
    if len(text) > STATED_MAX_CHARS and len(_WORD.findall(text)) > 12:
        return _stated(text)
    return text
