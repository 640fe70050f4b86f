"""Runs that are stopped or killed and taken up again, beside unbroken ones of the same recipe."""

import json
import signal
from itertools import pairwise

import pytest

from analysis.frames import frames
from analysis.summary import summarize
from launch.recipe import ROOT
from record import read_lines
from record.checkpoints import checkpoints, faults
from tests.real_runs import CASES, SHORT, Outcome, launch, processes_of

pytestmark = pytest.mark.slow

SIGNAL = str(ROOT / "tests" / "training" / "signal_at")
EQUAL = ("prompts_sha256", "reward", "loss", "grad_norm", "learning_rate", "tokens", "completion_tokens")

# A generation batch of 4 prompts feeds 4 steps, and 8 problems are an epoch of 8 steps: steps 5 and 11 lie within a generation
# batch, 11 within the second epoch.
STEPS = 13
MANY_STEPS_A_GENERATION = (
    f"grpo.max_steps={STEPS}", "grpo.per_device_train_batch_size=8", "grpo.max_completion_length=24",
    "grpo.num_iterations=2", "grpo.steps_per_generation=2", "grpo.generation_batch_size=32",
    "grpo.lr_scheduler_type=cosine", "grpo.save_strategy=steps", "grpo.save_steps=5", "grpo.save_total_limit=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def eight_problems(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("data")
    for split in ("train", "test"):
        lines = (ROOT / "tiny" / "data" / f"{split}.jsonl").read_text().splitlines(keepends=True)
        (folder / f"{split}.jsonl").write_text("".join(lines[:8]))
    return f"data.path={folder}"


@pytest.fixture(scope="module")
def unbroken(eight_problems, tmp_path_factory) -> Outcome:
    overrides = [*MANY_STEPS_A_GENERATION, eight_problems]
    return launch("recipes/tiny_generate.yaml", tmp_path_factory.mktemp("unbroken"), overrides)


@pytest.fixture(scope="module")
def attempts(eight_problems, tmp_path_factory) -> list[Outcome]:
    """One run in three attempts: killed while it saves checkpoint-10, stopped in step 11, let go."""
    runs, overrides = tmp_path_factory.mktemp("resumed"), [*MANY_STEPS_A_GENERATION, eight_problems]
    return [
        launch("recipes/tiny_generate.yaml", runs, overrides, PYTHONPATH=SIGNAL, SIGNAL_AT=moment)
        for moment in ("sealing 10 SIGKILL", "training 11 SIGUSR1", "")
    ]


def test_a_stop_ends_after_the_step_with_a_checkpoint_and_its_own_exit_code(attempts):
    stopped = attempts[1]
    assert stopped.code == 75, stopped.output
    assert "SIGUSR1: ends after this step, with a checkpoint; again to stop now" in stopped.output
    assert "stopped by SIGUSR1 after step 11; the same command resumes" in stopped.output


def test_a_kill_while_saving_leaves_the_last_whole_checkpoint(attempts):
    assert attempts[0].code == -signal.SIGKILL
    resumed = attempts[1].output
    assert "checkpoint-10 is not whole (no whole.json: it was cut short): set aside as broken-checkpoint-10" in resumed
    assert "from step 5 " in resumed
    assert (attempts[-1].folder / "broken-checkpoint-10").is_dir()


def test_the_resumed_run_is_the_unbroken_one_to_the_last_bit(unbroken, attempts):
    assert unbroken.code == 0, unbroken.output
    assert attempts[-1].code == 0, attempts[-1].output
    assert len(list(attempts[-1].runs.glob("*/*/manifest.json"))) == 1, "one run"
    mine, theirs = attempts[-1].run, unbroken.run
    assert [row["step"] for row in theirs.train_steps()] == list(range(1, STEPS + 1))
    for name in EQUAL:
        assert [row.get(name) for row in mine.train_steps()] == [row.get(name) for row in theirs.train_steps()], name
    prompts = [row["prompts_sha256"] for row in theirs.train_steps()]
    changes = [step for step, (before, after) in enumerate(pairwise(prompts), start=1) if before != after]
    assert changes == [4, 8, 12], "a generation batch feeds four steps; a test without that would show less"
    assert len(set(prompts)) == 4, "the second epoch's order is another than the first's"
    held_out = [(row["step"], row["reward"]) for row in mine.evaluations()]
    assert held_out == [(row["step"], row["reward"]) for row in theirs.evaluations()]
    assert [step for step, _ in held_out] == [0, STEPS]


def test_the_record_goes_on_and_keeps_what_was_lost_apart(attempts):
    run = attempts[-1].run
    assert run.torn_lines == 0
    told = [(item["from_step"], item["checkpoint"], item["exit"]["status"]) for item in run.manifest["attempts"]]
    assert told == [
        (0, None, "failed"),
        (5, "checkpoint-5", "interrupted"),
        (11, "checkpoint-11", "finished"),
    ]
    assert "ended without a word" in run.manifest["attempts"][0]["exit"]["cause"]
    assert run.manifest["exit"] == {"status": "finished", "cause": None}
    lost, torn = read_lines(run.path / "attempts" / "1" / "metrics.jsonl")
    assert [row["step"] for row in lost] == [6, 7, 8, 9, 10]
    assert torn == 0
    for rank, intervals in run.phases.items():
        for earlier, later in pairwise(intervals):
            assert later["start_unix_seconds"] >= earlier["start_unix_seconds"] + earlier["seconds"] - 1e-4, rank
        again = [row for row in intervals if row["step"] == 7 and row["phase"] == "optimizer"]
        assert len(again) == 1, "a step that was done twice is counted once"
    tables = frames(run)
    assert tables.steps.loc[tables.steps["first"], "step"].tolist() == [1, 6, 12]
    assert summarize(run)["steps"] == STEPS
    assert sum(summarize(run)["phase_shares"].values()) == pytest.approx(1.0)
    assert len(list((run.path / "attempts").glob("*/logs/torchrun.log"))) == 2
    assert processes_of(attempts[-1].runs) == []


def test_wandb_goes_on_in_the_same_run(attempts):
    folders = [path.name for path in (attempts[-1].folder / "wandb").glob("offline-run-*")]
    assert len(folders) == 3
    assert {name.rpartition("-")[2] for name in folders} == {attempts[-1].run.manifest["wandb_id"]}


def test_a_checkpoint_is_sealed_with_every_file_and_the_limit_holds(attempts):
    left = checkpoints(attempts[-1].folder)
    assert [path.name for path in left] == [f"checkpoint-{STEPS}"]
    assert faults(left[0]) == []
    sealed = json.loads((left[0] / "whole.json").read_text())["files"]
    there = {str(path.relative_to(left[0])) for path in left[0].rglob("*") if path.is_file()}
    assert set(sealed) == there - {"whole.json"}
    assert {"model.safetensors", "optimizer.pt", "rng_state_1.pth", "grpo_state_1.pt"} <= set(sealed)


def test_a_run_whose_last_step_is_saved_only_evaluates_what_it_has(attempts):
    """As after a kill in the last evaluation: the record says running, and checkpoint-13 is there."""
    folder, manifest = attempts[-1].folder, attempts[-1].folder / "manifest.json"
    content = json.loads(manifest.read_text())
    content["exit"] = content["attempts"][-1]["exit"] = {"status": "running", "cause": None}
    manifest.write_text(json.dumps(content))
    before = attempts[-1].run.evaluations()
    overrides = [*MANY_STEPS_A_GENERATION, f"data.path={content['recipe']['data']['path']}"]
    again = launch(
        "recipes/tiny_generate.yaml", attempts[-1].runs, overrides, PYTHONPATH=SIGNAL, SIGNAL_AT="leaving 0 SIGTERM",
        TORCH_ELASTIC_SHUTDOWN_TIMEOUT="2",
    )  # fmt: skip
    assert again.code == 0, again.output  # and it did not wait for a rank that hangs when all is done
    assert "the run is over, and its ranks have not left within 20 s" in again.output
    assert processes_of(again.runs) == []
    assert again.folder == folder
    assert f"from step {STEPS} " in again.output
    after = again.run.evaluations()
    assert [row["step"] for row in after] == [0, STEPS]
    assert [row["reward"] for row in after] == [row["reward"] for row in before]
    assert after[-1]["unix_seconds"] > before[-1]["unix_seconds"], "it was sampled again"


@pytest.mark.parametrize("case", ["ZeRO-3, TP 2", "LoRA, ZeRO-3, TP 2", "server"])
def test_each_kind_of_engine_comes_back(outcomes, tmp_path, case):
    recipe, overrides = CASES[case]
    overrides = [*SHORT, *overrides]
    stopped = launch(recipe, tmp_path, overrides, PYTHONPATH=SIGNAL, SIGNAL_AT="training 2 SIGTERM")
    assert stopped.code == 75, stopped.output
    assert processes_of(tmp_path) == []
    resumed = launch(recipe, tmp_path, overrides)
    assert resumed.code == 0, resumed.output
    assert "from step 2 " in resumed.output
    mine, theirs = resumed.run, outcomes(case).run
    assert [(row["split"], row["step"]) for row in mine.metrics] == [
        (row["split"], row["step"]) for row in theirs.metrics
    ]
    names = EQUAL if case != "server" else ("prompts_sha256", "learning_rate")  # a new server draws other numbers
    for row, expected in zip(mine.metrics, theirs.metrics, strict=True):
        assert {name: row.get(name) for name in names} == {name: expected.get(name) for name in names}
        assert row["sampling/sampling_logp_difference/max"] < 1e-3, "the engine has the checkpoint's weights"
