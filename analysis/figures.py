"""The figures of throughput, learning and memory: each draws what `analysis` has computed, and computes nothing itself."""

import math

import numpy
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.style import ARMS, HELD_OUT, PHASES, new_figure, styled

GIB = 2**30
_IDLE = ("wait", "other")
_TICK = {"marker": "D", "linestyle": "", "markersize": 5, "markerfacecolor": "white", "markeredgecolor": "#151515"}
_READINGS = (
    {"color": "#151515", "marker": "o", "linestyle": "-", "markersize": 4},
    {
        "color": "#5a5a5a",
        "marker": "s",
        "linestyle": "--",
        "markersize": 8,
        "markerfacecolor": "none",
    },  # often on the first
    {"color": "#8f8f8f", "marker": "^", "linestyle": ":", "markersize": 5},
)
_SHARDING = {"ddp": "DDP", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "zero3_offload": "ZeRO-3, offload"}


def interval_errors(entries: list[dict]) -> list[list[float]]:
    """Error bars for matplotlib, (2, n), from entries with `mean`, `low` and `high`; no length where there is no interval."""
    below = [0.0 if entry["low"] is None else max(0.0, entry["mean"] - entry["low"]) for entry in entries]
    above = [0.0 if entry["high"] is None else max(0.0, entry["high"] - entry["mean"]) for entry in entries]
    return [below, above]


@styled
def throughput(
    curves: dict, speedups: dict, x_label: str, readings: dict[str, str], paper: dict | None = None
) -> Figure:
    """Throughput against what was varied, and the speed-up beside it.

    curves      arm -> varied value -> reading -> Estimate
    speedups    varied value -> reading -> Estimate of the ratio
    readings    reading -> its label with the unit; one panel each
    paper       {"ratio", "label"}: the published speed-up, as a line
    """
    names, columns = list(readings), 2
    panels = len(names) + bool(speedups)
    rows = math.ceil(panels / columns)
    figure = new_figure(7.2, 2.5 * rows + 0.4)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True).flatten()
    for axis, name in zip(axes, names, strict=False):
        for arm, points in curves.items():
            look, values = ARMS[arm], sorted(points)
            _curve(axis, values, [points[value][name] for value in values], color=look.color, marker=look.marker,
                   linestyle=look.line, label=look.label)  # fmt: skip
        axis.set_title(readings[name])
        axis.set_ylim(bottom=0)
    for axis in axes[panels:]:
        axis.remove()
    if speedups:
        _speedups(axes[len(names)], speedups, readings, paper)
    ticks = sorted({value for points in curves.values() for value in points})
    for axis in axes[:panels]:
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.set_xticks([], minor=True)
        axis.tick_params(labelbottom=axis in axes[max(0, panels - columns) : panels])
    for axis in axes[max(0, panels - columns) : panels]:
        axis.set_xlabel(x_label)
    if len(curves) > 1:
        axes[0].legend(loc="upper left", handlelength=3)
    return figure


def _speedups(axis, speedups: dict, readings: dict[str, str], paper: dict | None) -> None:
    for (name, said), look in zip(readings.items(), _READINGS, strict=False):
        values = [value for value in sorted(speedups) if name in speedups[value]]
        _curve(axis, values, [speedups[value][name] for value in values], label=said.split(",")[0], **look)
    axis.axhline(1, color="#151515", linewidth=0.8)
    if paper:
        axis.axhline(paper["ratio"], color="#a61e4d", linewidth=1.2, linestyle=(0, (6, 2, 1, 2)), label=paper["label"])
    axis.set_title("speed-up, ratio")
    axis.set_ylim(bottom=0)
    if len(readings) > 1 or paper:
        axis.legend(loc="lower right", handlelength=3)


def _curve(axis, values: list, estimates: list, **look) -> None:
    bounds = [estimate.bounds for estimate in estimates]
    below = [max(0.0, estimate.mean - low) for estimate, (low, _) in zip(estimates, bounds, strict=True)]
    above = [max(0.0, high - estimate.mean) for estimate, (_, high) in zip(estimates, bounds, strict=True)]
    axis.errorbar(
        values, [item.mean for item in estimates], yerr=[below, above], **{"capsize": 3, "markersize": 5} | look
    )


@styled
def reward_curve(
    rewards: list[tuple[int, float]], held_out: list[tuple[int, float]], arm: str, title: str, label: str
) -> Figure:
    """One run: the training reward of each step, and the held-out accuracy where it was measured."""
    figure = new_figure(6.4, 3.4)
    axis = figure.subplots()
    look = ARMS[arm]
    axis.plot(
        *zip(*rewards, strict=True), color=look.color, linestyle=look.line, label="training reward, mean of a step"
    )
    if held_out:  # points alone: between them nothing was measured
        axis.plot(*zip(*held_out, strict=True), "D", color=HELD_OUT, markersize=5, label="held-out accuracy")
    axis.set(xlabel="optimizer step", ylabel=label, title=title)
    axis.set_ylim(bottom=min(0.0, *(value for _, value in rewards)))
    axis.legend(loc="lower right")
    return figure


@styled
def reward_curves(curves: dict[str, numpy.ndarray], label: str = "training reward, 0 to 1") -> Figure:
    """Arm -> rewards (seeds, steps): the mean over the seeds as a line, lowest to highest as a band."""
    figure = new_figure(6.4, 3.6)
    axis = figure.subplots()
    for arm, rewards in curves.items():
        look, steps = ARMS[arm], numpy.arange(1, rewards.shape[1] + 1)
        axis.fill_between(
            steps, rewards.min(axis=0), rewards.max(axis=0), facecolor=look.color, alpha=0.15, linewidth=0
        )
        axis.plot(
            steps, rewards.mean(axis=0), color=look.color, linestyle=look.line, marker=look.marker, markersize=4,
            markevery=max(1, len(steps) // 8), label=f"{look.label} ({len(rewards)} seeds)",
        )  # fmt: skip
    axis.set(xlabel="optimizer step", ylabel=label)
    axis.legend(loc="lower right", handlelength=3.5)
    return figure


@styled
def accuracy_bars(groups: list[tuple[str, list[dict]]], label: str) -> Figure:
    """A panel a group (title, bars); a bar is {arm, mean, low, high} and, where it has several runs, their `values` as points.
    `low` and `high` are None where no interval is known."""
    widest = max(len(bars) for _, bars in groups)
    figure = new_figure(max(3.4, (0.75 * widest + 0.9) * len(groups)), 3.4)
    axes = figure.subplots(1, len(groups), squeeze=False, sharey=len(groups) > 1)[0]
    for axis, (title, bars) in zip(axes, groups, strict=True):
        looks = [ARMS[bar["arm"]] for bar in bars]
        for place, (bar, look) in enumerate(zip(bars, looks, strict=True)):
            axis.bar(place, bar["mean"], 0.62, facecolor=look.color, hatch=look.hatch, edgecolor="white", linewidth=0)
            axis.bar(place, bar["mean"], 0.62, facecolor="none", edgecolor="#151515", linewidth=0.8)
            values = bar.get("values") or []
            beside = place + numpy.linspace(0.04, 0.22, len(values))
            axis.plot(beside, values, "o", markersize=3.5, markerfacecolor="white", markeredgecolor="#151515")
        places = [place - 0.14 * bool(bar.get("values")) for place, bar in enumerate(bars)]
        means = [bar["mean"] for bar in bars]
        errors = interval_errors(bars)
        for color, width in (("white", 3.6), ("#151515", 1.4)):  # with a rim, to be seen on dark bars too
            look = {"ecolor": color, "capsize": 5, "capthick": width, "linewidth": width}
            axis.errorbar(places, means, yerr=errors, fmt="none", **look)
        axis.set_xticks(range(len(bars)), [_name(bar) for bar in bars])
        axis.set_title(title)
        axis.grid(visible=False, axis="x")
    axes[0].set_ylabel(label)
    axes[0].set_ylim(0, 1.02)
    return figure


def _name(bar: dict) -> str:
    return bar.get("label", ARMS[bar["arm"]].label).replace(" ", "\n")


@styled
def memory_by_phase(measurements: list[dict]) -> Figure:
    """A panel for each measured configuration (results/memory_*): what each phase of its last step took at most.

    Bars are the device's memory as NVML has it, diamonds are the tensors that torch counts. Where the engine sleeps there are
    none: torch counts what the engine has given back, too.
    """
    columns = min(2, len(measurements))
    rows = math.ceil(len(measurements) / columns)
    phases = [[name for name in PHASES if name in item["phases"] and name not in _IDLE] for item in measurements]
    tallest = max(len(names) for names in phases)
    figure = new_figure(3.6 * columns, rows * (0.19 * tallest + 0.75) + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True)
    for axis in axes.flat[len(measurements) :]:
        axis.remove()
    most = max(item["idle_device"]["total_bytes"] for item in measurements) / GIB
    for axis, item, names in zip(axes.flat, measurements, phases, strict=False):
        peaks = [item["phases"][name][max(item["phases"][name], key=int)] for name in names]
        look, total = ARMS[item["settings"]["arm"]], item["idle_device"]["total_bytes"] / GIB
        axis.barh(
            range(len(names)), [peak["peak_device_bytes"] / GIB for peak in peaks], 0.7, facecolor=look.color,
            hatch=look.hatch, edgecolor="white", linewidth=0,
        )  # fmt: skip
        if not item["settings"]["sleep"]:
            axis.plot([peak["peak_allocated_bytes"] / GIB for peak in peaks], range(len(names)), **_TICK)
        axis.axvline(total, color="#151515", linewidth=1, linestyle=(0, (4, 3)))
        axis.set_yticks(range(len(names)), [PHASES[name].label for name in names])
        axis.set_ylim(len(names) - 0.4, -0.6)
        axis.set_xlim(0, 1.03 * most)
        axis.set_title(configuration(item["settings"]), fontsize=8)
        axis.grid(visible=False, axis="y")
    for axis in axes[-1]:
        axis.set_xlabel("most memory, GiB")
    handles = [
        Patch(facecolor=look.color, hatch=look.hatch, edgecolor="white", linewidth=0, label="device (NVML)"),
        Line2D([], [], label="tensors (torch)", **_TICK),
        Line2D([], [], color="#151515", linewidth=1, linestyle=(0, (4, 3)), label="the card's memory"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns + 1)
    return figure


def configuration(settings: dict) -> str:
    """A measured configuration in two short lines; the second is sequences x (prompt + completion tokens)."""
    engine = "" if settings["utilization"] is None else f", engine {settings['utilization']:.0%}"
    sleep = ", sleeps" if settings["sleep"] else ""
    dtype = "" if settings["dtype"] == "bfloat16" else f", {settings['dtype']}"
    checkpointing = "" if settings["checkpointing"] else ", no checkpointing"
    return (
        f"{settings['shape'].upper()}, {_SHARDING[settings['accelerate']]}{dtype}{engine}{sleep}\n"
        f"{settings['batch']} x ({settings['prompt']} + {settings['completion']}){checkpointing}"
    )
