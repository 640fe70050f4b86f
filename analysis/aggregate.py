"""Over seeds, and between arms: means with intervals, and ratios of runs that did the same work.

    aggregate(found.runs, ["tokens_per_second"], by=["model", "gpu", "arm"])
    pairs = pair(found.runs, "colocate", "server", on=["model", "gpu", "optimizer_batch"])
    compared(pairs, "normalised")        # Estimate of the ratio first / second, over the pairs

Only finished runs are in a mean or a pair; the others are counted. Of what was learnt (reward, accuracy) a seed that was run
several times is one value, their mean: it may repeat to the last bit, and would feign certainty. Each run's times count.
"""

from collections.abc import Sequence

import pandas

from analysis.intervals import Estimate, estimate, ratio_estimate
from analysis.metrics import METRICS

# What two runs must share to have done the same work. (The arm's own settings may differ, and the number of GPUs.)
WORK = (
    "model", "gpu", "optimizer_batch", "max_prompt_tokens", "max_completion_tokens", "accelerate", "checkpointing", "dtype",
    "loss_type", "lora_r", "steps",
)  # fmt: skip


def values_of(runs: pandas.DataFrame, metric: str) -> pandas.Series:
    """The values that a mean of the metric is over: one a run, or for an outcome (and a setting) one a seed."""
    if metric in METRICS and not METRICS[metric].outcome:
        return runs[metric].dropna()
    return runs.groupby("seed", dropna=False)[metric].mean().dropna()


def aggregate(
    runs: pandas.DataFrame, metrics: Sequence[str], by: Sequence[str] = ("recipe", "arm")
) -> pandas.DataFrame:
    """One row a group and metric: `by`, metric, mean, low, high, least, most, count (values in the mean), finished,
    unfinished (runs of the group). `low` and `high` are NaN below five values (analysis/intervals.py); mean, too, where no
    finished run has the metric."""
    rows = []
    for key, group in runs.groupby(list(by), dropna=False, sort=False):
        finished = group[group["status"] == "finished"]
        counts = {"finished": len(finished), "unfinished": len(group) - len(finished)}
        for name in metrics:
            found = estimate(values_of(finished, name))
            values = found._asdict() if found else dict.fromkeys(Estimate._fields) | {"count": 0}
            rows.append(dict(zip(by, key, strict=True)) | {"metric": name} | values | counts)
    columns = [*by, "metric", *Estimate._fields, "finished", "unfinished"]
    table = pandas.DataFrame(rows, columns=columns)
    return table.astype(dict.fromkeys(("mean", "low", "high", "least", "most"), float))


def pair(
    runs: pandas.DataFrame, first: str, second: str, on: Sequence[str] = WORK, of: str = "arm"
) -> pandas.DataFrame:
    """Finished runs of two arms that did the same work, side by side: the columns of `runs` with _first and _second.

    Runs are pairs if they were recorded together (`collection`), and agree in the columns `on` (a value that neither knows
    agrees) and in the seed. Of several runs with one seed the first of the one arm is the partner of the first of the other,
    in the order of their starts; what has no partner is left out. `of` is the column that tells the two apart.
    """
    finished = runs[runs["status"] == "finished"]
    keys = [*on, "seed", "collection"]
    finished = finished.sort_values(["start", "path"], kind="stable", na_position="last")
    plain = finished.assign(
        **{key: finished[key].map(lambda value: "-" if pandas.isna(value) else str(value)) for key in keys}
    )
    finished = finished.assign(_turn=plain.groupby([*keys, of], sort=False).cumcount())
    plain = plain.assign(_turn=finished["_turn"])
    sides = [plain.index[plain[of] == which] for which in (first, second)]
    matched = plain.loc[sides[0], [*keys, "_turn"]].reset_index().merge(
        plain.loc[sides[1], [*keys, "_turn"]].reset_index(), on=[*keys, "_turn"], suffixes=("_first", "_second")
    )  # fmt: skip
    columns = [column for column in finished.columns if column != "_turn"]
    left = finished.loc[matched["index_first"], columns].add_suffix("_first").reset_index(drop=True)
    right = finished.loc[matched["index_second"], columns].add_suffix("_second").reset_index(drop=True)
    return pandas.concat([left, right], axis=1)


def compared(pairs: pandas.DataFrame, metric: str) -> Estimate | None:
    """The ratio first / second of a metric over the pairs: geometric mean and interval; None without a pair that has it."""
    ratios = pairs[f"{metric}_first"] / pairs[f"{metric}_second"]
    return ratio_estimate(values_of(pandas.DataFrame({metric: ratios, "seed": pairs["seed_first"]}), metric))


def differing(pairs: pandas.DataFrame, metric: str) -> Estimate | None:
    """The difference first - second of a metric over the pairs; None without a pair that has it."""
    differences = pairs[f"{metric}_first"] - pairs[f"{metric}_second"]
    return estimate(values_of(pandas.DataFrame({metric: differences, "seed": pairs["seed_first"]}), metric))
