"""Fuzz the grading: mutated golds and completions, through the same pool as in training.

    python tests/rewards/fuzz_rewards.py --count 100000 --out results/rewards/fuzz.json

Checks each verdict: no exception, a known reason that fits the reward, nothing over its time limit by more than 20 %, a
gold against itself never wrong; and at the end that the memory of this process has stayed flat.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from rewards.extract import final_answer, gold_answer  # noqa: E402
from rewards.grading import REASONS, grade_batch  # noqa: E402
from rewards.limits import Limits  # noqa: E402
from rewards.pool import Pool  # noqa: E402

FRAGMENTS = (
    r"\frac{1}{2}", r"\sqrt{", "}", "{", r"\boxed{", r"\text{", r"\left(", r"\right)", r"\pm", r"\cup", r"\infty", "^", "_",
    "=", "<", r"\leq", ",", ";", " or ", " and ", "(", ")", "[", "]", r"\{", r"\}", "$", "$$", r"\[", "%", r"\%", "!", "1",
    "0", "-", "+", "/", "*", ".", "x", "i", r"\pi", "10^{10}", "9^{9^{9}}", r"\sum_{k=1}^{n}", r"\int", r"\binom{5}{2}",
    r"\begin{pmatrix}", "&", r"\\", r"\end{pmatrix}", "½", "√", "−", "６", "\u200b", "\ud800", "\x00", "<think>", "</think>",
    "<answer>", "</answer>", "**", "The answer is ", r"^\circ", r"\text{ cm}", "e", "ln", "sin", "|", ":", "'", '"', "\n",
)  # fmt: skip
PARENT_GROWTH_BYTES = 64 * 1024 * 1024
MEMORY_SETTLED_SHARE = 0.3  # the memo and the caches are full after this share of the run


def load_seeds() -> list[tuple[str, str]]:
    """(gold, completion) of the committed cases; the longest are cut, or each mutation would be 60 KB."""
    seeds = []
    for name in ("reward_cases.jsonl", "own_cases.jsonl"):
        path = Path(__file__).parent / name
        with path.open() as lines:
            cases = [json.loads(line) for line in lines]
        seeds += [(str(case["gold"] or ""), case["completion"][-2000:]) for case in cases]
    return seeds


def mutate(text: str, other: str, source: random.Random) -> str:
    """One to four random edits: insert, delete, repeat, swap, splice, nest, or change a digit."""
    for _ in range(source.randint(1, 4)):
        at, to = sorted((source.randint(0, len(text)), source.randint(0, len(text))))
        to = min(to, at + 40)
        edit = source.randrange(8)
        if edit == 0:
            text = text[:at] + source.choice(FRAGMENTS) + text[at:]
        elif edit == 1:
            text = text[:at] + text[to:]
        elif edit == 2:
            text = text[:at] + text[at:to] * source.randint(2, 12) + text[to:]
        elif edit == 3:
            text = text[:at] + text[at:to][::-1] + text[to:]
        elif edit == 4:
            cut = source.randint(0, len(other))
            text = text[:at] + other[cut : cut + 40] + text[at:]
        elif edit == 5:
            text = text[:at] + source.choice(("(", "{", r"\frac{", r"\sqrt{")) * source.randint(1, 30) + text[at:]
        elif edit == 6:
            text = text[:at] + str(source.randint(-(10**9), 10**9)) + text[to:]
        else:
            text = text[:at] + chr(source.choice((source.randint(32, 126), source.randint(128, 0x2FFF)))) + text[at:]
    return text[:4000]


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def check(verdict, time_seconds: float, is_self: bool) -> str | None:
    """What is wrong with a verdict, or None."""
    wanted = {"correct": 1.0, "unusable_gold": None}.get(verdict.reason, 0.0)
    if verdict.reason not in REASONS or verdict.reward != wanted:
        return f"reason {verdict.reason} with reward {verdict.reward}"
    if verdict.seconds > 1.2 * time_seconds:
        return f"{verdict.seconds:.2f} s of {time_seconds} s"
    if is_self and verdict.reason in ("wrong", "no_answer"):
        return f"a usable gold against itself is {verdict.reason}"
    return None


def fuzz(count: int, seed: int, limits: Limits, batch: int = 250, progress=None) -> dict:
    """Grade `count` mutations. Returns the figures; `failures` lists what broke a rule (at most 50 of them)."""
    source, seeds = random.Random(seed), load_seeds()
    reasons: Counter = Counter()
    failures: list[dict] = []
    longest, settled, started = 0.0, None, time.monotonic()
    pool = Pool(limits)
    try:
        for done in range(0, count, batch):
            golds, completions, selves = [], [], []
            for _ in range(min(batch, count - done)):
                (gold, completion), (other_gold, other) = source.choice(seeds), source.choice(seeds)
                if source.random() < 0.5:
                    gold = mutate(gold, other_gold, source)
                completion = mutate(completion, other, source)
                own_box = rf"\boxed{{{gold}}}"
                found = final_answer(own_box)
                is_self = source.random() < 0.1 and found is not None and found.text == gold_answer(gold)
                completion = own_box if is_self else completion
                golds.append(gold)
                completions.append(completion)
                selves.append(is_self)
            try:
                verdicts = grade_batch(golds, completions, pool=pool)
            except Exception as error:  # the fuzz is there to find it
                failures.append({"error": repr(error)[:300], "batch": done})
                continue
            for gold, completion, is_self, verdict in zip(golds, completions, selves, verdicts, strict=True):
                reasons[verdict.reason] += 1
                longest = max(longest, verdict.seconds)
                wrong = check(verdict, limits.time_seconds, is_self)
                if wrong:
                    print(f"{wrong}: gold {gold!r}, completion {completion!r}", file=sys.stderr, flush=True)
                if wrong and len(failures) < 50:
                    failures.append({"rule": wrong, "gold": gold, "completion": completion})
            if settled is None and done >= MEMORY_SETTLED_SHARE * count:
                settled = resident_bytes()
            if progress:
                progress(done + len(golds), reasons, failures)
        growth = resident_bytes() - (settled or resident_bytes())
    finally:
        pool.close()
    if growth > PARENT_GROWTH_BYTES:
        failures.append({"rule": f"this process grew by {growth} bytes after the first {MEMORY_SETTLED_SHARE:.0%}"})
    return {
        "count": count,
        "seed": seed,
        "time_limit_seconds": limits.time_seconds,
        "memory_limit_bytes": limits.memory_bytes,
        "workers": limits.workers,
        "reasons": {reason: reasons[reason] for reason in REASONS},
        "longest_seconds": round(longest, 3),
        "parent_growth_bytes": growth,
        "wall_seconds": round(time.monotonic() - started, 1),
        "failures": failures,
    }


def provenance() -> dict:
    """Versions, commit and machine beside the figures."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    dirty = subprocess.run(
        ["git", "status", "--porcelain", "rewards"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    packages = ("math-verify", "latex2sympy2_extended", "sympy", "mpmath")
    return {
        "commit": commit,
        "rewards_modified": bool(dirty.strip()),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "cpus": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
    }


def main() -> int:
    """Exit status: 0, or 1 if a rule was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="mutations (default: 2000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-seconds", type=float, default=2.0, help="limit of one completion (default: 2)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the figures there as JSON")
    arguments = parser.parse_args()
    report_every = max(1, arguments.count // 20)

    def progress(done: int, reasons: Counter, failures: list) -> None:
        if done % report_every < 250 or done == arguments.count:
            print(f"{done}/{arguments.count} {dict(reasons)} failures={len(failures)}", flush=True)

    limits = Limits(time_seconds=arguments.time_seconds, workers=arguments.workers)
    figures = fuzz(arguments.count, arguments.seed, limits, progress=progress)
    figures = {"command": " ".join(["python", *sys.argv]), **figures, **provenance()}
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text + "\n")
    return 1 if figures["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
