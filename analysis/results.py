"""Committed results: a run's figures with their provenance as one JSON file, and the table over several of them."""

import json
from pathlib import Path
from statistics import mean, stdev

from analysis.frames import accuracy_name, frames
from analysis.load import Run
from analysis.metrics import measure
from analysis.settings import settings
from analysis.summary import summarize
from record import SCHEMA_VERSION, write_json


def export(run: Run, path: Path) -> None:
    """Writes what a run came to, its reward curve, and what is needed to repeat it. Failed runs are exported like others.

    Raises:
        OSError: the folder is missing or cannot be written.
    """
    manifest, key = run.manifest, accuracy_name(run.manifest)
    values, missing = measure(frames(run))
    write_json(
        path,
        {
            "schema_version": SCHEMA_VERSION,
            "settings": settings(manifest),
            "figures": summarize(run) | values,
            "missing": missing,
            "curve": [
                {"step": row["step"], "reward": row.get("reward"), "seconds": row.get("seconds")}
                for row in run.train_steps()
            ],
            "held_out": [{"step": row["step"], "accuracy": row.get(key)} for row in run.evaluations()],
            "recipe_hash": manifest["recipe_hash"],
            "overrides": manifest["overrides"],
            "command": " ".join(
                ["bash launch/singlenode.sh", f"recipes/{manifest['recipe']['name']}.yaml"]
                + [f"--set {override}" for override in manifest["overrides"]]
            ),
            "git": manifest["git"],
            "packages": manifest.get("packages"),  # the ranks write both: a run that ended before has neither
            "hardware": (manifest.get("hardware") or {}) | manifest["host"],
            "start": manifest["start"],
            "end": manifest["end"],
            "exit": manifest["exit"],
        },
    )


def load_results(folder: Path) -> list[dict]:
    """The exported runs of a folder, by file name.

    Raises:
        FileNotFoundError: there are none.
    """
    paths = sorted(Path(folder).glob("*.json"))
    if not paths:
        raise FileNotFoundError(f"{folder}: no exported runs (*.json) there")
    return [json.loads(path.read_text()) for path in paths]


def markdown_table(results: list[dict]) -> str:
    """One row a recipe: mean and spread in columns of their own. Spread is the standard deviation over the seeds; a run
    that did not finish is counted in its own column and in no mean."""
    head = (
        "recipe", "arm", "seeds", "unfinished", "accuracy before", "sd", "accuracy after", "sd", "lowest", "steps",
        "step s (median)", "completion tokens/s", "commit",
    )  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    by_recipe: dict[str, list[dict]] = {}
    for result in results:
        by_recipe.setdefault(result["figures"]["recipe"], []).append(result)
    for recipe, group in by_recipe.items():
        finished = [item["figures"] for item in group if item["exit"]["status"] == "finished"]

        def column(name: str, rows=finished) -> list[float]:
            return [row[name] for row in rows if row[name] is not None]

        before, after = column("accuracy_before"), column("accuracy_after")
        cells = [
            recipe,
            group[0]["figures"]["arm"],
            ", ".join(str(item["figures"]["seed"]) for item in group),
            str(len(group) - len(finished)),
            *_mean_and_spread(before),
            *_mean_and_spread(after),
            f"{min(after):.3f}" if after else "-",
            ", ".join(sorted({str(row["steps"]) for row in finished})) or "-",
            _range(column("median_step_seconds"), ".2f"),
            _range(column("tokens_per_second"), ".0f"),
            ", ".join(sorted({(item["git"]["commit"] or "-")[:7] for item in group})),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean_and_spread(values: list[float]) -> tuple[str, str]:
    if not values:
        return "-", "-"
    return f"{mean(values):.3f}", f"{stdev(values):.3f}" if len(values) > 1 else "-"


def _range(values: list[float], form: str) -> str:
    """Lowest to highest: what a shared machine's times deserve."""
    if not values:
        return "-"
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"
