"""This project's verdicts beside lighteval's, on the same completions: `python -m analysis.lighteval_verdicts FILE...`.

The files are JSON lines (or those, gzipped) with `gold`, `completion` and `reward`: what an evaluation leaves
(completions.jsonl) and what `python -m rewards grade` writes. `expected` (true, false or null), where a line has it, is the
truth. lighteval 0.13.0 needs another latex2sympy2_extended than this project's grader, so that it is installed, and this module
run, in an environment of its own: `pip install lighteval==0.13.0`, and nothing else is needed.

lighteval's metric is the one of its tasks math_500 and aime24: pass@k of `Metrics.pass_at_k_math`, here with k = n = 1. Those
tasks hand it a worked solution or a bare number as the gold; a bare LaTeX gold is put between dollar signs, where it looks for
LaTeX. A completion on which it raises is not right, and counted.
"""

import argparse
import functools
import gzip
import importlib.metadata
import json
import re
import sys
from collections import Counter
from pathlib import Path

from record import utc_now, write_json
from record.provenance import git_state

PACKAGES = ("lighteval", "latex2sympy2_extended", "sympy")


def read_completions(path: Path) -> list[dict]:
    """The rows of a file.

    Raises:
        ValueError: a line is not whole or lacks gold, completion or reward.
    """
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        rows = []
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                missing = [key for key in ("gold", "completion", "reward") if key not in row]
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: not a JSON object ({error})") from error
            if missing:
                mend = "grade it first: python -m rewards grade < FILE"
                raise ValueError(f"{path}, line {number}: no {', '.join(missing)}; {mend}")
            rows.append(row)
    return rows


def as_lighteval_takes_it(gold: str) -> str:
    return gold if "\\boxed" in gold or re.fullmatch(r"-?[\d.,]+", gold) else f"${gold}$"


def lighteval_judge():
    """A function from gold and completion to lighteval's verdict, 1.0 or 0.0, or to the name of the error that it raised.

    Raises:
        ModuleNotFoundError: lighteval is not installed here.
    """
    from lighteval.metrics.metrics import Metrics
    from lighteval.models.model_output import ModelResponse
    from lighteval.tasks.requests import Doc

    metric = Metrics.pass_at_k_math(sample_params={"k": 1, "n": 1}).sample_level_fn

    @functools.cache
    def judge(gold: str, completion: str) -> float | str:
        document = Doc(query="", choices=[as_lighteval_takes_it(gold)], gold_index=0)
        try:
            return float(metric.compute(doc=document, model_response=ModelResponse(text=[completion])))
        except Exception as error:  # its parsers raise whatever sympy raises
            return type(error).__name__

    return judge


def compare(rows: list[dict], judge) -> dict:
    """How often the two agree, and every pair of gold and completion on which they do not, with the number of its rows.

    `only_ours` and `only_lighteval` are right for that one alone. Where ours has no verdict (no usable gold) the row is counted
    and not compared. Where the truth is known, `ours_wrong` and `lighteval_wrong` count the verdicts that miss it.
    """
    counts = Counter(dict.fromkeys(
        ("completions", "no_verdict", "both_right", "both_wrong", "only_ours", "only_lighteval", "lighteval_raised",
         "truth_known", "ours_wrong", "lighteval_wrong"), 0,
    ))  # fmt: skip
    names = {(True, True): "both_right", (False, False): "both_wrong", (True, False): "only_ours"}
    disagreements: dict[tuple, dict] = {}
    for row in rows:
        counts["completions"] += 1
        if row["reward"] is None:
            counts["no_verdict"] += 1
            continue
        verdict = judge(row["gold"], row["completion"])
        ours, theirs = row["reward"] == 1.0, verdict == 1.0
        counts["lighteval_raised"] += isinstance(verdict, str)
        counts[names.get((ours, theirs), "only_lighteval")] += 1
        if row.get("expected") is not None:
            counts["truth_known"] += 1
            counts["ours_wrong"] += ours != row["expected"]
            counts["lighteval_wrong"] += theirs != row["expected"]
        if ours != theirs:
            entry = disagreements.setdefault(
                (row["gold"], row["completion"]),
                {
                    "ours": ours,
                    "lighteval": verdict == 1.0 if isinstance(verdict, float) else verdict,
                    "expected": row.get("expected"),
                    "kind": row.get("kind"),
                }
                | {"gold": row["gold"], "completion": row["completion"], "rows": 0},
            )
            entry["rows"] += 1
    return {"counts": dict(counts), "disagreements": list(disagreements.values())}


def markdown_table(result: dict) -> str:
    """A row a file of completions."""
    head = (
        "completions", "rows", "both right", "both wrong", "only ours right", "only lighteval's right", "ours has no verdict",
        "lighteval raised", "truth known", "ours wrong", "lighteval wrong",
    )  # fmt: skip
    keys = (
        "completions", "both_right", "both_wrong", "only_ours", "only_lighteval", "no_verdict", "lighteval_raised",
        "truth_known", "ours_wrong", "lighteval_wrong",
    )  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, compared in result["files"].items():
        counts = compared["counts"]
        row = [name, *(str(counts[key]) for key in keys)]
        if not counts["truth_known"]:
            row[-3:] = ["-"] * 3
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0, 1 if lighteval is not here, 2 if a file cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m analysis.lighteval_verdicts", description=__doc__.split("\n\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the counts and every disagreement, as JSON")
    arguments = parser.parse_args(argv)
    try:
        files = {str(path): read_completions(path) for path in arguments.files}
        judge = lighteval_judge()
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(
            f"error: {error}; lighteval goes into an environment of its own (pip install lighteval==0.13.0), since it needs "
            f"another latex2sympy2_extended than this project's grader; run this module with that environment's python",
            file=sys.stderr,
        )
        return 1
    result = {
        "command": "python " + " ".join(sys.orig_argv[1:]),
        "git": git_state(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "end": utc_now(),
        "files": {name: compare(rows, judge) for name, rows in files.items()},
    }
    print(markdown_table(result))
    if arguments.out:
        write_json(arguments.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
