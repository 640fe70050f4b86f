"""Every pattern of our own is linear: each fragment, repeated, is read in a time that grows with its length only."""

from __future__ import annotations

import time

import pytest

from rewards import quick
from rewards.extract import final_answer, gold_answer
from rewards.format import format_boxed, format_think_answer
from rewards.latex import canonical

FRAGMENTS = (
    "\\", "1", "1 ", "1,234", "{", "}", "\\frac", "\\frac{1", "\\text{", "(", "\\sqrt(", " ", ".", "{,}", "1 000", "1.000",
    "½",
    "\\overline", "0.", "\\sqrt[", "12 ", "_", "\n", "$", "%", "\\%", "^", "x^", "\\text", "a and ", "1,", "[", ")", "\\{", "√",
    "²",
    "0.\\overline{", "\\binom{1", "\\text{ and }", "\\text{ab, }", "-", "!", "\\boxed", "\\boxed{", "\\boxed{1}",
    "\\boxed{1} and ",
    "</think>", "<think>", "<answer>", "</answer>", "answer is ", "final answer", "**", "*", "Final answer\n", "answer is*",
    "#",
    "A ", "\\text{a}", "m/", "\\pm", "=", ":", "x=1,", "\\begin{pmatrix}", "&", "\\\\", "\x00", "\u200b", "e1", "\\circ",
)  # fmt: skip
READERS = (final_answer, gold_answer, canonical, lambda t: format_boxed([t]), lambda t: format_think_answer([t]))
MEGABYTE = 1_000_000
# A linear reader takes 1 to 10 s a megabyte on a busy core; a quadratic one takes minutes, a nested quantifier for ever.
SECONDS_PER_MEGABYTE = 40.0


@pytest.mark.parametrize("start", ["", "\\boxed{", "answer is ", "\\text{ab"])
def test_a_tenth_of_a_megabyte_of_each_fragment(start):
    slow = []
    for fragment in FRAGMENTS:
        text = start + fragment * (MEGABYTE // 10 // len(fragment)) + "}"
        for reader in READERS:
            begin = time.perf_counter()
            reader(text)
            seconds = time.perf_counter() - begin
            if seconds > SECONDS_PER_MEGABYTE / 10:
                slow.append((fragment, getattr(reader, "__name__", "?"), round(seconds, 2)))
    assert not slow


@pytest.mark.slow
@pytest.mark.parametrize("fragment", ["\\boxed{", "1", "{", "\\text{", "$", "answer is ", "½", "("])
def test_a_megabyte(fragment):
    text = fragment * (MEGABYTE // len(fragment))
    begin = time.perf_counter()
    final_answer(text)
    canonical(text)
    assert time.perf_counter() - begin < SECONDS_PER_MEGABYTE


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_the_shortcut_is_bounded(fragment):
    """quick.verdict runs in the trainer: whatever its 300 characters are, it answers at once."""
    text = canonical(fragment * (quick.MAX_CHARS // len(fragment)))
    begin = time.perf_counter()
    quick.usable(text)
    quick.verdict("x+5", text)
    quick.verdict(text, r"\sqrt{2}")
    assert time.perf_counter() - begin < 1.0


@pytest.mark.parametrize(
    "text",
    [
        "A" * 59 + "!=5",
        r"\angle " * 8 + "!=5",
        "5 " + "ab" * 100 + "!",
        "(x+1)^{40}" * 8,
        "((((x^{40})^{40})^{40})^{40})^{40}",
        r"\frac{1}{x}" * 14,
        "9^{40}" * 20,
        "x" * 150,
        "1+" * 70 + "1",
    ],
)
def test_arithmetic_bombs_are_refused_or_short(text):
    begin = time.perf_counter()
    quick.verdict(text, text + "+1")
    quick.usable(text)
    assert time.perf_counter() - begin < 1.0
