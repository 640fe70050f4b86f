"""`python -m launch plan`: will a recipe fit, how long does it take, what does it cost. No GPU, no torch, under a second.

The verdict is of the busiest GPU. It leaves out how fast the answers get shorter or longer (every completion is planned at its
longest), failures and restarts, evaluations, and the start of the engines.
"""

import copy
import math
from collections.abc import Iterator
from typing import NamedTuple

from launch import memory, roofline
from launch.clusters import CPU, GPUS
from launch.derived import derive
from launch.memory import GIB
from launch.recipe import deepspeed_config
from launch.shapes import KNOWN_ROWS, model_shape, parameters

FITS, TIGHT, TOO_LARGE = "fits", "tight", "does not fit"
MARGIN = 0.95  # of the device: above it a run fits on paper, and the next larger batch of the data may not
STEP_ERROR = 0.5  # of the step's seconds: 40 % was the worst over the runs that were not fitted, all on one GPU


class Plan(NamedTuple):
    """Bytes of the busiest GPU; `why` says what is short, if anything is."""

    verdict: str
    why: str
    phases: dict[str, dict[str, float]]
    peak_phase: str
    needed_bytes: float  # without the allocator's reserve, which it gives back before it fails
    peak_bytes: float
    visible_bytes: float
    seconds: dict[str, float]


def visible(gpu: str, gpu_gib: float | None = None) -> float:
    """The bytes that torch sees of a GPU kind, or of `gpu_gib` GiB."""
    return gpu_gib * GIB if gpu_gib else memory.VISIBLE_BYTES.get(gpu, GPUS[gpu].memory_bytes)


def plan(recipe: dict, gpu_gib: float | None = None) -> Plan | None:
    """The plan of a resolved recipe; None where the model's shape is not known here, or the recipe is for CPUs."""
    gpu = recipe["cluster"]["gpu"]
    shape = model_shape(recipe["model"]["path"], recipe["model"]["revision"]) or {}
    if gpu == CPU or gpu not in GPUS or parameters(shape) is None:
        return None
    size = visible(gpu, gpu_gib)
    phases = memory.phases(recipe, shape, size)
    totals = {phase: sum(parts.values()) for phase, parts in phases.items()}
    needed = {phase: totals[phase] - parts["reserve"] for phase, parts in phases.items()}
    peak = max(needed, key=needed.get)
    why = "; ".join(_short(recipe, shape, size, phases))
    if needed[peak] > size:
        why = "; ".join(filter(None, [why, f"{peak} needs {needed[peak] / GIB:.1f} of {size / GIB:.1f} GiB"]))
    verdict = TOO_LARGE if why else FITS
    if not why and (needed[peak] > MARGIN * size or max(totals.values()) > size):
        verdict, why = (
            TIGHT,
            f"{peak} takes {needed[peak] / GIB:.1f} to {totals[peak] / GIB:.1f} of {size / GIB:.1f} GiB",
        )
    seconds = roofline.step_seconds(recipe, shape, gpu)
    return Plan(verdict, why, phases, peak, needed[peak], max(totals.values()), size, seconds)


def _short(recipe: dict, shape: dict, size: float, phases: dict) -> Iterator[str]:
    """What vLLM would refuse: a share without room for its weights and one sequence, or more than is free at its start."""
    arm, grpo = recipe["recipe"]["arm"], recipe["grpo"]
    if arm not in ("colocate", "server"):
        return
    if arm == "colocate":
        tensor, share = grpo["vllm_tensor_parallel_size"], grpo["vllm_gpu_memory_utilization"]
    else:
        tensor, share = (
            recipe["cluster"]["server"]["tensor_parallel_size"],
            recipe["cluster"]["server"]["gpu_memory_utilization"],
        )
    sequence = memory.kv_bytes_per_token(recipe, shape) * grpo["vllm_max_model_length"] / tensor
    weights = 2 * parameters(shape) / tensor
    if weights + sequence > share * size:
        yield (f"vLLM's share of {share} x {size / GIB:.1f} GiB = {share * size / GIB:.1f} does not hold its weights and one "
               f"sequence, {(weights + sequence) / GIB:.1f} at TP {tensor}")  # fmt: skip
    start = phases["engine start"]
    free = size - start["parameters"] - start["master"] - start["context"]
    if arm == "colocate" and share * size > free:
        yield f"vLLM asks for {share * size / GIB:.1f} GiB at its start, and {free / GIB:.1f} are free beside the trainer"


def auto_utilization(recipe: dict, gpu_gib: float | None = None) -> float:
    """The smallest share of the GPU, in hundredths, that holds the engine and all sequences of a generation at their longest;
    less where the trainer leaves less. What stands for `vllm_gpu_memory_utilization: auto`; it is set in the recipe.

    Raises:
        ValueError: no share fits beside the trainer, or the model's shape is not known.
    """
    shape = model_shape(recipe["model"]["path"], recipe["model"]["revision"]) or {}
    gpu = recipe["cluster"]["gpu"]
    if gpu == CPU:
        return 0.3  # TRL's default; vLLM goes by VLLM_CPU_KVCACHE_SPACE there
    if gpu not in GPUS or parameters(shape) is None:
        raise ValueError("auto needs a GPU kind of launch/clusters.py, and a model whose config.json is here")
    size = visible(gpu, gpu_gib)
    parts = memory.engine(recipe, shape, size, 0.5)
    tensor, length = recipe["grpo"]["vllm_tensor_parallel_size"], recipe["grpo"]["vllm_max_model_length"]
    rows = derive(recipe)["generation_batch_per_engine"]
    cache = rows * length * memory.kv_bytes_per_token(recipe, shape) / tensor
    wanted = math.ceil(100 * (parts["engine_weights"] + parts["engine_workspace"] + cache) / size)
    for hundredths in range(min(wanted, 95), 0, -1):
        recipe["grpo"]["vllm_gpu_memory_utilization"] = hundredths / 100
        if plan(recipe, gpu_gib).verdict == FITS:
            return hundredths / 100
    raise ValueError("no share of the GPU holds the engine beside the trainer")


def changed(recipe: dict, **settings) -> dict:
    """A copy of a resolved recipe with `accelerate`, `nodes` or names of `grpo` set."""
    other = copy.deepcopy(recipe)
    for name, value in settings.items():
        if name == "accelerate":
            other["accelerate"], other["deepspeed"] = value, deepspeed_config(value)
        elif name == "nodes":
            other["cluster"]["nodes"] = value
        else:
            other["grpo"][name] = value
    return other


def _moves(recipe: dict) -> Iterator[dict]:
    """The single changes that can make a recipe fit without another batch."""
    grpo, derived = recipe["grpo"], derive(recipe)
    if recipe["recipe"]["arm"] == "colocate":
        yield from _engine_moves(grpo)
    for parts in (2, 4, 7, 8):
        if grpo["per_device_train_batch_size"] % parts == 0:
            yield {"per_device_train_batch_size": grpo["per_device_train_batch_size"] // parts,
                   "gradient_accumulation_steps": grpo["gradient_accumulation_steps"] * parts,
                   "generation_batch_size": derived["generation_batch"]}  # fmt: skip
    if not grpo["gradient_checkpointing"]:
        yield {"gradient_checkpointing": True}
    yield from ({"accelerate": name} for name in ("zero2", "zero3", "zero3_offload") if name != recipe["accelerate"])
    for times in (2, 4):
        if derived["generation_batch"] % (derived["ranks"] * times) == 0:
            nodes, per_device = recipe["cluster"]["nodes"] * times, derived["generation_batch_per_rank"] // times
            yield {"nodes": nodes, "per_device_train_batch_size": per_device, "gradient_accumulation_steps": 1,
                   "generation_batch_size": derived["generation_batch"]}  # fmt: skip


def _engine_moves(grpo: dict) -> Iterator[dict]:
    if not grpo["vllm_enable_sleep_mode"]:
        yield {"vllm_enable_sleep_mode": True}
    for share in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7):
        if share != grpo["vllm_gpu_memory_utilization"]:
            yield {"vllm_gpu_memory_utilization": share}
    for size in (2, 4, 8, 16):
        if size > grpo["vllm_tensor_parallel_size"]:
            yield {"vllm_tensor_parallel_size": size}


def repairs(recipe: dict, gpu_gib: float | None = None, most: int = 5) -> list[tuple[dict, Plan]]:
    """The smallest changes that make a recipe fit: single ones, or pairs where no single one does; the fastest first."""
    moves = list(_moves(recipe))
    pairs = [a | b for index, a in enumerate(moves) for b in moves[index + 1 :] if not set(a) & set(b)]
    for candidates in (moves, pairs):
        found = []
        for settings in candidates:
            other = changed(recipe, **settings)
            if sound(other) and (result := plan(other, gpu_gib)).verdict == FITS:
                found.append((settings, result))
        if found:
            return sorted(found, key=lambda entry: entry[1].seconds["step"])[:most]
    return []


def sound(recipe: dict) -> bool:
    """Whether the arithmetic of batches and parallelism allows it (launch/check_sections.py)."""
    from launch.check_sections import batches, parallelism

    return not any(not problem.warning for rule in (batches, parallelism) for problem in rule(recipe))


def steps(recipe: dict) -> int | None:
    """Optimizer steps of the run; None where they follow from a data set whose size is not known here."""
    grpo, derived = recipe["grpo"], derive(recipe)
    if grpo.get("max_steps"):
        return grpo["max_steps"]
    rows = KNOWN_ROWS.get(recipe["data"]["path"])
    each = derived["optimizer_batch"] / grpo["num_generations"] / grpo["num_iterations"]
    return math.ceil(grpo.get("num_train_epochs", 3) * rows / each) if rows else None


def show(recipe: dict, result: Plan, gpu_gib: float | None = None, price: float | None = None) -> str:
    """The plan as text: memory by phase and component, host and disk, time, cost, and what would make it fit."""
    shape, derived, seconds = (
        model_shape(recipe["model"]["path"], recipe["model"]["revision"]),
        derive(recipe),
        result.seconds,
    )
    names = list(dict.fromkeys(name for parts in result.phases.values() for name in parts))
    why = f" ({result.why})" if result.why else ""
    lines = [
        f"{recipe['name']}: {result.verdict.upper()} on {derived['gpus']} x {recipe['cluster']['gpu']}{why}", "",
        f"GiB of the busiest training GPU, {result.visible_bytes / GIB:.1f} visible:",
    ]  # fmt: skip
    lines.append(f"  {'':22}" + "".join(f"{phase.split(' and ')[0][:12]:>13}" for phase in result.phases))
    for name in names:
        values = [parts.get(name, 0.0) / GIB for parts in result.phases.values()]
        if any(value >= 0.005 for value in values):
            lines.append(
                f"  {name.replace('_', ' '):22}"
                + "".join(f"{value:13.2f}" if value else f"{'-':>13}" for value in values)
            )
    lines.append(f"  {'total':22}" + "".join(f"{sum(parts.values()) / GIB:13.2f}" for parts in result.phases.values()))
    lines.append(f"  peak: {result.peak_phase}, {result.needed_bytes / GIB:.1f} GiB of tensors and context; torch may hold "
                 f"{result.peak_bytes / GIB:.1f}")  # fmt: skip
    lines.append(f"  host memory of a node: {memory.host_bytes(recipe, shape) / GIB:.0f} GiB; disk of a checkpoint: "
                 f"{memory.checkpoint_bytes(recipe, shape) / GIB:.0f} GiB")  # fmt: skip
    work = roofline.flops(recipe, shape)
    tokens = derived["optimizer_batch"] * derived["max_sequence_tokens"]
    lines.append(f"\nA step: {tokens} tokens at most, {sum(work.values()):.2e} operations; about {seconds['step']:.1f} s "
                 f"(+-{STEP_ERROR:.0%}), completions at their longest")  # fmt: skip
    parts = ("generation", "score", "training", "optimizer", "sync", "rest")
    lines.append("  " + ", ".join(f"{name} {seconds[name]:.2f}" for name in parts) + " s; floors: generation "
                 f"{seconds['generation_floor']:.2f}, training {seconds['training_floor']:.2f} s")  # fmt: skip
    if count := steps(recipe):
        hours = count * seconds["step"] / 3600
        cost = f", {hours * derived['gpus'] * price:.0f} at {price} an hour" if price else ""
        lines.append(
            f"  {count} steps: {hours:.1f} h, {hours * derived['gpus']:.1f} GPU-hours (+-{STEP_ERROR:.0%}){cost}"
        )
    if result.verdict != FITS:
        found = repairs(recipe, gpu_gib)
        lines += [
            "",
            "What makes it fit, the fastest first:" if found else "No one or two of the known changes make it fit.",
        ]
        for settings, other in found:
            text = ", ".join(f"{name}={value}" for name, value in settings.items())
            lines.append(
                f"  {text}: {other.needed_bytes / GIB:.1f} GiB, a step {other.seconds['step'] / seconds['step'] - 1:+.0%}"
            )
    return "\n".join(lines)


def elsewhere(recipe: dict, count: int, gpu: str) -> dict:
    """A copy of a resolved recipe on `count` GPUs of another kind, for its verdict: nodes of 8, its batch shared as evenly as
    the ranks allow (rounded up), micro-batches no larger than its own, TP and server no larger than fit there."""
    other = copy.deepcopy(recipe)
    cluster, grpo, derived, server = other["cluster"], other["grpo"], derive(recipe), other["cluster"]["server"]
    per_node, serving = min(count, 8), 0
    if server:
        serving = min(derived["server_gpus"], count // 2)
        server.update(nodes=1, gpus_per_node=serving, on_training_node=True, data_parallel_size=1)
        server["tensor_parallel_size"] = min(server["tensor_parallel_size"], serving)
    ranks = count - serving
    cluster.update(nodes=1, gpus_per_node=ranks, gpu=gpu)
    if ranks % per_node == 0:
        cluster.update(nodes=ranks // per_node, gpus_per_node=per_node)
    if grpo.get("vllm_tensor_parallel_size"):
        grpo["vllm_tensor_parallel_size"] = min(grpo["vllm_tensor_parallel_size"], per_node)
    share = math.ceil(derived["optimizer_batch"] / ranks)
    accumulation = math.ceil(share / grpo["per_device_train_batch_size"])
    grpo.update(per_device_train_batch_size=math.ceil(share / accumulation), gradient_accumulation_steps=accumulation)
    for name in ("generation_batch_size", "steps_per_generation"):
        grpo.pop(name, None)
    return other
