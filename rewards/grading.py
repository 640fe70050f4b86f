"""Grade a batch: find the answers, take the shortcuts that are sound, send the rest to the pool.

The shortcuts, each compared with the slow path by tests/rewards/test_shortcuts.py:
1. equal canonical texts are equal, once the gold is known to be usable;
2. plain arithmetic is decided in this process (see `rewards.quick`);
3. a gold is checked once, and a pair of gold and answer is graded once, however many generations share it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rewards import quick
from rewards.extract import final_answer, gold_answer
from rewards.latex import canonical
from rewards.pool import Pool, shared

REASONS = ("correct", "wrong", "no_answer", "unusable_gold", "out_of_time", "out_of_memory")

_MEMO_ENTRIES = 8192
_MEMO_MAX_CHARS = 2048  # longer texts are not remembered, so that the memo stays small: at most about 32 MiB


@dataclass(frozen=True)
class Verdict:
    """One graded completion.

    `reward` is 1.0, 0.0 or None (no usable gold), `reason` one of REASONS. `gold_parsed` and `answer_parsed` say how the
    two were read, None where there was nothing to read. `seconds` is the wall-clock time in the worker; 0 for a shortcut
    or a verdict that another generation of the batch has paid for.
    """

    reward: float | None
    reason: str
    gold_parsed: str | None
    answer_parsed: str | None
    seconds: float


class _Memo:
    """The last results of the pool, by job. Bounded; safe between threads."""

    def __init__(self):
        self._entries: OrderedDict[tuple, dict] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple) -> dict | None:
        with self._lock:
            return self._entries.get(key)

    def put(self, key: tuple, result: dict) -> None:
        if sum(map(len, key)) <= _MEMO_MAX_CHARS:
            with self._lock:
                self._entries[key] = {**result, "seconds": 0.0}
                while len(self._entries) > _MEMO_ENTRIES:
                    self._entries.popitem(last=False)


_memo = _Memo()


def grade_batch(
    golds: Sequence,
    completions: Sequence[str],
    prompts: Sequence[str] | None = None,
    *,
    boxed_only: bool = False,
    pool: Pool | None = None,
) -> list[Verdict]:
    """One verdict per completion, in order.

    Args:
        golds: one per completion; a string or number, bare or a worked solution.
        completions: the texts.
        prompts: the questions, whose verbatim echo in a completion is ignored.
        boxed_only: only a \\boxed{} counts as an answer.
        pool: the processes to use; this process's shared pool if None.

    Raises ValueError if the lengths differ, RuntimeError if the pool cannot be kept alive.
    """
    if len(golds) != len(completions) or (prompts is not None and len(prompts) != len(completions)):
        raise ValueError(f"grade_batch: {len(golds)} golds for {len(completions)} completions; give one for each")
    pool = pool or shared()
    gold_texts = {gold: _gold_text(gold) for gold in set(map(_key, golds))}
    found: dict[tuple, str | None] = {}
    pairs: list[tuple[str, str | None]] = []  # (canonical gold, canonical answer or None)
    for i, completion in enumerate(completions):
        prompt = prompts[i] if prompts is not None else None
        where = (prompt, completion)
        if where not in found:
            answer = final_answer(completion, prompt, boxed_only)
            found[where] = canonical(answer.text) if answer else None
        pairs.append((gold_texts[_key(golds[i])], found[where] or None))

    checks = _check_golds({gold for gold, _ in pairs if gold}, pool)
    results: dict[tuple[str, str], dict] = {}
    asked = []
    for gold, answer in dict.fromkeys(pairs):
        if gold and answer and checks[gold]["verdict"]:
            if (decided := quick.verdict(gold, answer)) is None:
                asked.append((gold, answer))
            else:
                results[gold, answer] = _shortcut(decided, answer)
    results.update(zip(asked, _ask([{"gold": g, "answer": a} for g, a in asked], pool), strict=True))
    verdicts: dict[tuple[str, str | None], Verdict] = {}
    graded = []
    for pair in pairs:
        if pair in verdicts:
            graded.append(verdicts[pair])
        else:
            first = _verdict(*pair, checks, results)
            verdicts[pair] = replace(first, seconds=0.0) if first.seconds else first
            graded.append(first)
    return graded


def _key(gold: object) -> object:
    return gold if isinstance(gold, (str, int, float, type(None))) and not isinstance(gold, bool) else None


def _gold_text(gold: object) -> str:
    text = gold_answer(gold)
    return canonical(text) if text is not None else ""


def _shortcut(decided: bool, text: str) -> dict:
    return {"status": "ok", "verdict": decided, "parsed": quick.parsed(text), "seconds": 0.0}


def _check_golds(golds: set[str], pool: Pool) -> dict[str, dict]:
    """For each canonical gold whether it is usable ("verdict"); one that overruns its limits is not."""
    checks: dict[str, dict] = {}
    asked = []
    for gold in sorted(golds):
        if (decided := quick.usable(gold)) is None:
            asked.append(gold)
        else:
            checks[gold] = _shortcut(decided, gold)
    for gold, result in zip(asked, _ask([{"gold": gold} for gold in asked], pool), strict=True):
        checks[gold] = {"verdict": False, "parsed": gold[:300], **result}
    return checks


def _ask(jobs: list[dict], pool: Pool) -> list[dict]:
    """The pool's results, remembered ones first."""
    keys = [(job["gold"], job.get("answer", "")) for job in jobs]
    results = {key: _memo.get(key) for key in keys}
    new = [(key, job) for key, job in zip(keys, jobs, strict=True) if results[key] is None]
    for (key, _), result in zip(new, pool.run([job for _, job in new]), strict=True):
        results[key] = result
        _memo.put(key, result)
    return [results[key] for key in keys]


def _verdict(gold: str, answer: str | None, checks: dict, results: dict) -> Verdict:
    check = checks.get(gold)
    if check is None or not check["verdict"]:
        parsed, seconds = (check["parsed"], check["seconds"]) if check else (None, 0.0)
        return Verdict(None, "unusable_gold", parsed, answer and answer[:300], seconds)
    if answer is None:
        return Verdict(0.0, "no_answer", check["parsed"], None, 0.0)
    result = {"parsed": answer[:300], **results[gold, answer]}
    if result["status"] in ("out_of_time", "out_of_memory"):
        return Verdict(0.0, result["status"], check["parsed"], result["parsed"], result["seconds"])
    correct = result["status"] == "ok" and result["verdict"]  # "error": unreadable, so not the gold
    return Verdict(
        float(correct), "correct" if correct else "wrong", check["parsed"], result["parsed"], result["seconds"]
    )


__all__ = ["REASONS", "Verdict", "grade_batch"]
