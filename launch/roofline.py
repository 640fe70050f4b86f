"""How long a step takes: the floors that arithmetic and memory set, and an estimate that knows what was measured.

Floors use NVIDIA's data sheets (dense bfloat16, device memory). The estimate adds what no floor knows: a decoding step that
waits for the host, the share of the peak that training reaches, and the rest of a step. FITTED is from the fitted half of
results/memory_h200 (benchmarks/fit_memory.py), all on one H200; other kinds are scaled by their peaks, and several GPUs by
their links' nominal rates: estimates, not measurements.
"""

import json
import statistics
from pathlib import Path

from launch.derived import derive
from launch.memory import kv_bytes_per_token, states, trained, zero
from launch.shapes import model_shape, parameters

# Operations a second in dense bfloat16, bytes a second of device memory, of the link to the other GPUs of a node (one way).
RATES = {
    "A10G-24GB": (125e12, 0.6e12, 32e9), "L4-24GB": (121e12, 0.3e12, 32e9), "RTX4090-24GB": (165e12, 1.0e12, 32e9),
    "L40S-48GB": (362e12, 0.864e12, 32e9), "A100-40GB": (312e12, 1.555e12, 300e9), "A100-80GB": (312e12, 2.039e12, 300e9),
    "H100-80GB": (989e12, 3.35e12, 450e9), "H100-94GB": (835e12, 3.9e12, 300e9), "GH200-96GB": (989e12, 4.0e12, 450e9),
    "H200-141GB": (989e12, 4.8e12, 450e9), "B200-180GB": (2250e12, 7.7e12, 900e9),
}  # fmt: skip
BETWEEN_NODES = 50e9  # bytes a second a GPU: one 400 Gb/s adapter for each
HOST_ADAM = 30e9  # bytes of optimizer state a second a rank, where Adam runs on the CPU: a guess, not measured
# launch/fitted.json:
#     *_token_seconds   one decoding step of all sequences, however few: vLLM, and generate()
#     training_share    of the peak, in the forward and backward passes
#     zero3_seconds     of a micro-batch: DeepSpeed's hooks at every layer, which wait for the host
#     rest_seconds      of a step, in no phase
FITTED = json.loads((Path(__file__).parent / "fitted.json").read_text())["roofline"]


def attention_flops(shape: dict) -> int:
    """Forward operations of attention's two products a token, for each token of its sequence's length (half a square)."""
    return 2 * shape["num_hidden_layers"] * shape["hidden_size"]


def work_of(recipe: dict) -> dict | None:
    """What the record of a run says of its model and GPUs, so that analysis can set what was measured beside what the hardware
    could do: counts and rates of which the formulas in analysis/metrics.py are made. None where the shape is not known.

        parameters, attention_flops     of the model
        weights_bytes, kv_bytes_per_token   of a whole model, as the engine holds it
        engines, tensor_parallel        how many sample, and over how many devices each
        peak_flops_per_second, memory_bytes_per_second   of one GPU (dense bfloat16, data sheet); null without
    """
    shape = model_shape(recipe["model"]["path"], recipe["model"]["revision"]) or {}
    if parameters(shape) is None:
        return None
    per_token, derived = kv_bytes_per_token(recipe, shape), derive(recipe)
    element = 2 if recipe["grpo"]["bf16"] or recipe["model"]["dtype"] == "bfloat16" else 4
    peak, bandwidth, _ = RATES.get(recipe["cluster"]["gpu"], (None, None, None))
    return {
        "parameters": parameters(shape),
        "attention_flops": attention_flops(shape),
        "weights_bytes": element * parameters(shape),
        "kv_bytes_per_token": per_token,
        "engines": derived["engines"] or derived["ranks"],
        "tensor_parallel": tensor_parallel(recipe),
        "peak_flops_per_second": peak,
        "memory_bytes_per_second": bandwidth,
    }


def tensor_parallel(recipe: dict) -> int:
    """Over how many devices one engine is spread."""
    size = {
        "colocate": recipe["grpo"].get("vllm_tensor_parallel_size"),
        "server": (recipe["cluster"]["server"] or {}).get("tensor_parallel_size"),
    }
    return size.get(recipe["recipe"]["arm"]) or 1


def flops(recipe: dict, shape: dict) -> dict[str, float]:
    """Floating-point operations of one step over all GPUs: 2 a parameter and token forward, twice that backward, once more
    forward with checkpointing (2205.05198, appendix A), and attention's two products over half a square. LoRA's frozen weights
    have no gradient: once backward (the adapters' own share, r in a few thousand, is left out)."""
    grpo, derived = recipe["grpo"], derive(recipe)
    tokens, length = derived["optimizer_batch"] * derived["max_sequence_tokens"], derived["max_sequence_tokens"]
    attention = attention_flops(shape) * length
    forward = tokens * (2 * parameters(shape) + attention)
    scores = recipe["recipe"]["arm"] in ("colocate", "server") and grpo.get("vllm_importance_sampling_correction")
    scores = scores and not recipe["speedups"]["score_in_loss"]
    return {"generation": tokens * 2 * parameters(shape), "score": forward if scores else 0.0,
            "training": forward * ((2 if recipe.get("lora") else 3) + bool(grpo["gradient_checkpointing"]))}  # fmt: skip


def step_seconds(recipe: dict, shape: dict, gpu: str) -> dict[str, float]:
    """Seconds of one optimizer step, completions at their longest: `step` the estimate, its parts, and the two floors."""
    peak, bandwidth, link = RATES[gpu]
    arm, grpo, derived = recipe["recipe"]["arm"], recipe["grpo"], derive(recipe)
    ranks, work, count = derived["ranks"], flops(recipe, shape), parameters(shape)
    batches = max(1, derived["optimizer_batch"] // derived["generation_batch"])
    stage, offload = zero(recipe)
    size, engines = tensor_parallel(recipe), derived["engines"] or ranks
    rows = derived["generation_batch"] / engines
    length = recipe["data"]["max_prompt_tokens"] + grpo["max_completion_length"] / 2
    read = (2 * count + rows * length * kv_bytes_per_token(recipe, shape)) / size
    token_floor = read / bandwidth
    waits = FITTED["colocate_token_seconds" if arm in ("colocate", "server") else "generate_token_seconds"]
    prefill = rows * recipe["data"]["max_prompt_tokens"] * 2 * count / size / peak
    floor = batches * (grpo["max_completion_length"] * token_floor + prefill)
    generation = batches * (
        grpo["max_completion_length"] * max(waits, token_floor / 0.7) + prefill / FITTED["training_share"]
    )
    training_floor = work["training"] / ranks / peak
    across = BETWEEN_NODES if recipe["cluster"]["nodes"] > 1 else link
    updated, _ = trained(recipe, shape)
    # gradients are reduced, and with ZeRO-3 the weights gathered for both passes
    moved = 2 * count + updated if stage == 3 else 2 * updated
    gathers = 2 * moved * (ranks - 1) / ranks / across
    held = states(recipe, shape)
    optimizer = 3 * (held["optimizer"] + held["parameters"] * updated / count) / bandwidth
    if offload:
        optimizer = 16 * updated / ranks / HOST_ADAM
    parts = {
        "generation": generation,
        "score": work["score"] / ranks / peak / FITTED["training_share"],
        "training": max(training_floor / FITTED["training_share"], gathers * grpo["gradient_accumulation_steps"])
        + (FITTED["zero3_seconds"] * grpo["gradient_accumulation_steps"] if stage == 3 else 0.0),
        "optimizer": optimizer,
        "sync": 2 * count / (across if stage == 3 and ranks > 1 else bandwidth)
        if arm in ("colocate", "server")
        else 0.0,
        "rest": FITTED["rest_seconds"],
    }
    return {"step": sum(parts.values())} | parts | {"generation_floor": floor, "training_floor": training_floor}


def fit(rows: list[dict]) -> dict[str, float]:
    """FITTED from measured rows (benchmarks/fit_memory.py): medians over the second and third step."""

    def mean(row, *phases):
        steps = [
            values["seconds"]
            for phase in phases
            for step, values in row["phases"].get(phase, {}).items()
            if int(step) >= 2
        ]
        return sum(steps) / (len(row["steps"]) - 1)

    def arithmetic(row):
        return flops(row["recipe"], row["shape"])["training"] / RATES["H200-141GB"][0]

    def token(arm):
        return [mean(row, "generate") / row["item"]["completion"] for row in rows if row["item"]["arm"] == arm]

    stages = [zero(row["recipe"])[0] for row in rows]
    training = [(row, mean(row, "forward_backward")) for row in rows]
    share = statistics.median(
        arithmetic(row) / seconds for (row, seconds), stage in zip(training, stages, strict=True) if stage == 0
    )
    hooks = [
        (seconds - arithmetic(row) / share) / row["item"]["accumulation"]
        for (row, seconds), stage in zip(training, stages, strict=True)
        if stage == 3
    ]
    timed = ("generate", "forward_backward", "optimizer", "score", "sync")
    rest = [statistics.mean(step["seconds"] for step in row["steps"][1:]) - mean(row, *timed) for row in rows]
    return {
        "colocate_token_seconds": statistics.median(token("colocate")),
        "generate_token_seconds": statistics.median(token("generate")),
        "training_share": share,
        "zero3_seconds": statistics.median(hooks),
        "rest_seconds": statistics.median(rest),
    }
