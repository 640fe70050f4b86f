"""Real runs, whole: TRL, vLLM and DeepSpeed under torchrun, two ranks or one, without a GPU."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy
import psutil
import pytest

from analysis.frames import read_frames
from analysis.metrics import trainers_idle
from analysis.runs import load
from analysis.wandb_file import offline_records
from analysis.wandb_runs import from_offline
from launch.recipe import ROOT
from record import read_lines
from tests.real_runs import CASES, SHORT, launch, launch_command, processes_of, wait_until

pytestmark = pytest.mark.slow

# Engine and trainer both compute in float32, with other kernels and another order of summation. What that comes to on
# these models is 1e-5 to 1e-4 in the worst token of a step; weights that are one update old give 1e-2 and more.
LOG_PROB_TOLERANCE = 1e-3


@pytest.mark.parametrize("case", CASES)
def test_a_run_finishes_with_a_whole_record_and_nothing_left(outcomes, case):
    outcome = outcomes(case)
    assert outcome.code == 0, outcome.output
    run = outcome.run
    manifest = run.manifest
    assert manifest["exit"] == {"status": "finished", "cause": None}
    assert run.torn_lines == 0
    assert [row["step"] for row in run.train_steps()] == [1, 2, 3]
    assert [row["step"] for row in run.evaluations()] == [0, 3], "held-out problems before and after"
    ranks = manifest["derived"]["ranks"]
    assert sorted(run.phases) == list(range(ranks))
    for row in run.train_steps():
        assert row["seconds"] > 0
        assert 0 < row["completion_tokens"] < row["tokens"]
        assert row["reward"] is not None
    assert manifest["packages"]["trl"] == "1.16.0"
    assert manifest["trl_arguments"]["loss_type"] == "dapo"
    assert manifest["end"] > manifest["start"]
    assert processes_of(outcome.runs) == []
    assert "held-out accuracy after" in outcome.output
    assert (run.path / "reward.png").stat().st_size > 10_000


@pytest.mark.parametrize("case", CASES)
def test_the_phases_of_a_rank_never_overlap_and_cover_its_time(outcomes, case):
    for rank, intervals in outcomes(case).run.phases.items():
        for earlier, later in itertools.pairwise(intervals):
            gap = later["start_unix_seconds"] - (earlier["start_unix_seconds"] + earlier["seconds"])
            assert abs(gap) < 1e-4, f"rank {rank}: {earlier} then {later}"
        counted = {interval["phase"] for interval in intervals if interval["split"] == "train"}
        expected = {"generate", "grade", "forward_backward", "optimizer", "wait", "other"}
        expected |= {"sync"} if case not in ("generate", "continuous batching") else set()
        assert expected <= counted


@pytest.mark.parametrize("case", ["one rank", "two ranks", "two ranks, TP 2", "ZeRO-3, TP 2", "server"])
def test_after_each_sync_the_engine_samples_from_the_trainers_weights(outcomes, case):
    run = outcomes(case).run
    for row in run.metrics:
        assert row["sampling/sampling_logp_difference/max"] < LOG_PROB_TOLERANCE, f"step {row['step']}, {row['split']}"


def test_the_same_recipe_and_seed_twice_is_the_same_run(outcomes):
    first, second = outcomes("two ranks").run, outcomes("two ranks again").run
    prompts = [row["prompts_sha256"] for row in first.train_steps()]
    assert prompts == [row["prompts_sha256"] for row in second.train_steps()]
    assert len(set(prompts)) == len(prompts), "a digest that never changes would prove nothing"
    for name in ("reward", "loss", "grad_norm", "completion_tokens"):
        assert [row[name] for row in first.train_steps()] == [row[name] for row in second.train_steps()], name


def test_the_arms_see_the_same_prompts_in_the_same_order(outcomes):
    digests = {
        case: [row["prompts_sha256"] for row in outcomes(case).run.train_steps()]
        for case in ("two ranks", "two ranks, TP 2", "ZeRO-3, TP 2", "server", "generate", "continuous batching")
    }
    assert len({tuple(digest) for digest in digests.values()}) == 1, digests


def test_another_seed_is_another_run_on_other_prompts_and_samples(outcomes, tmp_path):
    other = launch("recipes/tiny_colocate.yaml", tmp_path, [*SHORT, "grpo.seed=1"])
    assert other.code == 0, other.output
    mine, theirs = outcomes("two ranks").run.train_steps(), other.run.train_steps()
    assert all(a["prompts_sha256"] != b["prompts_sha256"] for a, b in zip(mine, theirs, strict=True))
    # the held-out problems are the same, and so are the weights: only the engines' seeds differ
    before = next(row for row in outcomes("two ranks").run.evaluations() if row["step"] == 0)
    assert before["completions/mean_length"] != other.run.evaluations()[0]["completions/mean_length"]


def test_one_wandb_run_a_job_offline_with_the_recipe_as_its_config(outcomes):
    outcome = outcomes("two ranks")
    folders = list((outcome.folder / "wandb").glob("offline-run-*"))
    assert len(folders) == 1
    records = list(offline_records(next(folders[0].glob("*.wandb"))))
    kinds = Counter(record.WhichOneof("record_type") for record in records)
    run = next(record.run for record in records if record.WhichOneof("record_type") == "run")
    config = {item.key: json.loads(item.value_json) for item in run.config.update if item.key}
    assert run.project == "colocate-grpo"
    assert run.run_group == "tiny"
    assert list(run.tags) == ["tiny", "cpu"]
    assert config["recipe"]["rewards"] == outcome.run.manifest["recipe"]["rewards"]
    assert kinds["history"] >= 3
    assert kinds["exit"] == 1


@pytest.mark.parametrize("case", ["two ranks", "server"])
def test_the_mirror_in_wandb_tells_what_the_record_tells(outcomes, case):
    folder = outcomes(case).folder
    mirror, record = from_offline(folder), load(folder)
    assert mirror.problems == []
    told, true = mirror.runs.iloc[0], record.runs.iloc[0]
    exact = ("recipe", "arm", "seed", "devices", "optimizer_batch", "status", "steps", "commit", "recipe_hash")
    assert {name: told[name] for name in exact} == {name: true[name] for name in exact}
    for name in ("completions_per_second", "normalised", "tokens_per_second", "trained_tokens_per_second", "reward_area",
                 "accuracy_before", "accuracy_after", "sentinel_nearest", "median_step_seconds"):  # fmt: skip
        assert told[name] == pytest.approx(true[name], rel=1e-6), name
    assert numpy.isnan(told["server_idle"]), "the mirror has no times of the server"
    tables = read_frames(folder)
    rank_0 = replace(tables, phases=tables.phases[tables.phases["rank"] == 0])
    assert told["trainers_idle"] == pytest.approx(
        trainers_idle(rank_0), abs=0.05
    )  # a step's last moments count with the next


def started(tmp_path, recipe="recipes/tiny_colocate.yaml", step=2):
    """A long run that has finished `step` steps: the launcher's process and the metrics file."""
    process = subprocess.Popen(
        launch_command(recipe, tmp_path, [*SHORT, "grpo.max_steps=100000", "data.eval_split=null"]), cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip

    def enough():
        assert process.poll() is None, process.stdout.read()
        return [path for path in tmp_path.glob("*/*/metrics.jsonl") if len(read_lines(path)[0]) >= step]

    return process, wait_until(enough, 240, f"step {step}")[0]


def rank_process(runs, rank: int) -> psutil.Process:
    return next(p for p in processes_of(runs) if p.environ().get("RANK") == str(rank) and "training" in p.cmdline())


def assert_ended(process, metrics, runs, code, status, seconds=40):
    output, _ = process.communicate(timeout=seconds)
    assert process.returncode == code, output
    manifest = json.loads((metrics.parent / "manifest.json").read_text())
    assert manifest["exit"]["status"] == status
    assert manifest["end"]
    rows, torn = read_lines(metrics) if metrics.exists() else ([], 0)
    assert torn == 0
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert wait_until(lambda: processes_of(runs) == [], 5, "end of all processes")
    return output, manifest["exit"]["cause"]


def test_ctrl_c_ends_the_whole_job_at_once(tmp_path):
    process, metrics = started(tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does: the whole foreground group
    _, cause = assert_ended(process, metrics, tmp_path, 130, "interrupted")
    assert cause == "stopped by SIGINT"
    assert list(metrics.parent.glob("checkpoint-*")) == []


def test_a_stop_while_the_run_starts_ends_it_at_once(tmp_path):
    process = subprocess.Popen(
        launch_command("recipes/tiny_generate.yaml", tmp_path, SHORT), cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    events = wait_until(lambda: list(tmp_path.glob("*/*/events.jsonl")), 60, "start of the ranks")[0]
    process.terminate()
    _, cause = assert_ended(process, events.parent / "metrics.jsonl", tmp_path, 75, "interrupted")
    assert cause == "stopped by SIGTERM"


def test_a_rank_that_is_killed_ends_the_whole_job(tmp_path):
    process, metrics = started(tmp_path, "recipes/tiny_generate.yaml")
    rank_process(tmp_path, 1).kill()
    output, cause = assert_ended(process, metrics, tmp_path, 1, "failed")
    assert "-9" in cause
    assert cause in output


def test_a_rank_that_fails_ends_the_whole_job_and_is_named(tmp_path):
    outcome = launch(
        "recipes/tiny_generate.yaml", tmp_path, SHORT, PYTHONPATH=str(ROOT / "tests" / "training" / "fail_in_rank_1")
    )  # fmt: skip
    assert outcome.code == 1, outcome.output
    assert outcome.run.manifest["exit"] == {"status": "failed", "cause": "rank 1: RuntimeError: injected at step 2"}
    assert "rank 1: RuntimeError: injected at step 2" in outcome.output
    assert [row["step"] for row in outcome.run.train_steps()] == [1]
    assert processes_of(tmp_path) == []


def test_a_launcher_that_is_killed_takes_its_ranks_along(tmp_path):
    process, metrics = started(tmp_path, "recipes/tiny_generate.yaml")
    process.kill()
    process.wait()
    assert wait_until(lambda: processes_of(tmp_path) == [], 30, "end of all processes")
    assert read_lines(metrics)[1] == 0


def test_what_only_a_rank_can_see_is_refused_before_any_engine(tmp_path):
    """A column that exists, and holds no gold in any row: the check before the start reads the first line alone."""
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "test"):
        (data / f"{split}.jsonl").write_text('{"problem": "1 + 1 =", "answer": null}\n')
    outcome = launch("recipes/tiny_colocate.yaml", tmp_path / "runs", [*SHORT, f"data.path={data}"])
    assert outcome.code == 2, outcome.output
    assert "0 rows of the split train are left" in outcome.output
    assert "engines ready" not in outcome.output
    assert outcome.run.manifest["exit"]["status"] == "failed"
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (["grpo.number_of_generations=8"], "grpo.number_of_generations"),
        (["grpo.learning_rate=fast"], "grpo.learning_rate"),
        (["grpo.num_generations=7"], "grpo.num_generations"),
        (["grpo.vllm_tensor_parallel_size=3"], "grpo.vllm_tensor_parallel_size"),
        (["model.path=./tiny/no_such_folder"], "model.path"),
        (["data.prompt_column=question"], "data.prompt_column"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_made(tmp_path, overrides, names):
    outcome = launch("recipes/tiny_colocate.yaml", tmp_path / "runs", overrides)
    assert outcome.code == 2
    assert names in outcome.output
    assert "rule:" in outcome.output
    assert "mend:" in outcome.output
    assert "Traceback" not in outcome.output
    assert not (tmp_path / "runs").exists()
    assert processes_of(tmp_path) == []


def test_the_shell_wrapper_shows_its_help_and_a_dry_run_starts_nothing(tmp_path):
    def wrapper(*arguments):
        command = ["bash", "launch/singlenode.sh", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True, check=False
        )  # fmt: skip

    assert "usage:" in wrapper("--help").stdout
    assert wrapper().returncode == 2
    shown = wrapper("recipes/tiny_colocate.yaml", "--dry-run", "--runs", str(tmp_path / "runs"))
    assert shown.returncode == 0
    assert "torch.distributed.run" in shown.stdout
    assert "generation_batch: 64" in shown.stdout
    assert not (tmp_path / "runs").exists()


def test_counting_ranks_finds_processes_at_all(tmp_path):
    """`processes_of` says "none left" in many tests; here there is one to find."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(tmp_path)])
    try:
        assert Counter(process.pid for process in processes_of(tmp_path)) == {child.pid: 1}
    finally:
        child.kill()
        child.wait()
