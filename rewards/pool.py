"""The trainer's side of the grading processes. Callable from any thread; each process has its own pool.

Nothing here forks the trainer or waits without a bound, and nothing here touches an expression.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

from rewards import frames
from rewards.limits import Limits, from_environment

START_SECONDS = 180.0  # importing sympy from a cold network file system
SLACK_SECONDS = 30.0  # beyond a job's own limit; a supervisor silent for longer is replaced
MAX_STARTS = 3  # per batch

_ROOT = Path(__file__).resolve().parent.parent


class Pool:
    """One supervisor process and, through it, `limits.workers` workers. Started on first use."""

    def __init__(self, limits: Limits | None = None):
        self.limits = limits or from_environment()
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None

    def run(self, jobs: list[dict]) -> list[dict]:
        """One result per job, in order: {"status": "ok", "verdict", "parsed", "seconds"} or another status.

        A job is {"gold"} (is it usable?) or {"gold", "answer"} (are they equal?). Statuses: ok, error (the parser
        failed), out_of_time, out_of_memory. Blocks other threads that call it. Raises RuntimeError if the supervisor
        cannot be kept alive.
        """
        if not jobs:
            return []
        with self._lock:
            results: dict[int, dict] = {}
            for _ in range(MAX_STARTS):
                try:
                    self._start()
                    self._exchange(jobs, results)
                except (OSError, EOFError):  # the supervisor was killed; what it had graded is kept
                    self._stop()
                except BaseException:  # Ctrl-C in the middle of an exchange: the next call starts afresh
                    self._stop()
                    raise
                if len(results) == len(jobs):
                    return [results[i] for i in range(len(jobs))]
        raise RuntimeError(
            f"rewards: the grading process ended {MAX_STARTS} times on a batch of {len(jobs)}; its messages are on stderr"
        )

    def _exchange(self, jobs: list[dict], results: dict[int, dict]) -> None:
        process, wanted = self._process, [i for i in range(len(jobs)) if i not in results]
        request = {
            "jobs": [jobs[i] for i in wanted],
            "time_seconds": self.limits.time_seconds,
            "memory_bytes": self.limits.memory_bytes,
            "workers": self.limits.workers,
        }
        frames.write(process.stdin.fileno(), request)
        for _ in wanted:
            result = self._read(self.limits.time_seconds + SLACK_SECONDS)
            results[wanted[result.pop("job")]] = result

    def _read(self, seconds: float) -> dict:
        fd = self._process.stdout.fileno()
        if not select.select([fd], [], [], seconds)[0]:
            raise EOFError(f"no result for {seconds} s")
        return frames.read(fd)

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._stop()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONHASHSEED": "0",  # sympy orders by hash: the same answer gets the same verdict in every run
            "OMP_NUM_THREADS": "1",
        }
        # A session of its own: Ctrl-C in the terminal is for the trainer, which closes our pipe.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rewards.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
            start_new_session=True,
        )
        if self._read(START_SECONDS) != {"ready": True}:
            raise EOFError("no greeting")

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()  # it kills its workers and ends
        try:
            process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)  # its workers die with it
            process.wait()
        process.stdout.close()

    def close(self) -> None:
        """End the supervisor and its workers. The pool starts again on the next `run`."""
        with self._lock:
            self._stop()

    @property
    def supervisor_pid(self) -> int | None:
        """The supervisor's process id; None before the first batch."""
        return self._process.pid if self._process else None


_shared: Pool | None = None
_shared_lock = threading.Lock()


def shared() -> Pool:
    """This process's pool, with the limits of the environment."""
    global _shared  # noqa: PLW0603
    with _shared_lock:
        if _shared is None:
            _shared = Pool()
        return _shared


def _forget() -> None:
    """After a fork (a data loader's worker), the child must not talk to its parent's supervisor."""
    global _shared, _shared_lock
    _shared, _shared_lock = None, threading.Lock()


def _close() -> None:
    if _shared is not None:
        _shared.close()


os.register_at_fork(after_in_child=_forget)
atexit.register(_close)
