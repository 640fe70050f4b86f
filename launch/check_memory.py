"""What certainly does not fit: floors that need no measurement. Whether the rest fits, activations and all, they cannot say."""

from collections.abc import Iterator

from launch.clusters import GPUS
from launch.derived import derive
from launch.problems import Problem
from launch.shapes import model_shape, parameters


def memory(recipe: dict) -> Iterator[Problem]:
    """The engine's share must hold its weights and one sequence's cache, and what is left the trainer's states."""
    cluster, grpo, arm = recipe["cluster"], recipe["grpo"], recipe["recipe"]["arm"]
    shape = model_shape(recipe["model"]["path"], recipe["model"]["revision"]) or {}
    count = parameters(shape)
    if cluster["gpu"] not in GPUS or count is None:
        return
    total_bytes, share = GPUS[cluster["gpu"]].memory_bytes, 0.0
    if arm in ("colocate", "server"):
        if arm == "colocate":
            field, sharded_by = "grpo.vllm_gpu_memory_utilization", "grpo.vllm_tensor_parallel_size"
            share = engine_share = grpo["vllm_gpu_memory_utilization"]
            size = grpo["vllm_tensor_parallel_size"]
        else:
            field, sharded_by = "cluster.server.gpu_memory_utilization", "cluster.server.tensor_parallel_size"
            engine_share = cluster["server"]["gpu_memory_utilization"]
            size = cluster["server"]["tensor_parallel_size"]
        element = 2 if grpo["bf16"] or recipe["model"]["dtype"] == "bfloat16" else 4
        head = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
        cache = (
            2
            * element
            * shape["num_hidden_layers"]
            * shape["num_key_value_heads"]
            * head
            * grpo["vllm_max_model_length"]
        )
        needed = (count * element + cache) / size
        if needed > engine_share * total_bytes:
            yield Problem(
                field,
                engine_share,
                f"{engine_share * total_bytes / 1e9:.1f} GB of a {cluster['gpu']} do not hold the weights of model.path and "
                f"one sequence: {needed / 1e9:.1f} GB at {sharded_by} {size}",
                f"raise it, or {sharded_by}",
            )
    states = _state_bytes(recipe, count)
    asleep = arm == "colocate" and grpo["vllm_enable_sleep_mode"]
    for held_bytes, share_then, when in (
        (states["weights"] + states["optimizer"], share, "while sampling"),
        (sum(states.values()), 0.0 if asleep else share, "in the optimizer's step"),
    ):
        if held_bytes > (1 - share_then) * total_bytes:
            others = f" (grpo.vllm_gpu_memory_utilization {share} is the engine's)" if share_then else ""
            yield Problem(
                "cluster.gpu",
                cluster["gpu"],
                f"weights, gradients and optimizer of model.path need {held_bytes / 1e9:.1f} GB of each GPU {when} "
                f"(accelerate: {recipe['accelerate']}, cluster.nodes x cluster.gpus_per_node = {derive(recipe)['ranks']}), and "
                f"{(1 - share_then) * total_bytes / 1e9:.1f} GB are left{others}",
                "more GPUs, accelerate: zero3 or zero3_offload, or sleep mode",
            )
            return


def _state_bytes(recipe: dict, count: int) -> dict[str, float]:
    """Least bytes a GPU of the trainer's states (ZeRO, arXiv 1910.02054, section 3.1: 2 + 2 + 12 bytes a parameter in mixed
    precision with Adam, sharded by stage); PyTorch's own optimizers keep their states in the weights' precision."""
    ranks, zero = derive(recipe)["ranks"], (recipe["deepspeed"] or {}).get("zero_optimization", {})
    stage, adam = zero.get("stage", 0), recipe["grpo"]["optim"].startswith("adamw")
    element = 2 if recipe["model"]["dtype"] == "bfloat16" else 4
    kept = (8 + (4 if element == 2 else 0)) if stage else 2 * element
    optimizer = 0 if "offload_optimizer" in zero or not adam else kept
    models = 2 if recipe["grpo"]["beta"] else 1  # the reference model
    return {
        "weights": models * count * element / (ranks if stage == 3 else 1),
        "optimizer": count * optimizer / (ranks if stage else 1),
        "gradients": count * element / (ranks if stage >= 2 else 1),
    }
