"""What a metric is, and the registry of them; the metrics themselves are in analysis/metrics.py."""

from collections.abc import Callable
from typing import NamedTuple

from analysis.frames import Frames

HIGHER, LOWER = 1, -1


class Missing(Exception):
    """The record lacks what a metric needs; the message says what."""


class Metric(NamedTuple):
    """`of` takes a run's Frames. `outcome`: it is of what was learnt, so that a seed run twice is one value and not two."""

    name: str
    unit: str
    better: int
    definition: str
    of: Callable[[Frames], float | None]
    outcome: bool = False


METRICS: dict[str, Metric] = {}
README_HEAD = """# Metrics

Made by `python -m analysis metrics --write` from `analysis/metrics.py`, where each is defined once. "none" is a metric without
meaning for a run; one that a record lacks is named, and never 0. Throughput is of the training steps after the first of each
attempt. A device is a GPU, or without GPUs a rank or a server worker (one core each).

"""


def metric(name: str, unit: str, better: int, outcome: bool = False):
    """Registers a function as a metric. Its docstring is the definition."""

    def register(function):
        definition = " ".join(function.__doc__.split()).removesuffix(".")
        METRICS[name] = Metric(name, unit, better, definition, function, outcome)
        return function

    return register


def measure(run: Frames, names=None) -> tuple[dict[str, float | None], dict[str, str]]:
    """The metrics of one run by name, and why those are missing that are."""
    values, missing = {}, {}
    for name in names or METRICS:
        try:
            value = METRICS[name].of(run)
            values[name] = None if value is None else float(value)
        except Missing as reason:
            values[name], missing[name] = None, str(reason)
    return values, missing


def need(manifest: dict, *path: str):
    """A value of the manifest that the metric cannot do without; raises Missing where it is not there."""
    value = manifest
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            raise Missing(f"the manifest has no {'.'.join(path)}")
    return value


def timed_seconds(run: Frames) -> float:
    """Wall time of the steps that throughput is measured on; raises Missing where there are none."""
    seconds = run.timed["seconds"].sum()
    if not seconds:
        raise Missing(f"{len(run.steps)} steps, and the first of an attempt is not timed")
    return float(seconds)


def timed_sum(run: Frames, column: str) -> float:
    """A column's sum over those steps; raises Missing where one of them lacks it."""
    values = run.timed[column]
    if values.isna().any():
        raise Missing(f"{int(values.isna().sum())} of {len(values)} timed steps have no {column}")
    return float(values.sum())


def ranks(run: Frames) -> int:
    """The ranks that train."""
    return need(run.manifest, "derived", "ranks")


def workers(run: Frames) -> int:
    """The server's devices; 0 without a server."""
    if need(run.manifest, "recipe", "recipe", "arm") != "server":
        return 0
    server = need(run.manifest, "recipe", "cluster", "server")
    return server["nodes"] * server["gpus_per_node"]


def devices(run: Frames) -> int:
    """All devices that the run holds, the server's too."""
    return ranks(run) + workers(run)


def markdown() -> str:
    """The metrics as a table."""
    lines = ["| metric | unit | definition |", "|---|---|---|"]
    lines += [f"| `{item.name}` | {item.unit} | {item.definition} |" for item in METRICS.values()]
    return "\n".join(lines)


def readme() -> str:
    """analysis/README.md."""
    return README_HEAD + markdown() + "\n"
