"""Grade a batch: find the answers, take the sound shortcuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rewards.extract import final_answer, gold_answer

REASONS = ("correct", "wrong", "no_answer", "unusable_gold", "out_of_time", "out_of_memory")


@dataclass(frozen=True)
class Verdict:
    """One graded completion. `reward` is 1.0, 0.0 or None (no usable gold), `reason` one of REASONS."""

    reward: float | None
    reason: str
    gold_parsed: str | None
    answer_parsed: str | None
    seconds: float


def grade_batch(
    golds: Sequence, completions: Sequence[str], prompts: Sequence[str] | None = None, *, boxed_only: bool = False
) -> list[Verdict]:
    """One verdict per completion, in order."""
    graded = []
    for i, (gold, completion) in enumerate(zip(golds, completions, strict=True)):
        gold_text = gold_answer(gold)
        found = final_answer(completion, prompts[i] if prompts else None, boxed_only)
        if gold_text is None:
            graded.append(Verdict(None, "unusable_gold", None, found and found.text, 0.0))
        elif found is None:
            graded.append(Verdict(0.0, "no_answer", gold_text, None, 0.0))
        else:
            same = "".join(found.text.split()) == "".join(gold_text.split())
            graded.append(Verdict(float(same), "correct" if same else "wrong", gold_text, found.text, 0.0))
    return graded
