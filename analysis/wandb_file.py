"""wandb's offline file: protobufs in a LevelDB log (blocks of 32 KiB; checksum, size, kind, bytes).

wandb 0.31 has no reader of it in Python. What its writer tore is counted and left out.
"""

import json
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

BLOCK, HEADER, IDENTITY = 32768, 7, b":W&B"
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def offline_records(path: Path) -> Iterator[object | None]:
    """The records (wandb_internal_pb2.Record) of an offline file, and None for a torn one, which ends it.

    Raises:
        ValueError: it is no offline file of wandb.
    """
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    data, at, part = path.read_bytes(), HEADER, b""
    if data[:4] != IDENTITY:
        raise ValueError("not a file of wandb (it begins otherwise)")
    while at < len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6] if at + 6 < len(data) else 0
        body = data[at + HEADER : at + HEADER + size]
        whole = kind in (FULL, FIRST, MIDDLE, LAST) and len(body) == size
        if not whole or zlib.crc32(body, zlib.crc32(bytes([kind]))) != int.from_bytes(data[at : at + 4], "little"):
            yield None
            return
        part = (part if kind in (MIDDLE, LAST) else b"") + body
        at += HEADER + size
        if kind in (FULL, LAST):
            try:
                yield wandb_internal_pb2.Record.FromString(part)
            except DecodeError:
                yield None


def read_offline(path: Path) -> dict:
    """One offline run: name, config, history (a dict a row), exit_code (None without an end), start, end (ISO 8601), torn.

    Raises:
        ValueError: it is no offline file of wandb, or ends before the run's name.
    """
    config, history, run, exit_record, torn = {}, [], None, None, 0
    for record in offline_records(path):
        kind = record.WhichOneof("record_type") if record is not None else None
        if record is None:
            torn += 1
        elif kind == "run":
            run = record.run
            config |= _values(run.config.update)
        elif kind == "config":
            config |= _values(record.config.update)
        elif kind == "history":
            history.append(_values(record.history.item))
        elif kind == "exit":
            exit_record = record.exit
    if run is None:
        raise ValueError("it ends before the run's name")
    start = datetime.fromtimestamp(run.start_time.seconds + run.start_time.nanos / 1e9, UTC)
    end = start + timedelta(seconds=exit_record.runtime) if exit_record else None
    return {
        "name": run.display_name or run.run_id,
        "config": config,
        "history": history,
        "exit_code": exit_record.exit_code if exit_record else None,
        "start": start.isoformat(),
        "end": end.isoformat() if end else None,
        "torn": torn,
    }


def _values(items) -> dict:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
