"""One criterion of a claim, computed from the table of runs: supported, contradicted, undecided, or not run.

The verdict is of the 95 % interval, or below five values of their range: it must lie wholly on the one side or the other, else
it is undecided. With fewer values than the criterion's `least` there is no verdict, whatever they say.
"""

from collections.abc import Callable
from typing import NamedTuple

import pandas

from analysis.aggregate import WORK, compared, differing, pair, values_of
from analysis.intervals import Estimate, estimate

SUPPORTED, CONTRADICTED, UNDECIDED, NOT_RUN = "supported", "contradicted", "undecided", "not run"
CONDITIONS: dict[str, Callable[[float, float, float], bool]] = {
    "above": lambda low, high, limit: low > limit,
    "below": lambda low, high, limit: high < limit,
    "within": lambda low, high, limit: low >= -limit and high <= limit,
    "beyond": lambda low, high, limit: low > limit or high < -limit,
}
OUT_OF_MEMORY = "out_of_memory"  # 1 for a run that failed for want of memory, 0 for one that finished
EVALUATIONS = (
    "math500_pass_at_1",
    "aime24_pass_at_1",
    "heldout_pass_at_1",
)  # columns of evaluated models, if there are any


class Finding(NamedTuple):
    """`paths` are of the runs that the verdict is from."""

    says: str
    verdict: str
    estimate: Estimate | None
    kind: str
    paths: tuple[str, ...]

    def figure(self) -> str:
        """The number, its interval or range, and how many it is from."""
        found = self.estimate
        if found is None:
            return "-"
        form, unit = {"ratio": (".2f", "x"), "difference": ("+.3f", ""), "value": (".3f", "")}[self.kind]
        if found.count == 1:
            return f"{found.mean:{form}}{unit} (one)"
        low, high = found.bounds
        brackets = f"[{low:{form}}, {high:{form}}]" if found.low is not None else f"({low:{form}} to {high:{form}})"
        return f"{found.mean:{form}}{unit} {brackets}, n = {found.count}"


def judge(criterion: dict, runs: pandas.DataFrame) -> Finding:
    """The verdict of a criterion (analysis/claims.yaml) on the runs of a scale.

    Raises:
        ValueError: the criterion names a metric or a condition that there is not.
    """
    metric, where = criterion["metric"], dict(criterion.get("where") or {})
    if metric in EVALUATIONS and metric not in runs:
        runs = runs.assign(**{metric: float("nan")})
    if metric not in runs and metric != OUT_OF_MEMORY:
        raise ValueError(f"{criterion['says']}: no metric or column is called {metric!r}")
    largest = [column for column, value in where.items() if value == "largest"]
    runs = runs[matches(runs, {column: value for column, value in where.items() if column not in largest})]
    kind = next(name for name in ("value", "ratio", "difference") if name in criterion)
    if runs.empty:
        return _verdict(criterion, kind, None, ())
    if metric == OUT_OF_MEMORY:
        runs = runs[runs["source"] != "evaluation"]  # of a run that is a row already, or that finished elsewhere
        verdicts = [_out_of_memory(*row) for row in zip(runs["status"], runs["cause"], strict=True)]
        runs = runs.assign(**{metric: pandas.Series(verdicts, index=runs.index, dtype=float)})
        runs = runs[runs[metric].notna()]
        return _verdict(criterion, "value", estimate(runs[metric]), runs["path"])
    if kind == "value":
        runs = runs[(runs["status"] == "finished") & runs[metric].notna()]
        return _verdict(criterion, "value", estimate(values_of(runs, metric)), runs["path"])
    pairs = _pairs(runs, metric, *criterion[kind])
    for column in largest:
        pairs = pairs[pairs[f"{column}_first"] == pairs[f"{column}_first"].max()]
    found = {"ratio": compared, "difference": differing}[kind](pairs, metric) if len(pairs) else None
    return _verdict(criterion, kind, found, [*pairs["path_first"], *pairs["path_second"]])


def matches(runs: pandas.DataFrame, where: dict) -> pandas.Series:
    """Which runs have these settings: a value, any of a list, or {at_least: a number}."""
    chosen = pandas.Series(True, index=runs.index)
    for column, value in where.items():
        if isinstance(value, dict):
            chosen &= runs[column] >= value["at_least"]
        else:
            chosen &= runs[column].isin(value if isinstance(value, list) else [value])
    return chosen


def _pairs(runs: pandas.DataFrame, metric: str, column: str, first, second) -> pandas.DataFrame:
    on = [name for name in WORK if name != column]
    if column != "arm":  # the same arm, at the two ends of what was varied
        known = runs[(runs["status"] == "finished") & runs[column].notna()][column]
        ends = {"largest": known.max(), "smallest": known.min()} if len(known) else {}
        first, second = ends.get(first), ends.get(second)
        on.append("arm")
        if first == second:
            runs = runs[:0]
    pairs = pair(runs[runs[metric].notna()], first, second, on=on, of=column)
    return pairs


def _out_of_memory(status: str, cause: str | None) -> float | None:
    if status == "finished":
        return 0.0
    text = (cause or "").lower().replace(" ", "")
    return (
        1.0 if status == "failed" and ("outofmemory" in text or "cachememory" in text or "freememory" in text) else None
    )


def _verdict(criterion: dict, kind: str, found: Estimate | None, paths) -> Finding:
    verdict = NOT_RUN
    if found is not None and found.count >= criterion["least"]:
        sides = {SUPPORTED: criterion["supports"], CONTRADICTED: criterion["contradicts"]}
        met = [name for name, conditions in sides.items() if _holds(conditions, found)]
        verdict = met[0] if len(met) == 1 else UNDECIDED
    return Finding(criterion["says"], verdict, found, kind, tuple(map(str, paths)))


def _holds(conditions: dict[str, float], found: Estimate) -> bool:
    if unknown := set(conditions) - set(CONDITIONS):
        raise ValueError(f"{', '.join(unknown)}: a condition is one of {', '.join(CONDITIONS)}")
    return all(CONDITIONS[name](*found.bounds, limit) for name, limit in conditions.items())
