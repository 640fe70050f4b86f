"""TRL's effective arguments of every recipe, as the installed TRL resolves them: tests/recipes/snapshots/<recipe>.json.

`python -m tests.recipes.snapshot` says what has moved, `--write` takes the new state. A recipe states what decides its
algorithm; the snapshot holds all the rest too, so that an upgrade that moves a default is seen before it moves a number.
"""

import json
import sys
from pathlib import Path

from launch.recipe import ROOT, load

FOLDER = Path(__file__).resolve().parent / "snapshots"
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))

# What a machine or the moment decides, not the recipe.
NOT_THE_RECIPES = (
    "output_dir",
    "use_cpu",
    "ddp_backend",
    "local_rank",
    "report_to",
    "hub_token",
    "dataloader_pin_memory",
)


def effective(path: Path) -> dict:
    """What GRPOConfig makes of a recipe on its own cluster, as JSON holds it."""
    from training.arguments import planned_config

    arguments = planned_config(load(path)).to_dict()
    return json.loads(
        json.dumps({key: arguments[key] for key in sorted(arguments) if key not in NOT_THE_RECIPES}, default=str)
    )


def snapshot_path(path: Path) -> Path:
    return FOLDER / f"{path.name.removesuffix('.yaml')}.json"


def moved(path: Path) -> list[str]:
    """The arguments that differ from a recipe's committed snapshot, a line each; all of them if there is none."""
    now = effective(path)
    before = json.loads(snapshot_path(path).read_text(encoding="utf-8")) if snapshot_path(path).is_file() else {}
    lines = []
    for key in sorted(before.keys() | now.keys()):
        was, is_now = (json.dumps(state[key]) if key in state else "absent" for state in (before, now))
        if was != is_now:
            lines.append(f"{path.name}: {key}: {was} -> {is_now}")
    return lines


def main() -> int:
    lines = [line for path in RECIPES for line in moved(path)]
    print("\n".join(lines) or "nothing has moved")
    if "--write" not in sys.argv:
        return int(bool(lines))
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for path in RECIPES:
        snapshot_path(path).write_text(json.dumps(effective(path), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
