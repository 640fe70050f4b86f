"""One pool for the whole run of these tests; each test of the limits makes its own."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from rewards.limits import Limits
from rewards.pool import Pool

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def pool():
    """Two workers with the default limits."""
    shared = Pool(Limits(workers=2))
    yield shared
    shared.close()


def read_cases(*names: str) -> list[dict]:
    """The rows of committed JSON-lines files beside the tests."""
    rows = []
    for name in names:
        with (HERE / name).open() as lines:
            rows += [json.loads(line) for line in lines]
    return rows


def processes_of(session: int) -> list[int]:
    """The ids of the living processes of a session: a supervisor and its workers."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            except (OSError, IndexError):
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry))
    return found


def wait_until_gone(session: int, seconds: float = 10.0) -> list[int]:
    """The processes of a session that are still alive after at most `seconds`."""
    deadline = time.monotonic() + seconds
    while (alive := processes_of(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive
