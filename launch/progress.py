"""Progress of a run, drawn from its record: a bar at a terminal, plain lines in a log."""

import os
import sys

from record import LineFollower, RunFolder

STAGES = {"training": "training", "trained": "ending", "finished": "over", "stopped": "over"}  # by event


class Progress:
    """Follows events.jsonl and metrics.jsonl, from where they end now.

    `stage` is where the run is: starting, training, ending (held-out problems, after the last step), over.
    """

    def __init__(self, folder: RunFolder, recipe: dict, silent: bool = False):
        """
        Args:
            silent: follow without a word: another node shows it.
        """
        self.stage = "starting"
        self._silent = silent
        self._steps = recipe["grpo"].get("max_steps")
        self._events, self._metrics = (
            LineFollower(path, only_new=True) for path in (folder.events_path, folder.metrics_path)
        )
        self._bar = None
        if sys.stderr.isatty() and not silent:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                console=Console(stderr=True),
            )  # fmt: skip
            self._task = self._bar.add_task("starting", total=self._steps)
            self._bar.start()

    def say(self, text: str) -> None:
        try:
            if self._bar:
                self._bar.console.print(text, markup=False, highlight=False)
            else:
                print(text, file=sys.stderr, flush=True)
        except OSError:  # the terminal has gone (SIGHUP): the run goes on, or ends in order
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, for the rest of this process

    def follow(self) -> None:
        """Says what is new: events, held-out results and steps, in the order in which they happened."""
        rows = self._events.read() + self._metrics.read()
        for row in sorted(rows, key=lambda row: row["unix_seconds"]):
            self.stage = STAGES.get(row.get("event"), self.stage)
            if self._silent:
                continue
            if "event" in row:
                self._steps = row.get("steps", self._steps)
                self.say(f"[{row['seconds']:6.1f} s] {row['event']}")
            elif row["split"] == "eval":
                self.say(f"held-out problems at step {row['step']}: reward {_number(row.get('reward'))}")
            else:
                self._step(row)

    def _step(self, row: dict) -> None:
        reward = f"reward {_number(row.get('reward'))}"
        if self._bar:
            self._bar.update(self._task, completed=row["step"], total=self._steps, description=reward)
        else:
            self.say(
                f"step {row['step']}/{self._steps or '?'}  {reward}  {row['seconds']:.2f} s  {row['tokens']} tokens"
            )

    def close(self) -> None:
        if self._bar:
            self._bar.stop()


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
