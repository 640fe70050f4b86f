"""wandb: one run a job, opened by rank 0, with the resolved recipe as its config. The record is the truth; this mirrors it."""

import os
import sys
from pathlib import Path


def start(recipe: dict, recipe_hash: str, run_folder: Path, run_id: str) -> None:
    """Opens the run before the trainer would, so that group, tags and the recipe are in it; transformers' own callback
    then finds the open run and logs into it. Offline unless a key is set (the launcher sets WANDB_MODE); where the key
    or the network turns out not to work, offline too, with a warning: no run is lost for want of its mirror. A resumed run
    has its first attempt's id: wandb goes on in the same run, or offline in a further folder that `wandb sync` adds to it."""
    import wandb

    tracking = recipe["tracking"]
    settings = {
        "project": tracking["project"],
        "group": tracking["group"],
        "tags": tracking["tags"],
        "name": f"{recipe['name']}-{run_folder.name}",
        "id": run_id,
        "resume": "allow",
        "dir": run_folder,
        "config": {"recipe": recipe, "recipe_hash": recipe_hash},
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


def finish(exit_code: int) -> None:
    """Closes the run, if there is one in this process."""
    import wandb

    if wandb.run is not None:
        wandb.finish(exit_code=exit_code)
