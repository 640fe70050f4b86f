"""LoRA: the weights that the engine samples from are the trainer's, and the trainer's stay as they are."""

import importlib.util
import json
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from peft import get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.generation.vllm_generation import VLLMGeneration

from launch.machine import startable
from launch.recipe import ROOT, load
from launch.shapes import LINEARS, adapter_parameters
from record import read_lines
from training.lora import adapter_config, merged_parameters

BASE = "tiny/checkpoint"
ALL = {"r": 8, "lora_alpha": 16.0, "target_modules": "all-linear"}
SOME = {"r": 4, "lora_alpha": 2.0, "target_modules": ["q_proj", "down_proj"]}


def adapted(lora: dict, dtype: torch.dtype):
    """The tiny model with adapters that change what it says; peft makes them so that they do nothing."""
    torch.manual_seed(0)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(BASE, dtype=dtype), adapter_config(lora))
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return model


@contextmanager
def whole(parameters):
    """For weights that are not sharded."""
    yield


def copies(model) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("lora", [ALL, SOME], ids=["all", "some"])
def test_the_engine_gets_every_weight_of_the_model_with_the_adapters_in_it(lora):
    model = adapted(lora, torch.float32)
    merged = {name: tensor.clone() for name, tensor in merged_parameters(model, whole)}
    expected = model.merge_and_unload()
    assert merged.keys() == dict(expected.named_parameters()).keys()
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(merged[name], parameter.data, rtol=1e-5, atol=1e-6)


def test_a_sync_leaves_the_frozen_weights_alone_and_trls_own_moves_them():
    model = adapted(ALL, torch.bfloat16)
    before = copies(model)
    list(merged_parameters(model, whole))
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())

    class Engine:
        """What TRL's method reads of its own class."""

        _fix_param_name_to_vllm = VLLMGeneration._fix_param_name_to_vllm

        _dist = SimpleNamespace(gather_params=whole, is_fsdp=False)

    engine = Engine()
    engine.model = model
    list(VLLMGeneration._iter_named_params(engine))
    moved = [name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])]
    assert moved, "TRL merges without a trace now: training/lora.py may not be needed any more"


def test_one_matrix_is_gathered_at_a_time_with_its_adapters():
    model, together = adapted(ALL, torch.float32), []

    @contextmanager
    def gather(parameters):
        together.append(len(parameters))
        yield

    names = [name for name, _ in merged_parameters(model, gather)]
    assert len(together) == len(names)
    assert set(together) == {1, 3}
    assert together.count(3) == len(LINEARS) * model.config.num_hidden_layers


@pytest.mark.parametrize("lora", [ALL, SOME], ids=["all", "some"])
def test_the_planner_counts_the_adapters_that_peft_makes(lora):
    made = sum(parameter.numel() for parameter in adapted(lora, torch.float32).parameters() if parameter.requires_grad)
    assert adapter_parameters(json.loads((ROOT / BASE / "config.json").read_text()), lora) == made


def test_without_peft_recipes_with_adapters_are_refused_and_others_start(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "peft" else found(name, *more))
    (problem,) = startable(load(ROOT / "recipes/tiny_lora.yaml"))
    assert problem.field == "lora" and "peft is not installed" in problem.rule
    assert list(startable(load(ROOT / "recipes/tiny_colocate.yaml"))) == []
    block = "import sys; sys.modules['peft'] = None; import training.lora"
    subprocess.run([sys.executable, "-c", block], cwd=ROOT, check=True)


@pytest.mark.slow
def test_a_run_trains_the_adapters_alone_and_saves_them_alone(outcomes):
    outcome = outcomes("LoRA, ZeRO-3, TP 2")
    assert outcome.code == 0, outcome.output
    checkpoint = outcome.folder / "checkpoint-3"
    config = json.loads((checkpoint / "adapter_config.json").read_text())
    stated = load(ROOT / "recipes/tiny_lora.yaml")["lora"]
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (stated["r"], stated["lora_alpha"], 0.0)
    assert config["base_model_name_or_path"] == load(ROOT / "recipes/tiny_lora.yaml")["model"]["path"]
    assert not (checkpoint / "model.safetensors").exists()
    for row in outcome.run.train_steps():
        assert row["sentinel/level"] < 1e-5, "the engine has the adapters"


@pytest.mark.slow
def test_adapters_are_evaluated_as_the_weights_that_they_stand_for(tmp_path):
    model = adapted(ALL, torch.float32)
    model.save_pretrained(tmp_path / "adapters")
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    AutoTokenizer.from_pretrained(BASE).save_pretrained(tmp_path / "merged")
    said = {}
    for name, path in {"adapters": tmp_path / "adapters", "merged": tmp_path / "merged", "base": BASE}.items():
        asked = [
            "--bench",
            "heldout",
            "--recipe",
            "recipes/tiny_colocate.yaml",
            "--problems",
            "8",
            "--temperature",
            "0",
        ]
        command = [sys.executable, "-m", "training.evaluate", str(path), *asked, "--out", str(tmp_path / f"out-{name}")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        rows, _ = read_lines(tmp_path / f"out-{name}" / "completions.jsonl")
        said[name] = [row["completion"] for row in rows]
    assert said["adapters"] == said["merged"] != said["base"]
