"""Runs a command, and ends its whole family when it ends or when whoever started this dies: python -m launch.guard COMMAND...

A vLLM server is three processes and more: a front end, an engine, its workers. If the front end is killed the others live on,
and if the launcher is killed nobody ends any of them. The guard is the parent that does. Exit code: the command's, or 128 + the
signal that killed it.
"""

import ctypes
import signal
import subprocess
import sys
import time

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None)


def main() -> int:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # an engine whose front end dies becomes ours
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: told.append(received))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm may send it to every process: it is for the launcher
    parent = psutil.Process().ppid()
    command = subprocess.Popen(sys.argv[1:])
    while command.poll() is None and not told and psutil.Process().ppid() == parent:
        time.sleep(0.1)
    if command.poll() is None:
        command.terminate()
        try:
            command.wait(3)
        except subprocess.TimeoutExpired:
            command.kill()
            command.wait()
    end_family(psutil.Process())
    return command.returncode if command.returncode >= 0 else 128 - command.returncode


def end_family(process: psutil.Process, grace_seconds: float = 2) -> None:
    """Kills all descendants of a process. Python's resource trackers last: once the others are gone they unlink the shared
    memory that those have left, and end by themselves."""

    def family(trackers: bool) -> list[psutil.Process]:
        found = []
        for child in process.children(recursive=True):
            try:
                if trackers or "resource_tracker" not in " ".join(child.cmdline()):
                    found.append(child)
            except psutil.Error:
                continue
        return found

    for trackers, patience_seconds in ((False, 0), (True, grace_seconds)):
        _, alive = psutil.wait_procs(family(trackers), timeout=patience_seconds)
        for child in alive:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(alive, timeout=5)


if __name__ == "__main__":
    sys.exit(main())
