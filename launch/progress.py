"""Progress of a run, drawn from its record: a bar at a terminal, plain lines in a log."""

import sys

from record import LineFollower, RunFolder


class Progress:
    """Follows events.jsonl and metrics.jsonl."""

    def __init__(self, folder: RunFolder, recipe: dict):
        self._steps = recipe["grpo"].get("max_steps")
        self._events, self._metrics = LineFollower(folder.events_path), LineFollower(folder.metrics_path)
        self._bar = None
        if sys.stderr.isatty():
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
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def follow(self) -> None:
        for event in self._events.read():
            if event.get("steps"):
                self._steps = event["steps"]
            self.say(f"[{event['seconds']:6.1f} s] {event['event']}")
        for row in self._metrics.read():
            if row["split"] != "train":
                continue
            reward = row.get("reward")
            text = f"reward {reward:.3f}" if reward is not None else "no reward"
            if self._bar:
                self._bar.update(self._task, completed=row["step"], total=self._steps, description=text)
            else:
                self.say(f"step {row['step']}/{self._steps or '?'}  {text}  {row['seconds']:.2f} s  {row['tokens']} tokens")

    def close(self) -> None:
        if self._bar:
            self._bar.stop()
