"""One run of the launcher that may start while another still has the GPU, and waits at its border until it is let in."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]


class StagedRun:
    """One configuration under the launcher. It may start while another still has the GPU: importing takes longer than
    anything else in so short a run. Its rank is then stopped (SIGSTOP) when its libraries are loaded, before it has touched the
    GPU, and goes on when the GPU is free. So is its launcher, which would take a stopped rank for a fault.

    Args:
        early: it may. Not with several ranks, of which one alone says when it is at that border, nor with a server, which takes
            its GPU before there are ranks: such a run starts when the GPUs are free, and has them until its launcher ends.
    """

    def __init__(self, name: str, command: list[str], folder: Path, log: Path, early: bool = True):
        self.name, self.folder, self.early = name, folder, early
        self.began, self.resident_bytes, self.rank, self.paused = time.monotonic(), 0, None, False
        self.released, self.gpu_seconds = None, 0.0  # when it was given the GPU, and for how long
        self.launcher: subprocess.Popen | None = None
        self._command, self._log = command, log
        if early:
            self._start()

    def _start(self) -> None:
        with open(self._log, "wb") as file:
            self.launcher = subprocess.Popen(
                self._command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | {"WANDB_MODE": "disabled", "VLLM_LOGGING_LEVEL": "INFO"},
            )  # fmt: skip

    def poll(self) -> None:
        """Looks for the rank, and stops it at its border if the GPU is not its own yet."""
        if not self.early:
            return
        if self.rank is None:
            self.rank = _rank(self.launcher.pid)
        elif self.released is None and not self.paused and self._loaded():
            with contextlib.suppress(psutil.Error):
                self.launcher.send_signal(signal.SIGSTOP)
                self.paused = True
                self.rank.suspend()

    def _loaded(self) -> bool:
        return any('"libraries loaded"' in path.read_text() for path in self.folder.glob("*/events.jsonl"))

    def release(self) -> None:
        self.released = time.monotonic()
        if self.launcher is None:
            self._start()
        self._go_on()

    def _go_on(self) -> None:
        if self.paused:
            with contextlib.suppress(psutil.Error):
                self.rank.resume()
            self.launcher.send_signal(signal.SIGCONT)

    def has_the_gpu(self) -> bool:
        if self.launcher.poll() is not None:
            return False
        if not self.early:
            return True
        try:
            return self.rank is None or self.rank.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def seconds(self) -> float:
        return time.monotonic() - (self.released or time.monotonic())

    def watch_memory(self) -> None:
        self.resident_bytes = max(self.resident_bytes, _resident_bytes(self.launcher.pid))

    def stop(self) -> None:
        """The launcher stops its ranks in order; what is left after 20 seconds is killed."""
        if self.launcher is None:
            return
        if self.released is None:
            self._go_on()
        self.launcher.send_signal(signal.SIGINT)
        self.wait(20)

    def wait(self, seconds: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.launcher.wait(timeout=seconds)
        for process in _descendants(self.launcher.pid):
            with contextlib.suppress(psutil.Error):
                process.kill()
        return self.launcher.wait()


def _rank(launcher: int) -> psutil.Process | None:
    """The training rank: the child of torchrun, which is the child of the launcher."""
    for process in _descendants(launcher):
        with contextlib.suppress(psutil.Error):
            if (
                "torch.distributed.run" in process.parent().cmdline()
                and "torch.distributed.run" not in process.cmdline()
            ):
                return process
    return None


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _resident_bytes(pid: int) -> int:
    total = 0
    for process in _descendants(pid):
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total
