"""What each recipe promises: its labels, TRL's effective arguments, the table, and two steps at this machine's size."""

import json
import os
import subprocess
import sys

import pytest

from launch.derived import derive
from launch.recipe import ROOT, load, read_yaml, resolve
from launch.shrink import shrink
from launch.table import README, table
from tests.recipes.snapshot import FOLDER, RECIPES, moved, snapshot_path

OF_THE_PAPER = [path for path in RECIPES if not path.name.startswith("tiny_")]
ids = lambda path: path.name.removesuffix(".yaml")  # noqa: E731


def test_the_recipes_of_the_paper_are_there():
    names = {ids(path) for path in RECIPES}
    for size in ("1.5b", "7b"):
        assert {f"qwen{size}_{arm}" for arm in ("colocate", "server", "continuous_batching", "generate")} <= names
    assert {"qwen72b_colocate", "qwen72b_server", "llama1b_continuous_batching", "llama1b_generate"} <= names
    assert {path.stem for path in (ROOT / "recipes" / "sweeps").glob("*.yaml")} == {
        "exp1",
        "exp2",
        "exp3",
        "exp4",
        "exp11",
    }


@pytest.mark.parametrize("path", RECIPES, ids=ids)
def test_nothing_that_trl_resolves_has_moved(path):
    assert moved(path) == [], "look at each; if it is meant: python -m tests.recipes.snapshot --write, and CHANGELOG.md"


def test_no_snapshot_is_left_over():
    assert {path.name for path in FOLDER.glob("*.json")} == {snapshot_path(path).name for path in RECIPES}


def test_the_snapshots_know_the_recipes_number_of_ranks():
    effective = json.loads(snapshot_path(ROOT / "recipes" / "qwen72b_colocate.yaml").read_text())
    assert (effective["generation_batch_size"], effective["steps_per_generation"]) == (32 * 7, 1)


def test_the_table_is_what_the_recipes_say():
    assert README.read_text() == table(), "python -m launch table --write"


def test_published_values_are_those_that_were_published():
    """A label is a claim about the world; these are the facts that may carry it."""
    facts = {
        "grpo.gradient_accumulation_steps": (1,), "grpo.learning_rate": (3e-6,), "grpo.vllm_max_model_length": (2048,),
        "grpo.bf16": (True,), "grpo.gradient_checkpointing": (True,), "grpo.vllm_enable_sleep_mode": (True,),
        "grpo.gradient_checkpointing_kwargs": ({"use_reentrant": False},), "grpo.vllm_gpu_memory_utilization": (0.3, 0.25),
        "grpo.vllm_tensor_parallel_size": (1, 16), "grpo.per_device_train_batch_size": (32,),
        "grpo.transformers_continuous_batching_config": ({"max_memory_percent": 0.4, "use_cuda_graph": False},),
    }  # fmt: skip
    for path in OF_THE_PAPER:
        recipe = load(path)
        for key, label in recipe["sources"].items():
            section, _, name = key.partition(".")
            if label.startswith("published") and section == "grpo":
                assert recipe["grpo"][name] in facts[key], f"{path.name}: {key}"


@pytest.mark.parametrize("path", [path for path in RECIPES if "paper_era" in path.name], ids=ids)
def test_paper_era_differs_from_todays_in_the_algorithm_and_the_speed_alone(path):
    era, today = read_yaml(path), read_yaml(path.with_name(path.name.replace("_paper_era", "")))
    differs = {
        f"{section}.{key}"
        for section in era
        if section not in ("sources", "tracking", "accelerate")
        for key in era[section].keys() | today[section].keys()
        if era[section].get(key) != today[section].get(key)
    }
    assert differs <= {
        "model.attn_implementation",
        "grpo.loss_type",
        "grpo.beta",
        "grpo.vllm_importance_sampling_correction",
        "recipe.version",
        "grpo.use_liger_kernel",
        "grpo.gradient_checkpointing",
        "grpo.gradient_checkpointing_kwargs",
        "grpo.per_device_train_batch_size",
        "grpo.gradient_accumulation_steps",
    }
    assert derive(resolve(era, "era", "era"))["optimizer_batch"] == derive(resolve(today, "t", "t"))["optimizer_batch"]
    assert (era["grpo"]["loss_type"], era["grpo"]["beta"]) == ("bnpo", 0.04)


@pytest.mark.parametrize("path", RECIPES, ids=ids)
def test_a_shrunk_recipe_keeps_its_architecture(path):
    recipe = load(path)
    content, lost = shrink(read_yaml(path), path.name)
    config = json.loads((ROOT / content["model"]["path"] / "config.json").read_text())
    expected = {"qwen": "qwen2", "llama": "llama", "tiny_": "qwen2"}
    assert config["model_type"] == next(kind for start, kind in expected.items() if path.name.startswith(start))
    assert config["tie_word_embeddings"] == (not path.name.startswith(("qwen7b", "qwen72b")))
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert content["recipe"] == read_yaml(path)["recipe"]
    for key in ("loss_type", "beta", "num_generations", "optim", "learning_rate", "lr_scheduler_type", "seed"):
        assert content["grpo"][key] == recipe["grpo"][key]
    assert any("sleep" in line for line in lost) == bool(recipe["grpo"].get("vllm_enable_sleep_mode"))


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    """A shrunk recipe's run of two steps: its process and its folder. Recipes that shrink to the same share one run."""
    done = {}

    def run(path):
        small, _ = shrink(read_yaml(path), path.name)
        labels = {"sources": None, "tracking": None, "recipe": small["recipe"]["arm"]}
        key = json.dumps(small | labels, sort_keys=True)
        if key not in done:
            runs = tmp_path_factory.mktemp("runs")
            command = [sys.executable, "-m", "launch", "run", f"recipes/{path.name}", "--shrink"]
            command += ["--set", "grpo.max_steps=2", "--runs", str(runs)]
            process = subprocess.run(
                command, cwd=ROOT, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=False,
                timeout=600,
            )  # fmt: skip
            done[key] = process, runs
        return done[key]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("path", OF_THE_PAPER, ids=ids)
def test_a_shrunk_recipe_runs_two_steps(path, two_steps):
    done, runs = two_steps(path)
    assert done.returncode == 0, done.stderr[-3000:]
    (manifest_path,) = runs.glob("*/*/manifest.json")
    manifest = json.loads(manifest_path.read_text())
    assert manifest["exit"]["status"] == "finished"
    assert manifest["overrides"] == ["--shrink", "grpo.max_steps=2"]
    assert manifest["recipe"]["recipe"]["arm"] == load(path)["recipe"]["arm"]
    steps = [json.loads(line) for line in (manifest_path.parent / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps if step["split"] == "train"] == [1, 2]
    assert all(step["tokens"] > 0 for step in steps if step["split"] == "train")
    assert ("sleep_mode: dropped" in done.stderr) == path.name.startswith(("qwen72b_colocate", "qwen72b_lora"))
