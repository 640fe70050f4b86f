"""The planner's formulas: against sums done by hand, and against what was measured on an H200."""

import statistics

import pytest

from benchmarks import fit_memory
from benchmarks.measure_memory import configurations
from launch import memory, roofline
from launch.recipe import load
from launch.shapes import KNOWN, parameters

GIB = memory.GIB
QWEN_7B = KNOWN["Qwen/Qwen2.5-Math-7B"]
MEASURED = fit_memory.rows()


def recipe_with(*overrides: str) -> dict:
    return load("recipes/qwen7b_colocate.yaml", list(overrides))


def test_zero3_shards_sixteen_bytes_and_its_gradients_over_the_ranks():
    held = memory.states(recipe_with("accelerate=zero3"), QWEN_7B)
    assert sum(held.values()) == pytest.approx((2 + 12 + 2) * parameters(QWEN_7B) / 8)


def test_zero2_keeps_the_parameters_whole():
    held = memory.states(recipe_with("accelerate=zero2"), QWEN_7B)
    assert sum(held.values()) == pytest.approx((2 + 12 / 8) * parameters(QWEN_7B))


def test_offload_leaves_no_optimizer_on_the_gpu_and_takes_it_from_the_host():
    offload, kept = recipe_with("accelerate=zero3_offload"), recipe_with("accelerate=zero3")
    held = memory.states(offload, QWEN_7B)
    assert held["optimizer"] == held["gradients"] == 0
    more = memory.host_bytes(offload, QWEN_7B) - memory.host_bytes(kept, QWEN_7B)
    assert more == pytest.approx(18 * parameters(QWEN_7B))


def test_a_reference_model_is_a_second_set_of_parameters():
    with_reference = memory.states(recipe_with("grpo.beta=0.04"), QWEN_7B)
    assert with_reference["reference"] == memory.states(recipe_with(), QWEN_7B)["parameters"]


LORA = ("lora={r: 32, lora_alpha: 64, target_modules: all-linear}",)


def test_lora_leaves_gradients_and_optimizer_to_the_adapters():
    """Queries and output are 3584 wide at both ends, keys and values 512 at one, the MLP 18944."""
    adapters = 32 * 28 * (4 * 3584 + 2 * (3584 + 512) + 3 * (3584 + 18944))
    held = memory.states(recipe_with("accelerate=zero3", *LORA), QWEN_7B)
    assert held["parameters"] == pytest.approx(2 * (parameters(QWEN_7B) + adapters) / 8)
    assert held["optimizer"] + held["gradients"] == pytest.approx(14 * adapters / 8)
    assert "reference" not in memory.states(recipe_with("grpo.beta=0.04", *LORA), QWEN_7B)
    ddp = memory.states(recipe_with("accelerate=ddp", *LORA), QWEN_7B)  # there peft has adapters in float32
    assert ddp["parameters"] == 2 * parameters(QWEN_7B) + 4 * adapters
    assert ddp["optimizer"] + ddp["gradients"] == 12 * adapters
    assert memory.checkpoint_bytes(recipe_with("accelerate=zero3", *LORA), QWEN_7B) == 14 * adapters


def test_lora_computes_no_gradient_of_the_frozen_weights():
    plain, lora = (roofline.flops(recipe_with(*more), QWEN_7B)["training"] for more in ((), LORA))
    assert lora == pytest.approx(plain * 3 / 4), (
        "forward, again for checkpointing, and one backward pass instead of two"
    )


def test_the_cache_of_a_token_is_vllms_own():
    """vLLM 0.25.1 made 493,984 tokens of 26.38 GiB for this shape (results/memory_h200, 7b_colocate_sleep_ddp)."""
    assert memory.kv_bytes_per_token(recipe_with(), QWEN_7B) == pytest.approx(26.38 * GIB / 493_984, rel=1e-3)


def test_checkpointing_trades_the_layers_activations_for_their_inputs():
    kept = memory.forward_backward(recipe_with("grpo.gradient_checkpointing=false"), QWEN_7B)["activations"]
    checkpointed = memory.forward_backward(recipe_with(), QWEN_7B)["activations"]
    tokens = 14 * (512 + 1024)
    assert kept == pytest.approx(28 * tokens * memory.layer_bytes_per_token(QWEN_7B, liger=True))
    assert checkpointed < kept / 5


def test_liger_kernel_keeps_less_for_the_backward_pass():
    plain, less = (memory.layer_bytes_per_token(QWEN_7B, liger) for liger in (False, True))
    assert 0.5 * plain < less < 0.8 * plain


def test_one_rank_keeps_the_gradients_of_earlier_micro_batches():
    one_gpu = [
        "cluster.gpus_per_node=1",
        "accelerate=ddp",
        "grpo.generation_batch_size=14",
        "grpo.gradient_checkpointing=false",
    ]
    whole = memory.forward_backward(recipe_with(*one_gpu), QWEN_7B)
    parts = memory.forward_backward(
        recipe_with(*one_gpu, "grpo.per_device_train_batch_size=7", "grpo.gradient_accumulation_steps=2"), QWEN_7B
    )
    assert (whole["gradients"], parts["gradients"]) == (0, 2 * parameters(QWEN_7B))
    assert parts["activations"] == pytest.approx(whole["activations"] / 2)


def test_sleep_mode_frees_the_engines_share_while_training_and_not_while_sampling():
    size = memory.VISIBLE_BYTES["H100-80GB"]
    asleep = memory.phases(recipe_with("grpo.vllm_enable_sleep_mode=true"), QWEN_7B, size)
    awake = memory.phases(recipe_with(), QWEN_7B, size)
    share = 0.3 * size
    freed = sum(awake["optimizer step"].values()) - sum(asleep["optimizer step"].values())
    assert freed == pytest.approx(share)
    assert asleep["generation"] == awake["generation"]


def test_tp_shards_the_engines_weights():
    one, two = (
        memory.engine(recipe_with(f"grpo.vllm_tensor_parallel_size={size}"), QWEN_7B, 80e9, 0.3) for size in (1, 2)
    )
    assert two["engine_weights"] == one["engine_weights"] / 2


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row["name"])
def test_tensors_are_within_ten_percent_of_what_was_measured(row):
    table = memory.phases(row["recipe"], row["shape"], memory.VISIBLE_BYTES["H200-141GB"])
    for phase, name in fit_memory.NAMES.items():
        if row["item"]["arm"] == "continuous_batching" and phase == "generation":
            continue
        measured = fit_memory.peak(row, name, "peak_allocated_bytes")
        assert fit_memory.tensors(table[phase], row) == pytest.approx(measured, rel=0.10), phase


def test_the_half_that_was_not_fitted_is_predicted_within_three_percent_in_the_median():
    errors = []
    for row in MEASURED:
        if row["half"] == "held_out":
            table = memory.phases(row["recipe"], row["shape"], memory.VISIBLE_BYTES["H200-141GB"])
            predicted = max(sum(parts.values()) for parts in table.values())
            errors.append(abs(predicted / fit_memory.peak(row, None, "peak_device_bytes") - 1))
    assert len(errors) >= 10
    assert statistics.median(errors) < 0.03


def test_the_constants_are_those_that_the_fit_gives():
    half = [row for row in MEASURED if row["half"] == "fitted"]
    for fitted, used in ((fit_memory.fit(half), memory.FITTED), (roofline.fit(half), roofline.FITTED)):
        for name, value in fitted.items():
            if name != "reserve":
                assert value == pytest.approx(used[name], rel=1e-2), name
        assert fitted.get("reserve", {}).items() <= used.get("reserve", {}).items()


def test_the_halves_are_drawn_from_all_configurations_measured_or_not():
    items = configurations()
    assert len(items) == 30
    assert sum(item["half"] == "fitted" for item in items.values()) == 15
