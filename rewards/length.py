"""Cosine length reward: Demystifying Long Chain-of-Thought Reasoning in LLMs (arXiv 2502.03373), appendix C.1."""

from __future__ import annotations

import math

from rewards.accuracy import verdicts


def cosine(tokens: int, max_tokens: int, at_zero: float, at_max: float) -> float:
    """The paper's CosFn: `at_zero` for an empty completion, `at_max` at max_tokens, half a cosine between them."""
    return at_max + 0.5 * (at_zero - at_max) * (1.0 + math.cos(math.pi * tokens / max_tokens))


def length_cosine(
    prompts: list | None = None,
    completions: list = (),
    completion_ids: list[list[int]] | None = None,
    max_tokens: int | None = None,
    correct_at_zero: float = 2.0,
    correct_at_max: float = 1.0,
    wrong_at_zero: float = -10.0,
    wrong_at_max: float = 0.0,
    exceed: float = -10.0,
    log_extra=None,
    log_metric=None,
    **kwargs,
) -> list[float | None]:
    """Short correct answers are worth more than long ones, and short wrong ones cost more than long ones.

    Args:
        completion_ids: token ids of each completion; their number is the length t (TRL passes them).
        max_tokens: T, the recipe's max_completion_length.
        correct_at_zero, correct_at_max, wrong_at_zero, wrong_at_max: the paper's r0c, rLc, r0w, rLw.
        exceed: the paper's r_e, for a completion of max_tokens or more, right or wrong.
        gold, answer, solution: as for `rewards.accuracy`.

    Returns a float per completion, None where the gold is unusable. Raises ValueError without max_tokens or
    completion_ids: a length in characters would silently be another reward.
    """
    if max_tokens is None:
        raise ValueError("length_cosine.max_tokens: missing; set it to the recipe's max_completion_length")
    if completion_ids is None:
        raise ValueError("length_cosine: completion_ids is missing; the length is counted in tokens, call it from TRL")
    rewards: list[float | None] = []
    for verdict, ids in zip(verdicts(prompts, completions, **kwargs), completion_ids, strict=True):
        if verdict.reward is None:
            rewards.append(None)
        elif len(ids) >= max_tokens:
            rewards.append(exceed)
        elif verdict.reward == 1.0:
            rewards.append(cosine(len(ids), max_tokens, correct_at_zero, correct_at_max))
        else:
            rewards.append(cosine(len(ids), max_tokens, wrong_at_zero, wrong_at_max))
    return rewards
