"""The grading processes: one supervisor, started by `rewards.pool`, that forks workers and holds them to their limits.

The trainer must not fork (CUDA contexts and threads do not survive it) and must not parse (a parse can hang in C code
that no signal handler reaches). So it starts this module as a fresh process. The supervisor imports sympy once, forks a
worker in milliseconds, hands out one job at a time, and kills a worker that overruns. It never looks at a completion.
It ends when its parent does: by end of file on stdin, or, where a forked sibling still holds that pipe open, because
its parent's id changes. Workers end with the supervisor (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass

from rewards import frames

TICK_SECONDS = 0.02  # how often limits are checked while workers are busy
IDLE_TICK_SECONDS = 0.5  # how often an idle supervisor checks that its parent lives
RECYCLE_JOBS = 2000  # sympy's caches grow: a worker is replaced after so many jobs, or above half its memory
MAX_IDLE_DEATHS = 20  # since the last result; more, and the machine is at fault
_PR_SET_PDEATHSIG = 1
_PAGE_BYTES = resource.getpagesize()


# The parser builds its tables as it meets each construct, at up to 0.2 s: once here, and not in every worker.
_WARM_UP = (
    (r"\frac{1}{\sqrt{2}}+x_1", r"\frac{\sqrt{2}}{2}+x_{1}"),
    ("x^{2}-1", "(x-1)(x+1)"),
    ("2x<4y", "x<2y"),
    (r"3\ln 2-e^{2}", r"\ln 8-e^2"),
    (r"\sin^2 x+\cos(2x)", r"\sin^{2}(x)+\cos 2x"),
    (r"(-\infty,2)\cup[3,\infty)", r"(-\infty,2)\cup(3,\infty)"),
    (r"\log_2 8+|x|-\pi", r"3+|x|-\pi"),
    (r"n!+\binom{n}{2}", r"n!+\frac{n(n-1)}{2}"),
    (r"\sum_{k=1}^{n} k^2", "n"),
    (r"\sqrt[3]{2}+0.5i", r"2^{1/3}+\frac{i}{2}"),
)


# -- worker --------------------------------------------------------------------------------------------------------------


def _work(connection: int, memory_bytes: int) -> None:
    """Grade jobs until the connection closes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # grading writes no files, whatever a completion says
    # The supervisor watches resident memory; this stops a single allocation that is larger than a tick can catch.
    ceiling = _statm(os.getpid())[0] + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))
    sys.set_int_max_str_digits(0)  # the limits below bound long integers, an exception would not be a verdict
    while True:
        try:
            job = frames.read(connection)
        except EOFError:
            return
        frames.write(connection, {"status": "started"})  # from here on, its death is this job's doing
        start = time.perf_counter()
        try:
            result = _grade(job)
        except MemoryError:
            result = {"status": "out_of_memory"}
        except Exception as error:  # whatever a parser raises on model text, the batch goes on
            result = {"status": "error", "detail": f"{type(error).__name__}"}
        result["seconds"] = time.perf_counter() - start
        frames.write(connection, result)
        if result["status"] == "out_of_memory":
            return  # a heap that was full once is not trusted again


def _grade(job: dict) -> dict:
    from rewards.compare import check_gold, grade
    from rewards.structure import describe

    if "answer" in job:
        verdict, node = grade(job["gold"], job["answer"])
    else:
        verdict, node = check_gold(job["gold"])
    return {"status": "ok", "verdict": verdict, "parsed": describe(node)[:300]}


def _statm(pid: int) -> tuple[int, int]:
    """(virtual, resident) bytes of a process; zeros where it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            virtual, resident = file.read().split()[:2]
    except (OSError, ValueError):
        return 0, 0
    return int(virtual) * _PAGE_BYTES, int(resident) * _PAGE_BYTES


# -- supervisor ----------------------------------------------------------------------------------------------------------


@dataclass
class _Worker:
    pid: int
    connection: socket.socket
    job: int | None = None  # index into the batch; None: idle
    deadline: float = 0.0
    started: float = 0.0
    jobs_done: int = 0
    started_job: bool = False
    unsent: memoryview | bytes = b""  # the rest of the job's frame

    def send(self) -> None:
        """Send what the socket takes now. Never blocks: a slow reader must not delay the others' deadlines."""
        with contextlib.suppress(OSError):  # a dead worker shows as end of file
            self.unsent = self.unsent[self.connection.send(self.unsent, socket.MSG_DONTWAIT) :]


class Supervisor:
    """Runs batches that arrive on `requests`, writes one result per job to `results`."""

    def __init__(self, requests: int, results: int, parent_pid: int):
        self.requests, self.results, self.parent_pid = requests, results, parent_pid
        self.workers: list[_Worker] = []
        self.dying: list[int] = []
        self.idle_deaths = 0

    def serve(self) -> None:
        """Serve until the parent is gone."""
        while True:
            while not select.select([self.requests], [], [], IDLE_TICK_SECONDS)[0]:
                self._check_parent()
            try:
                batch = frames.read(self.requests)
            except EOFError:
                return
            self._run(batch["jobs"], batch["time_seconds"], batch["memory_bytes"], batch["workers"])

    def _run(self, jobs: list[dict], time_seconds: float, memory_bytes: int, workers: int) -> None:
        waiting, left = deque(range(len(jobs))), len(jobs)
        while left:
            busy = [worker for worker in self.workers if worker.job is not None]
            while waiting and len(busy) < workers:
                worker = next((w for w in self.workers if w.job is None), None) or self._fork(memory_bytes)
                worker.job, worker.started = waiting.popleft(), time.monotonic()
                worker.deadline, worker.started_job = worker.started + time_seconds, False
                worker.unsent = memoryview(frames.encode(jobs[worker.job]))
                worker.send()
                busy.append(worker)
            sending = [worker.connection for worker in busy if worker.unsent]
            sources = [self.requests, *(worker.connection for worker in busy)]
            ready, writable, _ = select.select(sources, sending, [], TICK_SECONDS)
            for worker in busy:
                if worker.connection in writable:
                    worker.send()
            if self.requests in ready:
                raise EOFError  # the parent sends nothing during a batch: it is gone
            self._check_parent()
            self._reap()
            for worker in busy:
                result = self._collect(worker, worker.connection in ready, memory_bytes)
                if result is not None and result["status"] == "not_tried":
                    waiting.appendleft(result["job"])
                elif result is not None:
                    frames.write(self.results, {"job": result.pop("job"), **result})
                    left -= 1

    def _collect(self, worker: _Worker, ready: bool, memory_bytes: int) -> dict | None:  # noqa: PLR0911
        """The result of a busy worker, if it has one or has overrun."""
        job, seconds = worker.job, time.monotonic() - worker.started
        if ready:
            try:
                result = frames.read(worker.connection.fileno())
            except (EOFError, OSError, ValueError):
                self._kill(worker)
                if not worker.started_job:  # killed while idle: no job is to blame
                    self.idle_deaths += 1
                    if self.idle_deaths > MAX_IDLE_DEATHS:
                        raise RuntimeError(f"{MAX_IDLE_DEATHS} workers died before their first job") from None
                    return {"job": job, "status": "not_tried"}
                # Killed by the kernel, or out of stack or heap in C code: all of them ran out of memory.
                return {"job": job, "status": "out_of_memory", "seconds": seconds}
            if result["status"] == "started":
                worker.started_job = True
                return None
            self.idle_deaths = 0
            worker.job = None
            worker.jobs_done += 1
            if time.monotonic() >= worker.deadline and result["seconds"] >= worker.deadline - worker.started:
                self._kill(worker)  # it ended between its deadline and this look: the limit holds all the same
                return {"job": job, "status": "out_of_time", "seconds": result["seconds"]}
            tired = worker.jobs_done >= RECYCLE_JOBS or _statm(worker.pid)[1] > memory_bytes // 2
            if tired or result["status"] == "out_of_memory":
                self._kill(worker)
            return {"job": job, **result}
        if time.monotonic() >= worker.deadline:
            self._kill(worker)
            return {"job": job, "status": "out_of_time", "seconds": seconds}
        if _statm(worker.pid)[1] > memory_bytes:
            self._kill(worker)
            return {"job": job, "status": "out_of_memory", "seconds": seconds}
        return None

    def _fork(self, memory_bytes: int) -> _Worker:
        ours, theirs = socket.socketpair()
        supervisor_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                _die_with(supervisor_pid)
                ours.close()
                for other in self.workers:
                    other.connection.close()
                for fd in (self.requests, self.results):
                    os.close(fd)
                null = os.open(os.devnull, os.O_RDWR)
                for fd in (0, 1, 2):
                    os.dup2(null, fd)
                _work(theirs.fileno(), memory_bytes)
                status = 0
            os._exit(status)
        theirs.close()
        worker = _Worker(pid, ours)
        self.workers.append(worker)
        return worker

    def _kill(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
        # Freeing a large process takes the kernel a while: waiting for it here would delay the other deadlines.
        self.dying.append(worker.pid)

    def _reap(self) -> None:
        self.dying = [pid for pid in self.dying if os.waitpid(pid, os.WNOHANG)[0] == 0]

    def _check_parent(self) -> None:
        if os.getppid() != self.parent_pid:
            raise EOFError

    def close(self) -> None:
        """Kill every worker and wait until it is gone."""
        for worker in list(self.workers):
            self._kill(worker)
        for pid in self.dying:
            os.waitpid(pid, 0)


def _die_with(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent ends. The supervisor forks from its only thread."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def _warm_up() -> None:
    """Import and exercise the parser once, so that each worker starts with its tables built."""
    import logging

    logging.disable(logging.CRITICAL)  # the libraries log each parse that fails
    from rewards.compare import check_gold, grade

    for gold, answer in _WARM_UP:
        check_gold(gold)
        grade(gold, answer)
    gc.collect()
    gc.freeze()  # forked workers share these pages


def main() -> None:
    """Entry point: `python -m rewards.worker PARENT_PID`. Frames on stdin and stdout; prints go to stderr instead."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it closes our stdin
    requests, results = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    supervisor = Supervisor(requests, results, int(sys.argv[1]))
    try:
        _warm_up()
        frames.write(results, {"ready": True})
        supervisor.serve()
    except (EOFError, BrokenPipeError):
        pass
    finally:
        supervisor.close()


if __name__ == "__main__":
    main()
