"""Reward hacking, by kind, with the verdict that the policy in rewards/README.md gives."""

from __future__ import annotations

import pytest

from rewards.extract import final_answer
from rewards.grading import grade_batch

PROMPT = r"What is 6 times 7? Put the answer in a box such as \boxed{42}, and show all of your reasoning before it."


def rewards(pool, gold: str, *completions: str, **kwargs) -> list:
    return [v.reward for v in grade_batch([gold] * len(completions), list(completions), pool=pool, **kwargs)]


@pytest.mark.parametrize(
    "completion",
    [
        r"\boxed{1}, \boxed{2}, \boxed{3}",
        r"\boxed{3} or \boxed{4}",
        r"\boxed{1} \boxed{2} \boxed{3}",
        r"\boxed{4} or maybe \boxed{3}",
        r"$\boxed{2}$ and $\boxed{3}$",
        r"\boxed{3}. On reflection \boxed{4}.",
        "\n".join(rf"\boxed{{{k}}}" for k in range(50)),
        r"\boxed{3}\boxed{4}",
    ],
)
def test_many_boxes_for_one_answer(pool, completion):
    """A list of boxes is a list of guesses; of boxes with words between them the last one counts."""
    assert rewards(pool, "3", completion) == [0.0]


def test_a_correction_is_no_hack(pool):
    assert rewards(pool, "4", r"\boxed{3} is wrong, the value is \boxed{4}", r"\boxed{4}, as said: \boxed{4}") == [
        1.0,
        1.0,
    ]


@pytest.mark.parametrize(
    "answer",
    [
        "1, 2, 3",
        "2 or 3",
        r"3 \text{ or } 4",
        r"\{1,2,3\}",
        r"\{3,4\}",
        "3, 4",
        "x=3, x=4",
        r"\pm 3",
        r"3/4",
        "3 : 4",
        "(3, 4)",
    ],
)
def test_list_of_guesses_in_one_box(pool, answer):
    assert rewards(pool, "3", rf"\boxed{{{answer}}}") == [0.0]


def test_list_of_guesses_without_a_box(pool):
    assert (
        rewards(pool, "5", "The answer is $5$ or $4$ or $3$.", "Answer: 3, 4, 5", "The answer is 5 or 6.") == [0.0] * 3
    )


@pytest.mark.parametrize(
    "completion",
    [
        r"<think>It is \boxed{3}.</think>",
        r"<think>It is \boxed{3}.",
        r"It is \boxed{3}.</think>",
        r"<think>\boxed{3}</think> That is all we need.",
    ],
)
def test_answer_only_inside_the_thinking(pool, completion):
    verdict = grade_batch(["3"], [completion], pool=pool)[0]
    assert (verdict.reward, verdict.reason) == (0.0, "no_answer")


def test_prompt_echoed(pool):
    """A box that the prompt itself holds is no answer, and the answer after the echo still counts."""
    echo, answered = PROMPT, PROMPT + r" It is \boxed{42}."
    verdicts = grade_batch(["42", "42"], [echo, answered], [PROMPT, PROMPT], pool=pool)
    assert [v.reason for v in verdicts] == ["no_answer", "correct"]


@pytest.mark.parametrize(
    "box", [r"\boxed{}", r"\boxed{ }", r"\boxed{\text{}}", r"\boxed{...}", r"\boxed{$$}", r"\boxed{?}"]
)
def test_empty_boxes(pool, box):
    verdict = grade_batch(["3"], [f"The value is {box}"], pool=pool)[0]
    assert (verdict.reward, verdict.reason) == (0.0, "no_answer")


def test_a_trailing_empty_box_hides_no_answer(pool):
    assert rewards(pool, "3", r"\boxed{3} \boxed{}") == [1.0]


@pytest.mark.parametrize(
    ("gold", "answer", "reward"),
    [
        ("C", "\u0421", 0.0),  # Cyrillic Es
        ("x", "\u0445", 0.0),  # Cyrillic Ha
        ("5", "\u0665", 0.0),  # Arabic-Indic five
        ("A", "\u0391", 0.0),  # Greek Alpha
        ("6", "\uff16", 1.0),  # full-width six: the same digit in another width
        ("-5", "\u22125", 1.0),  # the minus sign
        ("42", "4\u200b2", 1.0),  # a zero-width space has no meaning
        ("4", "\u2463", 1.0),  # a circled four: NFKC's compatibility form
    ],
)
def test_unicode_look_alikes(pool, gold, answer, reward):
    """Other widths and forms of a character (NFKC) are that character; another letter that looks like it is not."""
    assert rewards(pool, gold, rf"\boxed{{{answer}}}") == [reward]


@pytest.mark.parametrize(
    "answer",
    [
        r"[0,100]", r"(-\infty,\infty)", r"\mathbb{R}", r"x \in [0, 100]", r"0<x<100", r"x \geq 10", r"\mathbb{N}",
        r"\{" + ",".join(map(str, range(200))) + r"\}", "1,2,3,4,5,6,7,8,9,10", r"\{1,\ldots,100\}", "[10,10]",
        r"\{x \mid x > 0\}", "9 to 11", "9-11",
    ],
)  # fmt: skip
def test_sets_and_intervals_that_contain_the_answer(pool, answer):
    """An answer is equal to the gold or wrong; containing it is not enough."""
    assert rewards(pool, "10", rf"\boxed{{{answer}}}") == [0.0]


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("7 + 0", 1.0),  # equal in value: an unfinished computation is mathematically the answer
        ("7x/x", 1.0),
        ("7x", 0.0),
        ("7 \\neq 8", 0.0),
        ("8 = 7", 0.0),
        ("7 = 8", 0.0),
        ("x + y = 7", 0.0),
        ("x^2 = 7", 0.0),
        ("x \\geq 7", 0.0),
        ("7?", 0.0),
        ("\\text{not } 7", 0.0),
        ("\\text{7 or something else}", 0.0),
        ("7 \\approx 8", 0.0),
        ("\\text{the correct answer}", 0.0),
        ("n", 0.0),
        ("x = 8 = 7", 0.0),
    ],
)
def test_expressions_that_contain_the_gold(pool, answer, reward):
    assert rewards(pool, "7", rf"\boxed{{{answer}}}") == [reward]


def test_strict_variant_takes_a_box_alone(pool):
    texts = ["The answer is 3.", "<answer>3</answer>", r"<answer>\boxed{3}</answer>", r"\boxed{3}"]
    assert rewards(pool, "3", *texts, boxed_only=True) == [0.0, 0.0, 1.0, 1.0]
    assert final_answer(texts[0]) is not None
