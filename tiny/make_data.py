"""Make the tiny experiment's problems: chains of sums from reasoning-gym, as chat prompts with a gold answer.

    pip install reasoning-gym==0.1.25
    python -m tiny.make_data            # writes tiny/data/{train,test}.jsonl
    python -m tiny.make_data --check    # compares the committed files with what it would write; exit 1 if they differ

reasoning-gym is needed for this alone: the files it made are committed. Each line has `problem` (the user message) and
`answer` (the gold, an integer as text).
"""

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path

DATA = Path(__file__).parent / "data"
REASONING_GYM_VERSION = "0.1.25"
SEED = 20261129
SPLIT_PROBLEMS = {"test": 256, "train": 4096}
# Four or five terms of one digit: too long a chain for a model of two or three layers to sum in its head, short
# enough to work out in about 30 tokens.
TASK = {"min_terms": 4, "max_terms": 5, "min_digits": 1, "max_digits": 1}


def expression(problem: str) -> str:
    """The chain alone, without words or spaces ("7-4+0-2"): two problems are the same if their chains are.

    Raises ValueError when the problem is not worded as reasoning-gym words a chain of sums.
    """
    head, colon, chain = problem.rpartition(":")
    if not (head and colon and chain.endswith("=")):
        raise ValueError(f"not a chain of sums: {problem!r}")
    return chain.removesuffix("=").replace(" ", "")


def make() -> dict[str, list[dict[str, str]]]:
    """Each split's rows, in order; no chain occurs twice, neither within a split nor across them."""
    import reasoning_gym

    wanted = sum(SPLIT_PROBLEMS.values())
    drawn = reasoning_gym.create_dataset("chain_sum", size=2 * wanted, seed=SEED, **TASK)
    unique = {expression(item["question"]): item for item in reversed(list(drawn))}  # keeps each chain's first draw
    rows = [{"problem": item["question"], "answer": item["answer"]} for item in reversed(unique.values())]
    if len(rows) < wanted:
        raise ValueError(f"{len(rows)} different chains among {2 * wanted} drawn; {wanted} are needed")
    splits, start = {}, 0
    for split, size in SPLIT_PROBLEMS.items():
        splits[split] = rows[start : start + size]
        start += size
    return splits


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the tiny experiment's problems with reasoning-gym.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the committed files differ")
    check = parser.parse_args().check

    if (installed := version("reasoning-gym")) != REASONING_GYM_VERSION:
        sys.exit(f"reasoning-gym {installed} is installed; the data are made with {REASONING_GYM_VERSION}")
    differing = 0
    for split, rows in make().items():
        path, text = DATA / f"{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows)
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        same = path.exists() and path.read_text() == text
        differing += not same
        print(f"{path.name}: {len(rows)} problems, {'as made' if same else 'DIFFERS from what this script makes'}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
