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

    @property
    def stop_path(self) -> Path:
        """Where the launcher asks for an end after the step; the ranks look for it (training/checkpoints.py)."""
        return self.path / "stop.json"

    @property
    def lock_path(self) -> Path:
        """Locked (flock) by the launcher while the run is going."""
        return self.path / "lock"

    def attempt_path(self, number: int) -> Path:
        """What the first, second, ... attempt left that the run does not count: steps after the checkpoint from which the next
        one went on, under the same file names; its logs and errors."""
        return self.path / "attempts" / str(number)

    def ask_to_stop(self, signal_number: int) -> None:
        write_json(self.stop_path, {"signal": signal_number, "unix_seconds": time.time()})

    def stop_requested(self) -> int:
        """The number of the signal for which the run is to stop; 0 as long as it is not."""
        return read_json(self.stop_path)["signal"] if self.stop_path.exists() else 0

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
        manifest = self.manifest()
        if manifest.get("exit", {}).get("status") in (None, "running"):
            end, verdict = utc_now(), {"status": status, "cause": cause}
            attempts = manifest.get("attempts", [])
            if attempts:
                attempts[-1] |= {"end": end, "exit": verdict}
            self.update(end=end, exit=verdict, attempts=attempts)

    def begin_attempt(self, **fields) -> None:
        """Adds an attempt to the manifest: `from_step` and `checkpoint` (0 and None for the first), commit, host, launcher. One
        that ended without a word, as when its host went down, is closed with that cause."""
        manifest = self.manifest()
        attempts = manifest.get("attempts", [])
        if attempts and attempts[-1]["exit"]["status"] == "running":
            attempts[-1]["exit"] = {
                "status": "failed",
                "cause": "ended without a word: the launcher was killed, or its host",
            }
        verdict = {"status": "running", "cause": None}
        attempts.append({"start": utc_now(), "end": None, "exit": verdict} | fields)
        self.update(attempts=attempts, end=None, exit=verdict)

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
