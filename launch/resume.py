"""Which run a command takes up again, and what becomes of its record before it goes on.

The same command resumes the newest run of the same recipe hash that has not finished, is not going, and has a whole
checkpoint. What its record says of later steps than the checkpoint's is moved to attempts/<number>/ in the run's folder: those
steps are done again. Nothing whole is deleted.
"""

import contextlib
import errno
import fcntl
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from launch.recipe import recipe_hash
from record import RunFolder, read_lines, write_lines
from record.checkpoints import checkpoints, faults, is_sealed, sealed_unix_seconds, step_of

LOCK_WAIT_SECONDS = 60  # the ranks of a launcher that was killed end within this


class StillGoing(Exception):
    """Another launcher has the run."""


@contextlib.contextmanager
def locked(folder: RunFolder) -> Iterator[int]:
    """Holds a run's lock (flock: it goes with the process, however that ends). Gives the file descriptor, which the ranks'
    torchrun inherits, so that nobody takes the run up while it is still alive.

    Raises:
        StillGoing: somebody else holds it.
        OSError: the folder cannot be written.
    """
    descriptor = os.open(folder.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StillGoing(str(folder.path)) from None
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise
            _say(f"warning: {folder.path}: no locks on this file system; see to it that no run is started twice")
        yield descriptor
    finally:
        os.close(descriptor)


def launcher() -> dict:
    """This process, as the manifest's attempt names it."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": psutil.Process().create_time()}


def unfinished(recipe: dict, runs: Path) -> RunFolder | None:
    """The run that this recipe's command takes up again, None to start anew.

    Checkpoints that are not whole are set aside on the way, each with a line that says why.

    Raises:
        OSError: the run's folder cannot be written.
    """
    folders = sorted((Path(runs) / recipe["name"]).glob("*/manifest.json"), reverse=True)
    for folder in (RunFolder(path.parent) for path in folders):
        try:
            manifest = folder.manifest()
        except (OSError, ValueError):
            continue  # another version's, or damaged
        if manifest.get("recipe_hash") != recipe_hash(recipe):
            continue
        if manifest["exit"]["status"] == "finished":
            return None  # what is older has been overtaken
        if not checkpoints(folder.path) or not manifest.get("attempts"):
            continue
        _await_its_end(folder, manifest["attempts"][-1]["launcher"])
        try:
            with locked(folder):
                if whole_checkpoint(folder):
                    return folder
        except StillGoing:
            _say(f"{folder.path} is still going: not resumed")
            continue
        _say(f"{folder.path}: no whole checkpoint is left: starting from the beginning, in a new folder")
    return None


def _await_its_end(folder: RunFolder, last: dict) -> None:
    """If its launcher was on this host and is dead, its ranks are about to end: waits for the lock."""
    if last["host"] != socket.gethostname():
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        if abs(psutil.Process(last["pid"]).create_time() - last["started"]) < 1:
            return
    end = time.monotonic() + LOCK_WAIT_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(StillGoing), locked(folder):
            return
        time.sleep(0.5)


def whole_checkpoint(folder: RunFolder) -> Path | None:
    """The newest whole checkpoint. Newer ones that are not are renamed to broken-checkpoint-N, and never loaded."""
    for checkpoint in checkpoints(folder.path):
        found = faults(checkpoint)
        if not found:
            return checkpoint
        aside = checkpoint.with_name(f"broken-{checkpoint.name}")
        number = 1
        while aside.exists():
            number += 1
            aside = checkpoint.with_name(f"broken-{checkpoint.name}-{number}")
        checkpoint.rename(aside)
        _say(f"{checkpoint} is not whole ({'; '.join(found[:3])}): set aside as {aside.name}")
    return None


def newest(folder: RunFolder) -> Path | None:
    """The newest checkpoint that was sealed, without reading it."""
    return next((path for path in checkpoints(folder.path) if is_sealed(path)), None)


def take_up(folder: RunFolder, git: dict) -> int:
    """Prepares a run for its next attempt: moves what the record says of later steps than the newest checkpoint's out of the
    way, and begins an attempt in the manifest. Done twice it does the same. Returns the checkpoint's step.

    Raises:
        OSError: the folder cannot be written.
    """
    checkpoint, manifest = newest(folder), folder.manifest()
    step, sealed = step_of(checkpoint), sealed_unix_seconds(checkpoint)
    number = len(manifest["attempts"])
    aside = folder.attempt_path(number)
    aside.mkdir(parents=True, exist_ok=True)
    for path in [folder.metrics_path, *folder.path.glob("phases.rank*.jsonl")]:
        _split(path, aside / path.name, step, sealed)
    for path in [*folder.path.glob("error.rank*.json"), folder.stop_path]:
        if path.exists():
            path.replace(aside / path.name)
    if folder.logs_path.exists() and not (aside / "logs").exists():
        folder.logs_path.rename(aside / "logs")
    folder.logs_path.mkdir(exist_ok=True)
    changed = changes(manifest, git)
    for what, (before, now) in changed.items():
        _say(f"warning: {what} was {before} when the run began, and is {now} now")
    folder.begin_attempt(from_step=step, checkpoint=checkpoint.name, git=git, changed=changed, launcher=launcher())
    return step


def _split(path: Path, aside: Path, step: int, sealed: float) -> None:
    """Keeps in `path` what the checkpoint knows of, and moves later rows to `aside`: there first, so that none is lost."""
    if not path.exists():
        return
    rows, torn = read_lines(path)
    kept, later = [], []
    for row in rows:
        written = row.get("unix_seconds", row.get("start_unix_seconds"))
        (later if row["step"] > step or written > sealed else kept).append(row)
    if not later and not torn:
        return
    known = read_lines(aside)[0] if aside.exists() else []
    there = {json.dumps(row) for row in known}
    write_lines(aside, known + [row for row in later if json.dumps(row) not in there])
    write_lines(path, kept)


def changes(manifest: dict, git: dict) -> dict[str, tuple]:
    """What is no longer as it was when the run began: name -> (then, now). Both go into the record."""
    found = {}
    if manifest["git"] != git:
        found["git"] = (_commit(manifest["git"]), _commit(git))
    for package, before in (manifest.get("packages") or {}).items():
        now = platform.python_version() if package == "python" else _version(package)
        if now != before:
            found[package] = (before, now)
    return found


def _commit(git: dict) -> str:
    return f"{(git['commit'] or 'no commit')[:7]}{' with changes' if git['dirty'] else ''}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def disk_is_full(folder: RunFolder) -> str | None:
    """A line on the file system of a run's folder, if it has no room left."""
    free = shutil.disk_usage(folder.path).free
    if free >= 1 << 20:
        return None
    return f"no room left in {folder.path} ({free} bytes are free): free some space, then start the same command again"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
