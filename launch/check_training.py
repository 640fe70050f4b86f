"""Rules about sampling, the loss and the devices: what TRL, transformers or vLLM would refuse after loading, or get wrong."""

import importlib.util
from collections.abc import Iterator

from launch.check_values import VLLM_ARMS
from launch.clusters import CPU
from launch.derived import derive
from launch.memory import zero
from launch.problems import Problem
from launch.recipe import topology


def _arm(recipe: dict) -> str:
    return recipe["recipe"]["arm"]


def sampling(recipe: dict) -> Iterator[Problem]:
    grpo, arm = recipe["grpo"], _arm(recipe)
    kwargs = grpo.get("generation_kwargs") or {}
    least, most = (grpo.get(f"vllm_importance_sampling_clip_{end}") for end in ("min", "max"))
    if least is not None and most is not None and least >= most:  # TRL looks at it with the correction off, too
        rule = f"must be below vllm_importance_sampling_clip_max = {most}"
        yield Problem("grpo.vllm_importance_sampling_clip_min", least, rule, "lower it")
    if arm in VLLM_ARMS and grpo["vllm_importance_sampling_correction"]:
        for name, allowed in {"top_p": (1,), "top_k": (0,), "min_p": (None, 0)}.items():
            if grpo[name] not in allowed:
                yield Problem(
                    f"grpo.{name}",
                    grpo[name],
                    "with the importance-sampling correction the sampled distribution must not be cut: vLLM's "
                    "log-probabilities are renormalised over what is left, the trainer's are not (TRL 6789)",
                    f"set it to {allowed[0]}, or turn vllm_importance_sampling_correction off",
                )
        if (least or 0) > 1 or (most is not None and most < 1):
            end = "min" if (least or 0) > 1 else "max"
            yield Problem(
                f"grpo.vllm_importance_sampling_clip_{end}",
                least if end == "min" else most,
                "leaves out a ratio of 1, which two equal policies have: nothing would be learnt",
                "correct it",
            )
        if least is None and most is None and grpo["vllm_importance_sampling_mode"].endswith("truncate"):
            yield Problem(
                "grpo.vllm_importance_sampling_clip_max",
                None,
                "a *_truncate mode needs a bound",
                "TRL's default is 3.0",
            )
    if kwargs.get("stop") and kwargs.get("detokenize") is False:
        yield Problem(
            "grpo.generation_kwargs.stop", kwargs["stop"], "stop strings need the text", "take detokenize: false out"
        )
    for name in ("min_tokens", "min_new_tokens"):
        if kwargs.get(name, 0) > grpo["max_completion_length"]:
            yield Problem(
                f"grpo.generation_kwargs.{name}", kwargs[name], "is more than grpo.max_completion_length", "lower it"
            )


def speedups(recipe: dict) -> Iterator[Problem]:
    """What each of the speedups needs to give the same result."""
    grpo, arm, asked = recipe["grpo"], _arm(recipe), recipe["speedups"]
    kwargs, work = grpo.get("generation_kwargs") or {}, derive(recipe)
    if asked["outputs_when_finished"]:
        field, leave = "speedups.outputs_when_finished", "leave it out"
        if arm != "colocate":
            yield Problem(field, True, f"is about the colocated engine; recipe.arm is {arm}", leave)
        for name in ("stop", "detokenize", "flat_logprobs", "logprobs", "prompt_logprobs"):
            if name in kwargs:
                yield Problem(f"grpo.generation_kwargs.{name}", kwargs[name], f"is decided by {field}", "leave one out")
    if asked["score_in_loss"]:
        field, leave = "speedups.score_in_loss", "leave it out"
        if arm not in VLLM_ARMS or not grpo["vllm_importance_sampling_correction"]:
            rule = "needs an engine and vllm_importance_sampling_correction: without them nothing is scored"
            yield Problem(field, True, rule, leave)
        if grpo["num_iterations"] != 1 or work["generation_batch"] != work["optimizer_batch"]:
            rule = (
                f"needs each generation batch ({work['generation_batch']} completions) in one optimizer step alone "
                f"({work['optimizer_batch']} completions, num_iterations {grpo['num_iterations']}): otherwise the samples "
                "are of older weights"
            )
            yield Problem(field, True, rule, leave)


def adapters(recipe: dict) -> Iterator[Problem]:
    """LoRA: what TRL refuses or changes in silence."""
    grpo = recipe["grpo"]
    if not recipe["lora"]:
        return
    if zero(recipe)[0] == 3 and grpo["gradient_checkpointing"]:
        kwargs = grpo.get("gradient_checkpointing_kwargs") or {}
        if kwargs.get("use_reentrant") is not True:
            yield Problem(
                "grpo.gradient_checkpointing_kwargs",
                grpo.get("gradient_checkpointing_kwargs"),
                f"with lora and ZeRO-3 (accelerate: {recipe['accelerate']}) TRL turns use_reentrant on (TRL 2514)",
                "state {use_reentrant: true}",
            )
    if grpo.get("sync_ref_model"):
        rule = "with lora the reference is the model without its adapters, which has nothing to be brought up to date"
        yield Problem("grpo.sync_ref_model", True, rule, "leave it out")


def paged_cache(recipe: dict) -> Iterator[Problem]:
    """Continuous batching: its cache must hold a sequence, and it drops what it cannot sample with."""
    grpo = recipe["grpo"]
    if _arm(recipe) != "continuous_batching":
        return
    paged = grpo.get("transformers_continuous_batching_config") or {}
    room = paged.get("num_blocks", float("inf")) * paged.get("block_size", 256)
    if room < derive(recipe)["max_sequence_tokens"]:
        yield Problem(
            "grpo.transformers_continuous_batching_config.num_blocks",
            paged["num_blocks"],
            f"a cache of {room} tokens does not hold one sequence",
            "raise it",
        )
    for name, neutral in (("repetition_penalty", (1,)), ("min_p", (None, 0))):
        if grpo[name] not in neutral:
            yield Problem(
                f"grpo.{name}",
                grpo[name],
                "is dropped in silence by the arm (recipe.arm): drop_unsupported_processors of transformers",
                f"set it to {'null' if neutral[0] is None else neutral[0]}",
            )


def loss(recipe: dict) -> Iterator[Problem]:
    grpo = recipe["grpo"]
    kind, clip = grpo["loss_type"], grpo.get("epsilon_high") or grpo["epsilon"]
    clipped = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
    belongs = {
        "sapo_": (kind == "sapo", "loss_type: sapo"),
        "vespo_": (kind == "vespo", "loss_type: vespo"),
        "delta": (kind in clipped, f"a loss_type of {', '.join(clipped)}"),
        "ref_model_": (grpo.get("sync_ref_model", False), "sync_ref_model: true"),
        "entropy_coef_": (grpo.get("use_adaptive_entropy", False), "use_adaptive_entropy: true"),
        "entropy_target": (grpo.get("use_adaptive_entropy", False), "use_adaptive_entropy: true"),
        "gradient_checkpointing_kwargs": (grpo["gradient_checkpointing"], "gradient_checkpointing: true"),
        "log_unique_prompts": (grpo.get("log_completions", False), "log_completions: true"),
        "num_completions_to_print": (grpo.get("log_completions", False), "log_completions: true"),
    }
    for prefix, (holds, needs) in belongs.items():
        for name in grpo:
            if name.startswith(prefix) and grpo[name] is not None and not holds:
                yield Problem(
                    f"grpo.{name}", grpo[name], f"means nothing without {needs}", "leave it out, or state that"
                )
    if grpo.get("delta") is not None and grpo["delta"] <= 1 + clip:
        yield Problem(
            "grpo.delta",
            grpo["delta"],
            f"must be above 1 + epsilon_high = {1 + clip}: it is the outer clip",
            "raise it",
        )
    if grpo.get("epsilon_high") is not None and grpo["epsilon_high"] < grpo["epsilon"] and kind != "cispo":
        yield Problem(
            "grpo.epsilon_high", grpo["epsilon_high"], f"is below epsilon = {grpo['epsilon']}", "raise it, or null"
        )
    if grpo.get("sync_ref_model") and grpo["beta"] == 0:
        yield Problem(
            "grpo.sync_ref_model", True, "there is no reference model with grpo.beta = 0", "raise beta, or leave it out"
        )
    if grpo.get("entropy_coef_min", 0.0) > grpo.get("entropy_coef_max", 1.0):
        yield Problem("grpo.entropy_coef_min", grpo.get("entropy_coef_min"), "is above entropy_coef_max", "swap them")
    if kind == "vespo" and _arm(recipe) in VLLM_ARMS and grpo["vllm_importance_sampling_correction"]:
        mode = grpo["vllm_importance_sampling_mode"]
        if mode not in ("token_truncate", "token_mask"):
            yield Problem(
                "grpo.vllm_importance_sampling_mode",
                mode,
                "loss_type vespo needs token_truncate or token_mask",
                "use one",
            )
    needs_rate = grpo["lr_scheduler_type"] == "cosine_with_min_lr"
    if needs_rate != bool(grpo.get("lr_scheduler_kwargs")):
        yield Problem(
            "grpo.lr_scheduler_kwargs",
            grpo.get("lr_scheduler_kwargs"),
            "belongs to lr_scheduler_type: cosine_with_min_lr, which needs {min_lr_rate: ..}",
            "state both or neither",
        )
    reentrant = (grpo.get("gradient_checkpointing_kwargs") or {}).get("use_reentrant")
    if reentrant and grpo.get("ddp_find_unused_parameters"):
        yield Problem(
            "grpo.gradient_checkpointing_kwargs.use_reentrant",
            True,
            "marks a parameter ready twice with ddp_find_unused_parameters",
            "set it to false",
        )
    if grpo.get("importance_sampling_level") == "sequence" and kind in ("bnpo", "dr_grpo", "dapo", "cispo"):
        yield Problem(
            "grpo.importance_sampling_level",
            "sequence",
            f"{kind} weights each sequence by its length then (TRL warns)",
            "GSPO is loss_type: grpo",
            warning=True,
        )


def device(recipe: dict) -> Iterator[Problem]:
    grpo, model, on_cpu = recipe["grpo"], recipe["model"], recipe["cluster"]["gpu"] == CPU
    accelerate, deepspeed = recipe["accelerate"], recipe["deepspeed"]
    kind = topology(accelerate)["distributed_type"]
    if kind == "MULTI_CPU" and not on_cpu:
        yield Problem(
            "accelerate",
            accelerate,
            f"has no GPU, and cluster.gpu is {recipe['cluster']['gpu']}",
            "use ddp, zero2 or zero3",
        )
    if on_cpu and accelerate not in ("cpu", "zero3_offload"):
        yield Problem("accelerate", accelerate, "needs GPUs, and cluster.gpu is cpu", "use cpu or zero3_offload")
    if on_cpu and _arm(recipe) == "colocate" and grpo["vllm_enable_sleep_mode"]:
        yield Problem(
            "grpo.vllm_enable_sleep_mode",
            True,
            "vLLM has no sleep mode without a GPU (cluster.gpu: cpu)",
            "set it to false",
        )
    if on_cpu and grpo.get("use_liger_kernel"):
        yield Problem("grpo.use_liger_kernel", True, "its kernels need a GPU, and cluster.gpu is cpu", "leave it out")
    batching = grpo.get("transformers_continuous_batching_config") or {}
    if on_cpu and _arm(recipe) == "continuous_batching" and not {"num_blocks", "max_batch_tokens"} <= set(batching):
        yield Problem(
            "grpo.transformers_continuous_batching_config",
            batching or None,
            "must state num_blocks and max_batch_tokens in this arm (recipe.arm) without a GPU (cluster.gpu: cpu): "
            "transformers would size the cache by the host's whole memory, once for each rank",
            "such as {block_size: 16, num_blocks: 1024, max_batch_tokens: 2048}",
        )
    if on_cpu and deepspeed and grpo["bf16"]:
        yield Problem(
            "grpo.bf16",
            True,
            f"transformers takes it under DeepSpeed (accelerate: {accelerate}) on GPUs alone",
            "set it to false",
        )
    if deepspeed and model["dtype"] == "bfloat16" and not grpo["bf16"]:
        yield Problem(
            "model.dtype",
            "bfloat16",
            f"DeepSpeed (accelerate: {accelerate}) takes bfloat16 weights with grpo.bf16 alone",
            "set grpo.bf16: true",
        )
    if deepspeed and "offload_optimizer" in deepspeed["zero_optimization"] and not grpo["optim"].startswith("adamw"):
        yield Problem("grpo.optim", grpo["optim"], f"{accelerate} has Adam on the CPU and no other", "use adamw_torch")
    if model["attn_implementation"] == "flash_attention_2":
        if on_cpu:
            yield Problem(
                "model.attn_implementation", "flash_attention_2", "needs a GPU, and cluster.gpu is cpu", "use sdpa"
            )
        elif model["dtype"] == "float32":
            yield Problem(
                "model.attn_implementation",
                "flash_attention_2",
                "takes no model.dtype: float32",
                "use bfloat16, or sdpa",
            )
        elif importlib.util.find_spec("flash_attn") is None:
            yield Problem(
                "model.attn_implementation",
                "flash_attention_2",
                "the package flash-attn is not installed here",
                "install it where the ranks run, or use sdpa",
                warning=True,
            )
