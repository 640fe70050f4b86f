"""Rules about what a recipe's sections say together: batches, parallelism, lengths, sampling, the loss, devices, memory."""

import importlib.util
from collections.abc import Iterator

from launch.check_memory import memory
from launch.check_values import VLLM_ARMS
from launch.clusters import CPU
from launch.derived import derive, divisors
from launch.problems import Problem
from launch.recipe import topology
from launch.shapes import model_shape
from rewards import registry


def _arm(recipe: dict) -> str:
    return recipe["recipe"]["arm"]


def _shape(recipe: dict) -> dict:
    return model_shape(recipe["model"]["path"], recipe["model"]["revision"]) or {}


def prompt_asks(recipe: dict) -> Iterator[Problem]:
    """A format that the prompt never asks for can only be stumbled upon."""
    name, text = recipe["data"]["system_prompt"], recipe["system_prompt"] or ""
    for reward, settings in recipe["rewards"].items():
        if settings["weight"] and not registry.prompt_asks_for(reward, text):
            yield Problem(
                f"rewards.{reward}", name, "the system prompt never asks for what this reward wants",
                registry.get(reward).mend,
            )  # fmt: skip
    limit, longest = recipe["rewards"].get("length_cosine", {}).get("max_tokens"), recipe["grpo"]["max_completion_length"]
    if limit is not None and limit > longest:
        yield Problem("rewards.length_cosine.max_tokens", limit, f"no completion reaches it: max_completion_length is {longest}",
                      f"set it to {longest}", warning=True)  # fmt: skip


def batches(recipe: dict) -> Iterator[Problem]:
    grpo, derived = recipe["grpo"], derive(recipe)
    generations, batch, ranks = grpo["num_generations"], derived["generation_batch"], derived["ranks"]
    per_device, accumulation = grpo["per_device_train_batch_size"], grpo["gradient_accumulation_steps"]
    micro_batch = per_device * ranks
    if batch % micro_batch:
        here = divisors(batch // ranks) if batch % ranks == 0 else []
        yield Problem(
            "grpo.generation_batch_size", batch,
            f"must be a multiple of per device x ranks (cluster.nodes x cluster.gpus_per_node) = {per_device} x {ranks} = {micro_batch}",
            f"keep it with grpo.per_device_train_batch_size={here[-1]} (or {', '.join(map(str, here[-4:-1])) or here[-1]} and more "
            f"gradient_accumulation_steps)" if here
            else f"{ranks} ranks cannot share {batch}: use {_near_divisors(batch, ranks)} ranks, or another batch such as "
            f"{max(1, batch // micro_batch) * micro_batch}, which is another experiment",
        )  # fmt: skip
    if batch % generations:
        yield Problem(
            "grpo.num_generations", generations,
            f"must divide the generation batch: {ranks} ranks x {per_device} per device x {derived['steps_per_generation']} "
            f"steps per generation = {batch} completions",
            f"use one of {', '.join(map(str, divisors(batch, 2)[:12]))}, or change the batch",
        )  # fmt: skip
    elif batch % micro_batch == 0 and _arm(recipe) == "colocate" and not derived["groups_whole_on_each_rank"]:
        yield Problem(
            "grpo.num_generations", generations,
            f"a rank holds {derived['generation_batch_per_rank']} completions, which is no whole number of groups",
            "it works, but a prompt is then prefilled by two engines", warning=True,
        )  # fmt: skip
    yield from _evaluation(recipe, derived)
    every = derived["steps_per_generation"] * grpo["num_iterations"]
    if accumulation % every and every % accumulation:
        yield Problem(
            "grpo.gradient_accumulation_steps", accumulation,
            f"and steps_per_generation x num_iterations = {every}: one must divide the other",
            "otherwise an optimizer step mixes completions of two policies",
        )  # fmt: skip
    elif derived["steps_per_generation"] != accumulation:
        yield Problem(
            "grpo.gradient_accumulation_steps", accumulation,
            f"an optimizer step sees {derived['optimizer_batch']} completions and {batch} are sampled from one policy",
            f"on-policy is {derived['steps_per_generation']}; leave it if you mean it", warning=True,
        )  # fmt: skip


def _near_divisors(batch: int, ranks: int) -> str:
    found = [number for number in divisors(batch) if ranks / 2 <= number <= ranks * 2]
    return " or ".join(str(number) for number in sorted(found, key=lambda number: abs(number - ranks))[:3]) or "1"


def _evaluation(recipe: dict, derived: dict) -> Iterator[Problem]:
    grpo, held_out = recipe["grpo"], recipe["data"]["eval_split"]
    strategy = grpo.get("eval_strategy", "no")
    if strategy != "no" and not held_out:
        yield Problem("grpo.eval_strategy", strategy, "needs held-out problems", "name data.eval_split")
    if strategy == "steps" and "eval_steps" not in grpo:
        yield Problem("grpo.eval_steps", None, "must be stated with eval_strategy: steps", "TRL would evaluate at every step")
    if strategy != "steps" and "eval_steps" in grpo:
        yield Problem("grpo.eval_steps", grpo["eval_steps"], "means nothing without eval_strategy: steps", "leave it out")
    if held_out:
        per_device = grpo.get("per_device_eval_batch_size", 8)
        generations = grpo.get("num_generations_eval") or grpo["num_generations"]
        if per_device * derived["ranks"] % generations:
            yield Problem(
                "grpo.per_device_eval_batch_size", per_device,
                f"x {derived['ranks']} ranks must be a multiple of the {generations} generations of an evaluation",
                f"such as {generations}; or another num_generations_eval",
            )  # fmt: skip
    if grpo.get("save_strategy") != "steps":
        for name in ("save_steps", *(("save_total_limit",) if grpo.get("save_strategy") == "no" else ())):
            if name in grpo:
                yield Problem(f"grpo.{name}", grpo[name], f"means nothing with save_strategy {grpo.get('save_strategy')}",
                              "leave it out, or state save_strategy: steps")  # fmt: skip


def parallelism(recipe: dict) -> Iterator[Problem]:
    cluster, ranks = recipe["cluster"], derive(recipe)["ranks"]
    if _arm(recipe) == "colocate":
        size, field = recipe["grpo"]["vllm_tensor_parallel_size"], "grpo.vllm_tensor_parallel_size"
        if ranks % size:
            yield Problem(
                field, size, f"must divide the {cluster['nodes']} x {cluster['gpus_per_node']} = {ranks} ranks "
                "(TRL does not check this before loading)", f"use one of {', '.join(map(str, divisors(ranks)))}",
            )  # fmt: skip
        elif not cluster["tensor_parallel_spans_nodes"] and cluster["gpus_per_node"] % size:
            yield Problem(
                field, size, f"must divide the {cluster['gpus_per_node']} GPUs of a node: a TP group would span nodes",
                "use a smaller size, or say cluster.tensor_parallel_spans_nodes: true",
            )  # fmt: skip
    elif _arm(recipe) == "server":
        size, field = cluster["server"]["tensor_parallel_size"], "cluster.server.tensor_parallel_size"
    else:
        return
    shape = _shape(recipe)
    heads, kv_heads = shape.get("num_attention_heads", size), shape.get("num_key_value_heads", size)
    if heads % size:
        yield Problem(field, size, f"must divide the model's {heads} attention heads (vLLM refuses it)",
                      f"use one of {', '.join(map(str, divisors(heads)))}")  # fmt: skip
    elif kv_heads % size and size % kv_heads:
        yield Problem(field, size, f"must divide, or be a multiple of, the model's {kv_heads} key-value heads",
                      f"use one of {', '.join(map(str, divisors(kv_heads)))}")  # fmt: skip
    if shape.get("intermediate_size", size) % size:
        yield Problem(field, size, f"must divide the model's intermediate size {shape['intermediate_size']}",
                      "use a smaller size")  # fmt: skip


def lengths(recipe: dict) -> Iterator[Problem]:
    grpo, needed = recipe["grpo"], derive(recipe)["max_sequence_tokens"]
    made_of = f"data.max_prompt_tokens {recipe['data']['max_prompt_tokens']} + grpo.max_completion_length {grpo['max_completion_length']}"
    limit = _shape(recipe).get("max_position_embeddings")
    if limit and needed > limit:
        yield Problem("grpo.max_completion_length", grpo["max_completion_length"],
                      f"{made_of} = {needed} is more than the model's {limit} positions", "shorten one of them")  # fmt: skip
    if _arm(recipe) in VLLM_ARMS:
        field, length = "grpo.vllm_max_model_length", grpo["vllm_max_model_length"]
        if length < needed:
            yield Problem(field, length, f"must be at least {made_of} = {needed} (TRL does not check this)", f"set it to {needed}")
        if limit and length > limit:
            yield Problem(field, length, f"must be at most the model's {limit} positions", f"set it to {min(limit, needed)}")


def sampling(recipe: dict) -> Iterator[Problem]:
    grpo, arm = recipe["grpo"], _arm(recipe)
    kwargs = grpo.get("generation_kwargs") or {}
    corrected = arm in VLLM_ARMS and grpo["vllm_importance_sampling_correction"]
    if corrected:
        for name, allowed in {"top_p": (1,), "top_k": (0,), "min_p": (None, 0)}.items():
            if grpo[name] not in allowed:
                yield Problem(f"grpo.{name}", grpo[name],
                              "with the importance-sampling correction the sampled distribution must not be cut: vLLM's "
                              "log-probabilities are renormalised over what is left, the trainer's are not (TRL 6789)",
                              f"set it to {allowed[0]}, or turn vllm_importance_sampling_correction off")  # fmt: skip
        least, most = (grpo.get(f"vllm_importance_sampling_clip_{end}") for end in ("min", "max"))
        if least is not None and most is not None and least >= most:
            yield Problem("grpo.vllm_importance_sampling_clip_min", least, f"must be below clip_max = {most}", "lower it")
        if least is None and most is None and grpo["vllm_importance_sampling_mode"].endswith("truncate"):
            yield Problem("grpo.vllm_importance_sampling_clip_max", None, "a *_truncate mode needs a bound", "TRL's default is 3.0")
    if kwargs.get("stop") and kwargs.get("detokenize") is False:
        yield Problem("grpo.generation_kwargs.stop", kwargs["stop"], "stop strings need the text", "take detokenize: false out")
    for name in ("min_tokens", "min_new_tokens"):
        if kwargs.get(name, 0) > grpo["max_completion_length"]:
            yield Problem(f"grpo.generation_kwargs.{name}", kwargs[name], "is more than grpo.max_completion_length", "lower it")
    if arm == "continuous_batching":
        paged = grpo.get("transformers_continuous_batching_config") or {}
        room = paged.get("num_blocks", float("inf")) * paged.get("block_size", 256)
        if room < derive(recipe)["max_sequence_tokens"]:
            yield Problem("grpo.transformers_continuous_batching_config.num_blocks", paged["num_blocks"],
                          f"a cache of {room} tokens does not hold one sequence", "raise it")  # fmt: skip
        if grpo["repetition_penalty"] != 1:
            yield Problem("grpo.repetition_penalty", grpo["repetition_penalty"],
                          "is dropped in silence by continuous batching (drop_unsupported_processors)", "set it to 1.0")  # fmt: skip


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
                yield Problem(f"grpo.{name}", grpo[name], f"means nothing without {needs}", "leave it out, or state that")
    if grpo.get("delta") is not None and grpo["delta"] <= 1 + clip:
        yield Problem("grpo.delta", grpo["delta"], f"must be above 1 + epsilon_high = {1 + clip}: it is the outer clip", "raise it")
    if grpo.get("epsilon_high") is not None and grpo["epsilon_high"] < grpo["epsilon"] and kind != "cispo":
        yield Problem("grpo.epsilon_high", grpo["epsilon_high"], f"is below epsilon = {grpo['epsilon']}", "raise it, or null")
    if grpo.get("sync_ref_model") and grpo["beta"] == 0:
        yield Problem("grpo.sync_ref_model", True, "there is no reference model with beta = 0", "raise beta, or leave it out")
    if grpo.get("entropy_coef_min", 0.0) > grpo.get("entropy_coef_max", 1.0):
        yield Problem("grpo.entropy_coef_min", grpo.get("entropy_coef_min"), "is above entropy_coef_max", "swap them")
    if kind == "vespo" and _arm(recipe) in VLLM_ARMS and grpo["vllm_importance_sampling_correction"]:
        mode = grpo["vllm_importance_sampling_mode"]
        if mode not in ("token_truncate", "token_mask"):
            yield Problem("grpo.vllm_importance_sampling_mode", mode, "loss_type vespo needs token_truncate or token_mask", "use one")
    needs_rate = grpo["lr_scheduler_type"] == "cosine_with_min_lr"
    if needs_rate != bool(grpo.get("lr_scheduler_kwargs")):
        yield Problem("grpo.lr_scheduler_kwargs", grpo.get("lr_scheduler_kwargs"),
                      "belongs to lr_scheduler_type: cosine_with_min_lr, which needs {min_lr_rate: ..}", "state both or neither")  # fmt: skip
    reentrant = (grpo.get("gradient_checkpointing_kwargs") or {}).get("use_reentrant")
    if reentrant and grpo.get("ddp_find_unused_parameters"):
        yield Problem("grpo.gradient_checkpointing_kwargs.use_reentrant", True,
                      "marks a parameter ready twice with ddp_find_unused_parameters", "set it to false")  # fmt: skip
    if grpo.get("importance_sampling_level") == "sequence" and kind in ("bnpo", "dr_grpo", "dapo", "cispo"):
        yield Problem("grpo.importance_sampling_level", "sequence", f"{kind} weights each sequence by its length then (TRL warns)",
                      "GSPO is loss_type: grpo", warning=True)  # fmt: skip


def device(recipe: dict) -> Iterator[Problem]:
    grpo, model, on_cpu = recipe["grpo"], recipe["model"], recipe["cluster"]["gpu"] == CPU
    accelerate, zero = recipe["accelerate"], recipe["deepspeed"]
    kind = topology(accelerate)["distributed_type"]
    if kind == "MULTI_CPU" and not on_cpu:
        yield Problem("accelerate", accelerate, f"has no GPU, and cluster.gpu is {recipe['cluster']['gpu']}",
                      "use ddp, zero2 or zero3")  # fmt: skip
    if on_cpu and accelerate not in ("cpu", "zero3_offload"):
        yield Problem("accelerate", accelerate, "needs GPUs, and cluster.gpu is cpu", "use cpu or zero3_offload")
    if on_cpu and _arm(recipe) == "colocate" and grpo["vllm_enable_sleep_mode"]:
        yield Problem("grpo.vllm_enable_sleep_mode", True, "vLLM has no sleep mode without a GPU", "set it to false")
    batching = grpo.get("transformers_continuous_batching_config") or {}
    if on_cpu and _arm(recipe) == "continuous_batching" and not {"num_blocks", "max_batch_tokens"} <= set(batching):
        yield Problem("grpo.transformers_continuous_batching_config", batching or None,
                      "must state num_blocks and max_batch_tokens without a GPU: transformers would size the cache by the "
                      "host's whole memory, once for each rank",
                      "such as {block_size: 16, num_blocks: 1024, max_batch_tokens: 2048}")  # fmt: skip
    if on_cpu and zero and grpo["bf16"]:
        yield Problem("grpo.bf16", True, "transformers takes it under DeepSpeed on GPUs alone", "set it to false")
    if zero and model["dtype"] == "bfloat16" and not grpo["bf16"]:
        yield Problem("model.dtype", "bfloat16", "DeepSpeed takes bfloat16 weights with grpo.bf16 alone", "set grpo.bf16: true")
    if zero and "offload_optimizer" in zero["zero_optimization"] and not grpo["optim"].startswith("adamw"):
        yield Problem("grpo.optim", grpo["optim"], f"{accelerate} has Adam on the CPU and no other", "use adamw_torch")
    if model["attn_implementation"] == "flash_attention_2":
        if on_cpu:
            yield Problem("model.attn_implementation", "flash_attention_2", "needs a GPU", "use sdpa")
        elif model["dtype"] == "float32":
            yield Problem("model.attn_implementation", "flash_attention_2", "takes no float32", "use model.dtype: bfloat16, or sdpa")
        elif importlib.util.find_spec("flash_attn") is None:
            yield Problem("model.attn_implementation", "flash_attention_2", "the package flash-attn is not installed here",
                          "install it where the ranks run, or use sdpa", warning=True)  # fmt: skip


def cautions(recipe: dict) -> Iterator[Problem]:
    """Settings that run, and that people have regretted (each with its public report)."""
    grpo, large = recipe["grpo"], _shape(recipe).get("hidden_size", 0) >= 1024
    if large and grpo["learning_rate"] > 3e-6:
        yield Problem("grpo.learning_rate", grpo["learning_rate"],
                      "above 3e-6 full fine-tuning of models this size has stayed flat or collapsed (open-r1 436, 474)",
                      "3e-6 is what the published 1.5B and 7B runs used", warning=True)  # fmt: skip
    if large and recipe["model"]["dtype"] == "float32" and grpo["bf16"]:
        yield Problem("model.dtype", "float32", "keeps the master weights in 4 bytes each",
                      "fine where it fits; bfloat16 halves it", warning=True)  # fmt: skip
    if _arm(recipe) in VLLM_ARMS and grpo["vllm_importance_sampling_correction"] and grpo["max_completion_length"] >= 2048:
        mode = grpo["vllm_importance_sampling_mode"]
        if mode.startswith("sequence"):
            yield Problem("grpo.vllm_importance_sampling_mode", mode,
                          "sums log-ratios over all tokens, so long completions get masked (TRL 5814, 4772)",
                          "token_truncate for completions of thousands of tokens", warning=True)  # fmt: skip


RULES = (prompt_asks, batches, parallelism, lengths, sampling, loss, device, memory, cautions)
