"""Figures from records: each function here goes through the records for what belongs together, and draws it."""

import base64
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy
import pandas
from matplotlib.figure import Figure

from analysis import figures
from analysis.aggregate import WORK, compared, pair, values_of
from analysis.claims import ledger
from analysis.frames import read_frames
from analysis.intervals import estimate
from analysis.provenance import provenance
from analysis.runs import Runs
from analysis.settings import variant
from analysis.style import ARMS, svg
from analysis.timeline import timeline
from record import read_json

ROOT = Path(__file__).resolve().parent.parent
READINGS = {
    "completions_per_second": "raw, completions/s",
    "per_device": "per device, completions/s",
    "normalised": "normalised as in the post, completions/s",
}
TOGETHER = ("collection", *WORK)  # what runs must share to be in one figure
PAIRS = (("colocate", "server"), ("continuous_batching", "generate"))
BARS = "bars are 95 % bootstrap intervals from five runs on, and the range of the runs below that"


@dataclass(frozen=True)
class Records:
    """Runs (analysis/runs.py) and evaluations (analysis/evaluation.py)."""

    found: Runs
    evaluations: list[dict]


class Picture(NamedTuple):
    """`paths` are those of the records that are in the figure."""

    figure: Figure
    caption: str
    paths: list[str]

    def html(self) -> str:
        """A <figure> with the picture inside, its caption and its provenance."""
        picture = base64.b64encode(svg(self.figure)).decode()
        lines = "".join(f"<li>{escape(line.replace(f'{ROOT}/', ''))}</li>" for line in provenance(self.paths))
        return (
            f'<figure><div class="wide"><img alt="{escape(self.caption)}" src="data:image/svg+xml;base64,{picture}"></div>'
            f'<figcaption>{escape(self.caption)}<ul class="provenance">{lines}</ul></figcaption></figure>'
        )


def _throughput_runs(found: Runs) -> pandas.DataFrame:
    """Finished runs with a throughput; those that measured memory ran three steps, and are none."""
    runs = found.runs
    if runs.empty:
        return runs.assign(arm=[], status=[], source=[])
    return runs[(runs["status"] == "finished") & (runs["source"] != "memory") & runs["completions_per_second"].notna()]


def _groups(runs: pandas.DataFrame, columns: Iterable[str]) -> Iterator[pandas.DataFrame]:
    if len(runs):
        for _, group in runs.groupby(list(columns), dropna=False, sort=False):
            yield group


def _points(group: pandas.DataFrame, by: str, readings: Iterable[str]) -> dict:
    """Arm -> value of `by` -> reading -> Estimate."""
    return {
        arm: {
            int(value): {name: estimate(values_of(runs, name)) for name in readings}
            for value, runs in of_arm.groupby(by)
        }
        for arm, of_arm in group.groupby("arm", sort=False)
    }


def _named(group: pandas.DataFrame) -> str:
    """The recipes of a group, and what they ran on."""
    recipes, gpus = ", ".join(dict.fromkeys(group["recipe"])), dict.fromkeys(group["gpu"].dropna())
    return f"{recipes} on {', '.join(gpus) or 'hardware not recorded'}"


def throughput_by_batch(given: Records) -> Iterator[Picture]:
    for group in _groups(_throughput_runs(given.found), (name for name in TOGETHER if name != "optimizer_batch")):
        smallest = group.groupby("arm")["tensor_parallel"].transform("min")
        group = group[group["tensor_parallel"].isna() | (group["tensor_parallel"] == smallest)]  # noqa: PLW2901
        if group.groupby("arm")["optimizer_batch"].nunique().max() < 2:
            continue
        speedups, between = {}, ""
        for first, second in PAIRS:
            pairs = pair(group, first, second)
            if len(pairs):
                names = f"{ARMS[first].label} over {ARMS[second].label}"
                between = f"; the speed-up is of {names}, between runs of one seed"
                for batch, same in pairs.groupby("optimizer_batch_first"):
                    speedups[int(batch)] = {name: compared(same, name) for name in READINGS}
                break
        curves = _points(group, "optimizer_batch", READINGS)
        paper = _published(group, "arm") if speedups else None
        figure = figures.throughput(curves, speedups, "completions in an optimizer step", READINGS, paper)
        yield Picture(figure, f"Throughput against batch size, {_named(group)}{between}; {BARS}.", list(group["path"]))


def throughput_by_tp(given: Records) -> Iterator[Picture]:
    runs = _throughput_runs(given.found)
    for group in _groups(runs[runs["arm"] == "colocate"], TOGETHER):
        sizes = sorted(group["tensor_parallel"].dropna().unique())
        if len(sizes) < 2:
            continue
        reading = {"completions_per_second": "throughput, completions/s"}
        speedups = {}
        for size in sizes[1:]:
            found = compared(pair(group, size, sizes[0], of="tensor_parallel"), "completions_per_second")
            if found:
                speedups[int(size)] = {"completions_per_second": found}
        curves = _points(group, "tensor_parallel", reading)
        paper = _published(group, "tensor_parallel")
        figure = figures.throughput(curves, speedups, "tensor-parallel size", reading, paper)
        caption = f"Throughput against tensor-parallel size, {_named(group)}; the speed-up is over size {sizes[0]:.0f}; {BARS}."
        yield Picture(figure, caption, list(group["path"]))


def _published(group: pandas.DataFrame, varied: str) -> dict | None:
    """The paper's ratio between the values of the column `varied`, for the group's model, as the ledger of claims has it."""
    for entry in ledger().values():
        ratios = [item["ratio"][0] for item in entry["criteria"] if item.get("headline") and item.get("ratio")]
        said = re.search(r"([0-9.]+)x", str(entry.get("figure")))
        if said and varied in ratios and entry["paper"].get("model") == group.iloc[0]["model"]:
            return {"ratio": float(said[1]), "label": f"the paper, {said[0]}"}
    return None


def phase_timeline(given: Records) -> Iterator[Picture]:
    runs = given.found.runs
    runs = runs[runs["source"] == "record"] if len(runs) else runs
    chosen: list[list[str]] = []
    if len(runs):
        pairs = pair(runs, "server", "colocate")
        chosen = [[pairs.iloc[-1]["path_first"], pairs.iloc[-1]["path_second"]]] if len(pairs) else []
        if not chosen:
            newest = runs.sort_values("start", na_position="first").groupby("arm").tail(1)
            chosen = [[path] for path in newest["path"]]
    for paths in chosen:
        try:
            figure = timeline([read_frames(Path(path)) for path in paths])
        except ValueError:  # too short to show: a figure less
            continue
        caption = (
            "What every rank does in three steps, those nearest to the median; dotted is waiting. A trainer with a server "
            "waits for its answer, the server for the next request; colocated ranks take turns with themselves."
        )
        yield Picture(figure, caption, paths)


def _alike(runs: pandas.DataFrame) -> Iterator[pandas.DataFrame]:
    """Runs recorded together, of equally many steps, that did the same work as far as their settings are known: older exports
    do not hold them."""
    for group in _groups(runs, ("collection", "steps")):
        if group[list(WORK)].nunique().max() <= 1:
            yield group
        else:
            yield from _groups(group, WORK)


def _learning_groups(found: Runs) -> Iterator[tuple[pandas.DataFrame, dict[str, numpy.ndarray]]]:
    """Finished runs that did the same work for the same number of steps, and arm -> rewards (seeds, steps)."""
    runs = found.runs
    if runs.empty or found.steps.empty or "reward" not in found.steps:
        return
    runs = runs[(runs["status"] == "finished") & runs["path"].isin(found.steps["path"])]
    runs = runs.assign(arm=[variant(*names) for names in zip(runs["arm"], runs["sleep"], strict=True)])
    for group in _alike(runs):
        group = group.drop_duplicates(["arm", "seed"], keep="last")  # noqa: PLW2901
        steps = found.steps[found.steps["path"].isin(group["path"])]
        rewards = steps.astype({"path": str}).pivot(index="path", columns="step", values="reward").dropna()
        group = group[group["path"].isin(rewards.index)]  # noqa: PLW2901
        if len(group):
            arms = [arm for arm in ARMS if (group["arm"] == arm).any()]
            yield group, {arm: rewards.loc[group[group["arm"] == arm]["path"]].to_numpy() for arm in arms}


def reward_curves(given: Records) -> Iterator[Picture]:
    for group, curves in _learning_groups(given.found):
        recipes = ", ".join(dict.fromkeys(group["recipe"]))
        caption = f"Training reward of {recipes}: mean over the seeds, and from the lowest to the highest as a band."
        yield Picture(figures.reward_curves(curves), caption, list(group["path"]))


def outcomes(given: Records) -> Iterator[Picture]:
    for group, curves in _learning_groups(given.found):
        held_out = group[group["accuracy_after"].notna()]
        if held_out.empty:
            continue
        values = {"base": values_of(held_out, "accuracy_before")}
        values |= {arm: values_of(held_out[held_out["arm"] == arm], "accuracy_after") for arm in curves}
        bars = [
            {"arm": arm, "values": list(found)} | estimate(found)._asdict()
            for arm, found in values.items()
            if len(found)
        ]
        figure = figures.accuracy_bars([("held-out accuracy", bars)], "accuracy, 0 to 1")
        caption = (
            "Held-out accuracy before training (base model; per seed the mean over the arms) and after; points are seeds, "
            "bars are 95 % bootstrap intervals from five seeds on."
        )
        yield Picture(figure, caption, list(held_out["path"]))


def evaluations(given: Records) -> Iterator[Picture]:
    asked: dict[tuple, list[dict]] = {}
    for item in given.evaluations:
        if item["figures"] and item["figures"]["pass_at_k"]:
            asked.setdefault((item["bench"], item["sampling"]["samples"]), []).append(item)
    for (bench, samples), items in asked.items():
        items.sort(key=lambda item: list(ARMS).index(_arm(item)) if _arm(item) != "base" else -1)
        groups = []
        for k in dict.fromkeys((1, samples)):
            bars = []
            for item in items:
                entry = next((entry for entry in item["figures"]["pass_at_k"] if entry["k"] == k), None)
                if entry:
                    bars.append({"arm": _arm(item), "label": _model(item, items), "mean": entry["value"],
                                 "low": entry["low"], "high": entry["high"]})  # fmt: skip
            groups.append((f"pass@{k}", bars))
        figure = figures.accuracy_bars([group for group in groups if group[1]], "share of problems, 0 to 1")
        caption = f"{bench}: {samples} sample(s) a problem; bars are 95 % intervals over the problems."
        yield Picture(figure, caption, [item["path"] for item in items])


def _arm(evaluation: dict) -> str:
    return (evaluation["model"]["trained"] or {}).get("arm") or "base"


def _model(evaluation: dict, among: list[dict]) -> str:
    """The arm; with the seed, where several models of it are compared."""
    arm = _arm(evaluation)
    if sum(_arm(other) == arm for other in among) == 1 or arm == "base":
        return ARMS[arm].label
    return f"{ARMS[arm].label} seed {evaluation['model']['trained']['seed']}"


def memory_by_phase(given: Records) -> Iterator[Picture]:
    runs = given.found.runs
    if runs.empty:
        return
    whole = runs["source"].isin(("record", "memory"))  # the others have no peaks by phase
    runs = runs[whole & (runs["status"] == "finished") & runs["peak_device_bytes"].notna()]
    runs = runs.sort_values(["model", "sleep", "accelerate"], na_position="first")
    for group in _groups(runs, ["arm"]):
        measured = [_measured(row) for row in group.to_dict("records")]
        caption = (
            f"Memory of {ARMS[group.iloc[0]['arm']].label} by phase, most in the last step: of the device by NVML, and of "
            "tensors by torch, which is left out where the engine sleeps, since torch counts what it has given back. Second "
            "line: sequences x (prompt + completion tokens)."
        )
        yield Picture(figures.memory_by_phase(measured), caption, list(group["path"]))


def _measured(row: dict) -> dict:
    """A run's peaks as figures.memory_by_phase takes them."""
    if row["source"] == "memory":
        return read_json(Path(row["path"]))
    run = read_frames(Path(row["path"]))
    phases: dict[str, dict] = {}
    for item in run.steady_phases.to_dict("records"):
        step = phases.setdefault(item["phase"], {}).setdefault(int(item["step"]), {})
        for name in ("peak_device_bytes", "peak_allocated_bytes"):
            step[name] = max(step.get(name, 0), item[name])
    settings = {
        "shape": Path(str(row["model"])).name, "arm": row["arm"], "accelerate": row["accelerate"], "sleep": bool(row["sleep"]),
        "utilization": row["utilization"], "batch": row["optimizer_batch"], "prompt": row["max_prompt_tokens"],
        "completion": row["max_completion_tokens"], "checkpointing": row["checkpointing"], "dtype": row["dtype"],
    }  # fmt: skip
    return {
        "phases": phases,
        "settings": settings,
        "idle_device": {"total_bytes": run.manifest["hardware"]["devices"][0]["memory_bytes"]},
    }
