"""`launch plan`: verdicts, what makes a recipe fit, public reports of out-of-memory on paper, `auto`."""

import json
import subprocess
import sys
import time

import pytest

from launch.check import check
from launch.memory import GIB, host_bytes
from launch.plan import FITS, TIGHT, TOO_LARGE, plan, repairs
from launch.recipe import ROOT, RecipeError, load
from launch.shapes import KNOWN

BASE = "recipes/qwen7b_colocate.yaml"
QWEN_32B = {
    "model_type": "qwen2", "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 40,
    "num_key_value_heads": 8, "intermediate_size": 27648, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip
QWEN_4B = {
    "model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "head_dim": 128,
    "num_key_value_heads": 8, "intermediate_size": 9728, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip


def planned(*overrides: str, shape: dict | None = None, folder=None):
    if shape:
        (folder / "config.json").write_text(json.dumps(shape))
        overrides = (*overrides, f"model.path={folder}")
    return plan(load(BASE, list(overrides)))


def held(result, phase: str) -> float:
    return sum(value for name, value in result.phases[phase].items() if name != "reserve")


@pytest.mark.parametrize("path", sorted(ROOT.glob("recipes/qwen*.yaml")), ids=lambda path: path.stem)
def test_what_the_post_ran_fits_on_its_own_cluster(path):
    assert plan(load(path)).verdict == FITS


def test_lora_fits_72b_on_a_node_whose_host_is_too_small_for_its_optimizer():
    lora = load(ROOT / "recipes/qwen72b_lora.yaml")
    assert plan(lora).verdict == FITS
    shape = KNOWN["Qwen/Qwen2.5-Math-72B"]
    assert host_bytes(lora, shape) < 64 * GIB
    full = load(ROOT / "recipes/qwen72b_lora.yaml", ["lora=null"])
    assert plan(full).verdict == TOO_LARGE
    offloaded = load(ROOT / "recipes/qwen72b_lora.yaml", ["lora=null", "accelerate=zero3_offload"])
    assert plan(offloaded).verdict == FITS
    assert host_bytes(offloaded, shape) > 1024 * GIB


def test_trl_2688_a_share_of_nine_tenths_beside_a_trainer():
    result = planned("grpo.vllm_gpu_memory_utilization=0.9")
    assert result.verdict == TOO_LARGE
    assert "optimizer" in result.peak_phase or "forward" in result.peak_phase


def test_trl_3523_warming_up_the_sampler_with_1024_sequences(tmp_path):
    few, many = (
        planned(f"grpo.per_device_train_batch_size={rows}", f"grpo.generation_batch_size={8 * rows}", "cluster.gpu=A100-80GB",
                "grpo.num_generations=8", "grpo.vllm_tensor_parallel_size=8", "grpo.vllm_gpu_memory_utilization=0.7",
                shape=QWEN_32B, folder=tmp_path)
        for rows in (8, 128)
    )  # fmt: skip
    assert many.phases["generation"]["engine_workspace"] >= 2 * 1024 * 152064 * 4
    assert many.phases["generation"]["engine_workspace"] > few.phases["generation"]["engine_workspace"]
    assert many.verdict == TOO_LARGE


def test_trl_2927_and_3044_the_first_steps_optimizer_states_do_not_fit_any_more():
    result = planned("accelerate=ddp")
    assert held(result, "engine start") < result.visible_bytes < held(result, "optimizer step")
    assert result.verdict == TOO_LARGE


def test_lmm_r1_43_the_engine_cannot_wake_beside_what_the_trainer_kept():
    result = planned("accelerate=zero2", "grpo.vllm_enable_sleep_mode=true", "grpo.vllm_gpu_memory_utilization=0.7")
    assert held(result, "forward and backward") < result.visible_bytes < held(result, "generation")
    assert result.verdict == TOO_LARGE


def test_trl_6684_and_4509_four_billion_parameters_in_float32_by_default(tmp_path):
    settings = (
        "accelerate=ddp",
        "cluster.gpus_per_node=1",
        "grpo.per_device_train_batch_size=7",
        "grpo.generation_batch_size=7",
    )
    kinds = {
        dtype: planned(
            *settings, f"model.dtype={dtype}", "grpo.vllm_gpu_memory_utilization=0.2", shape=QWEN_4B, folder=tmp_path
        )
        for dtype in ("float32", "bfloat16")
    }
    assert kinds["float32"].verdict == TOO_LARGE
    assert kinds["bfloat16"].verdict == FITS


def test_between_fits_and_does_not_fit_there_is_tight():
    seen = [planned(f"grpo.vllm_gpu_memory_utilization={share / 100}").verdict for share in range(30, 75, 2)]
    assert list(dict.fromkeys(seen)) == [FITS, TIGHT, TOO_LARGE]


def test_a_repair_fits_and_keeps_the_batch():
    recipe = load(BASE, ["accelerate=ddp"])
    found = repairs(recipe)
    assert found
    for settings, result in found:
        assert result.verdict == FITS
        assert settings.get("generation_batch_size", 112) == 112
    steps = [result.seconds["step"] for _, result in found]
    assert steps == sorted(steps)


def test_check_warns_of_what_the_plan_finds_tight_or_too_large():
    recipe = load(BASE, ["grpo.gradient_checkpointing=false", "grpo.gradient_checkpointing_kwargs=null"])
    warnings = [problem for problem in check(recipe) if problem.field == "cluster.gpu"]
    assert [problem.warning for problem in warnings] == [True]
    assert "forward and backward" in warnings[0].rule


def test_auto_is_a_number_that_fits_and_holds_all_sequences():
    recipe = load(BASE, ["grpo.vllm_gpu_memory_utilization=auto"])
    share = recipe["grpo"]["vllm_gpu_memory_utilization"]
    result = plan(recipe)
    assert result.verdict == FITS
    sequences = 14 * 2048 * 2 * 2 * 28 * 4 * 128
    assert result.phases["generation"]["kv_cache"] >= sequences
    assert share < 0.35
    assert "auto" in recipe["sources"]["grpo.vllm_gpu_memory_utilization"]


def test_auto_is_refused_where_no_share_fits():
    with pytest.raises(RecipeError, match="auto"):
        load(BASE, ["grpo.vllm_gpu_memory_utilization=auto", "cluster.gpu=L4-24GB"])


def test_more_memory_and_more_nodes_never_make_a_verdict_worse():
    order = [TOO_LARGE, TIGHT, FITS]
    verdicts = [plan(load(BASE), gpu_gib=size).verdict for size in (24, 40, 48, 60, 80, 96, 141)]
    ranks = [order.index(verdict) for verdict in verdicts]
    assert ranks == sorted(ranks)
    assert held(planned("cluster.nodes=2", "grpo.per_device_train_batch_size=7"), "optimizer step") < held(
        planned(), "optimizer step"
    )


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--gpu", "A100-40GB"], 1), (["--gpu-gib", "24"], 1)])
def test_the_verb_ends_with_its_verdict_without_torch_and_in_under_a_second(options, code):
    program = (
        f"import sys; sys.argv = ['launch', 'plan', {BASE!r}, '--price', '2.5', *{options!r}]\n"
        "from launch.__main__ import main\n"
        "code = main()\n"
        "assert not {'torch', 'transformers', 'trl', 'vllm'} & set(sys.modules)\n"
        "sys.exit(code)"
    )
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
        seconds.append(time.perf_counter() - start)
        assert done.returncode == code, done.stderr
    assert min(seconds) < 1.0
    assert "GPU-hours" in done.stdout
    assert ("What makes it fit" in done.stdout or "No one or two" in done.stdout) == bool(code)


def test_the_peak_is_the_largest_phase():
    result = planned()
    assert result.needed_bytes == pytest.approx(max(held(result, phase) for phase in result.phases))
    assert result.needed_bytes / GIB < 79.1


def test_the_resolved_recipe_says_what_auto_became():
    command = [sys.executable, "-m", "launch", "show", BASE, "--set", "grpo.vllm_gpu_memory_utilization=auto"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "vllm_gpu_memory_utilization: 0." in done.stdout
    assert "auto, chosen by launch/plan.py" in done.stdout
