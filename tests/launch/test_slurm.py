"""A real Slurm of two nodes: sbatch runs a recipe on both, a warning stops it with a checkpoint, and the requeue resumes it."""

import sys
import time

import pytest

from analysis.load import load_run
from launch.announce import hours
from tests.hosts import Hosts
from tests.launch.test_nodes import TWO_NODES
from tests.real_runs import SHORT, sets, wait_until
from tests.slurm import Slurm

STEPS = 16  # the warning must arrive before the last one


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with Hosts() as hosts, Slurm(hosts, tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.mark.slow
def test_sbatch_runs_the_recipe_and_a_requeue_resumes_it(slurm, tmp_path):
    overrides = [*SHORT, *TWO_NODES, f"grpo.max_steps={STEPS}", "grpo.max_completion_length=96", "data.eval_split=null"]
    runs, log = tmp_path / "runs", tmp_path / "job.log"
    submitted = slurm.run(
        "sbatch", "--parsable", "--nodes=2", f"--output={log}", "launch/slurm.sbatch", "recipes/tiny_generate.yaml",
        *sets(overrides), "--runs", str(runs), PYTHON=sys.executable,
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()

    def training() -> bool:
        assert slurm.job(job)["JobState"] in ("PENDING", "RUNNING", "CONFIGURING"), log.read_text()
        return any(path.read_text().count("\n") >= 2 for path in runs.glob("*/*/metrics.jsonl"))

    wait_until(training, 240, "second step")
    slurm.run("scancel", "--signal=USR1", "--batch", job)  # what Slurm sends before the time limit
    wait_until(lambda: "back into the queue" in log.read_text(), 60, "requeue")
    # Slurm lets a requeued job wait for two minutes; a node refuses one that it ended a moment ago ("credential revoked")
    wait_until(lambda: slurm.job(job)["JobState"] == "PENDING", 60, "end of the first start")
    time.sleep(3)
    wait_until(lambda: slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now").returncode == 0, 60, "its turn")

    def completed() -> bool:
        state = slurm.job(job)["JobState"]
        assert state not in ("FAILED", "CANCELLED", "NODE_FAIL"), log.read_text()
        return state == "COMPLETED"

    wait_until(completed, 300, f"end of the job: {log}")

    said = log.read_text()
    assert "start number 1" in said
    assert "start number 2" in said
    assert "resuming " in said
    (folder,) = (path.parent for path in runs.glob("*/*/manifest.json"))  # one run, not two
    record = load_run(folder)
    attempts = record.manifest["attempts"]
    assert [attempt["exit"]["status"] for attempt in attempts] == ["interrupted", "finished"]
    assert 2 <= attempts[1]["from_step"] < STEPS
    assert [row["step"] for row in record.train_steps()] == list(range(1, STEPS + 1))
    assert record.manifest["nodes"] == slurm.hosts.names


@pytest.mark.slow
def test_a_recipe_for_more_nodes_than_the_allocations_is_refused(slurm, tmp_path):
    log = tmp_path / "job.log"
    submitted = slurm.run("sbatch", "--parsable", "--nodes=1", f"--output={log}", "launch/slurm.sbatch",
                          "recipes/tiny_generate.yaml", *sets(TWO_NODES), PYTHON=sys.executable)  # fmt: skip
    job = submitted.stdout.strip()
    wait_until(lambda: slurm.job(job)["JobState"] == "FAILED", 60, "end of the job")
    assert slurm.job(job)["ExitCode"] == "2:0"
    assert f"error: Slurm job {job}" in log.read_text()
    assert "the recipe needs 2 (cluster.nodes = 2)" in log.read_text()


@pytest.mark.slow
def test_the_dry_run_in_an_allocation_names_its_nodes_and_what_its_time_limit_can_cost(slurm):
    recipe = ("recipes/qwen72b_colocate.yaml", *sets(["cluster.nodes=2", "cluster.gpu=H200-141GB"]))
    command = ("bash", "launch/multinode.sh", *recipe, "--dry-run")
    shown = slurm.run("salloc", "--nodes=2", "--time=3:00:00", *command, PYTHON=sys.executable)
    assert shown.returncode == 0, shown.stderr
    assert "2 node(s), 16 H200-141GB GPUs" in shown.stdout
    assert f"nodes:     {', '.join(slurm.hosts.names)} (Slurm job " in shown.stdout
    assert "GPU-hours: 48 at most" in shown.stdout
    for number, name in enumerate(slurm.hosts.names):
        assert f"# node {number} ({name}): ranks" in shown.stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1:30:00", 1.5), ("2-00:30:00", 48.5), ("30:00", 0.5), ("UNLIMITED", None), ("INVALID", None), ("", None)],
)
def test_slurms_time_limits_are_read(text, expected):
    assert hours(text) == expected
