import os
import subprocess
import sys

from launch.recipe import ROOT

PROGRAM = """
import sys
from pathlib import Path
from training import tracking
recipe = {"tracking": {"project": "p", "group": None, "tags": []}, "name": "n"}
tracking.start({"recipe": recipe, "recipe_hash": "hash", "wandb_id": "0a1b2c"}, Path(sys.argv[1]))
tracking.finish(0)
"""


def test_a_key_that_cannot_reach_its_server_costs_the_mirror_and_not_the_run(tmp_path):
    environment = os.environ | {
        "WANDB_API_KEY": "0" * 40,
        "WANDB_BASE_URL": "http://127.0.0.1:9",  # nobody listens on the discard port
        "WANDB_INIT_TIMEOUT": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "wandb could not start online" in done.stderr
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 1
