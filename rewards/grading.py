"""Grade a batch: find the answers, take the shortcuts that are sound, send the rest to the pool.

The shortcuts, each compared with the slow path by tests/rewards/test_shortcuts.py:
1. equal canonical texts are equal, once the gold is known to be usable;
2. two plain rational numbers are compared as fractions;
3. a gold is checked once, and a pair of gold and answer is graded once, however many generations share it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from rewards.extract import final_answer, gold_answer
from rewards.latex import canonical
from rewards.pool import Pool, shared
from rewards.rational import plain, plain_match

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
    gold_texts = {gold: _gold_text(gold) for gold in map(_key, golds)}
    found: dict[tuple, str | None] = {}
    pairs: list[tuple[str, str | None]] = []  # (canonical gold, canonical answer or None)
    for i, completion in enumerate(completions):
        prompt = prompts[i] if prompts is not None else None
        where = (prompt, completion)
        if where not in found:
            answer = final_answer(completion, prompt, boxed_only)
            found[where] = canonical(answer.text) if answer else None
        pairs.append((gold_texts[_key(golds[i])], found[where] or None))

    checks = _grade_golds({gold for gold, _ in pairs if gold}, pool)
    asked = [p for p in dict.fromkeys(pairs) if p[0] and p[1] and checks[p[0]]["verdict"] and _shortcut(*p) is None]
    graded = dict(zip(asked, _ask([{"gold": g, "answer": a} for g, a in asked], pool), strict=True))
    verdicts = []
    for pair in pairs:
        verdicts.append(_verdict(*pair, checks, graded))
        if pair in graded:
            graded[pair] = {**graded[pair], "seconds": 0.0}
    return verdicts


def _key(gold: object) -> object:
    return gold if isinstance(gold, (str, int, float, type(None))) and not isinstance(gold, bool) else None


def _gold_text(gold: object) -> str:
    text = gold_answer(gold)
    return canonical(text) if text is not None else ""


def _shortcut(gold: str, answer: str) -> bool | None:
    """The verdict on a usable gold where it can be had without sympy; None where it cannot."""
    if gold == answer:
        return True
    g, a = plain(gold), plain(answer)
    return plain_match(g, a) if g is not None and a is not None else None


def _grade_golds(golds: set[str], pool: Pool) -> dict[str, dict]:
    """For each canonical gold whether it is usable ("verdict"); one that overruns its limits is not."""
    checks: dict[str, dict] = {}
    for gold in golds:
        if plain(gold) is not None:
            checks[gold] = {"status": "ok", "verdict": True, "parsed": gold, "seconds": 0.0}
    asked = sorted(golds - checks.keys())
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


def _verdict(gold: str, answer: str | None, checks: dict, graded: dict) -> Verdict:
    check = checks.get(gold)
    if check is None or not check["verdict"]:
        parsed = check["parsed"] if check else None
        return Verdict(None, "unusable_gold", parsed, answer and answer[:300], check["seconds"] if check else 0.0)
    if answer is None:
        return Verdict(0.0, "no_answer", check["parsed"], None, 0.0)
    result = graded.get((gold, answer))
    if result is None:
        correct, parsed, seconds = _shortcut(gold, answer), answer[:300], 0.0
        if gold == answer:
            parsed = check["parsed"]
    elif result["status"] in ("out_of_time", "out_of_memory"):
        return Verdict(0.0, result["status"], check["parsed"], answer[:300], result["seconds"])
    else:  # "error": the parser failed on the answer, which is then not the gold
        correct, parsed, seconds = result.get("verdict", False), result.get("parsed", answer[:300]), result["seconds"]
    return Verdict(float(correct), "correct" if correct else "wrong", check["parsed"], parsed, seconds)


__all__ = ["REASONS", "Verdict", "grade_batch"]
