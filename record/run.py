"""A run's folder: the names of its files, its manifest and its exit status."""

import time
from pathlib import Path

from record.files import read_json, utc_now, write_json

SCHEMA_VERSION = 1


class RunFolder:
    """The files of one run. Reading needs the folder alone; nothing here keeps state between calls."""

    def __init__(self, path: Path):
        self.path = Path(path)

    @property
    def manifest_path(self) -> Path:
        return self.path / "manifest.json"

    @property
    def events_path(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def logs_path(self) -> Path:
        return self.path / "logs"

    def phases_path(self, rank: int) -> Path:
        return self.path / f"phases.rank{rank}.jsonl"

    @property
    def server_phases_path(self) -> Path:
        return self.path / "phases.server.jsonl"

    def error_path(self, rank: int) -> Path:
        return self.path / f"error.rank{rank}.json"

    def manifest(self) -> dict:
        """The manifest as it stands.

        Raises:
            FileNotFoundError: this is no run folder.
            ValueError: the manifest is of another version, or damaged.
        """
        if not self.manifest_path.is_file():
            raise FileNotFoundError(f"{self.path}: no manifest.json there, so this is not a run's folder")
        manifest = read_json(self.manifest_path)
        version = manifest.get("schema_version") if isinstance(manifest, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(f"{self.manifest_path}: schema_version is {version!r}, this code reads {SCHEMA_VERSION}")
        return manifest

    def update(self, **fields) -> dict:
        """Replaces top-level fields of the manifest. One process at a time: the launcher before and after the ranks."""
        manifest = self.manifest() if self.manifest_path.exists() else {"schema_version": SCHEMA_VERSION}
        manifest.update(fields)
        write_json(self.manifest_path, manifest)
        return manifest

    def finish(self, status: str, cause: str | None = None) -> None:
        """Writes the exit status: finished, failed or interrupted. The first word stands: a crash while the engines
        are torn down does not turn a finished run into a failed one."""
        if self.manifest().get("exit", {}).get("status") in (None, "running"):
            self.update(end=utc_now(), exit={"status": status, "cause": cause})

    def errors(self) -> list[dict]:
        """What the ranks left on failing, earliest first: it is the first that tells the cause, the rest follow from it."""
        errors = []
        for path in self.path.glob("error.rank*.json"):
            try:
                errors.append(read_json(path))
            except ValueError:
                continue
        return sorted(errors, key=lambda error: error.get("unix_seconds", 0))

    def write_error(self, rank: int, kind: str, message: str, traceback: str) -> None:
        write_json(
            self.error_path(rank),
            {"rank": rank, "kind": kind, "message": message, "traceback": traceback, "unix_seconds": time.time()},
        )
