"""A run's record as tables of numbers, for the metrics: only the columns that they need, read fast.

A step's line has 1.5 kB, of which a few numbers are wanted. msgspec decodes those and skips the rest: a million lines in a few
seconds (results/analysis/). What a resumed run did twice is counted once: the last attempt at a step is the one whose update
the run kept.
"""

from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy
import pandas

from analysis.load import Run
from record import RunFolder

# Column here -> name in metrics.jsonl. TRL's names, and those of training/recording.py.
STEP_COLUMNS = {
    "step": "step",
    "unix_seconds": "unix_seconds",
    "seconds": "seconds",
    "tokens": "tokens",
    "completion_tokens": "completion_tokens",
    "max_completion_tokens": "completions/max_length",
    "reward": "reward",
    "sentinel_level": "sentinel/level",
    "sentinel_limit": "sentinel/limit",
}
BLOCK_BYTES = 2**24
PHASE_COLUMNS = (
    "step", "start_unix_seconds", "seconds", "peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes",
)  # fmt: skip


@dataclass
class Frames:
    """One run. Missing numbers are NaN, never 0.

    steps           training steps in order, each once: the columns of STEP_COLUMNS, `accuracy` (the accuracy reward, if the
                    recipe has one), and `first`: the first step of an attempt, which carries compilation
    evaluations     the same columns, of the held-out problems
    phases          one row an interval: rank, phase, split and PHASE_COLUMNS
    server_phases   the same of a server's busy time, without rank
    """

    path: Path
    manifest: dict
    steps: pandas.DataFrame
    evaluations: pandas.DataFrame
    phases: pandas.DataFrame
    server_phases: pandas.DataFrame
    torn_lines: int = 0

    @property
    def status(self) -> str:
        return self.manifest["exit"]["status"]

    @property
    def timed(self) -> pandas.DataFrame:
        """The steps that throughput is measured on: all but the first of each attempt, with their seconds."""
        return self.steps[~self.steps["first"] & (self.steps["seconds"] > 0)]

    @property
    def steady_phases(self) -> pandas.DataFrame:
        """The intervals of training steps after the first of the run."""
        return self.phases[(self.phases["split"] == "train") & (self.phases["step"] > 1)]


def accuracy_name(manifest: dict) -> str | None:
    """TRL's name for the mean of the accuracy reward, whichever of the accuracies the recipe uses."""
    for name in manifest["recipe"]["rewards"]:
        if name.startswith("accuracy"):
            return f"rewards/{name}/mean"
    return None


def read_frames(path: Path, phases: bool = True) -> Frames:
    """Reads a run's folder; without its phases on request, which are most of it.

    Raises:
        FileNotFoundError: it is no run folder.
        ValueError: its manifest is damaged or of another version.
    """
    folder = RunFolder(path)
    manifest = folder.manifest()
    names = _names(manifest)
    metrics, torn = _read(folder.metrics_path, names)
    ranks = []
    for file in sorted(folder.path.glob("phases.rank*.jsonl")) if phases else ():
        columns, bad = _read(file, {name: name for name in PHASE_COLUMNS}, texts=("phase", "split"))
        torn += bad
        ranks.append((int(file.stem.removeprefix("phases.rank")), pandas.DataFrame(columns)))
    server, bad = _read(
        folder.server_phases_path if phases else None, {name: name for name in PHASE_COLUMNS}, ("phase",)
    )
    return _assemble(folder.path, manifest, pandas.DataFrame(metrics), ranks, pandas.DataFrame(server), torn + bad)


def frames(run: Run) -> Frames:
    """The tables of a record that is in memory already."""

    def table(rows: list[dict], names: dict[str, str], texts: tuple[str, ...]) -> pandas.DataFrame:
        numbers = {
            column: numpy.array([numpy.nan if row.get(name) is None else row[name] for row in rows], dtype=float)
            for column, name in names.items()
        }
        return pandas.DataFrame({text: [row.get(text) for row in rows] for text in texts} | numbers)

    columns = {name: name for name in PHASE_COLUMNS}
    ranks = [(rank, table(rows, columns, ("phase", "split"))) for rank, rows in run.phases.items()]
    server = table(run.server_phases, columns, ("phase",))
    return _assemble(
        run.path, run.manifest, table(run.metrics, _names(run.manifest), ("split",)), ranks, server, run.torn_lines
    )


def _names(manifest: dict) -> dict[str, str]:
    accuracy = accuracy_name(manifest)
    return STEP_COLUMNS | ({"accuracy": accuracy} if accuracy else {})


def _read(path: Path | None, names: dict[str, str], texts: tuple[str, ...] = ("split",)) -> tuple[dict, int]:
    """The columns of a JSON-lines file, and how many of its lines were not whole, or no record."""
    fields = [(text, str | None, None) for text in texts]
    fields += [(column, float | None, msgspec.field(default=None, name=name)) for column, name in names.items()]
    decoder = msgspec.json.Decoder(msgspec.defstruct("Line", fields, gc=False))
    parts, torn = {name: [] for name in (*texts, *names)}, 0
    if path is not None and path.exists():
        with open(path, "rb") as file:
            while block := file.read(BLOCK_BYTES) + file.readline():
                lines, bad = _decoded(decoder, block)
                torn += bad
                for name, values in parts.items():
                    column = list(map(attrgetter(name), lines))
                    values.append(column if name in texts else numpy.array(column, dtype=float))  # None becomes NaN
    columns = {text: [value for part in parts[text] for value in part] for text in texts}
    return columns | {name: numpy.concatenate([numpy.empty(0), *parts[name]]) for name in names}, torn


def _decoded(decoder: msgspec.json.Decoder, block: bytes) -> tuple[list, int]:
    """Many lines at once, or where one of them is damaged one by one, and how many are. A line without its newline was not
    written to its end."""
    try:
        if block.endswith(b"\n"):
            return decoder.decode_lines(block), 0
    except msgspec.MsgspecError:
        pass
    lines, torn = [], 0
    for line in block.splitlines(keepends=True):
        try:
            lines.append(decoder.decode(line if line.endswith(b"\n") else b""))
        except msgspec.MsgspecError:
            torn += 1
    return lines, torn


def _assemble(path, manifest, metrics, ranks, server, torn) -> Frames:
    if "accuracy" not in metrics:
        metrics["accuracy"] = numpy.nan
    kept = metrics[metrics["step"].notna()].drop_duplicates(["split", "step"], keep="last").sort_values("step")
    torn += int(metrics["step"].isna().sum())
    steps = kept[kept["split"] == "train"].drop(columns="split").reset_index(drop=True)
    steps = steps.astype({"step": int})
    starts = {attempt.get("from_step") for attempt in manifest.get("attempts") or ()} - {None}
    steps["first"] = (steps.index == 0) | steps["step"].isin({start + 1 for start in starts})
    evaluations = kept[kept["split"] == "eval"].drop(columns="split").reset_index(drop=True).astype({"step": int})
    once = [last_attempts(intervals).assign(rank=rank) for rank, intervals in ranks]
    columns = ("phase", "split", *PHASE_COLUMNS, "rank")
    phases = pandas.concat(once, ignore_index=True) if once else pandas.DataFrame(columns=columns)
    return Frames(path, manifest, steps, evaluations, phases, server, torn)


def last_attempts(intervals: pandas.DataFrame) -> pandas.DataFrame:
    """One rank's intervals, less those of steps that a later attempt did again.

    A rank writes them in the order of time, so its step numbers fall only where an attempt begins: at 0, while it loads, or
    at the step of its checkpoint. Whatever an earlier attempt did from that attempt's first step on was lost.
    """
    step = intervals["step"].to_numpy()
    begins = numpy.flatnonzero(step[1:] < step[:-1]) + 1
    keep = numpy.ones(len(step), dtype=bool)
    for begin in begins:
        done_again = step[begin:][step[begin:] > 0]
        if len(done_again):
            keep[:begin] &= step[:begin] < done_again.min()
    return intervals[keep]
