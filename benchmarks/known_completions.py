r"""Completions whose verdict is known, for graders to be compared on: `python benchmarks/known_completions.py sample|cases`.

sample: three for each of the 448 problems of data/math_sample: its worked solution, its answer in a sentence with dollar
signs, and the worked text with the answer to another problem of its kind, which is wrong by construction (a kind writes its
answers in one way, so that another text is another value). cases: those of tests/rewards, but for the ones that are meant to
hang or crash a grader, which test limits.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from data.make_math_sample import rows  # noqa: E402

CASES = ("reward_cases.jsonl", "own_cases.jsonl")


def sample() -> list[dict]:
    """Rows with gold, prompt, completion, expected (true or false) and kind."""
    made, by_kind = [], {}
    for _, kind, row in rows():
        answer = re.search(r"\$\\boxed\{(.*)\}\$\.$", row["solution"])[1]
        by_kind.setdefault(kind, []).append((row["problem"], row["solution"], answer))
    for kind, problems in by_kind.items():
        for index, (prompt, solution, answer) in enumerate(problems):
            other = next((a for _, _, a in problems[index + 1 :] + problems[:index] if a != answer), None)
            texts = {"boxed": solution, "sentence": f"The final answer is ${answer}$."}
            if other is not None:
                texts["wrong"] = solution.replace(f"\\boxed{{{answer}}}", f"\\boxed{{{other}}}")
            made += [
                {
                    "gold": answer,
                    "prompt": prompt,
                    "completion": text,
                    "expected": way != "wrong",
                    "kind": f"{kind}, {way}",
                }
                for way, text in texts.items()
            ]
    return made


def cases() -> list[dict]:
    """Rows with gold, completion, expected (true, false, or null: no verdict is possible) and kind."""
    made = []
    for name in CASES:
        for line in (ROOT / "tests" / "rewards" / name).read_text().splitlines():
            case = json.loads(line)
            if case["kind"] not in ("hang", "crash"):
                expected = case["expected"] if isinstance(case["expected"], bool) else None
                case = {key: case[key] for key in ("gold", "completion")} | {"kind": f"case {case['id']}"}
                made.append(case | {"expected": expected})
    return made


if __name__ == "__main__":
    if sys.argv[1:] not in (["sample"], ["cases"]):
        sys.exit("usage: python benchmarks/known_completions.py sample|cases")
    for row in sample() if sys.argv[1] == "sample" else cases():
        print(json.dumps(row))
