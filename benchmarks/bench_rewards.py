"""Grading throughput: this project's accuracy and TRL's accuracy_reward on the same 4,096 completions, in one run.

    python benchmarks/bench_rewards.py            # 512 prompts x 8 generations, about 3 KB of text each
    python benchmarks/bench_rewards.py --out results/rewards/bench.json

The mix is made from a seed, by kind, with the share of each kind in MIX; by construction each completion's right verdict is
known. TRL gets each gold inside $...$, as bare golds are unsafe for it (huggingface/Math-Verify#70); this project gets it
bare. Left out are power towers, sums and products without end: TRL hangs on them for ever, and a ratio would mean nothing.
Wall-clock, one process calling; the pool of this project is started and warm before, TRL's regexes are compiled before.
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

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rewards.accuracy import accuracy  # noqa: E402
from rewards.limits import from_environment  # noqa: E402
from rewards.pool import shared  # noqa: E402

PROMPTS, GENERATIONS, TEXT_CHARS = 512, 8, 3000
SLICE = 512  # completions graded by one call
TARGET_RATIO = 20.0

# kind -> (share of prompts, maker). The shares follow the answers of competition mathematics: mostly integers.
# `function` needs sympy in every verdict. A maker returns (gold, right spellings, wrong spellings).


def _integer(r: random.Random):
    n = r.randint(-50, 3000)
    return str(n), [str(n), f"{n}.", rf"\mathbf{{{n}}}"], [str(n + r.randint(1, 9)), str(-n - 1), rf"\frac{{{n}}}{{7}}"]


def _large_integer(r: random.Random):
    n = r.randint(10_000, 9_999_999)
    return str(n), [str(n), f"{n:,}", f"{n:,}".replace(",", r"\,")], [str(n + 10), f"{n - 1:,}"]


def _fraction(r: random.Random):
    b = r.choice((3, 7, 9, 11, 13))
    a = r.choice([k for k in range(1, 40) if k % b])
    right = [rf"\frac{{{a}}}{{{b}}}", rf"\dfrac{{{a}}}{{{b}}}", f"{a}/{b}", rf"\frac{{{2 * a}}}{{{2 * b}}}"]
    return right[0], right, [rf"\frac{{{a + 1}}}{{{b}}}", rf"\frac{{{b}}}{{{a}}}", f"{a / b:.2f}"]


def _decimal(r: random.Random):
    n = r.randint(101, 99_999) * 10 + r.randint(1, 9)
    gold = f"{n / 100:.2f}"
    return gold, [gold, gold + "0", rf"\frac{{{n}}}{{100}}"], [f"{n / 100 + 1:.2f}", str(n)]


def _percent(r: random.Random):
    n = r.randint(2, 99)
    return rf"{n}\%", [rf"{n}\%", str(n), f"{n / 100}"], [rf"{n + 1}\%", str(n * 10)]


def _units(r: random.Random):
    n = r.randint(2, 400)
    return (
        rf"{n}\text{{ cm}}",
        [rf"{n}\text{{ cm}}", str(n), rf"{n / 100:.2f}\text{{ m}}"],
        [rf"{n}\text{{ m}}", str(n + 1)],
    )


def _radical(r: random.Random):
    a, b = r.randint(2, 30), r.choice((2, 3, 5, 7))
    gold = rf"{a}\sqrt{{{b}}}"
    return gold, [gold, rf"\sqrt{{{a * a * b}}}", rf"{a}\sqrt{b}"], [rf"{a + 1}\sqrt{{{b}}}", str(a)]


def _pi(r: random.Random):
    a = r.randint(2, 60)
    return rf"{a}\pi", [rf"{a}\pi", rf"\pi \cdot {a}"], [rf"{a + 1}\pi", str(a), rf"\frac{{{a}\pi}}{{2}}"]


def _polynomial(r: random.Random):
    a, b = r.randint(1, 9), r.randint(1, 9)
    right = [f"x^2+{a + b}x+{a * b}", f"(x+{a})(x+{b})"]
    return right[0], right, [f"x^2+{a + b}x+{a * b + 1}", f"(x-{a})(x+{b})"]


def _tuple(r: random.Random):
    a, b = r.randint(-9, 9), r.randint(10, 30)
    return f"({a}, {b})", [f"({a},{b})", rf"\left({a}, {b}\right)"], [f"({b},{a})", str(a), f"({a},{b + 1})"]


def _list(r: random.Random):
    a, b = r.randint(-99, 9), r.randint(10, 99)
    return f"{a}, {b}", [f"{b}, {a}", rf"{a} \text{{ and }} {b}"], [str(a), f"{a}, {b + 1}", f"{a}, {b}, {b + 1}"]


def _interval(r: random.Random):
    a, b = r.randint(-9, 3), r.randint(4, 30)
    return f"[{a},{b})", [f"[{a},{b})", rf"{a} \leq x < {b}"], [f"[{a},{b}]", f"({a},{b})"]


def _equation(r: random.Random):
    a, b = r.randint(2, 9), r.randint(1, 9)
    return f"y={a}x+{b}", [f"y = {a}x + {b}", f"{a}x - y + {b} = 0"], [f"y={b}x+{a + b}", f"y={a}x-{b}"]


def _matrix(r: random.Random):
    cells = [r.randint(-9, 9) for _ in range(4)]
    text = r"\begin{{pmatrix}}{}&{}\\{}&{}\end{{pmatrix}}"
    gold = text.format(*cells)
    return gold, [gold, gold.replace("pmatrix", "bmatrix")], [text.format(cells[0] + 1, *cells[1:])]


def _choice(r: random.Random):
    letter, other = r.sample("ABCDE", 2)
    return letter, [letter, rf"\text{{{letter}}}", rf"\textbf{{({letter})}}"], [other, rf"\text{{({other})}}"]


def _words(r: random.Random):
    day, other = r.sample(["Monday", "Tuesday", "Wednesday", "Friday", "Sunday"], 2)
    return rf"\text{{{day}}}", [rf"\text{{{day}}}", day], [rf"\text{{{other}}}", other]


def _function(r: random.Random):
    a, b = r.randint(2, 9), r.choice((2, 3, 5))
    return r.choice([
        (rf"{a}\ln {b}", [rf"{a}\ln {b}", rf"\ln {b**a}"], [rf"{a + 1}\ln {b}", rf"\ln {a * b}"]),
        (rf"e^{{{a}}}-{b}", [rf"e^{{{a}}}-{b}", rf"-{b}+e^{a}"], [rf"e^{{{a}}}+{b}", rf"e^{{{a + 1}}}-{b}"]),
        (rf"\sin^2 x+{a}", [rf"{a + 1}-\cos^2 x"], [rf"\cos^2 x+{a}", str(a + 1)]),
        (rf"(-\infty,{a})\cup({a + b},\infty)", [rf"(-\infty, {a}) \cup ({a + b}, \infty)"],
         [rf"(-\infty,{a}]\cup[{a + b},\infty)"]),
    ])  # fmt: skip


MIX = {
    "integer": (0.42, _integer), "function": (0.02, _function), "large_integer": (0.06, _large_integer),
    "fraction": (0.14, _fraction),
    "decimal": (0.05, _decimal), "percent": (0.02, _percent), "units": (0.02, _units), "radical": (0.06, _radical),
    "pi": (0.03, _pi), "polynomial": (0.03, _polynomial), "tuple": (0.03, _tuple), "list": (0.03, _list),
    "interval": (0.015, _interval), "equation": (0.015, _equation), "matrix": (0.01, _matrix), "choice": (0.03, _choice),
    "words": (0.02, _words),
}  # fmt: skip

_STEPS = (
    "Let us set $x_{i} = {a}$ and look at the remaining terms.",
    "From the condition we get ${a}k + {b} = {c}$, which gives a bound on $k$.",
    "Expanding, \\[ (n+{a})^2 = n^2 + {b}n + {c}, \\] and the middle term decides the parity.",
    "There are ${a}$ cases to check; the first of them leads to \\( {b} < {c} \\), a contradiction.",
    "Wait, the index starts at {a}, so the sum has {b} terms and not {c}.",
    "Hence $\\frac{{a}}{{b}}$ of the pairs remain, and we continue with the next case.",
    "By symmetry the same holds for $y$, which leaves ${c} - {b}$ points on the line.",
)
_ENDINGS = (
    (0.86, "Therefore the answer is $\\boxed{@}$."),
    (0.06, "First I had \\boxed{0}, which was wrong; the value is \\boxed{@}."),
    (0.04, "The final answer is $@$."),
    (0.04, "and so we continue with the next case, which"),  # cut off: no answer
)


def _reasoning(r: random.Random, chars: int) -> str:
    lines, length = [], 0
    while length < chars:
        step = r.choice(_STEPS)
        for name in "abci":
            step = step.replace("{" + name + "}", str(r.randint(2, 99)))
        lines.append(step)
        length += len(step) + 1
    return "\n".join(lines)


def make_mix(prompts: int, generations: int, text_chars: int, seed: int) -> list[dict]:
    """prompts x generations rows: kind, gold, completion, and right (the verdict by construction)."""
    r = random.Random(seed)
    kinds, shares = list(MIX), [share for share, _ in MIX.values()]
    rows = []
    for kind in r.choices(kinds, shares, k=prompts):
        gold, right, wrong = MIX[kind][1](r)
        for _ in range(generations):
            is_right = r.random() < 0.5
            answer = r.choice(right if is_right else wrong)
            ending = r.choices([text for _, text in _ENDINGS], [share for share, _ in _ENDINGS])[0]
            text = _reasoning(r, text_chars) + "\n" + ending.replace("@", answer)
            rows.append({"kind": kind, "gold": gold, "completion": text, "right": is_right and "@" in ending})
    return rows


def main() -> int:
    """Exit status: 0, or 1 if the ratio is below the target or this project's verdict is wrong anywhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--generations", type=int, default=GENERATIONS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the figures there as JSON")
    arguments = parser.parse_args()
    import logging

    from trl.rewards import accuracy_reward

    logging.disable(logging.WARNING)  # math_verify logs each of its timeouts
    rows = make_mix(arguments.prompts, arguments.generations, TEXT_CHARS, arguments.seed)
    messages = [[{"role": "assistant", "content": row["completion"]}] for row in rows]
    warm = [[{"role": "assistant", "content": rf"The answer is $\boxed{{\tan {k}}}$."}] for k in range(2, 10)]
    accuracy(completions=warm, gold=[rf"\tan {k}" for k in range(3, 11)])  # starts the supervisor and its workers
    accuracy_reward(warm, [rf"$\tan {k}$" for k in range(3, 11)])

    ours, theirs, ours_seconds, trl_seconds = [], [], 0.0, 0.0
    for at in range(0, len(rows), SLICE):  # in turns, so that other load on the machine falls on both
        part, golds = messages[at : at + SLICE], [row["gold"] for row in rows[at : at + SLICE]]
        start = time.perf_counter()
        ours += accuracy(completions=part, gold=golds)
        ours_seconds += time.perf_counter() - start
        start = time.perf_counter()
        theirs += accuracy_reward(part, [f"${gold}$" for gold in golds])
        trl_seconds += time.perf_counter() - start
    shared().close()

    differing, seen, wrong = [], Counter(), 0
    for row, our, their in zip(rows, ours, theirs, strict=True):
        wrong += our != float(row["right"])
        if our != their:
            tail = row["completion"].rsplit("\n", 1)[-1]
            differing.append({"kind": row["kind"], "gold": row["gold"], "ending": tail, "right": row["right"],
                              "ours": our, "trl": their})  # fmt: skip
            seen[(row["kind"], our, their)] += 1
    for entry in differing:
        print(json.dumps(entry))
    ratio = trl_seconds / ours_seconds
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    figures = {
        "command": " ".join(["python", *sys.argv]),
        "completions": len(rows),
        "mean_chars": round(sum(len(row["completion"]) for row in rows) / len(rows)),
        "ours_seconds": round(ours_seconds, 3),
        "ours_per_second": round(len(rows) / ours_seconds, 1),
        "trl_seconds": round(trl_seconds, 3),
        "trl_per_second": round(len(rows) / trl_seconds, 1),
        "ratio": round(ratio, 1),
        "ours_wrong": wrong,
        "trl_wrong": sum(their != float(row["right"]) for row, their in zip(rows, theirs, strict=True)),
        "differing": len(differing),
        "differing_by_kind": [
            {"kind": kind, "ours": our, "trl": their, "count": count}
            for (kind, our, their), count in sorted(seen.items(), key=str)
        ],
        "workers": from_environment().workers,
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("trl", "math-verify", "latex2sympy2_extended", "sympy")},
        "commit": commit,
        "seed": arguments.seed,
    }
    print(json.dumps(figures, indent=2))
    print(
        f"this project {figures['ours_per_second']}/s, TRL {figures['trl_per_second']}/s, ratio {ratio:.1f} "
        f"(target {TARGET_RATIO:.0f}); {len(differing)} differing verdicts, {wrong} of ours wrong by construction"
    )
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({**figures, "differing_verdicts": differing}, indent=1) + "\n")
    return 0 if ratio >= TARGET_RATIO and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
