"""Runs a pair of recipes back to back, in the order A B B A A B ..., so that a machine that grows slower or faster over the
hour weighs on both alike. What came of it is for `analysis` to say, from the records."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from launch.conclude import FINISHED
from launch.machine import startable
from launch.nodes import node_count
from launch.pair import compare, report
from launch.problems import Problem, RecipeError
from launch.recipe import ROOT
from launch.run import run


def order(repeats: int) -> Iterator[int]:
    """0 for A and 1 for B: each `repeats` times, every second pair turned round."""
    for repeat in range(repeats):
        yield from (0, 1) if repeat % 2 == 0 else (1, 0)


def refuse_others(recipes: tuple[dict, dict], names: tuple[str, str]) -> None:
    """Raises RecipeError unless the two are a pair that this machine can run: the same work, differing in the arm alone."""
    comparison = compare(*recipes)
    problems = [problem for recipe in recipes for problem in startable(recipe)]
    if any(node_count(recipe) > 1 for recipe in recipes):
        mend = "run the two recipes one after the other (launch/multinode.sh), then `python -m analysis compare`"
        problems = [Problem("cluster.nodes", None, "compare runs its pair on this node alone", mend)]
    if not comparison.is_pair:
        text = report(comparison, names)
        problems.append(Problem("recipe.arm", None, f"no pair to compare\n{text}", "see `python -m launch pair`"))
    if problems:
        raise RecipeError(" and ".join(names), problems)


def run_pair(
    recipes: tuple[dict, dict],
    names: tuple[str, str],
    repeats: int,
    runs: Path,
    overrides: list[str],
    export: Path | None,
) -> int:
    """Runs both recipes `repeats` times each, and has `analysis` compare the records. Returns an exit code: that of the
    first run that did not finish, or of the analysis."""
    refuse_others(recipes, names)
    records: list[str] = []
    for number, which in enumerate(order(repeats), start=1):
        print(f"\nrun {number} of {2 * repeats}: {names[which]}", flush=True)
        code, folder = run(recipes[which], runs, overrides)
        if code != FINISHED:
            print(f"stopped: {len(records)} of {2 * repeats} runs finished: {' '.join(records)}", file=sys.stderr)
            return code
        records.append(str(folder.path))
    command = [sys.executable, "-m", "analysis", "compare", *records, *(["--export", str(export)] if export else [])]
    return subprocess.run(command, cwd=ROOT, check=False).returncode
