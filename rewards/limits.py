"""What one completion may cost, and how many workers a rank has. The reasons for the defaults are in rewards/README.md."""

from __future__ import annotations

import os
from dataclasses import dataclass

MAX_WORKERS = 8


@dataclass(frozen=True)
class Limits:
    """Limits of one completion: wall-clock seconds, and resident bytes of the worker that grades it."""

    time_seconds: float = 5.0
    memory_bytes: int = 512 * 1024 * 1024
    workers: int = 1

    def __post_init__(self):
        if not self.time_seconds > 0:
            raise ValueError(f"limits.time_seconds={self.time_seconds!r}: must be above 0; leave it out for 5.0")
        if self.memory_bytes < 256 * 1024 * 1024:
            raise ValueError(
                f"limits.memory_bytes={self.memory_bytes!r}: sympy alone needs 100 MiB; give 268435456 or more"
            )
        if self.workers < 1:
            raise ValueError(f"limits.workers={self.workers!r}: must be at least 1")


def default_workers() -> int:
    """This rank's share of the CPUs it may use, at least 1 and at most MAX_WORKERS."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))
    return max(1, min(MAX_WORKERS, cpus // ranks))


def from_environment() -> Limits:
    """Defaults, overridden by REWARDS_TIME_SECONDS, REWARDS_MEMORY_BYTES and REWARDS_WORKERS."""
    values = {}
    for field, kind in (("time_seconds", float), ("memory_bytes", int), ("workers", int)):
        name = f"REWARDS_{field.upper()}"
        if name in os.environ:
            try:
                values[field] = kind(os.environ[name])
            except ValueError:
                raise ValueError(f"{name}={os.environ[name]!r}: must be a number; unset it for the default") from None
    return Limits(**{"workers": default_workers(), **values})
