"""What the launcher's children have in common: they die with it, and it ends whatever they leave behind."""

import ctypes
import signal

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """A rank whose parent dies becomes this process's child, and is found by `end_descendants`."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """For a child, between fork and exec: SIGTERM when the parent is gone."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm may send it to every process: it is for the launcher
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def end_descendants(grace_seconds: float) -> None:
    """Waits for what torchrun left (wandb's uploader, for one), then ends it."""
    alive = psutil.Process().children(recursive=True)
    _, alive = psutil.wait_procs(alive, timeout=grace_seconds)
    for stop in ("terminate", "kill"):
        for child in alive:
            try:
                getattr(child, stop)()
            except psutil.NoSuchProcess:
                continue
        _, alive = psutil.wait_procs(alive, timeout=5)
