"""Runs in wandb, in the same table as records: from its API, or from the folders of runs that were never uploaded.

    from_api("entity/project")              from_offline("runs")

Both give what analysis.runs.load gives, with the source "wandb". wandb mirrors the record (training/tracking.py): the recipe
and what follows from it are in the run's config; a step is spread over some nine rows of its history, which are joined on
train/global_step. What the mirror lacks stays missing: of the phases it has rank 0's seconds by step and no times, so that
trainers_idle is rank 0's, and a server's idle share is not there. Runs of TRL that were not made here have no recipe: their
rows hold what TRL itself logs.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import numpy
import pandas

from analysis.frames import PHASE_COLUMNS, STEP_COLUMNS, Frames, accuracy_name
from analysis.runs import Runs, assemble, rows_of
from analysis.wandb_file import read_offline

MIRRORED = ("seconds", "tokens", "completion_tokens")  # training/tracking.py logs them as record/...
PHASE = "record/phase_seconds/"
KEPT = ("recipe_hash", "derived", "work", "git", "seed", "overrides")
STATES = {"finished": "finished", "running": "running", "pending": "running"}  # all others are failures


def from_api(project: str, filters: dict | None = None, api=None) -> Runs:
    """The runs of a project ("entity/project"); `filters` are the API's own, such as {"group": "tiny"}.

    Raises:
        ValueError: no key, no such project, or no connection.
    """
    import wandb

    parts, problems = [], []
    try:
        for run in (api or wandb.Api()).runs(project, filters=filters or {}, lazy=False):
            name = f"wandb:{'/'.join(run.path)}"
            span = (_iso(run.created_at), _iso(run.heartbeat_at))
            state = (STATES.get(run.state, "failed"), None if run.state in STATES else f"wandb says {run.state}")
            try:
                frames = _frames(name, run.name, dict(run.config), run.scan_history(), state, span)
                parts.append(rows_of(frames, "wandb", f"wandb:{project}"))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                problems.append(f"{name}: left out: {error}")
    except (wandb.Error, ValueError) as error:
        raise ValueError(
            f"wandb, project {project}: {error} (`wandb login`, or WANDB_API_KEY and WANDB_BASE_URL)"
        ) from error
    return assemble(parts, problems)


def from_offline(folder: Path | str) -> Runs:
    """The offline runs in or below a folder. Folders with one run's id are its attempts, in the order of their starts.

    Raises:
        FileNotFoundError: there are none.
    """
    attempts: dict[str, list[dict]] = {}
    problems = []
    files = sorted(Path(folder).rglob("run-*.wandb"))
    if not files:
        raise FileNotFoundError(f"{folder}: no offline runs of wandb (run-*.wandb) in or below it")
    for file in files:
        try:
            attempt = read_offline(file)
        except ValueError as error:
            problems.append(f"{file}: left out: {error}")
            continue
        attempts.setdefault(file.stem, []).append(attempt)
    parts = []
    for name, found in attempts.items():
        # not by the folders' names, which have whole seconds
        found.sort(key=lambda attempt: datetime.fromisoformat(attempt["start"]))
        last = found[-1]
        state = ("finished", None) if last["exit_code"] == 0 else ("failed", f"exit code {last['exit_code']}")
        if last["exit_code"] is None:
            state = ("failed", "no exit code: killed, or going on")
        history = [row for attempt in found for row in attempt["history"]]
        try:
            frames = _frames(
                last["name"], last["name"], last["config"], history, state, (found[0]["start"], last["end"])
            )
            parts.append(rows_of(frames, "wandb", str(folder)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"{name}: left out: {error}")
        problems += [f"{name}: {attempt['torn']} torn records left out" for attempt in found if attempt["torn"]]
    return assemble(parts, problems)


def _frames(path: str, name: str, config: dict, history: Iterable[dict], state: tuple, span: tuple) -> Frames:
    """A run's tables from its config and the rows of its history.

    Raises:
        ValueError: the history has no step.
    """
    manifest = {key: config.get(key) for key in KEPT}
    manifest |= {"recipe": config.get("recipe") or _recipe(name, config), "start": span[0], "end": span[1]}
    manifest |= {"exit": {"status": state[0], "cause": state[1]}, "derived": config.get("derived") or {}}
    steps: dict[tuple[str, int], dict] = {}
    for row in history:
        step = row.get("train/global_step")
        if step is None:
            continue
        split = "eval" if any(key.startswith("eval/") for key in row) else "train"
        if split == "train" and not any(key.startswith(("train/reward", "train/loss", "record/")) for key in row):
            continue  # TRL's own timings, logged before the step is counted
        steps.setdefault((split, int(step)), {}).update(row)
    if not steps:
        raise ValueError("no row of its history has a step (train/global_step)")
    accuracy = accuracy_name(manifest) or _logged_accuracy(steps)
    tables = {split: _table(split, steps, accuracy) for split in ("train", "eval")}
    train = tables["train"].assign(first=tables["train"].index == 0)
    return Frames(Path(path), manifest, train, tables["eval"], _phases(steps), pandas.DataFrame(columns=["phase"]))


def _logged_accuracy(steps: dict) -> str | None:
    """TRL's name for the mean of a reward that is called accuracy, where no recipe says which."""
    keys = (key.split("/", 1)[1] for row in steps.values() for key in row if "/rewards/accuracy" in key)
    return next((key for key in keys if key.endswith("/mean")), None)


def _table(split: str, steps: dict, accuracy: str | None) -> pandas.DataFrame:
    names = {column: f"{split}/{name}" for column, name in STEP_COLUMNS.items()}
    names |= {column: f"record/{column}" for column in MIRRORED} if split == "train" else {}
    names |= {"accuracy": f"{split}/{accuracy}", "unix_seconds": "_timestamp"}
    rows = [(step, row) for (of, step), row in sorted(steps.items()) if of == split]
    columns = {
        column: [_number(row.get(name)) for _, row in rows] for column, name in names.items() if column != "step"
    }
    table = pandas.DataFrame({"step": [step for step, _ in rows]} | columns).astype({"step": int})
    if split == "train" and table["seconds"].isna().all():  # no mirror of a record: TRL's own
        table["seconds"] = [_number(row.get("train/step_time")) for _, row in rows]
        table["tokens"] = pandas.Series([_number(row.get("train/num_tokens")) for _, row in rows], dtype=float).diff()
    return table


def _phases(steps: dict) -> pandas.DataFrame:
    rows = [
        {"phase": key.removeprefix(PHASE), "split": "train", "rank": 0, "step": step, "seconds": _number(value)}
        for (split, step), row in sorted(steps.items())
        for key, value in row.items()
        if split == "train" and key.startswith(PHASE)
    ]
    return pandas.DataFrame(rows, columns=["phase", "split", "rank", *PHASE_COLUMNS])


def _recipe(name: str, config: dict) -> dict:
    """What TRL's own arguments say of a run that has no recipe."""
    arm = "generate"
    if config.get("use_vllm"):
        arm = config.get("vllm_mode") or "server"
    elif config.get("use_transformers_continuous_batching"):
        arm = "continuous_batching"
    return {"name": name, "recipe": {"arm": arm}, "model": {"path": config.get("_name_or_path")}, "rewards": {},
            "cluster": {}, "grpo": {"max_completion_length": config.get("max_completion_length")}}  # fmt: skip


def _number(value) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else numpy.nan


def _iso(text: str | None) -> str | None:
    """wandb's times are UTC and do not say so."""
    return None if not text else datetime.fromisoformat(text).replace(tzinfo=UTC).isoformat()
