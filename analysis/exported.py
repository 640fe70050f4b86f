"""Rows from the JSON files under results/: exported runs and comparisons, evaluations, and the memory measurements.

Which of them a file is, is told by its keys. What an older export does not hold is missing in its row, never guessed.
"""

import json
from pathlib import Path

import numpy
import pandas

from analysis.frames import PHASE_COLUMNS, STEP_COLUMNS, Frames
from analysis.metrics import METRICS, measure
from analysis.settings import SETTINGS, gpu_kind, settings
from record import SCHEMA_VERSION


def read_exported(path: Path) -> tuple[list[dict], pandas.DataFrame, pandas.DataFrame, dict[str, str]] | None:
    """The rows of an exported file (settings and metrics), its steps, its evaluations, and which metrics are missing, why;
    None if it is something else.

    Raises:
        ValueError: it is no JSON, of another version, or lacks what its kind always holds.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"not a JSON file ({error})") from error
    if not isinstance(content, dict):
        return None
    version = content.get("schema_version", SCHEMA_VERSION)
    for marks, reader in READERS.items():
        if set(marks) <= set(content):
            if version != SCHEMA_VERSION:
                raise ValueError(f"schema_version is {version!r}, this code reads {SCHEMA_VERSION}")
            try:
                return reader(path, content)
            except (KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"lacks {error} of an exported record") from error
    return None


def _row(path: Path, source: str, found: dict, **fields) -> dict:
    names = dict.fromkeys((*SETTINGS, *METRICS))
    row = names | {name: value for name, value in found.items() if name in names} | fields
    return {"path": str(path), "source": source} | row


def _lacking(found: dict) -> dict[str, str]:
    return {name: "an export from before this metric was in it" for name in METRICS if name not in found}


def _provenance(content: dict) -> dict:
    hardware = content.get("hardware") or {}
    cpus = {"gpus": 0} if hardware.get("kind") == "cpu" else {}
    git = content.get("git") or {}
    return cpus | {
        "gpu": gpu_kind(None, hardware), "commit": git.get("commit"), "dirty": git.get("dirty"),
        "start": content.get("start"), "end": content.get("end"), "recipe_hash": content.get("recipe_hash"),
    }  # fmt: skip


def _run(path: Path, content: dict):
    """`python -m analysis export`: one run."""
    found = _provenance(content) | (content.get("settings") or {}) | content["figures"]
    rewards = [row["reward"] for row in content["curve"]]
    if found.get("accuracy_gain") is None and None not in (found["accuracy_before"], found["accuracy_after"]):
        found["accuracy_gain"] = found["accuracy_after"] - found["accuracy_before"]
    if found.get("reward_area") is None and rewards and None not in rewards:
        found["reward_area"] = float(numpy.mean(rewards))
    row = _row(path, "export", found, status=content["exit"]["status"], cause=content["exit"]["cause"])
    row |= {"collection": str(path.parent), "steps": len(content["curve"])}
    steps = _numbers(content["curve"], ["step", "reward", "seconds"])
    held_out = _numbers(content["held_out"], ["step", "accuracy"])
    missing = _lacking(found) | (content.get("missing") or {})
    return [row], steps.assign(path=str(path)), held_out.assign(path=str(path)), missing


def _comparison(path: Path, content: dict):
    """`python -m analysis compare --export`: the runs of a pair, in the order in which they were made. All finished, or there
    would be no comparison."""
    shared = _provenance(content) | {"status": "finished", "start": None, "end": None, "collection": str(path)}
    rows = [
        _row(f"{path}#{run['run']}", "comparison", shared | run) | {"collection": str(path), "steps": run["steps"] + 1}
        for run in content["runs"]
    ]
    lacking = [_lacking(run) for run in content["runs"]]
    return rows, pandas.DataFrame(), pandas.DataFrame(), lacking[0] if lacking else {}


def _memory(path: Path, content: dict):
    """benchmarks/measure_memory.py: phases summed by step, without the run's own lines."""
    item, gpu = content["settings"], gpu_kind(None, content.get("hardware"))
    recipe = {
        "name": content["name"],
        "recipe": {"arm": item["arm"], "experiments": None},
        "model": {"path": f"random weights at the shape of {item['shape']}", "dtype": item["dtype"]},
        "data": {"max_prompt_tokens": item["prompt"]},
        "rewards": {},
        "cluster": {"gpu": gpu, "server": None},
        "accelerate": item["accelerate"],
        "grpo": {
            "max_completion_length": item["completion"],
            "gradient_checkpointing": item["checkpointing"],
            "vllm_tensor_parallel_size": 1 if item["arm"] == "colocate" else None,
            "vllm_gpu_memory_utilization": item["utilization"],
            "vllm_enable_sleep_mode": item["sleep"],
        },
    }
    manifest = {name: content.get(name) for name in ("derived", "work", "git", "hardware", "packages")}
    manifest |= {"recipe": recipe, "exit": {"status": content["status"], "cause": content["cause"]}}
    intervals = pandas.DataFrame(
        [
            {"phase": phase, "split": "train", "rank": 0, "step": int(step), "start_unix_seconds": numpy.nan} | values
            for phase, steps in content.get("phases", {}).items()
            for step, values in steps.items()
        ],
        columns=["phase", "split", "rank", *PHASE_COLUMNS],
    )
    steps = _numbers(content.get("steps", []), list(STEP_COLUMNS))
    steps = steps.assign(first=steps.index == 0, accuracy=numpy.nan)
    run = Frames(path, manifest, steps, _numbers([], ["step", "accuracy"]), intervals, pandas.DataFrame())
    values, missing = measure(run)
    row = _row(path, "memory", settings(manifest) | values) | {"collection": str(path.parent), "steps": len(steps)}
    return [row], steps.drop(columns="first").assign(path=str(path)), pandas.DataFrame(), missing


def _evaluation(path: Path, content: dict):
    """`python -m training.evaluate`: a model that a run trained, with that run's settings and pass@1. A base is no run: None.
    Evaluations are kept apart by what was asked, so that like is paired with like."""
    trained, data, sampling = content["model"]["trained"], content["data"], content["sampling"]
    if trained is None:
        return None
    figures = content["figures"] or {"pass_at_k": []}
    whole = data["problems"] == data["kept_rows"]  # not only the first few
    first = next((entry["value"] for entry in figures["pass_at_k"] if entry["k"] == 1 and whole), None)
    asked = f"{content['bench']}, {sampling['samples']} samples at temperature {sampling['temperature']:g}"
    row = _row(path, "evaluation", settings(trained["manifest"]), status=content["status"], cause=content.get("cause"))
    row |= {"collection": f"{path.parent.parent}: {asked}", "steps": trained["steps"]}
    return [row | {f"{content['bench']}_pass_at_1": first}], pandas.DataFrame(), pandas.DataFrame(), {}


def _numbers(rows: list[dict], columns: list[str]) -> pandas.DataFrame:
    table = pandas.DataFrame([[row.get(column) for column in columns] for row in rows], columns=columns, dtype=float)
    return table.astype({"step": int})


READERS = {
    ("figures", "curve", "exit"): _run,
    ("arms", "ratios", "runs"): _comparison,
    ("settings", "phases", "exit_code"): _memory,
    ("bench", "sampling", "figures"): _evaluation,
}
