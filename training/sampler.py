"""Completions from vLLM's own engine, without a trainer: what an evaluation samples with."""

import hashlib
import importlib.util
import os
from collections.abc import Iterator

import torch


def prepare_environment(threads: int) -> None:
    """Sets what vLLM reads from the environment, before it is imported. What the person has set is left alone."""
    table = {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: Ctrl-C ends it, and nothing is left behind
    }
    if not torch.cuda.is_available():
        table |= {
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other work on the machine may hold the cores that vLLM would bind to
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; vLLM would take half of the memory
        }
    elif importlib.util.find_spec("flashinfer") is None:
        table["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    for name, value in table.items():
        os.environ.setdefault(name, value)


def engine_arguments(engine: dict) -> dict:
    """vllm.LLM's arguments on this machine.

    Without a GPU a prompt must be read in one piece: after a part of one, vLLM 0.31.0 winds a seeded request's generator back
    (gpu_model_runner.py), and torch's CPU generator cannot be wound. Compiling, too, only costs there.
    """
    if torch.cuda.is_available():
        return engine
    whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(4096, engine["max_model_len"])}
    return engine | whole | {"enforce_eager": True}


def problem_seed(seed: int, index: int) -> int:
    """The seed of a problem's first sample; vLLM counts up from it for the others. Far apart from problem to problem, so that
    no two problems draw the same random numbers, and the same whatever else is sampled with it: a resumed evaluation draws
    what an uninterrupted one would have."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{index}".encode()).digest()[:4]) % 2**31


class Sampler:
    """One engine and how it samples.

    Args:
        engine: vllm.LLM's arguments.
        sampling: samples, temperature, top_p, top_k, min_p, repetition_penalty, max_completion_tokens, seed.
        adapter: LoRA adapters, with their `path` and rank `r`; None for none.
    """

    def __init__(self, engine: dict, sampling: dict, adapter: dict | None = None):
        from vllm import LLM
        from vllm.lora.request import LoRARequest

        if adapter:  # vLLM has room for ranks of 8, 16, 32 and so on
            engine = engine | {"enable_lora": True, "max_lora_rank": max(8, 1 << (adapter["r"] - 1).bit_length())}
        self._llm = LLM(**engine_arguments(engine))
        self._adapter = LoRARequest("adapter", 1, adapter["path"]) if adapter else None
        self._sampling = sampling

    def _parameters(self, index: int):
        from vllm import SamplingParams

        sampling = self._sampling
        return SamplingParams(
            n=sampling["samples"],
            seed=problem_seed(sampling["seed"], index),
            max_tokens=sampling["max_completion_tokens"],
            **{key: sampling[key] for key in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")},
        )

    def __call__(self, prompts: dict[int, list[int]], progress: bool) -> Iterator[tuple[int, list[dict]]]:
        """Samples for each prompt (problem's index -> token ids): text, tokens, and whether the limit cut them off."""
        outputs = self._llm.generate(
            [{"prompt_token_ids": ids} for ids in prompts.values()],
            [self._parameters(index) for index in prompts],
            use_tqdm=progress,
            lora_request=self._adapter,
        )
        for index, output in zip(prompts, outputs, strict=True):
            yield (
                index,
                [
                    {
                        "completion": sample.text,
                        "tokens": len(sample.token_ids),
                        "truncated": sample.finish_reason == "length",
                    }
                    for sample in output.outputs
                ],
            )
