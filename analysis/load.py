"""A run's record as Python objects. Missing stays None; nothing is filled in."""

from dataclasses import dataclass
from pathlib import Path

from record import RunFolder, read_lines


@dataclass
class Run:
    """One run: its manifest, its step lines, its phase intervals by rank and of its server, and how many lines of any file
    were torn."""

    path: Path
    manifest: dict
    metrics: list[dict]
    phases: dict[int, list[dict]]
    server_phases: list[dict]
    events: list[dict]
    torn_lines: int

    @property
    def status(self) -> str:
        return self.manifest["exit"]["status"]

    def train_steps(self) -> list[dict]:
        return [row for row in self.metrics if row["split"] == "train"]

    def evaluations(self) -> list[dict]:
        return [row for row in self.metrics if row["split"] == "eval"]


def load_run(path: Path) -> Run:
    """Reads a run's folder.

    Raises:
        FileNotFoundError: it is no run folder.
        ValueError: its manifest is damaged or of another version.
    """
    folder = RunFolder(path)
    manifest = folder.manifest()
    torn = 0

    def lines(file: Path) -> list[dict]:
        nonlocal torn
        if not file.exists():
            return []
        rows, bad = read_lines(file)
        torn += bad
        return rows

    phases = {
        int(file.stem.removeprefix("phases.rank")): lines(file)
        for file in sorted(folder.path.glob("phases.rank*.jsonl"))
    }
    metrics, server, events = lines(folder.metrics_path), lines(folder.server_phases_path), lines(folder.events_path)
    return Run(folder.path, manifest, metrics, phases, server, events, torn)
