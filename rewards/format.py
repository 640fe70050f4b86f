r"""Format rewards: is the completion laid out as the system prompt asked? 1.0 or 0.0 each, never None.

Each belongs to a prompt that asks for its format (see `rewards.registry`): without one the policy can only find the
format by chance, so `python -m launch check` refuses such a recipe.
"""

from __future__ import annotations

from rewards.extract import boxes
from rewards.text import texts

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_ANSWER_OPEN, _ANSWER_CLOSE = "<answer>", "</answer>"


def format_boxed(completions: list, **kwargs) -> list[float]:
    r"""1.0 where exactly one \boxed{...} stands outside the thinking, balanced and not empty; else 0.0.

    Args: completions, strings or chat messages, one per reward. Returns one float per completion.
    """
    return [float(_one_box(text)) for text in texts(completions)]


def format_think(completions: list, **kwargs) -> list[float]:
    """1.0 for `<think>thoughts</think>answer`, both parts not empty; else 0.0.

    The opening tag may be missing, as chat templates that pre-fill `<think>` leave it in the prompt
    (huggingface/trl#6966); an empty thought is not a format (0.0).
    """
    return [float(_split_thinking(text) is not None) for text in texts(completions)]


def format_think_answer(completions: list, **kwargs) -> list[float]:
    """1.0 for `<think>thoughts</think><answer>answer</answer>` and nothing else but white space; else 0.0."""
    return [float(_think_answer(text)) for text in texts(completions)]


def _one_box(text: str) -> bool:
    outside = text[text.rfind(_THINK_CLOSE) + len(_THINK_CLOSE) :] if _THINK_CLOSE in text else text
    found = boxes(outside)
    return len(found) == 1 and bool(found[0][2].strip())


def _split_thinking(text: str) -> tuple[str, str] | None:
    """(thoughts, rest) where there is exactly one pair of tags in the right order and neither part is empty."""
    text = text.strip()
    if text.count(_THINK_CLOSE) != 1 or text.count(_THINK_OPEN) > 1:
        return None
    if _THINK_OPEN in text and not text.startswith(_THINK_OPEN):
        return None
    thoughts, rest = text.removeprefix(_THINK_OPEN).split(_THINK_CLOSE)
    return (thoughts, rest) if thoughts.strip() and rest.strip() else None


def _think_answer(text: str) -> bool:
    parts = _split_thinking(text)
    if parts is None or text.count(_ANSWER_OPEN) != 1 or text.count(_ANSWER_CLOSE) != 1:
        return False
    answer = parts[1].strip()
    if not (answer.startswith(_ANSWER_OPEN) and answer.endswith(_ANSWER_CLOSE)):
        return False
    return bool(answer.removeprefix(_ANSWER_OPEN).removesuffix(_ANSWER_CLOSE).strip())
