"""Finds processes of a run that are stopped (SIGSTOP): everybody waits for them, and they say nothing."""

import os
import time

import psutil

STOPPED_SECONDS = 20
_PERIOD_SECONDS = 1.0


class StoppedProcesses:
    """Looks at this process's descendants: torchrun, the ranks, a server. One that a debugger holds does not count.

    A rank that hangs in another way is not seen here: the collective that the others wait in ends the run after
    grpo.ddp_timeout (1800 s by default).
    """

    def __init__(self):
        self._since: dict[int, float] = {}
        self._looked = 0.0

    def __call__(self) -> str | None:
        """The cause to end the run for, or None. The processes that it names are killed: no other signal reaches them, and the
        rest of the run follows them."""
        now = time.monotonic()
        if now - self._looked < _PERIOD_SECONDS:
            return None
        if now - self._looked > 5 * _PERIOD_SECONDS:  # this process was stopped itself, and perhaps the others with it
            self._since = {}
        self._looked = now
        stopped = {
            process.pid: process for process in psutil.Process().children(recursive=True) if _is_stopped(process)
        }
        self._since = {pid: self._since.get(pid, now) for pid in stopped}
        long = [stopped[pid] for pid, since in self._since.items() if now - since > STOPPED_SECONDS]
        if not long:
            return None
        names = ", ".join(_name(process) for process in long)
        for process in stopped.values():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        return f"{names} has been stopped (SIGSTOP) for {STOPPED_SECONDS} s"


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def _name(process: psutil.Process) -> str:
    try:
        line, environment = " ".join(process.cmdline()), process.environ()
    except psutil.Error:
        line, environment = "", {}
    if "torch.distributed.run" in line:
        what = "torchrun"
    elif "-m training" in line and "RANK" in environment:
        what = f"rank {environment['RANK']}"
    elif "launch.guard" in line:
        what = "the vLLM server's guard"
    elif "vllm.entrypoints" in line:
        what = "the vLLM server's front end"
    elif "VLLM::" in line:
        what = f"the vLLM server ({line.split()[0]})"
    else:
        what = os.path.basename(line.split()[0]) if line else "a process"
    return f"{what} (process {process.pid})"
