"""What a run holds in memory, phase by phase: every formula of the planner, each with its source. Bytes a GPU, unless named.

Sources: ZeRO, arXiv 1910.02054, section 3 (states); Korthikanti et al., arXiv 2205.05198, section 4 (activations); DeepSpeed
0.19.8, runtime/zero/stage_1_and_2.py and stage3.py; torch/optim/adamw.py; vLLM v1/worker/gpu_worker.py and utils.py; TRL
1.16.0, generation/vllm_generation.py; transformers 5.17.0, generation/continuous_batching/cache.py. FITTED is measured:
benchmarks/fit_memory.py, over the fitted half of results/memory_h200.
"""

import json
from pathlib import Path

from launch.derived import derive
from launch.shapes import adapter_parameters, parameters

GIB = 2**30
# launch/fitted.json, by ZeRO stage where it says so:
#     hidden_bytes    kept per token, layer and hidden unit: two RMSNorms in float32, attention's inputs and output
#     context_bytes   CUDA context, cuBLAS workspaces, loaded kernels: the driver's account less torch's
#     reserve         what torch's allocator holds beyond the tensors' peak, as a share of the trainer's own
FITTED = json.loads((Path(__file__).parent / "fitted.json").read_text())["memory"]
BATCHED_TOKENS = 4096  # TRL gives vLLM this max_num_batched_tokens
SUB_GROUP = 10**9  # DeepSpeed's sub_group_size: ZeRO-3 steps the optimizer over so many parameters at a time
MAX_LIVE = 10**9  # DeepSpeed's stage3_max_live_parameters: gathered at once, at most
GRAPHS_BYTES = (
    0.14 * GIB
)  # CUDA graphs of a dense model at the few batch sizes that TRL's max_num_seqs leaves (vLLM's log)

# What torch reports as a device's memory. H200: measured; A100 and H100: cards of 80 GiB less what the driver keeps. Others:
# the data sheet's decimal gigabytes, which is less than there is.
VISIBLE_BYTES = {"H200-141GB": 150_109_880_320, "H100-80GB": int(79.1 * GIB), "A100-80GB": int(79.1 * GIB)}


def zero(recipe: dict) -> tuple[int, bool]:
    """DeepSpeed's stage (0: plain data parallel), and whether the optimizer is in host memory."""
    section = (recipe["deepspeed"] or {}).get("zero_optimization", {})
    return section.get("stage", 0), section.get("offload_optimizer", {}).get("device") == "cpu"


def trained(recipe: dict, shape: dict) -> tuple[int, int]:
    """How many parameters have gradients and an optimizer, and the bytes of one. With the section `lora` its adapters alone:
    peft makes them in float32 (autocast_adapter_dtype), and DeepSpeed has the whole model in one type
    (runtime/engine.py, _configure_distributed_model)."""
    lora = recipe.get("lora")
    small = recipe["model"]["dtype"] == "bfloat16" and (zero(recipe)[0] > 0 or not lora)
    return adapter_parameters(shape, lora) if lora else parameters(shape), 2 if small else 4


def kv_bytes_per_token(recipe: dict, shape: dict) -> int:
    """Keys and values of one token over all layers, whole (TP divides it)."""
    head = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    element = 2 if recipe["grpo"]["bf16"] or recipe["model"]["dtype"] == "bfloat16" else 4
    return 2 * element * shape["num_hidden_layers"] * shape["num_key_value_heads"] * head


def head_bytes(shape: dict) -> int:
    """The output layer, or its gradient, in bfloat16."""
    return 2 * shape["vocab_size"] * shape["hidden_size"]


def states(recipe: dict, shape: dict) -> dict[str, float]:
    """The trainer's memory between steps, once the optimizer has its states (on the first step: TRL 2927, 3044).

    Data parallel: PyTorch's Adam keeps two states in the weights' precision, gradients are dropped after the step, and with
    several ranks DDP's buckets stay: a second copy of the gradients (reducer.cpp, gradient_as_bucket_view is off). ZeRO: 4
    bytes of master weight and 8 of Adam a parameter, sharded (section 3.1: K = 12); stage 3 also keeps a shard of gradients,
    in host memory if the optimizer is there (stage3.py, grad_partitions_flat_buffer).

    With LoRA the weights have neither, the adapters all of it, and the reference is the model without them.
    """
    count, ranks = parameters(shape), derive(recipe)["ranks"]
    updated, own_element = trained(recipe, shape)
    stage, offload = zero(recipe)
    element = 2 if recipe["model"]["dtype"] == "bfloat16" else 4
    adam = recipe["grpo"]["optim"].startswith("adamw")
    whole = element * count + (own_element * updated if recipe.get("lora") else 0)
    held = {"parameters": whole / (ranks if stage == 3 else 1), "gradients": 0.0, "optimizer": 0.0}
    if stage == 0:
        held["optimizer"] = 2 * own_element * updated if adam else 0
        held["gradients"] = own_element * updated if ranks > 1 else 0
    elif not offload:
        held["optimizer"] = 12 * updated / ranks
        held["gradients"] = 2 * updated / ranks if stage == 3 else 0
    if recipe["grpo"]["beta"] and not recipe.get("lora"):
        held["reference"] = held["parameters"]
    return held


def layer_bytes_per_token(shape: dict, liger: bool = False) -> float:
    """Activations that one layer keeps for its backward pass: four tensors of the gated MLP's width in bfloat16 (gate, up,
    silu and product: 8 bytes), and a fitted number for all that has the hidden width (2205.05198, section 4.1, with its own
    layers' dtypes and no dropout). Scaled-dot-product attention keeps no scores.

    liger-kernel (0.8.5, ops/) computes silu again, keeps of each of the two norms its bfloat16 input and not a float32 copy
    with the normalised rows (4 bytes less), and of the rotary embedding neither queries and keys nor their rotated halves.
    """
    if not liger:
        return 8 * shape["intermediate_size"] + FITTED["hidden_bytes"] * shape["hidden_size"]
    rotated = 1 + shape["num_key_value_heads"] / shape["num_attention_heads"]
    return 6 * shape["intermediate_size"] + (FITTED["hidden_bytes"] - 8 - 4 * rotated) * shape["hidden_size"]


def forward_backward(recipe: dict, shape: dict) -> dict[str, float]:
    """What comes on top of the states in the loss and its gradient: the larger of two moments.

    When the backward pass begins, all activations are there (or, with checkpointing, each layer's input and one layer's
    all: 2205.05198, section 5) and the head's gradient; when it ends, all gradients and one layer's activations. The head's
    logits are not: TRL's fused head works in tiles (trl/trainer/utils.py, add_fused_lm_head). With float32 weights autocast
    keeps bfloat16 copies. LoRA's adapters read what their layer reads, and write r numbers a token more, left out here; its
    head is frozen.
    """
    grpo, count, frozen_head = recipe["grpo"], parameters(shape), bool(recipe.get("lora"))
    updated, own_element = trained(recipe, shape)
    ranks, (stage, _) = derive(recipe)["ranks"], zero(recipe)
    tokens = grpo["per_device_train_batch_size"] * derive(recipe)["max_sequence_tokens"]
    layers, hidden = shape["num_hidden_layers"], shape["hidden_size"]
    element = 2 if recipe["model"]["dtype"] == "bfloat16" else 4
    layer = layer_bytes_per_token(shape, bool(grpo.get("use_liger_kernel")))
    one_layer = tokens * (layer + 6 * shape["intermediate_size"])  # and its gradients on the way
    kept = layers * tokens * (2 * hidden if grpo["gradient_checkpointing"] else layer)
    gradients = {0: own_element * updated, 1: own_element * updated, 2: 2 * updated / ranks, 3: 0.0}[stage]
    untied = 0 if shape.get("tie_word_embeddings") or frozen_head else head_bytes(shape)
    copies = 2 * count if element == 4 and grpo["bf16"] else 0
    gathered = 2 * min(count, MAX_LIVE) if stage == 3 and ranks > 1 else 0
    begins = {
        "activations": kept + (one_layer if grpo["gradient_checkpointing"] else 0) + copies,
        "head": 0.0 if frozen_head else head_bytes(shape),
    }
    # with one rank and several micro-batches, those of the micro-batches before
    begins["gradients"] = gradients if stage == 0 and ranks == 1 and grpo["gradient_accumulation_steps"] > 1 else 0.0
    ends = {"activations": one_layer, "head": 0.0, "gradients": max(gradients - untied, 0)}
    if stage == 0 and gradients > ends["activations"] + ends["gradients"]:
        ends = {"activations": 0.0, "head": 0.0, "gradients": gradients}
    worse = max(begins, ends, key=lambda moment: sum(moment.values()))
    return worse | {"gathered": gathered}


def optimizer_step(recipe: dict, shape: dict) -> dict[str, float]:
    """What the step adds: the gradients, and temporaries as large as one state (torch's foreach Adam takes the root of all
    second moments at once); ZeRO copies its shard's gradients to float32 first, stage 3 in groups of SUB_GROUP parameters."""
    (count, element), ranks = trained(recipe, shape), derive(recipe)["ranks"]
    stage, offload = zero(recipe)
    foreach = 0 if recipe["grpo"]["optim"].endswith("fused") else 1
    if stage == 0:
        return {"gradients": element * count if ranks == 1 else 0, "temporaries": foreach * element * count}
    if offload:
        return {"temporaries": 0.0}
    if stage == 3:
        return {"temporaries": (4 + 4 * foreach) * min(count / ranks, SUB_GROUP)}
    return {"gradients": 2 * count / ranks, "temporaries": (4 + 4 * foreach) * count / ranks}


def sampling(recipe: dict, shape: dict, visible_bytes: float, trainer_bytes: float) -> dict[str, float]:
    """What the arm holds in the trainer's process while it samples, without vLLM.

    generate(): the cache of all sequences, and the prompts' prefill. Continuous batching: `max_memory_percent` of what torch
    does not hold (cache.py, get_available_memory). ZeRO-3 gathers the whole model for both (TRL, ds3_gather_for_generation).
    """
    arm, grpo, derived = recipe["recipe"]["arm"], recipe["grpo"], derive(recipe)
    if arm not in ("generate", "continuous_batching"):
        return {}
    whole = 2 * parameters(shape) if zero(recipe)[0] == 3 and derived["ranks"] > 1 else 0
    copies = 2 * parameters(shape) if recipe["model"]["dtype"] == "float32" and grpo["bf16"] else 0
    if arm == "continuous_batching":
        paged = grpo.get("transformers_continuous_batching_config") or {}
        cache = (paged.get("max_memory_percent") or 0.9) * max(visible_bytes - trainer_bytes - whole, 0)
        if "num_blocks" in paged:
            cache = paged["num_blocks"] * paged.get("block_size", 256) * kv_bytes_per_token(recipe, shape)
    else:
        rows = derived["generation_batch_per_rank"]
        cache = rows * derived["max_sequence_tokens"] * kv_bytes_per_token(recipe, shape)
        cache += rows * recipe["data"]["max_prompt_tokens"] * 6 * shape["intermediate_size"]
    return {"gathered": whole, "kv_cache": cache, "activations": copies}


def engine(recipe: dict, shape: dict, visible_bytes: float, utilization: float) -> dict[str, float]:
    """vLLM's share of a colocated GPU: `utilization` of the whole device (v1/worker/utils.py, request_memory), of which it
    takes its weights and the profiled workspace, and gives the rest to the cache (gpu_worker.py, determine_available_memory).
    With a cache below one sequence of the longest length vLLM refuses to start."""
    size = recipe["grpo"]["vllm_tensor_parallel_size"]
    derived, grpo = derive(recipe), recipe["grpo"]
    rows = grpo["per_device_train_batch_size"] * size * derived["steps_per_generation"]  # TRL's max_num_seqs
    element = 2 if grpo["bf16"] or recipe["model"]["dtype"] == "bfloat16" else 4
    workspace = max(BATCHED_TOKENS * 16 * shape["intermediate_size"] / size, 8 * rows * shape["vocab_size"])
    weights = element * parameters(shape) / size
    share = utilization * visible_bytes
    return {"engine_weights": weights, "engine_workspace": workspace, "kv_cache": max(share - weights - workspace, 0.0),
            "cuda_graphs": GRAPHS_BYTES}  # fmt: skip


def host_bytes(recipe: dict, shape: dict) -> float:
    """Host memory of a node: 12 bytes a parameter of offloaded optimizer, 2 of its pinned gradients and 4 of their float32
    copies (stage3.py, _create_fp32_partitions and grad_partitions_flat_buffer), and some 5 GiB a rank for Python, CUDA and
    the libraries (seen: 3 to 12 GiB of resident memory)."""
    derived, cluster = derive(recipe), recipe["cluster"]
    offloaded = 18 * trained(recipe, shape)[0] / derived["ranks"] if zero(recipe)[1] else 0.0
    return cluster["gpus_per_node"] * (offloaded + 5 * GIB)


def checkpoint_bytes(recipe: dict, shape: dict) -> float:
    """Disk of one checkpoint: the weights (with LoRA the adapters alone), and unless save_only_model what resumes it (master
    weights, Adam)."""
    (count, element), (stage, _) = trained(recipe, shape), zero(recipe)
    resume = 0 if recipe["grpo"].get("save_only_model") else (12 if stage else 2 * element)
    return count * (element + resume)


def phases(
    recipe: dict, shape: dict, visible_bytes: float, utilization: float | None = None
) -> dict[str, dict[str, float]]:
    """Phase -> component -> bytes of the busiest training GPU. `reserve` is what torch's allocator holds beyond the tensors:
    it gives that back before it fails, so that a phase fits without it, only less well."""
    grpo, held = recipe["grpo"], states(recipe, shape)
    colocated = recipe["recipe"]["arm"] == "colocate"
    asleep = colocated and grpo["vllm_enable_sleep_mode"]
    stage = zero(recipe)[0]
    awake = {}
    if colocated:
        awake = engine(recipe, shape, visible_bytes, utilization or grpo["vllm_gpu_memory_utilization"])
    training = {"cuda_graphs": awake.get("cuda_graphs", 0.0)} if asleep else awake
    model = {
        "parameters": held["parameters"],
        "master": 4 * trained(recipe, shape)[0] / derive(recipe)["ranks"] if stage else 0.0,
    }
    if zero(recipe)[1]:
        model["master"] = 0.0
    gathered = {"gathered": head_bytes(shape)} if stage == 3 and derive(recipe)["ranks"] > 1 else {}
    table = {
        "engine start": _sum(model, awake),
        "generation": _sum(held, awake, sampling(recipe, shape, visible_bytes, sum(held.values()))),
        "sync": _sum(held, awake, gathered) if awake else _sum(held, gathered),
        "forward and backward": _sum(held, training, forward_backward(recipe, shape)),
        "optimizer step": _sum(held, training, optimizer_step(recipe, shape)),
        "saving": _sum(held, training, gathered),
    }
    if (
        recipe["recipe"]["arm"] == "continuous_batching"
    ):  # the cache is sized at the first generation, before Adam's states
        table["generation"] = _sum(model, sampling(recipe, shape, visible_bytes, sum(model.values())))
    own = (
        "parameters",
        "master",
        "gradients",
        "optimizer",
        "reference",
        "activations",
        "head",
        "temporaries",
        "gathered",
    )
    for held_then in table.values():
        held_then["context"] = FITTED["context_bytes"]
        held_then["reserve"] = FITTED["reserve"][str(stage)] * sum(held_then.get(name, 0.0) for name in own)
    return table


def _sum(*parts: dict[str, float]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total
