"""`python -m launch advise`: for a cluster, the arms and settings that fit a recipe's batch, the fastest first.

The batch is the recipe's: what is sampled from one policy and what a step sees stay as they are. The times are
launch/roofline.py's, with its errors: within them, two rows are the same.
"""

import copy
import re
from collections.abc import Iterator
from typing import NamedTuple

from launch.clusters import GPUS
from launch.derived import derive, divisors
from launch.memory import GIB
from launch.plan import FITS, TOO_LARGE, Plan, auto_utilization, plan, sound
from launch.problems import Problem, RecipeError
from launch.recipe import deepspeed_config

ACCELERATES = ("ddp", "zero2", "zero3", "zero3_offload")
OF_VLLM = {
    "vllm_gpu_memory_utilization": 0.3, "vllm_tensor_parallel_size": 1, "vllm_enable_sleep_mode": False,
    "vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "sequence_mask",
}  # fmt: skip


class Row(NamedTuple):
    recipe: dict
    plan: Plan


def cluster_of(text: str) -> tuple[int, str]:
    """`8xH100-80GB` as a count and a kind.

    Raises:
        RecipeError: it does not have that form, or the kind is not known.
    """
    found = re.fullmatch(r"(\d+)\s*x\s*(\S+)", text)
    if not found or found[2] not in GPUS or not int(found[1]):
        problem = Problem("--gpus", text, "must be COUNTxKIND", f"such as 8xH100-80GB; kinds: {', '.join(GPUS)}")
        raise RecipeError("--gpus", [problem])
    return int(found[1]), found[2]


def placed(recipe: dict, count: int, gpu: str) -> dict:
    """A copy of a resolved recipe on `count` GPUs in nodes of 8 (fewer where fewer are there), one engine or rank a GPU."""
    other = copy.deepcopy(recipe)
    per_node = max(size for size in divisors(count) if size <= 8)
    other["cluster"].update(nodes=count // per_node, gpus_per_node=per_node, gpu=gpu, server=None)
    return other


def candidates(recipe: dict, count: int, gpu: str) -> Iterator[dict]:
    """Every arm, sharding, split of the batch, TP and sleep setting that keeps the recipe's batches on `count` GPUs."""
    batch, optimizer_batch = derive(recipe)["generation_batch"], derive(recipe)["optimizer_batch"]
    for arm in ("colocate", "server", "generate", "continuous_batching"):
        for size in (1, 2, 4, 8) if arm in ("colocate", "server") else (1,):
            base = placed(recipe, count, gpu)
            base["recipe"]["arm"] = arm
            grpo = base["grpo"]
            for name, value in OF_VLLM.items():
                grpo.setdefault(name, value)
            grpo.setdefault("vllm_max_model_length", derive(recipe)["max_sequence_tokens"])
            if arm == "server":
                if count > 8 or count <= size:  # one node; on several, a server on nodes of its own
                    continue
                base["cluster"]["gpus_per_node"] = count - size
                base["cluster"]["server"] = {"nodes": 1, "gpus_per_node": size, "on_training_node": True,
                                             "tensor_parallel_size": size, "data_parallel_size": 1,
                                             "gpu_memory_utilization": 0.9}  # fmt: skip
            elif arm == "colocate":
                grpo["vllm_tensor_parallel_size"] = size
            ranks = base["cluster"]["nodes"] * base["cluster"]["gpus_per_node"]
            if optimizer_batch % ranks:
                continue
            for accelerate in ACCELERATES:
                for per_device in divisors(optimizer_batch // ranks):
                    for sleep in (False, True) if arm == "colocate" else (False,):
                        other = copy.deepcopy(base)
                        other["accelerate"], other["deepspeed"] = accelerate, deepspeed_config(accelerate)
                        other["grpo"].pop("steps_per_generation", None)
                        other["grpo"].update(
                            per_device_train_batch_size=per_device, generation_batch_size=batch,
                            gradient_accumulation_steps=optimizer_batch // ranks // per_device, vllm_enable_sleep_mode=sleep,
                        )  # fmt: skip
                        yield other


def advise(recipe: dict, count: int, gpu: str) -> list[Row]:
    """What fits, the fastest first; for each arm, TP, sharding and sleep setting the largest per-device batch that fits."""
    best: dict[tuple, Row] = {}
    for other in candidates(recipe, count, gpu):
        key = _key(other)
        if (
            key in best
            and best[key].recipe["grpo"]["per_device_train_batch_size"] > other["grpo"]["per_device_train_batch_size"]
        ):
            continue
        if not sound(other):
            continue
        if other["recipe"]["arm"] == "colocate":
            try:
                auto_utilization(other)
            except ValueError:
                continue
        result = plan(other)
        if result and result.verdict != TOO_LARGE:
            best[key] = Row(other, result)
    order = {FITS: 0}
    return sorted(best.values(), key=lambda row: (order.get(row.plan.verdict, 1), row.plan.seconds["step"]))


def _key(recipe: dict) -> tuple:
    grpo, server = recipe["grpo"], recipe["cluster"]["server"]
    size = server["tensor_parallel_size"] if server else grpo["vllm_tensor_parallel_size"]
    return recipe["recipe"]["arm"], size, recipe["accelerate"], grpo["vllm_enable_sleep_mode"]


def table(rows: list[Row], most: int = 12) -> str:
    """The rows as text, with what takes the time and the memory of each."""
    names = f"{'arm':20} {'TP':>2} {'accelerate':14} {'batch':>8} {'util':>5} {'sleep':5} {'verdict':7}"
    lines = [f"{names} {'GiB':>6} {'step s':>7}  reason"]
    for recipe, result in rows[:most]:
        arm, size, accelerate, sleep = _key(recipe)
        grpo, seconds = recipe["grpo"], result.seconds
        longest = max(("generation", "score", "training", "optimizer"), key=seconds.get)
        share = f"{grpo['vllm_gpu_memory_utilization']:.2f}" if arm == "colocate" else "-"
        split = f"{grpo['per_device_train_batch_size']}x{grpo['gradient_accumulation_steps']}"
        lines.append(
            f"{arm:20} {size:2} {accelerate:14} {split:>8} {share:>5} {'yes' if sleep else '-':5} {result.verdict:7} "
            f"{result.needed_bytes / GIB:6.1f} {seconds['step']:7.1f}  "
            f"{longest} takes {seconds[longest] / seconds['step']:.0%}; memory peaks in {result.peak_phase}"
        )
    if not rows:
        lines.append("nothing fits: more GPUs, or a smaller batch")
    return "\n".join(lines)
