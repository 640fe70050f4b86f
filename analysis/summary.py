"""What a run came to: a short table, and its reward curve as a picture."""

from collections import defaultdict
from pathlib import Path
from statistics import median

from analysis.load import Run


def accuracy_key(run: Run) -> str | None:
    """TRL's name for the mean of the accuracy reward, whichever of the accuracies the recipe uses."""
    for name in run.manifest["recipe"]["rewards"]:
        if name.startswith("accuracy"):
            return f"rewards/{name}/mean"
    return None


def summarize(run: Run) -> dict:
    """The run's figures; None where the record does not hold one.

    tokens_per_second counts completion tokens of all ranks over the wall time of the steps after the first, which
    carries compilation and other first-time costs. phase_shares are over training steps, mean over the ranks.
    """
    steps, evaluations, key = run.train_steps(), run.evaluations(), accuracy_key(run)
    timed = [row for row in steps[1:] if row.get("seconds")]
    seconds = sum(row["seconds"] for row in timed)
    final = steps[-1]["step"] if steps else 0
    before = [row.get(key) for row in evaluations if row["step"] == 0]
    after = [row.get(key) for row in evaluations if row["step"] == final and final > 0]
    problems = (run.manifest.get("data") or {}).get("eval") or {}
    return {
        "status": run.status,
        "recipe": run.manifest["recipe"]["name"],
        "arm": run.manifest["recipe"]["recipe"]["arm"],
        "seed": run.manifest["seed"],
        "steps": final,
        "held_out_problems": problems.get("kept_rows"),
        "accuracy_before": before[-1] if before else None,
        "accuracy_after": after[-1] if after else None,
        "median_step_seconds": median(row["seconds"] for row in timed) if timed else None,
        "tokens_per_second": sum(row["completion_tokens"] for row in timed) / seconds if seconds else None,
        "phase_shares": phase_shares(run),
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


def phase_shares(run: Run) -> dict[str, float]:
    """Each phase's share of the time of the training steps after the first, mean over ranks, largest first."""
    totals: dict[str, float] = defaultdict(float)
    for intervals in run.phases.values():
        for interval in intervals:
            if interval["split"] == "train" and interval["step"] > 1:
                totals[interval["phase"]] += interval["seconds"]
    everything = sum(totals.values())
    return (
        {phase: total / everything for phase, total in sorted(totals.items(), key=lambda item: -item[1])}
        if everything
        else {}
    )


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

    key, recipe = accuracy_key(run), run.manifest["recipe"]
    rewards = [(row["step"], row["reward"]) for row in run.train_steps() if row.get("reward") is not None]
    held_out = [(row["step"], row[key]) for row in run.evaluations() if key and row.get(key) is not None]
    label = "reward, accuracy (0 to 1)" if len(recipe["rewards"]) == 1 else "reward (weighted sum)"
    title = f"{recipe['name']}, seed {run.manifest['seed']}"
    return save(reward_curve(rewards, held_out, recipe["recipe"]["arm"], title, label), path)
