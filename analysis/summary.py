"""What a run came to: a short table, and its reward curve as a picture."""

from pathlib import Path
from statistics import median

from analysis import metrics
from analysis.frames import accuracy_name, frames
from analysis.load import Run

SHOWN = ("accuracy_before", "accuracy_after", "median_step_seconds", "tokens_per_second")


def summarize(run: Run) -> dict:
    """What a person asks of a run first; None where the record does not hold it. The metrics are those of analysis/metrics.py,
    phase_shares are over the training steps after the first and all ranks."""
    tables = frames(run)
    values, _ = metrics.measure(tables)
    problems = (run.manifest.get("data") or {}).get("eval") or {}
    return {
        "status": run.status,
        "recipe": run.manifest["recipe"]["name"],
        "arm": run.manifest["recipe"]["recipe"]["arm"],
        "seed": run.manifest["seed"],
        "steps": int(tables.steps["step"].max()) if len(tables.steps) else 0,
        "held_out_problems": problems.get("kept_rows"),
        **{name: values[name] for name in SHOWN},
        "phase_shares": metrics.phase_shares(tables),
        "sentinel": sentinel(run),
        "torn_lines": run.torn_lines,
    }


def sentinel(run: Run) -> dict | None:
    """What the weight-sync sentinel saw: the mean difference of log-probabilities between engine and trainer (its level), and
    how near the worst step came to the limit (1 is at it). None in an arm without an engine."""
    seen = [row for row in run.train_steps() if row.get("sentinel/level") is not None]
    if not seen:
        return None
    levels = [row["sentinel/level"] for row in seen]
    nearness = [row["sentinel/level"] / row["sentinel/limit"] for row in seen if row["sentinel/limit"]]
    return {
        "steps": len(seen),
        "median_level": median(levels),
        "most_level": max(levels),
        "nearest_to_limit": max(nearness) if nearness else None,
    }


def table(run: Run) -> str:
    """The summary as text for a terminal."""
    figures = summarize(run)

    def number(value, form: str, unit: str = "") -> str:
        return "-" if value is None else format(value, form) + unit

    rows = [
        ("run", f"{figures['recipe']} ({figures['arm']}), seed {figures['seed']}, {figures['status']}"),
        ("held-out accuracy before", number(figures["accuracy_before"], ".3f")),
        (
            "held-out accuracy after",
            number(figures["accuracy_after"], ".3f", f"  ({figures['held_out_problems']} problems)"),
        ),
        ("steps", number(figures["steps"], "d", f", median {number(figures['median_step_seconds'], '.2f', ' s')}")),
        ("completion tokens/s", number(figures["tokens_per_second"], ".0f")),
    ]
    rows += [
        ("time in " + phase.replace("_", " + "), f"{share:6.1%}")
        for phase, share in figures["phase_shares"].items()
        if share >= 0.001
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)


def draw_reward_curve(run: Run, path: Path) -> Path:
    """Training reward per step, and the held-out accuracy where it was measured, as a PNG. Returns its path."""
    from analysis.figures import reward_curve
    from analysis.style import save

    key, recipe = accuracy_name(run.manifest), run.manifest["recipe"]
    rewards = [(row["step"], row["reward"]) for row in run.train_steps() if row.get("reward") is not None]
    held_out = [(row["step"], row[key]) for row in run.evaluations() if key and row.get(key) is not None]
    label = "reward, accuracy (0 to 1)" if len(recipe["rewards"]) == 1 else "reward (weighted sum)"
    title = f"{recipe['name']}, seed {run.manifest['seed']}"
    return save(reward_curve(rewards, held_out, recipe["recipe"]["arm"], title, label), path)
