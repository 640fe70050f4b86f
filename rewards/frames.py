"""Length-prefixed JSON messages over file descriptors, as the pool, the supervisor and the workers exchange them."""

from __future__ import annotations

import json
import os
import struct

_HEADER = struct.Struct("!Q")


def encode(message: object) -> bytes:
    """A frame. JSON in ASCII, so that lone surrogates in a model's text survive."""
    body = json.dumps(message).encode("ascii")
    return _HEADER.pack(len(body)) + body


def write(fd: int, message: object) -> None:
    """Write one frame whole. Raises BrokenPipeError where the reader is gone."""
    data = memoryview(encode(message))
    while data:
        data = data[os.write(fd, data) :]


def read(fd: int) -> object:
    """Read one frame whole. Raises EOFError where the writer is gone."""
    (length,) = _HEADER.unpack(_exactly(fd, _HEADER.size))
    return json.loads(_exactly(fd, length))


def _exactly(fd: int, count: int) -> bytes:
    chunks = []
    while count:
        chunk = os.read(fd, min(count, 1 << 20))
        if not chunk:
            raise EOFError
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)
