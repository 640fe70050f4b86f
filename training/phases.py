"""The phase clock: what a rank was doing, and when. One line an interval in phases.rank*.jsonl.

Phases nest in the code (the weight sync happens inside generation) but not in the record: an inner phase interrupts the
outer one, so that the intervals of a rank never overlap and their seconds add up to the time between the first and last.
"""

import time
from collections import defaultdict
from contextlib import contextmanager

from record import LineWriter

PHASES = (
    "generate",  # sampling completions
    "sync",  # trainer's weights to the engine
    "wake",  # engine memory back from sleep
    "sleep",  # engine memory given up
    "grade",  # rewards
    "score",  # log-probabilities of the sampled tokens under the trainer's policy
    "forward_backward",  # loss and gradients (DDP's and ZeRO's communication overlaps it, and counts here)
    "optimizer",  # gradient clipping and the step
    "save",  # checkpoints
    "wait",  # for the other ranks, at a barrier that the next collective would have been anyway
    "other",  # data, logging, callbacks
)


class PhaseClock:
    """Times the phases of one rank.

    `synchronize` is called at each border (torch.cuda.synchronize on a GPU): without it the work that a phase has queued
    would be booked on the next one. Seconds are of the host's clock since the epoch, so that ranks can be laid side by
    side as far as the hosts' clocks agree. `peaks` is called there too, and gives the fields that say how much memory the
    interval took (training/memory.py).
    """

    def __init__(self, writer: LineWriter | None, synchronize=lambda: None, peaks=dict):
        self._writer = writer
        self._synchronize = synchronize
        self._peaks = peaks
        self._stack: list[str] = []
        self._started, self._label = 0.0, (0, "train")
        self._step_seconds: dict[str, float] = defaultdict(float)
        self.step = 0
        self.split = "train"

    @contextmanager
    def __call__(self, phase: str):
        self.start(phase)
        try:
            yield
        finally:
            self.stop()

    def start(self, phase: str) -> None:
        """Interrupts the current phase with `phase`. Prefer `with clock(phase)`; hooks in pairs need the two halves."""
        if phase not in PHASES:
            raise ValueError(f"phase {phase!r} is not one of {', '.join(PHASES)}")
        self._border(push=phase)

    def stop(self) -> None:
        """Ends the current phase, and takes up the one that it had interrupted."""
        self._border(push=None)

    def take_step_seconds(self) -> dict[str, float]:
        """Seconds by phase of the training steps since this was last asked; the phase that is under way counts next time."""
        taken, self._step_seconds = dict(self._step_seconds), defaultdict(float)
        return taken

    def _border(self, push: str | None) -> None:
        self._synchronize()
        peaks = self._peaks()
        now = time.time()
        if self._stack and self._label[0] > 0 and self._label[1] == "train":
            self._step_seconds[self._stack[-1]] += now - self._started
        if self._stack and self._writer and now > self._started:
            self._writer.write(
                {
                    "phase": self._stack[-1],
                    "step": self._label[0],
                    "split": self._label[1],
                    "start_unix_seconds": round(self._started, 6),
                    "seconds": round(now - self._started, 6),
                }
                | peaks
            )
        if push is None:
            self._stack.pop()
        else:
            self._stack.append(push)
        self._started, self._label = now, (self.step, self.split)
