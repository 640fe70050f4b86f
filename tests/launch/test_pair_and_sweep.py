"""`pair`: the same work in two arms. `sweep`: every point checked, what has a record skipped."""

import json
import subprocess
import sys

import pytest

from launch.check import check
from launch.pair import compare
from launch.problems import RecipeError
from launch.recipe import ROOT, apply_overrides, load, read_yaml, recipe_hash, resolve
from launch.sweep import finished_runs, points, read_sweep, refused_points
from record import RunFolder

SWEEPS = sorted((ROOT / "recipes" / "sweeps").glob("*.yaml"))
BY_SIZE = {
    f"qwen{size}{era}": (f"qwen{size}_colocate{era}.yaml", f"qwen{size}_server{era}.yaml")
    for size in ("1.5b", "7b", "72b")
    for era in ("", "_paper_era")
}


def recipe(name: str, *overrides: str) -> dict:
    return load(ROOT / "recipes" / name, list(overrides))


def point_recipe(point) -> dict:
    return resolve(apply_overrides(read_yaml(point.base), list(point.overrides), point.name), point.name, point.name)


@pytest.mark.parametrize(("colocate", "server"), BY_SIZE.values(), ids=BY_SIZE)
def test_every_colocate_and_server_pair_does_the_same_work(colocate, server):
    found = compare(recipe(colocate), recipe(server))
    assert found.is_pair, found.otherwise


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("qwen1.5b_colocate.yaml", "qwen1.5b_generate.yaml"),
        ("qwen1.5b_colocate.yaml", "qwen1.5b_continuous_batching.yaml"),
        ("qwen7b_generate.yaml", "qwen7b_continuous_batching.yaml"),
        ("llama1b_generate.yaml", "llama1b_continuous_batching.yaml"),
        ("tiny_colocate.yaml", "tiny_generate.yaml"),
    ],
)
def test_the_other_arms_pair_too(a, b):
    found = compare(recipe(a), recipe(b))
    assert found.is_pair, found.otherwise


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("grpo.seed=43", "grpo.seed: 42 | 43"),
        ("grpo.learning_rate=1e-6", "grpo.learning_rate"),
        ("grpo.loss_type=grpo", "grpo.loss_type"),
        ("grpo.max_steps=3", "grpo.max_steps"),
        ("grpo.num_iterations=2", "steps_per_generation_batch"),
        ("grpo.generation_batch_size=448", "generation_batch"),
        ("grpo.num_generations=8", "prompts_per_generation"),
        ("grpo.vllm_importance_sampling_mode=token_mask", "grpo.vllm_importance_sampling_mode"),
        ("data.max_prompt_tokens=256", "data.max_prompt_tokens"),
        ("rewards.accuracy=2.0", "rewards.accuracy.weight"),
        ("model.dtype=float32", "model.dtype"),
        ("cluster.gpu=A100-80GB", "cluster.gpu"),
        ("accelerate=zero3", "accelerate"),
    ],
)
def test_what_else_differs_is_said(override, line):
    found = compare(recipe("qwen1.5b_colocate.yaml"), recipe("qwen1.5b_server.yaml", override))
    assert not found.is_pair
    assert any(entry.startswith(line) for entry in found.otherwise), found.otherwise


def test_the_same_per_device_batch_on_7_and_8_gpus_is_not_the_same_work():
    found = compare(
        recipe("qwen1.5b_colocate.yaml"),
        recipe("qwen1.5b_server.yaml", "grpo.per_device_train_batch_size=28", "grpo.generation_batch_size=196"),
    )
    assert "generation_batch: 224 | 196" in found.otherwise


def test_one_arm_is_no_pair_and_the_exit_code_says_so():
    command = [sys.executable, "-m", "launch", "pair", "recipes/tiny_colocate.yaml"]
    same = subprocess.run(
        [*command, "recipes/tiny_zero3_tp2.yaml"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    other = subprocess.run(
        [*command, "recipes/tiny_generate.yaml"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (same.returncode, other.returncode) == (1, 0)
    assert "both are colocate" in same.stdout


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_point_of_every_sweep_passes(path):
    sweep = read_sweep(path)
    found = [point_recipe(point) for point in points(sweep)]
    assert len({recipe_hash(one) for one in found}) == len(found)
    for one in found:
        assert [problem for problem in check(one) if not problem.warning] == []
    for point in refused_points(sweep):
        assert any(not problem.warning for problem in check(point_recipe(point))), f"{point.name} is no longer refused"


@pytest.mark.parametrize("name", ["exp1", "exp3", "exp11"])
def test_the_two_arms_of_a_sweep_are_pairs_point_by_point(name):
    found = [point_recipe(point) for point in points(read_sweep(ROOT / "recipes" / "sweeps" / f"{name}.yaml"))]
    half = len(found) // 2
    for a, b in zip(found[:half], found[half:], strict=True):
        assert compare(a, b).is_pair, compare(a, b).otherwise


def sweep_file(tmp_path, text: str):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    return path


def test_product_and_zip(tmp_path):
    vary = "{{grpo.seed: [1, 2], grpo.beta: [0.0, 0.1]}}"
    text = f"experiments: [C1]\ncombine: {{}}\nparts: [{{{{base: recipes/tiny_colocate.yaml, vary: {vary}}}}}]"
    product = points(read_sweep(sweep_file(tmp_path, text.format("product"))))
    zipped = points(read_sweep(sweep_file(tmp_path, text.format("zip"))))
    assert [point.overrides for point in product][:2] == [
        ("grpo.seed=1", "grpo.beta=0.0"),
        ("grpo.seed=1", "grpo.beta=0.1"),
    ]
    assert [point.overrides for point in zipped] == [("grpo.seed=1", "grpo.beta=0.0"), ("grpo.seed=2", "grpo.beta=0.1")]
    assert len(product) == 4


@pytest.mark.parametrize(
    "text",
    [
        "experiments: [C1]\nparts: []",
        "experiments: [C1]\nparts: [{base: x, vary: {}}]",
        "experiments: [C1]\nparts: [{base: x, vary: {grpo.seed: 3}}]",
        "experiments: [C1]\ncombine: zip\nparts: [{base: x, vary: {a: [1], b: [1, 2]}}]",
        "experiments: [C1]\nbase: x",
        "- 1",
    ],
)
def test_a_broken_sweep_is_refused(tmp_path, text):
    with pytest.raises(RecipeError):
        read_sweep(sweep_file(tmp_path, text))


def test_a_point_that_cannot_run_stops_the_sweep_before_its_first_run(tmp_path):
    path = sweep_file(
        tmp_path, "experiments: [C6]\nparts: [{base: recipes/tiny_colocate.yaml, vary: {grpo.seed: [0, -1]}}]"
    )
    done = subprocess.run(
        [sys.executable, "-m", "launch", "sweep", str(path), "--runs", str(tmp_path / "runs")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "grpo.seed = -1" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_only_a_finished_record_of_the_same_recipe_counts(tmp_path):
    one, other = recipe("tiny_colocate.yaml"), recipe("tiny_colocate.yaml", "grpo.seed=1")
    for name, resolved, status in (("a", one, "finished"), ("b", other, "failed")):
        path = tmp_path / "tiny_colocate" / name
        path.mkdir(parents=True)
        RunFolder(path).update(recipe_hash=recipe_hash(resolved), exit={"status": status})
    (tmp_path / "tiny_colocate" / "torn").mkdir()
    (tmp_path / "tiny_colocate" / "torn" / "manifest.json").write_text(json.dumps({"schema_version": 1})[:-4])
    assert finished_runs(tmp_path) == {recipe_hash(one): tmp_path / "tiny_colocate" / "a"}


@pytest.mark.slow
def test_a_sweep_runs_its_points_and_skips_them_the_next_time(tmp_path):
    path = sweep_file(
        tmp_path, "experiments: [C11]\nparts: [{base: recipes/llama1b_generate.yaml, vary: {grpo.seed: [1, 2]}}]"
    )
    command = [sys.executable, "-m", "launch", "sweep", str(path), "--shrink", "--runs", str(tmp_path / "runs")]
    first, second = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=400) for _ in range(2)
    )
    assert first.returncode == second.returncode == 0, first.stderr
    assert first.stdout.count("to run") == 2
    assert second.stdout.count("finished:") == 2
    manifests = sorted((tmp_path / "runs").glob("*/*/manifest.json"))
    assert len(manifests) == 2
    assert json.loads(manifests[0].read_text())["overrides"] == ["--shrink", "grpo.seed=1"]
