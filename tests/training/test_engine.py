"""The seam to TRL and vLLM: fails when a new version moves what training/engine.py reaches for."""

import inspect

import pytest
import trl.generation.vllm_generation as trl_generation
import trl.trainer.grpo_trainer as trl_trainer
from vllm import LLM
from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from training import engine
from training.phases import PhaseClock


@pytest.fixture
def installed(monkeypatch):
    """`install` with TRL's own names put back afterwards."""
    monkeypatch.setattr(trl_generation, "LLM", trl_generation.LLM)
    monkeypatch.setattr(trl_trainer, "VLLMGeneration", trl_trainer.VLLMGeneration)
    return lambda seed=0: engine.install(PhaseClock(None), seed, "float32")


def test_trl_builds_its_engine_by_the_names_that_are_replaced(installed):
    assert "self.vllm_generation = VLLMGeneration(" in inspect.getsource(trl_trainer.GRPOTrainer.__init__)
    assert "self.llm = LLM(" in inspect.getsource(trl_generation.VLLMGeneration._init_vllm)
    original = trl_trainer.VLLMGeneration
    installed()
    assert trl_trainer.VLLMGeneration is not original
    assert issubclass(trl_trainer.VLLMGeneration, original)
    assert issubclass(trl_generation.LLM, LLM)


def test_installing_again_replaces_and_does_not_stack(installed):
    installed()
    first = trl_generation.LLM
    installed()
    assert trl_generation.LLM.__mro__[1] is first.__mro__[1] is LLM


def test_trl_still_gives_the_engine_the_arguments_that_are_changed():
    source = inspect.getsource(trl_generation.VLLMGeneration._init_vllm)
    assert "seed=accelerator.process_index // self.tensor_parallel_size" in source
    assert "dtype" in inspect.signature(LLM.__init__).parameters
    for name in ("wake_up", "sleep", "reset_prefix_cache", "generate"):
        assert callable(getattr(LLM, name))


def test_the_weight_sync_finds_what_it_calls():
    assert "weights_iterator" in inspect.signature(GPUModelRunner.reload_weights).parameters
    assert inspect.isgeneratorfunction(trl_generation.VLLMGeneration._iter_named_params)
    assert "model_executor.driver_worker.model_runner" in inspect.getsource(trl_generation.VLLMGeneration.sync_weights)
    assert callable(UnquantizedEmbeddingMethod.process_weights_after_loading)
    assert issubclass(ParallelLMHead, VocabParallelEmbedding)
    assert list(inspect.signature(_CPUSHMDistributed.make_group_name).parameters) == ["communicator"]


def test_engine_seeds_differ_between_groups_and_between_runs(installed, monkeypatch):
    """Captured where vllm.LLM would take them; equal inside a TP group, because TRL passes the group's index."""
    seen = []
    monkeypatch.setattr(LLM, "__init__", lambda self, **kwargs: seen.append(kwargs))
    for run_seed in (0, 1, 2, 2**31 - 1):
        installed(run_seed)
        for group in range(64):
            trl_generation.LLM(seed=group)
    assert len({arguments["seed"] for arguments in seen}) == len(seen) == 4 * 64
    assert all(0 <= arguments["seed"] < 2**31 for arguments in seen)
    assert {arguments["dtype"] for arguments in seen} == {"float32"}
