"""Two arms that did the same work, side by side: throughput in three readings, who waited how long, and the spread over runs.

Each figure is of the training steps after the first, which carries compilation and other first-time costs:

    completions_per_second     completions sampled and trained on, over the wall time of the steps: what a person waits for
    per_device                 that over all devices that the run holds, the server's too
    normalised                 that times all devices over training devices, as the post scales its server arm (8/7)
    trainers_idle              share of the time in which a trainer waits for the server's answer or for other ranks; mean
    server_idle                share of the time in which the server has no request; None without a server
    devices_idle               both, weighted by devices

A device is a GPU, or without GPUs a rank or a server worker (one core each, as the launcher starts them).
"""

from collections.abc import Iterable
from statistics import median

from analysis.load import Run
from record import write_json

FIGURES = (
    "completions_per_second", "per_device", "normalised", "trainers_idle", "server_idle", "devices_idle", "median_step_seconds",
)  # fmt: skip


def figures(run: Run) -> dict:
    """The figures of one run.

    Raises:
        ValueError: it did not finish, or has fewer than two steps.
    """
    timed = [row["seconds"] for row in run.train_steps()[1:]]
    if run.status != "finished" or not timed:
        raise ValueError(f"{run.path}: status {run.status}, {len(timed)} timed steps: nothing to compare")
    recipe, derived = run.manifest["recipe"], run.manifest["derived"]
    server = recipe["cluster"]["server"]
    ranks, workers = derived["ranks"], server["nodes"] * server["gpus_per_node"] if server else 0
    rate = len(timed) * derived["optimizer_batch"] / sum(timed)
    trainers_idle = _mean(_idle_share(intervals, bool(server)) for intervals in run.phases.values())
    server_idle = 1 - busy_share(run) if server else None
    devices = ranks + workers
    return {
        "run": run.path.name,
        "recipe": recipe["name"],
        "arm": recipe["recipe"]["arm"],
        "devices": devices,
        "steps": len(timed),
        "completions_per_second": rate,
        "per_device": rate / devices,
        "normalised": rate * devices / ranks,
        "trainers_idle": trainers_idle,
        "server_idle": server_idle,
        "devices_idle": (trainers_idle * ranks + (server_idle or 0.0) * workers) / devices,
        "median_step_seconds": median(timed),
    }


def _steady(intervals: list[dict]) -> list[dict]:
    return [row for row in intervals if row["split"] == "train" and row["step"] > 1]


def _idle_share(intervals: list[dict], has_server: bool) -> float:
    """With a server, sampling is waiting: the rank that asked sleeps on a socket, the others in a broadcast."""
    waiting = {"wait", "generate"} if has_server else {"wait"}
    steady = _steady(intervals)
    return sum(row["seconds"] for row in steady if row["phase"] in waiting) / sum(row["seconds"] for row in steady)


def busy_share(run: Run) -> float:
    """Share of rank 0's training time, after the first step, in which the server had a request."""
    total = busy = 0.0
    for row in _steady(run.phases[0]):
        start, end = row["start_unix_seconds"], row["start_unix_seconds"] + row["seconds"]
        total += row["seconds"]
        for interval in run.server_phases:
            begun = interval["start_unix_seconds"]
            busy += max(0.0, min(end, begun + interval["seconds"]) - max(start, begun))
    return busy / total


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


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)


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
    write_json(path, result | provenance)
