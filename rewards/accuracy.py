"""Is the final answer the gold? 1.0 or 0.0, and None where the gold allows no verdict (never None -> 1.0).

    trl grpo --reward_funcs rewards.accuracy ...

The gold comes from the dataset column `gold`, `answer` or `solution`, in this precedence; a worked solution may be given
whole, its last \\boxed{} (or "#### 5") is the gold. The policy is in rewards/README.md.
"""

from __future__ import annotations

from collections.abc import Callable

from rewards.grading import REASONS, Verdict, grade_batch
from rewards.text import texts

Log = Callable[[str, list], None]


def accuracy(prompts: list | None = None, completions: list = (), **kwargs) -> list[float | None]:
    r"""1.0 if the final answer equals the gold, 0.0 if not (or over its limits), None if the gold is unusable.

    Args:
        prompts: one per completion, strings or chat messages; a verbatim echo of it in the completion is ignored.
        completions: strings or chat messages. Thinking is ignored; the answer is the last <answer> tag, the last
            \boxed{}, or a plainly stated final answer.
        gold, answer, solution: the gold column, the first of these that is given; one entry per completion.
        log_extra, log_metric: TRL's, optional: the columns gold_parsed, answer_parsed and reason of the completions
            table, and the share of each reason as accuracy/<reason>.

    Returns one reward per completion, in order. Raises ValueError if there is no gold column or its length differs.
    """
    return _rewards("accuracy", prompts, completions, boxed_only=False, **kwargs)


def accuracy_boxed(prompts: list | None = None, completions: list = (), **kwargs) -> list[float | None]:
    r"""`accuracy` for recipes that want strictness: only a \boxed{} outside the thinking counts as an answer."""
    return _rewards("accuracy_boxed", prompts, completions, boxed_only=True, **kwargs)


def gold_column(kwargs: dict) -> list:
    """The gold column among TRL's keyword arguments: `gold`, else `answer`, else `solution`."""
    for name in ("gold", "answer", "solution"):
        if kwargs.get(name) is not None:
            return kwargs[name]
    raise ValueError("rewards: no gold column; the dataset needs a column named gold, answer or solution")


def verdicts(prompts: list | None, completions: list, boxed_only: bool = False, **kwargs) -> list[Verdict]:
    """One `Verdict` per completion, from TRL's arguments."""
    golds = gold_column(kwargs)
    if len(golds) != len(completions):
        raise ValueError(f"rewards: {len(golds)} golds for {len(completions)} completions; give one gold for each")
    graded = grade_batch(golds, texts(completions), texts(prompts) if prompts else None, boxed_only=boxed_only)
    if len(graded) != len(completions):  # a shift by one would pay every later completion for another's answer
        raise RuntimeError(f"rewards: {len(graded)} verdicts for {len(completions)} completions")
    return graded


def _rewards(
    name: str,
    prompts: list | None,
    completions: list,
    boxed_only: bool,
    log_extra: Log | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **kwargs,
) -> list[float | None]:
    graded = verdicts(prompts, completions, boxed_only, **kwargs)
    if log_extra is not None:
        log_extra("gold_parsed", [verdict.gold_parsed or "" for verdict in graded])
        log_extra("answer_parsed", [verdict.answer_parsed or "" for verdict in graded])
        log_extra("reason", [verdict.reason for verdict in graded])
    if log_metric is not None and graded:
        for reason in REASONS:
            log_metric(f"{name}/{reason}", sum(verdict.reason == reason for verdict in graded) / len(graded))
    return [verdict.reward for verdict in graded]
