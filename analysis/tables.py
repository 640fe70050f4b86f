"""Runs and arms as tables in Markdown, from the table of many runs (analysis/runs.py)."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

import pandas

from analysis.aggregate import aggregate, compared, pair, values_of
from analysis.intervals import Estimate
from analysis.metrics import METRICS, cost

SHOWN = {
    "completions_per_second": ".1f", "per_device": ".2f", "normalised": ".1f", "tokens_per_second": ".0f", "mfu": ".1%",
    "devices_idle": ".1%", "gpu_hours": ".2f", "accuracy_after": ".3f",
}  # fmt: skip
ARM_METRICS = (
    "completions_per_second",
    "per_device",
    "normalised",
    "tokens_per_second",
    "accuracy_after",
    "reward_area",
)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are text already."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def number(value, form: str) -> str:
    """A number in its form; a dash where it is missing."""
    return "-" if value is None or pandas.isna(value) else format(value, form)


def with_cost(runs: pandas.DataFrame, price: float | None) -> pandas.DataFrame:
    """The runs with a column `cost` where a price of a GPU-hour is given."""
    return runs if price is None else runs.assign(cost=runs["gpu_hours"].map(lambda hours: cost(hours, price)))


def runs(table: pandas.DataFrame, price: float | None = None) -> str:
    """One line a run, failed ones too, each with its status."""
    table, shown = with_cost(table, price), SHOWN | ({} if price is None else {"cost": ".2f"})
    head = ("run", "recipe", "arm", "seed", "hardware", "status", "steps", *shown)
    rows = []
    for _, run in table.iterrows():
        hardware = f"{number(run['devices'], '.0f')} x {number_or_text(run['gpu'])}"
        cells = [
            run["recipe"],
            run["arm"],
            number(run["seed"], ".0f"),
            hardware,
            run["status"],
            number(run["steps"], ".0f"),
        ]
        rows.append(
            [Path(run["path"]).name, *map(str, cells), *(number(run[name], form) for name, form in shown.items())]
        )
    return markdown(head, rows)


def estimated(found: Estimate | None, form: str) -> str:
    """Mean and 95 % interval; below five values the mean and its range, which says how many they are."""
    if found is None or not found.count:
        return "-"
    if found.count == 1:
        return f"{found.mean:{form}} (one)"
    if found.low is None or pandas.isna(found.low):
        return f"{found.mean:{form}} ({found.count}: {found.least:{form}} to {found.most:{form}})"
    return f"{found.mean:{form}} [{found.low:{form}}, {found.high:{form}}]"


def arms(table: pandas.DataFrame, metrics: Sequence[str] | None = None) -> str:
    """The arms over their seeds, and the ratios of pairs that did the same work.

    Raises:
        ValueError: a metric of that name is not defined.
    """
    metrics = metrics or ARM_METRICS
    if unknown := [name for name in metrics if name not in METRICS]:
        raise ValueError(f"no metric is called {', '.join(unknown)}; there are {', '.join(METRICS)}")
    by = ["collection", "recipe", "arm", "gpu", "devices"]
    known = table.groupby(by[:4], dropna=False)["devices"]
    alone = known.transform("nunique") == 1  # older exports do not say how many: as many as the others beside them
    table = table.assign(devices=table["devices"].fillna(known.transform("first").where(alone)))
    found = aggregate(table, metrics, by)
    rows = []
    for key, group in found.groupby(by, dropna=False, sort=False):
        cells = [estimated(Estimate(*row[list(Estimate._fields)]), _form(row["metric"])) for _, row in group.iterrows()]
        counts = group.iloc[0]
        hardware = f"{number(key[4], '.0f')} x {number_or_text(key[3])}"
        rows.append([*map(str, key[:3]), hardware, str(counts["finished"]), str(counts["unfinished"]), *cells])
    head = ("recorded in", "recipe", "arm", "hardware", "finished", "unfinished", *metrics)
    text = markdown(head, rows)
    ratios = []
    for first, second in combinations(table["arm"].dropna().unique(), 2):
        pairs = pair(table, first, second)
        for collection, group in pairs.groupby("collection_first", sort=False):
            cells = [estimated(compared(group, name), ".2f") if _positive(group, name) else "-" for name in metrics]
            ratios.append([str(collection), f"{first} / {second}", str(len(group)), *cells])
    return text + ("\n\n" + markdown(("recorded in", "ratio", "pairs", *metrics), ratios) if ratios else "")


def number_or_text(value) -> str:
    return "-" if value is None or pandas.isna(value) else str(value)


def _positive(pairs: pandas.DataFrame, name: str) -> bool:
    return all((values_of(pairs.rename(columns={f"{name}_{side}": name, "seed_first": "seed"}), name) > 0).all()
               for side in ("first", "second"))  # fmt: skip


def _form(metric: str) -> str:
    return {"share": ".3f", "reward": ".3f", "B": ".3g"}.get(METRICS[metric].unit, ".2f")
