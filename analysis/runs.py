"""Many runs as one table: `load(paths)` is what figures, notebooks, claims and reports start from.

    found = load(["results", "runs"])
    found.runs          one row a run: path, source ("record", "export", "comparison", "memory", "evaluation", "wandb"),
                        collection (what was recorded together: the folder of the exports, or the runs folder), the settings
                        (analysis/settings.py), steps, and the metrics (analysis/metrics.py); NaN or None where missing
    found.steps         one row a training step: path, step, seconds, tokens, completion_tokens, reward, ...
    found.evaluations   one row an evaluation: path, step, accuracy
    found.problems      what was left out, and why: damaged records, other versions, torn lines
    found.lacking       metrics that a record lacks, and why

A path is a run's folder, an exported JSON file, or a folder with any number of either below it. A run that failed is a row like
others, with its status; `aggregate` and `pairs` (analysis/aggregate.py) count it and leave it out of every mean. Runs in wandb
come into the same table through analysis/wandb_runs.py.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import pandas

from analysis.exported import read_exported
from analysis.frames import Frames, read_frames
from analysis.metrics import METRICS, measure
from analysis.settings import SETTINGS, settings

NAMED = 5  # records that one warning names; of more it names the folder
COLUMNS = ("path", "source", "collection", *SETTINGS, "steps", "torn_lines", *METRICS)


@dataclass
class Runs:
    """See the module's docstring. `runs` has one row for each path in `steps` and `evaluations`."""

    runs: pandas.DataFrame
    steps: pandas.DataFrame
    evaluations: pandas.DataFrame
    problems: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)

    def warn(self, lacking: bool = True) -> "Runs":
        """Says on stderr what was left out, and what metrics are missing; returns itself."""
        for problem in self.problems + (self.lacking if lacking else []):
            print(f"warning: {problem}", file=sys.stderr)
        return self


def load(paths: Iterable[Path | str] | Path | str, phases: bool = True) -> Runs:
    """Every record below the paths.

    Args:
        phases: read the ranks' phases too, without which idle shares and memory are missing; they are most of a record.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    parts, problems = [], []
    known = (ValueError, OSError, KeyError, TypeError, AttributeError)
    for path in [paths] if isinstance(paths, str | Path) else paths:
        for record in _records(Path(path)):
            try:
                if record.suffix == ".json":
                    part = read_exported(record)
                else:
                    part = rows_of(read_frames(record, phases), "record", str(record.parent.parent))
            except known as error:
                why = str(error) if isinstance(error, ValueError | OSError) else f"the manifest lacks {error}"
                problems.append(f"{record}: left out: {why.removeprefix(f'{record}: ')}")
                continue
            if part:
                parts.append(part)
    return assemble(parts, problems)


def rows_of(run: Frames, source: str, collection: str) -> tuple:
    """One run as a row of `runs`, its rows of the other tables, and why it lacks which metrics."""
    values, missing = measure(run)
    path = str(run.path)
    row = {"path": path, "source": source, "collection": collection} | settings(run.manifest)
    row |= {"steps": len(run.steps), "torn_lines": run.torn_lines} | values
    return [row], run.steps.drop(columns="first").assign(path=path), run.evaluations.assign(path=path), missing


def join(*found: Runs) -> Runs:
    """Several tables as one: records and wandb's runs, for one."""
    return Runs(
        pandas.concat([item.runs for item in found if len(item.runs)] or [found[0].runs], ignore_index=True),
        _concatenated(item.steps.astype({"path": str}) for item in found),
        _concatenated(item.evaluations.astype({"path": str}) for item in found),
        [problem for item in found for problem in item.problems],
        [line for item in found for line in item.lacking],
    )


def assemble(parts: list[tuple], problems: list[str]) -> Runs:
    """The tables of several readers' rows."""
    rows = [row for part in parts for row in part[0]]
    runs = pandas.DataFrame(rows, columns=list(dict.fromkeys((*COLUMNS, *(name for row in rows for name in row)))))
    runs = runs.astype(dict.fromkeys(METRICS, float))
    torn = [f"{row['path']}: {row['torn_lines']:.0f} torn lines left out" for row in rows if row.get("torn_lines")]
    whole = {(row["recipe"], Path(row["path"]).name) for row in rows if row["source"] == "record"}
    twice = [row["source"] == "comparison" and (row["recipe"], row["path"].split("#")[-1]) in whole for row in rows]
    runs = runs[~numpy.array(twice, dtype=bool)].reset_index(drop=True)  # its record says more
    return Runs(
        runs,
        _concatenated(part[1] for part in parts),
        _concatenated(part[2] for part in parts),
        [*problems, *torn],
        list(_lacks(parts)),
    )


def _lacks(parts: list[tuple]) -> Iterator[str]:
    """What metrics are missing in which records: one line for all of a collection that lack the same for the same reason."""
    lacking: dict[tuple[str, str, str], list[str]] = {}
    for rows, _, _, missing in parts:
        for reason in dict.fromkeys(missing.values()) if rows else ():
            names = ", ".join(name for name, why in missing.items() if why == reason)
            name = f"{rows[0]['path']} ({rows[0]['status']})"
            lacking.setdefault((rows[0]["collection"], reason, names), []).append(name)
    for (collection, reason, names), paths in lacking.items():
        which = ", ".join(paths) if len(paths) <= NAMED else f"{len(paths)} records in {collection}"
        yield f"{which}: {reason}: no {names}"


def _concatenated(tables: Iterable[pandas.DataFrame]) -> pandas.DataFrame:
    tables = [table.astype({"path": "category"}) for table in tables if len(table)]
    if not tables:
        return pandas.DataFrame(columns=["path", "step"])
    paths = pandas.api.types.union_categoricals([table["path"] for table in tables])
    joined = pandas.concat([table.drop(columns="path") for table in tables], ignore_index=True)
    return joined.assign(path=paths)


def _records(path: Path) -> Iterator[Path]:
    """The run folders and JSON files at or below a path, in the order of their names. Nothing inside a run's folder counts."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: not there")
    if path.is_file() or (path / "manifest.json").exists():
        yield path
        return
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            yield from _records(entry)
        elif entry.suffix == ".json" and not entry.name.startswith("."):
            yield entry
