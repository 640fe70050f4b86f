"""recipes/README.md: `python -m launch table --write` makes it from the recipes, the sweeps and results/."""

import json
from pathlib import Path

from launch.check_values import LABELS, label_of, leaves
from launch.derived import derive
from launch.memory import GIB
from launch.plan import Plan, elsewhere, plan
from launch.recipe import ROOT, SOURCED, load, read_yaml
from launch.sweep import points, read_sweep

README = ROOT / "recipes" / "README.md"

_HEAD = """# Recipes

`python -m launch table --write` makes this file; a test keeps it true. One YAML file is one run: `check` says whether it can
be run, `show` what it means, `run` runs it. `--shrink` runs any of them on a machine without a GPU, with a small random model
and the sample of problems in data/: CI does so with every arm.

- **published**, **inferred**, **ours**: the paper publishes no configuration, so each value carries a label with its source
  (`sources` in the file). The columns count the values under model, data, rewards, cluster, grpo and lora.
- **GPU-hours** are of committed results; a dash where there is none.
- **status**: `run` where results/ holds a finished run of it, `checked` otherwise.
- A name with `_paper_era` has the algorithm of TRL 0.18, on which the post ran; without it, of today's TRL.
- A pair does the same work in another arm: `python -m launch pair recipes/A.yaml recipes/B.yaml`.
"""

_SWEEPS = """
## Sweeps

`python -m launch sweep FILE` checks every point, then runs those without a finished record; `--dry-run` lists them.
"""

_PLAN = """
## Will it fit

The planner's verdicts (`python -m launch plan RECIPE`), and the GiB that the busiest training GPU needs: on the recipe's own
cluster, and with its batch shared by other ones (micro-batches no larger than its own, TP no larger than a node). `tight` is
above 95 % of the GPU, or fits only once torch's allocator gives back what it caches. How far off the planner is:
results/memory_h200/.
"""
_CLUSTERS = ((8, "H200-141GB"), (8, "H100-80GB"), (32, "A100-80GB"))


def table() -> str:
    """The whole file, as Markdown."""
    measured = results()
    lines = [_HEAD, "| recipe | arm | claims | hardware | published | inferred | ours | GPU-hours | status |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for path in sorted((ROOT / "recipes").glob("*.yaml")):
        recipe = load(path)
        runs = measured.get(recipe["name"], [])
        counts = labels(recipe)
        hours = (
            f"{sum(run.get('gpu_hours') or 0 for run in runs) / len(runs):.1f}"
            if runs and derive(recipe)["gpus"]
            else "-"
        )
        cells = [
            f"[{recipe['name']}]({path.name})", recipe["recipe"]["arm"], ", ".join(recipe["recipe"]["experiments"]) or "-",
            hardware(recipe), *(str(counts[label]) for label in LABELS), hours, "run" if runs else "checked",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        _PLAN,
        f"| recipe | own cluster | {' | '.join(f'{count} x {gpu}' for count, gpu in _CLUSTERS)} |",
        "|---|---|---|---|---|",
    ]
    for path in sorted((ROOT / "recipes").glob("*.yaml")):
        recipe = load(path)
        if (own := plan(recipe)) is not None:
            others = [plan(elsewhere(recipe, count, gpu)) for count, gpu in _CLUSTERS]
            lines.append(f"| {recipe['name']} | {' | '.join(_verdict(one) for one in (own, *others))} |")
    lines += [_SWEEPS, "| sweep | claims | base | varies | points |", "|---|---|---|---|---|"]
    for path in sorted((ROOT / "recipes" / "sweeps").glob("*.yaml"), key=lambda path: (len(path.stem), path.stem)):
        sweep = read_sweep(path)
        bases = ", ".join(Path(part.base).name.removesuffix(".yaml") for part in sweep.parts)
        varies = "; ".join(
            dict.fromkeys(f"{key} {_span(values)}" for part in sweep.parts for key, values in part.vary.items())
        )
        cells = [
            f"[{path.stem}](sweeps/{path.name})",
            ", ".join(sweep.experiments),
            bases,
            varies,
            str(len(points(sweep))),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _verdict(result: Plan) -> str:
    return f"{result.verdict}, {result.needed_bytes / GIB:.0f}"


def labels(recipe: dict) -> dict[str, int]:
    """How many of the values that a recipe states are published, inferred and ours."""
    stated = read_yaml(ROOT / "recipes" / f"{recipe['name']}.yaml")
    counts = dict.fromkeys(LABELS, 0)
    for section in SOURCED:
        for key in leaves(section, stated[section]) if section in stated else ():
            counts[label_of(recipe, key).partition(":")[0]] += 1
    return counts


def hardware(recipe: dict) -> str:
    cluster, server = recipe["cluster"], recipe["cluster"]["server"]
    if cluster["gpu"] == "cpu":
        return f"{cluster['nodes'] * cluster['gpus_per_node']} ranks, no GPU" + (" + server" if server else "")
    ranks = cluster["nodes"] * cluster["gpus_per_node"]
    extra = f" + {server['nodes'] * server['gpus_per_node']}" if server else ""
    return f"{ranks}{extra} {cluster['gpu']}" + (f", {cluster['nodes']} nodes" if cluster["nodes"] > 1 else "")


def _span(values: list) -> str:
    return ", ".join(str(value) for value in values)


def results() -> dict[str, list[dict]]:
    """The figures of finished runs in results/, by recipe."""
    found: dict[str, list[dict]] = {}
    for path in sorted((ROOT / "results").rglob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        figures = content.get("figures") if isinstance(content, dict) else None
        if isinstance(figures, dict) and figures.get("status") == "finished":
            found.setdefault(str(figures.get("recipe")), []).append(figures)
    return found
