"""Who does what, and when: the phases of every rank, and the server's busy time, over a few steps of one run or of a pair."""

from collections import defaultdict
from statistics import median

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.frames import Frames
from analysis.style import ARMS, PHASES, new_figure, styled

ROW_INCHES = 0.3
LABELLED_SHARE = 0.09  # a step shorter than this share of the longest panel has no room for its number
SHOWN_SHARE = 0.004  # a phase with less than this share of the time that is drawn counts as "other"


@styled
def timeline(runs: list[Frames], steps: int = 3) -> Figure:
    """One panel a run, in the order given, all on one scale of seconds; a row for the server and one for each rank. Of each run
    those `steps` steps in a row are shown that together are nearest to the median.

    Where a server generates, a trainer's "generate" is drawn as waiting: it sleeps until the answer is there.

    Raises:
        ValueError: a run has too few steps with phases.
    """
    windows = [typical_steps(run, steps) for run in runs]
    panels = [_rows(run, window) for run, window in zip(runs, windows, strict=True)]
    small, longest = _small_phases(panels), max(length for _, _, length in panels)
    heights = [len(rows) + 0.9 for rows, _, _ in panels]
    figure = new_figure(7.2, ROW_INCHES * sum(heights) + 0.5 * len(runs) + 0.7)
    axes = figure.subplots(len(runs), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axis, run, window, (rows, starts, length) in zip(axes, runs, windows, panels, strict=True):
        _draw_rows(axis, rows, small)
        ends = [*list(starts.values())[1:], length]
        for (step, begun), end in zip(starts.items(), ends, strict=True):
            axis.axvline(begun, color="black", linewidth=0.7, linestyle=(0, (4, 3)))
            if end - begun > LABELLED_SHARE * longest:
                axis.annotate(
                    f"step {step}", (begun, -0.5), xytext=(3, 2), textcoords="offset points", fontsize=7, va="bottom"
                )
        axis.axvline(length, color="black", linewidth=0.7, linestyle=(0, (4, 3)))
        arm = ARMS[run.manifest["recipe"]["recipe"]["arm"]].label
        axis.set_title(f"{arm}: {len(window)} steps in {length:.1f} s", pad=14)
        axis.grid(visible=False, axis="y")
    axes[0].set_xlim(0, 1.02 * longest)
    axes[-1].set_xlabel("seconds")
    drawn = {_named(phase, small) for rows, _, _ in panels for intervals in rows.values() for phase, _, _ in intervals}
    handles = [
        Patch(facecolor=look.color, hatch=look.hatch, edgecolor="#333333", linewidth=0.5, label=look.label)
        for phase, look in PHASES.items()
        if phase in drawn
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, handlelength=2.2, handleheight=1.1)
    return figure


def typical_steps(run: Frames, count: int) -> range:
    """The `count` training steps in a row whose seconds are nearest to the median of all such; the first step, which carries
    compilation, is not among them.

    Raises:
        ValueError: the run has fewer steps with phases.
    """
    seconds = {}
    for step, length in _first_rank(run).groupby("step")["seconds"].sum().items():
        seconds[int(step)] = length
    last = max(seconds, default=1)
    windows = [range(first, first + count) for first in range(2, last - count + 2)]
    lengths = {window: sum(seconds[step] for step in window) for window in windows if set(window) <= set(seconds)}
    if not lengths:
        raise ValueError(f"{run.path}: fewer than {count} steps in a row after the first that have phases")
    middle = median(lengths.values())
    return min(lengths, key=lambda window: abs(lengths[window] - middle))


def _first_rank(run: Frames):
    intervals = run.steady_phases
    return intervals[intervals["rank"] == intervals["rank"].min()]


def _rows(run: Frames, wanted: range) -> tuple[dict, dict, float]:
    """Rows of (phase, start, seconds) by name, the seconds at which rank 0 begins each step, and the length of it all;
    seconds count from the first step's begin."""
    phases, server = run.steady_phases, run.server_phases.to_dict("records")
    shown = {
        int(rank): intervals.to_dict("records")
        for rank, intervals in phases[phases["step"].isin(wanted)].groupby("rank")
    }
    origin = min(intervals[0]["start_unix_seconds"] for intervals in shown.values() if intervals)
    end = max(row["start_unix_seconds"] + row["seconds"] for intervals in shown.values() for row in intervals)
    rows = {}
    if server:
        rows["vLLM server"] = _server_row(server, origin, end)
    name = "trainer, rank" if server else "rank"
    for rank, intervals in shown.items():
        rows[f"{name} {rank}"] = [
            (
                "wait" if server and row["phase"] == "generate" else row["phase"],
                row["start_unix_seconds"] - origin,
                row["seconds"],
            )
            for row in intervals
        ]
    starts: dict[int, float] = {}
    for row in shown[min(shown)]:
        starts.setdefault(int(row["step"]), row["start_unix_seconds"] - origin)
    return rows, starts, end - origin


def _server_row(busy: list[dict], origin: float, end: float) -> list[tuple[str, float, float]]:
    """The server's intervals between `origin` and `end`, and its waits between them."""
    row, at = [], origin
    for interval in sorted(busy, key=lambda interval: interval["start_unix_seconds"]):
        begun = max(at, interval["start_unix_seconds"])
        stopped = min(end, interval["start_unix_seconds"] + interval["seconds"])
        if begun >= stopped:
            continue
        if begun > at:
            row.append(("wait", at - origin, begun - at))
        row.append((interval["phase"], begun - origin, stopped - begun))
        at = stopped
    if at < end:
        row.append(("wait", at - origin, end - at))
    return row


def _small_phases(panels) -> set[str]:
    seconds: dict[str, float] = defaultdict(float)
    for rows, _, _ in panels:
        for intervals in rows.values():
            for phase, _, length in intervals:
                seconds[phase] += length
    everything = sum(seconds.values())
    return {phase for phase, length in seconds.items() if length < SHOWN_SHARE * everything or phase not in PHASES}


def _named(phase: str, small: set[str]) -> str:
    return "other" if phase in small else phase


def _draw_rows(axis, rows: dict, small: set[str]) -> None:
    for place, intervals in enumerate(rows.values()):
        by_phase: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for phase, start, length in intervals:
            by_phase[_named(phase, small)].append((start, length))
        for phase, spans in by_phase.items():
            look = PHASES[phase]
            axis.broken_barh(
                spans, (place - 0.38, 0.76), facecolor=look.color, hatch=look.hatch, edgecolor="#333333", linewidth=0
            )
        begin, end = intervals[0][1], intervals[-1][1] + intervals[-1][2]
        axis.broken_barh(
            [(begin, end - begin)], (place - 0.38, 0.76), facecolor="none", edgecolor="#333333", linewidth=0.6
        )
    axis.set_yticks(range(len(rows)), list(rows))
    axis.set_ylim(len(rows) - 0.5, -0.5)
