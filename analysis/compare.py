"""Two arms that did the same work, side by side: throughput in three readings, who waited how long, and the spread over runs.

Each figure is a metric of analysis/metrics.py: raw throughput, per device, the post's normalisation, and idle shares.
"""

from collections.abc import Iterable
from statistics import median

from analysis.aggregate import WORK
from analysis.frames import frames
from analysis.load import Run
from analysis.metrics import devices, measure
from analysis.settings import settings
from record import SCHEMA_VERSION, write_json

FIGURES = (
    "completions_per_second", "per_device", "normalised", "trainers_idle", "server_idle", "devices_idle", "median_step_seconds",
)  # fmt: skip


def figures(run: Run) -> dict:
    """The figures of one run.

    Raises:
        ValueError: it did not finish, or has fewer than two steps.
    """
    tables = frames(run)
    values, missing = measure(tables, FIGURES)
    if run.status != "finished" or missing:
        why = "; ".join(dict.fromkeys(missing.values()))
        raise ValueError(f"{run.path}: status {run.status}: nothing to compare{f' ({why})' if why else ''}")
    recipe = run.manifest["recipe"]
    kept = ("model", "seed", "gpu", "gpus", "ranks", *WORK)
    return (
        {name: value for name, value in settings(run.manifest).items() if name in kept}
        | {
            "run": run.path.name,
            "recipe": recipe["name"],
            "arm": recipe["recipe"]["arm"],
            "devices": devices(tables),
            "steps": len(tables.timed),
        }
        | values
    )


def compare(runs: list[Run]) -> dict:
    """Both arms' figures over their runs, and what the second makes of the first, run by run in the order they were made.

    Raises:
        ValueError: not two recipes, not equally often, or a run that cannot be compared.
    """
    rows = [figures(run) for run in runs]
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    grouped = [[row for row in rows if row["recipe"] == recipe] for recipe in recipes]
    if len(recipes) != 2 or len(grouped[0]) != len(grouped[1]):
        raise ValueError(
            f"two recipes are compared, with equally many runs; these are {[row['recipe'] for row in rows]}"
        )
    ratios = {
        name: spread(second[name] / first[name] for first, second in zip(*grouped, strict=True))
        for name in ("completions_per_second", "per_device", "normalised")
    }
    return {
        "arms": [
            {"recipe": group[0]["recipe"], "arm": group[0]["arm"], "devices": group[0]["devices"], "runs": len(group)}
            | {name: spread(row[name] for row in group) for name in FIGURES}
            for group in grouped
        ],
        "ratios": ratios,
        "runs": rows,
    }


def spread(values: Iterable[float | None]) -> dict | None:
    """Median, least and most; None if any is missing."""
    values = list(values)
    if any(value is None for value in values):
        return None
    return {"median": median(values), "least": min(values), "most": max(values)}


def table(result: dict) -> str:
    """The comparison as text for a terminal: medians, with the range over the runs in brackets."""
    first, second = result["arms"]
    rows = [("", first["recipe"], second["recipe"], "second / first")]
    shown = (
        ("completions/s", "completions_per_second", ".1f"), ("per device", "per_device", ".1f"),
        ("x all / training devices", "normalised", ".1f"), ("step seconds (median)", "median_step_seconds", ".2f"),
        ("trainers idle", "trainers_idle", ".1%"), ("server idle", "server_idle", ".1%"),
        ("devices idle", "devices_idle", ".1%"),
    )  # fmt: skip
    for label, name, form in shown:
        ratio = result["ratios"].get(name)
        rows.append((label, _text(first[name], form), _text(second[name], form), _text(ratio, ".2f") if ratio else ""))
    rows.append(("devices, runs", f"{first['devices']}, {first['runs']}", f"{second['devices']}, {second['runs']}", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _text(value: dict | None, form: str) -> str:
    if value is None:
        return "-"
    return f"{value['median']:{form}} ({value['least']:{form}} to {value['most']:{form}})"


def export(result: dict, runs: list[Run], path) -> None:
    """Writes the comparison with what is needed to repeat it."""
    manifest = runs[0].manifest
    provenance = {
        "command": " ".join(
            [
                "python -m launch compare",
                *(f"recipes/{arm['recipe']}.yaml" for arm in result["arms"]),
                f"--repeats {result['arms'][0]['runs']}",
                *(f"--set {item}" for item in manifest["overrides"]),
            ]
        ),
        "git": manifest["git"],
        "packages": manifest["packages"],
        "hardware": manifest["hardware"] | manifest["host"],
        "start": manifest["start"],
        "end": runs[-1].manifest["end"],
    }
    write_json(path, {"schema_version": SCHEMA_VERSION} | result | provenance)
