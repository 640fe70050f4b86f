"""How a run is ended early: signals, and what watches find.

    SIGTERM, SIGUSR1, SIGHUP   end after this step, with a checkpoint: exit code 75, the same command resumes
    a second one, or Ctrl-C    end now
    one more                   kill

While the run is starting there is no step to wait for, and the first ends it at once.
"""

import signal
import time
from collections.abc import Callable

from launch.progress import Progress
from record import RunFolder

AGAIN = 75  # EX_TEMPFAIL of sysexits.h: stopped on request, and the same command goes on from there
SAME_SIGNAL_SECONDS = 0.5  # a shell and its process group may both pass one signal on
EXIT_SECONDS = 20  # for the ranks to leave once the run has finished


class Requests:
    """The signals that the launcher received, in order."""

    def __init__(self):
        self.received: list[int] = []
        self._at = 0.0
        self._previous: dict = {}

    def __enter__(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number, _frame) -> None:
        now = time.monotonic()
        if not self.received or number != self.received[-1] or now - self._at > SAME_SIGNAL_SECONDS:
            self.received.append(number)
        self._at = now


class Ending:
    """Looks after the end of one run; `look` is called until the ranks have left.

    Args:
        watches: each returns a cause to end the run for, or None.
    """

    def __init__(
        self, folder: RunFolder, progress: Progress, requests: Requests, watches: list[Callable[[], str | None]]
    ):
        self.cause: str | None = None  # what a watch found
        self.exit_code: int | None = None  # of a run that a request ended at once
        self.signal_name: str | None = None  # of the last request
        self._folder, self._progress, self._requests, self._watches = folder, progress, requests, watches
        self._heeded = 0  # requests so far
        self._now = False
        self._finished_at: float | None = None

    @property
    def kill(self) -> bool:
        """Whether to wait for nothing any more."""
        return self._now and len(self._requests.received) > self._heeded

    def wanted(self) -> bool:
        """Whether the run is to end now: by a request or for a cause. Called several times a second."""
        if self._now:
            return True
        if self.cause is None:
            self.cause = next(filter(None, (watch() for watch in self._watches)), None)
        if self.cause:
            self._end_now(self.cause)
        elif len(self._requests.received) > self._heeded:
            self._heed()
        elif self._progress.stage == "over":
            self._finished_at = self._finished_at or time.monotonic()
            if time.monotonic() - self._finished_at > EXIT_SECONDS:
                self._end_now(f"the run is over, and its ranks have not left within {EXIT_SECONDS} s")
        return self._now

    def _heed(self) -> None:
        first, number = self._heeded == 0, self._requests.received[-1]
        self._heeded = len(self._requests.received)
        self.signal_name = name = signal.Signals(number).name
        if number == signal.SIGINT or not first or self._progress.stage == "starting":
            self.exit_code = AGAIN if first and number != signal.SIGINT else 128 + number
            self._end_now(name)
        elif self._progress.stage == "training":
            self._folder.ask_to_stop(number)
            self._progress.say(f"{name}: ends after this step, with a checkpoint; again to stop now")
        else:
            self._progress.say(f"{name}: the run is about to end by itself; again to stop now")

    def _end_now(self, why: str) -> None:
        self._now = True
        self._progress.say(f"{why}: stopping the ranks (Ctrl-C to kill them)")
