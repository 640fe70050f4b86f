"""wandb: one run a job, opened by rank 0, with the resolved recipe as its config. The record is the truth; this mirrors it."""

import os
import sys
from pathlib import Path

# Of the manifest, beside the recipe: so that analysis can read the mirror alone (analysis/wandb_runs.py).
DESCRIBED = ("recipe", "recipe_hash", "derived", "work", "git", "seed", "overrides")


def start(manifest: dict, run_folder: Path) -> None:
    """Opens the run before the trainer would, so that group, tags and the recipe are in it; transformers' own callback
    then finds the open run and logs into it. Offline unless a key is set (the launcher sets WANDB_MODE); where the key
    or the network turns out not to work, offline too, with a warning: no run is lost for want of its mirror. A resumed run
    has its first attempt's id: wandb goes on in the same run, or offline in a further folder that `wandb sync` adds to it."""
    import wandb

    recipe = manifest["recipe"]
    tracking = recipe["tracking"]
    settings = {
        "project": tracking["project"],
        "group": tracking["group"],
        "tags": tracking["tags"],
        "name": f"{recipe['name']}-{run_folder.name}",
        "id": manifest["wandb_id"],
        "resume": "allow",
        "dir": run_folder,
        "config": {name: manifest.get(name) for name in DESCRIBED},
        "settings": wandb.Settings(
            silent=True, console="off", init_timeout=int(os.environ.get("WANDB_INIT_TIMEOUT", "60"))
        ),
    }
    try:
        wandb.init(**settings)
    except wandb.Error as error:
        print(f"warning: wandb could not start online ({error}); `wandb sync` uploads this run later", file=sys.stderr)
        os.environ["WANDB_MODE"] = "offline"
        wandb.teardown()  # its service still has the run of that id in hand
        wandb.init(**settings | {"mode": "offline"})


def log_step(step: int, numbers: dict[str, float], phase_seconds: dict[str, float]) -> None:
    """Mirrors what the record's line of a step has beyond TRL's metrics, as record/..., and rank 0's seconds by phase."""
    import wandb

    if wandb.run is not None:
        row = {f"record/{name}": value for name, value in numbers.items()}
        row |= {f"record/phase_seconds/{phase}": seconds for phase, seconds in phase_seconds.items()}
        wandb.log(row | {"train/global_step": step})


def finish(exit_code: int) -> None:
    """Closes the run, if there is one in this process."""
    import wandb

    if wandb.run is not None:
        wandb.finish(exit_code=exit_code)
