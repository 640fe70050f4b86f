"""Did several arms learn the same? Over exported runs (`python -m analysis export`), several seeds an arm.

Two outcomes a run: the held-out accuracy at its end, and the area under its reward curve (the mean over steps of the training
reward, so that 1 is a reward of 1 from the first step on). For each arm their mean over the seeds with a 95 % bootstrap
interval (analysis/intervals.py; none below five seeds). Whether the arms can be told apart is a permutation test: if the arm
did not matter, the outcomes of one seed could be dealt to the arms at random. The statistic is the variance of the arms'
means. A seed fixes the prompts and their order in every arm, so outcomes are dealt within seeds.
"""

from pathlib import Path

import numpy

from analysis.intervals import mean_interval
from analysis.settings import variant

RESAMPLES = 20_000
OUTCOMES = {"held_out_accuracy": "held-out accuracy", "reward_area": "area under the reward curve"}


def outcomes(result: dict) -> dict[str, float]:
    """The two outcomes of one exported run.

    Raises:
        ValueError: it did not finish, or lacks a curve or the held-out accuracy.
    """
    figures, rewards = result["figures"], [row["reward"] for row in result["curve"]]
    if figures["status"] != "finished" or not rewards or None in rewards or figures["accuracy_after"] is None:
        raise ValueError(
            f"{figures['recipe']}, seed {figures['seed']}: not finished, or without curve or held-out accuracy"
        )
    return {"held_out_accuracy": figures["accuracy_after"], "reward_area": float(numpy.mean(rewards))}


def compare(results: list[dict]) -> dict:
    """Per arm and outcome: values by seed, mean and interval; per outcome: the p-value of "the arm does not matter".

    Raises:
        ValueError: the arms do not have the same seeds, one has a seed twice, or a run is no finished one.
    """
    by_arm: dict[str, dict[int, dict]] = {}
    for result in results:
        figures, settings = result["figures"], result.get("settings") or {}  # older exports have none
        runs = by_arm.setdefault(variant(figures["arm"], settings.get("sleep")), {})
        if figures["seed"] in runs:
            raise ValueError(f"two runs of {figures['arm']} have seed {figures['seed']}; one recipe an arm is compared")
        runs[figures["seed"]] = result
    seeds = {arm: sorted(runs) for arm, runs in by_arm.items()}
    common = next(iter(seeds.values()))
    if len(by_arm) < 2 or len(common) < 2 or any(found != common for found in seeds.values()):
        raise ValueError(f"at least two arms with the same two seeds or more are compared; these are {seeds}")
    random = numpy.random.default_rng(0)
    arms, p_values = {arm: {"seeds": common} for arm in by_arm}, {}
    for outcome in OUTCOMES:
        table = numpy.array(
            [[outcomes(by_arm[arm][seed])[outcome] for seed in common] for arm in by_arm]
        )  # (arms, seeds)
        for arm, values in zip(by_arm, table, strict=True):
            low, high = mean_interval(values) or (None, None)
            arms[arm][outcome] = {"values": values.tolist(), "mean": float(values.mean()), "low": low, "high": high}
        p_values[outcome] = permutation_p_value(table, random)
    curves = {
        arm: numpy.array([[row["reward"] for row in runs[seed]["curve"]] for seed in common])
        for arm, runs in by_arm.items()
    }
    return {"arms": arms, "p_values": p_values, "curves": curves}


def permutation_p_value(table: numpy.ndarray, random: numpy.random.Generator) -> float:
    """How often outcomes (arms, seeds) dealt at random within each seed spread the arms' means as far as they are spread."""
    observed = table.mean(axis=1).var()
    dealt = random.permuted(numpy.broadcast_to(table, (RESAMPLES, *table.shape)), axis=1)
    return float((1 + numpy.sum(dealt.mean(axis=2).var(axis=1) >= observed - 1e-15)) / (1 + RESAMPLES))


def table(result: dict) -> str:
    """The comparison in Markdown, and the verdict in a sentence for each outcome."""
    head = ("arm", "seeds", *OUTCOMES.values(), "lowest accuracy")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for arm, entry in result["arms"].items():
        cells = [_cell(entry[name]) for name in OUTCOMES]
        lowest = f"{min(entry['held_out_accuracy']['values']):.3f}"
        lines.append("| " + " | ".join([arm, str(len(entry["seeds"])), *cells, lowest]) + " |")
    for outcome, label in OUTCOMES.items():
        p_value = result["p_values"][outcome]
        verdict = "can be told apart" if p_value < 0.05 else "cannot be told apart"
        lines.append(f"\nBy {label} the arms {verdict} (permutation test within seeds, p = {p_value:.2g}).")
    return "\n".join(lines)


def _cell(found: dict) -> str:
    """Mean and interval; below five seeds the range, which is no interval and says so."""
    if found["low"] is None:
        return f"{found['mean']:.3f} (range {min(found['values']):.3f} to {max(found['values']):.3f})"
    return f"{found['mean']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def draw(result: dict, folder: Path) -> list[Path]:
    """The reward curves (mean over seeds, band from lowest to highest) and the outcomes with their intervals, as PNGs."""
    from analysis.figures import accuracy_bars, reward_curves
    from analysis.style import save

    groups = [
        (label, [{"arm": arm} | entry[outcome] for arm, entry in result["arms"].items()])
        for outcome, label in OUTCOMES.items()
    ]
    return [
        save(reward_curves(result["curves"]), folder / "reward_curves.png"),
        save(accuracy_bars(groups, "mean over seeds, 0 to 1"), folder / "outcomes.png"),
    ]
