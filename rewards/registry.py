"""The rewards by name: data only, so that `launch` reads it in milliseconds (no sympy, no math_verify, no torch)."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reward:
    """One row of the table in rewards/README.md.

    `path` is "module:function". `none_means` says when the function returns None (TRL then leaves this reward out of the
    completion's sum). `params` are what a recipe may set, with their defaults; the value REQUIRED has none. `asks_for`
    are groups of phrases: a prompt asks for the format if, for each group, it contains one of its phrases (case does not
    matter). Empty: the reward needs nothing from the prompt.
    """

    path: str
    formula: str
    range: str
    source: str
    none_means: str
    params: dict[str, Any] = field(default_factory=dict)
    asks_for: tuple[tuple[str, ...], ...] = ()
    mend: str = ""


REQUIRED = "required"
_GOLD_UNUSABLE = "the gold is missing, is prose, or cannot be evaluated within the limits"
_NEVER = "never returned"

REWARDS: dict[str, Reward] = {
    "accuracy": Reward(
        path="rewards.accuracy:accuracy",
        formula="1 if the final answer equals the gold, else 0",
        range="{0, 1}",
        source="ours, on math-verify 0.9.0; policy in rewards/README.md",
        none_means=_GOLD_UNUSABLE,
    ),
    "accuracy_boxed": Reward(
        path="rewards.accuracy:accuracy_boxed",
        formula="1 if the last \\boxed{} outside the thinking equals the gold, else 0",
        range="{0, 1}",
        source="ours, on math-verify 0.9.0; policy in rewards/README.md",
        none_means=_GOLD_UNUSABLE,
        asks_for=(("\\boxed", "\\fbox"),),
        mend="add to the system prompt: Put your final answer in \\boxed{}.",
    ),
    "format_boxed": Reward(
        path="rewards.format:format_boxed",
        formula="1 if exactly one balanced, non-empty \\boxed{} stands outside the thinking, else 0",
        range="{0, 1}",
        source="ours",
        none_means=_NEVER,
        asks_for=(("\\boxed",),),
        mend="add to the system prompt: Put your final answer in \\boxed{}.",
    ),
    "format_think": Reward(
        path="rewards.format:format_think",
        formula="1 for <think>thoughts</think>answer, both non-empty, opening tag optional, else 0",
        range="{0, 1}",
        source="DeepSeek-R1, arXiv 2501.12948, section 2.2.2; pre-filled tag after huggingface/trl#6966",
        none_means=_NEVER,
        asks_for=(("<think>",), ("</think>",)),
        mend="add to the system prompt: Reason between <think> and </think>, then give the answer.",
    ),
    "format_think_answer": Reward(
        path="rewards.format:format_think_answer",
        formula="1 for <think>thoughts</think><answer>answer</answer> and nothing else, both non-empty, else 0",
        range="{0, 1}",
        source="DeepSeek-R1, arXiv 2501.12948, table 1",
        none_means=_NEVER,
        asks_for=(("<think>",), ("</think>",), ("<answer>",), ("</answer>",)),
        mend="add to the system prompt: Reason between <think> and </think>, then answer between <answer> and </answer>.",
    ),
    "length_cosine": Reward(
        path="rewards.length:length_cosine",
        formula="rL + (r0 - rL) (1 + cos(pi t / T)) / 2 with (r0, rL) for correct or wrong; exceed where t >= T "
        "(t: completion tokens, T: max_tokens)",
        range="[min, max] of its parameters; [-10, 2] by default",
        source="Demystifying Long CoT, arXiv 2502.03373, appendix C.1",
        none_means=_GOLD_UNUSABLE,
        params={
            "max_tokens": REQUIRED,
            "correct_at_zero": 2.0,
            "correct_at_max": 1.0,
            "wrong_at_zero": -10.0,
            "wrong_at_max": 0.0,
            "exceed": -10.0,
        },
    ),
    "repetition": Reward(
        path="rewards.repetition:repetition",
        formula="max_penalty x (tokens inside an n-gram seen before) / (tokens)",
        range="[max_penalty, 0]; [-0.05, 0] by default",
        source="Demystifying Long CoT, arXiv 2502.03373, appendix C.2, algorithm 1: the mean of its per-token vector",
        none_means=_NEVER,
        params={"ngram_tokens": 40, "max_penalty": -0.05},
    ),
}


def names() -> list[str]:
    """The registered names, in the order of the table."""
    return list(REWARDS)


def get(name: str) -> Reward:
    """The row of `name`. Raises KeyError that lists the names there are."""
    try:
        return REWARDS[name]
    except KeyError:
        raise KeyError(f"rewards: {name!r} is not a reward; there are {', '.join(REWARDS)}") from None


def check_params(name: str, params: dict[str, Any]) -> list[str]:
    """What is wrong with a recipe's parameters for `name`, one line each: field, value, rule, mend. Empty if nothing."""
    known = get(name).params
    errors = [
        f"rewards.{name}.{key}={value!r}: not a parameter; use {', '.join(known) or 'none'}"
        for key, value in params.items()
        if key not in known
    ]
    errors += [
        f"rewards.{name}.{key}: missing; it has no default, set it in the recipe"
        for key, default in known.items()
        if default == REQUIRED and key not in params
    ]
    for key, value in params.items():
        if key in known and (isinstance(value, bool) or not isinstance(value, (int, float))):
            errors.append(f"rewards.{name}.{key}={value!r}: not a number; write one")
        elif key in known and key.endswith("_tokens") and (not isinstance(value, int) or value < 1):
            errors.append(f"rewards.{name}.{key}={value!r}: must be an integer of at least 1")
        elif key == "max_penalty" and key in known and value > 0:
            errors.append(f"rewards.{name}.{key}={value!r}: a penalty must not be positive; write {-value!r}")
    return errors


def load(name: str, **params: Any) -> Callable[..., list[float | None]]:
    """The reward function `name` with the recipe's parameters bound; TRL logs it under this name.

    Raises KeyError (no such reward) or ValueError (every bad parameter in one message).
    """
    row = get(name)
    if errors := check_params(name, params):
        raise ValueError("\n".join(errors))
    module, function = row.path.split(":")
    loaded = getattr(importlib.import_module(module), function)
    return functools.partial(loaded, **params) if params else loaded


def prompt_asks_for(name: str, prompt_text: str) -> bool:
    """Whether a (system) prompt asks for what this reward pays for. True for rewards that need no format.

    An accuracy that takes an answer anywhere needs nothing; a strict or a format reward does. `get(name).mend` is the
    sentence that cures a False.
    """
    prompt = prompt_text.lower()
    return all(any(phrase in prompt for phrase in group) for group in get(name).asks_for)
