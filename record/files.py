"""JSON files that are whole or absent, and JSON lines that are whole or absent."""

import contextlib
import errno
import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path


def utc_now() -> str:
    """The time as ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clean(value):
    """`value` as strict JSON can hold it: NaN and infinities become null, scalars of numpy and torch plain numbers.

    Missing is null, never 0: JSON has no NaN, and a reader must not average what was not measured.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [clean(item) for item in value]
    if (hasattr(value, "item") and getattr(value, "size", None) in (1, ())) or getattr(value, "ndim", None) == 0:
        return clean(value.item())
    return str(value)


def _dump(value, **options) -> str:
    return json.dumps(clean(value), allow_nan=False, ensure_ascii=False, **options)


def write_json(path: Path, value) -> None:
    """Replaces `path` in one step: a reader sees the old file or the new one, whole.

    Raises:
        OSError: the folder is missing, not writable or full; `path` is then as it was before.
    """
    _replace(Path(path), _dump(value, indent=2) + "\n")


def write_lines(path: Path, rows: list[dict]) -> None:
    """Replaces a JSON-lines file in one step.

    Raises:
        OSError: the folder is missing, not writable or full; `path` is then as it was before.
    """
    _replace(Path(path), "".join(_dump(row) + "\n" for row in rows))


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_json(path: Path):
    """The value in a JSON file.

    Raises:
        ValueError: the file is not JSON; the message names it.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not a JSON file ({error})") from error


class LineWriter:
    """Appends JSON lines to a file, each with one `write`, so that a killed process leaves at most its last line in part: the
    kernel ends a killed process's write between two pages of memory.

    A line that an earlier, killed writer tore (no newline at the end of the file) is cut off on opening: what follows
    would otherwise be glued to it.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._cut_torn_line()

    def _cut_torn_line(self) -> None:
        end = whole = os.lseek(self._descriptor, 0, os.SEEK_END)
        while whole > 0:
            start = max(0, whole - 65536)
            newline = os.pread(self._descriptor, whole - start, start).rfind(b"\n")
            if newline >= 0:
                whole = start + newline + 1
                break
            whole = start
        if whole < end:
            os.ftruncate(self._descriptor, whole)

    def write(self, value: dict) -> None:
        """Appends one line.

        Raises:
            OSError: the disk is full or the line was written in part; the part is cut off again.
        """
        line = (_dump(value) + "\n").encode()
        size = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        if written != len(line):
            os.ftruncate(self._descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_lines(path: Path) -> tuple[list[dict], int]:
    """The rows of a JSON-lines file, and how many lines were not whole (they are left out, never guessed at)."""
    rows, torn = [], 0
    with open(path, "rb") as file:
        for line in file:
            row = _row(line)
            if row is None:
                torn += 1
            else:
                rows.append(row)
    return rows, torn


class LineFollower:
    """Reads what is new in a JSON-lines file that another process appends to; a half line waits until it is whole."""

    def __init__(self, path: Path, only_new: bool = False):
        """
        Args:
            only_new: leave out what is there already.
        """
        self.path = Path(path)
        self._offset_bytes = self.path.stat().st_size if only_new and self.path.exists() else 0

    def read(self) -> list[dict]:
        """The rows since the last call; none while the file does not exist."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset_bytes)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._offset_bytes += len(whole)
        return [row for line in whole.splitlines(keepends=True) if (row := _row(line)) is not None]


def _row(line: bytes) -> dict | None:
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
