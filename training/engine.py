"""The one seam to TRL's and vLLM's internals. Everything here reaches behind a public interface, for the pinned versions:

    trl.trainer.grpo_trainer.VLLMGeneration    TRL builds it itself, by this name (TRL 1.16.0)
    trl.generation.vllm_generation.LLM         it builds the engine by this name, with arguments that no option reaches
    VLLMGeneration.sync_weights                writes parameter by parameter, which vLLM's CPU backend cannot take
    VLLMGeneration._iter_named_params          what it writes; with LoRA it would make the whole model whole (training/lora.py)
    trl.generation.vllm_generation.VLLMClient  TRL's end of the server arm, by this name (ours: training/server_client.py)
    llm_engine...model_runner                  the engine's model, for the sync on a CPU and to read the weights
    _CPUSHMDistributed.make_group_name         the shared memory of a TP group without a GPU (vLLM 0.31.0)
    llm_engine.output_processor, extract_logprobs    what becomes of the engine's outputs (training/outputs.py)

tests/training/test_engine.py fails when a new version moves any of them.
"""

import os
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
import trl.generation.vllm_generation as trl_generation
import trl.trainer.grpo_trainer as trl_trainer
from accelerate.utils import is_peft_model
from trl.generation.vllm_generation import VLLMGeneration

from training import outputs
from training.gloo_transfer import repack_heads
from training.lora import merged_parameters
from training.phases import PhaseClock
from training.server_client import CLIENTS

EXTRACT_LOGPROBS = trl_generation.extract_logprobs


def model_runner(llm):
    """The worker's model runner of an in-process engine (vLLM's external launcher)."""
    return llm.llm_engine.model_executor.driver_worker.model_runner


def install(
    clock: PhaseClock,
    seed: int,
    dtype: str,
    weight_transfer: str | None = None,
    outputs_when_finished: bool = False,
    engine_arguments: dict | None = None,
) -> None:
    """Makes TRL build our engine instead of its own, for the next GRPOTrainer of this process.

    Args:
        clock: times the phases sync, wake and sleep.
        seed: the run's seed. TRL seeds the engine with the index of its TP group alone, so that two runs with different
            seeds sample with the same one (TRL 7040). Here it is `seed * 1,000,003 + index`: equal inside a TP group,
            which must sample the same tokens (vLLM 15895), and different between groups and between runs.
        dtype: what the engine computes in. vLLM would take what the checkpoint is stored in, which need not be what the
            trainer computes in; the two would then sample from and train slightly different policies.
        weight_transfer: in the server arm, nccl or gloo.
        outputs_when_finished: process each completion once, when it has ended (training/outputs.py).
        engine_arguments: more arguments for vllm.LLM, over TRL's.
    """
    base = trl_generation.LLM if not hasattr(trl_generation.LLM, "trl_base") else trl_generation.LLM.trl_base

    class TimedLLM(base):
        trl_base = base

        def __init__(self, **kwargs):
            kwargs["seed"] = (seed * 1_000_003 + kwargs["seed"]) % 2**31
            super().__init__(**(kwargs | {"dtype": dtype} | (engine_arguments or {})))
            if outputs_when_finished:
                outputs.process_when_finished(self.llm_engine.output_processor)

        def generate(self, prompts, sampling_params=None, **kwargs):
            if outputs_when_finished:
                outputs.only_tokens(sampling_params)
            return super().generate(prompts, sampling_params, **kwargs)

        def wake_up(self, *args, **kwargs):
            with clock("wake"):
                return super().wake_up(*args, **kwargs)

        def sleep(self, *args, **kwargs):
            with clock("sleep"):
                return super().sleep(*args, **kwargs)

    class Engine(VLLMGeneration):
        def _init_vllm(self):
            on_cpu = self.mode == "colocate" and self.accelerator.device.type == "cpu"
            with _private_shared_memory() if on_cpu else nullcontext():
                super()._init_vllm()

        def _iter_named_params(self):
            if is_peft_model(self.model):
                yield from merged_parameters(self.model, self._dist.gather_params)
            else:
                yield from super()._iter_named_params()

        def sync_weights(self):
            with clock("sync"):
                if self.mode == "colocate" and self.accelerator.device.type == "cpu":
                    _reload_on_cpu(self)
                else:
                    super().sync_weights()

    if weight_transfer:
        trl_generation.VLLMClient = CLIENTS[weight_transfer]
    trl_generation.LLM = TimedLLM
    trl_generation.extract_logprobs = outputs.extract_logprobs if outputs_when_finished else EXTRACT_LOGPROBS
    trl_trainer.VLLMGeneration = Engine


@contextmanager
def _private_shared_memory():
    """Gives the shared memory of CPU tensor parallelism a name of this run and host, and unlinks it once it is mapped.

    vLLM's own name is the same for every run of a machine, and stays in /dev/shm when a rank is killed: the next run then
    cannot start ("create shm in SHMManager failed"). Across hosts the names now differ, and vLLM falls back to gloo.
    """
    from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

    original = _CPUSHMDistributed.make_group_name
    # hosts may share a name, and containers of one host a kernel: this boot's id, and which /dev/shm it is
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    prefix = f"{boot}-{os.stat('/dev/shm').st_dev}-{os.environ['MASTER_PORT']}"
    _CPUSHMDistributed.make_group_name = staticmethod(
        lambda communicator: prefix + original(communicator).replace("/", "")
    )
    try:
        yield
    finally:
        _CPUSHMDistributed.make_group_name = staticmethod(original)
        for path in Path("/dev/shm").glob(f"{prefix}-*-cpushm_*"):
            path.unlink(missing_ok=True)


def _reload_on_cpu(engine: VLLMGeneration) -> None:
    """Weight sync for vLLM's CPU backend, which repacks weights after loading so that they cannot be written in place.

    `reload_weights` is vLLM's own way back through its loader. It keeps parameters until a layer has all of its own, and
    ZeRO-3 takes a gathered parameter back as soon as the next one is asked for: hence the clones.

    A head tied to the embedding needs one thing more (training/gloo_transfer.py, repack_heads).
    """
    runner = model_runner(engine.llm)
    with torch.no_grad():
        runner.reload_weights(weights_iterator=((name, weight.clone()) for name, weight in engine._iter_named_params()))
        repack_heads(runner.get_model())
    engine.llm.reset_prefix_cache()
