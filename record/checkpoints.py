"""A run's checkpoints: which of them are whole.

transformers writes checkpoint-N into the run's folder, file by file and from several ranks. When all of them are done, and
before an older checkpoint is deleted, rank 0 adds whole.json with the size and the checksum of each file (`seal`). A checkpoint
without it was cut short; one that differs from it has been damaged since.
"""

import os
import re
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from record.files import read_json, write_json

WHOLE = "whole.json"
_CHUNK_BYTES = 4 << 20


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints in a run's folder, whole or not, newest first. Those set aside are not among them."""
    found = [path for path in Path(run).glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=step_of, reverse=True)


def is_sealed(checkpoint: Path) -> bool:
    return (checkpoint / WHOLE).is_file()


def file_names(checkpoint: Path) -> list[str]:
    """Its files, relative to it, whole.json aside."""
    names = (str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file())
    return sorted(name for name in names if WHOLE not in name)


def checksum(path: Path, to_disk: bool = False) -> dict:
    """Size and CRC-32 of a file: {"bytes", "crc32"}. It finds damage, at a disk's speed; it is no proof against intent.

    Args:
        to_disk: wait until the file is on the disk, so that it survives a crash of the host.

    Raises:
        OSError: it is not there or cannot be read.
    """
    value = size = 0
    with open(path, "rb", buffering=0) as file:
        if to_disk:
            os.fsync(file.fileno())
        while chunk := file.read(_CHUNK_BYTES):
            value, size = zlib.crc32(chunk, value), size + len(chunk)
    return {"bytes": size, "crc32": f"{value:08x}"}


def seal(checkpoint: Path, files: dict[str, dict]) -> None:
    """Declares it whole: `files` is name -> checksum(...).

    Raises:
        OSError: whole.json cannot be written.
    """
    write_json(
        checkpoint / WHOLE,
        {"step": step_of(checkpoint), "unix_seconds": time.time(), "files": dict(sorted(files.items()))},
    )


def sealed_unix_seconds(checkpoint: Path) -> float:
    """When it was sealed. What the record says of later times is not in it."""
    return read_json(checkpoint / WHOLE)["unix_seconds"]


def size_bytes(checkpoint: Path) -> int:
    return sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())


def faults(checkpoint: Path) -> list[str]:
    """Why a checkpoint is not whole, a line for each file; empty if it is. Reads every byte of it, in as many threads as there
    are cores, unless the sizes tell already."""
    try:
        files = read_json(checkpoint / WHOLE)["files"]
        claims = {name: (claim["bytes"], claim["crc32"]) for name, claim in files.items()}
    except FileNotFoundError:
        return [f"no {WHOLE}: it was cut short"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"{WHOLE} is damaged"]
    found = []
    for name, (size, _) in claims.items():
        path = checkpoint / name
        if not path.is_file():
            found.append(f"{name} is missing")
        elif (there := path.stat().st_size) != size:
            found.append(f"{name} has {there} bytes, not {size}")
    if found:
        return found

    def read(name: str) -> str | None:
        try:
            return None if checksum(checkpoint / name)["crc32"] == claims[name][1] else f"{name} is damaged (checksum)"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [fault for fault in pool.map(read, claims) if fault]
