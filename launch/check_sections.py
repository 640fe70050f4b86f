"""Rules about what a recipe's sections say together: batches, parallelism, lengths, sampling, the loss, devices, memory."""

from collections.abc import Iterator

from launch.check_memory import memory
from launch.check_training import adapters, device, loss, paged_cache, sampling, speedups
from launch.check_values import VLLM_ARMS
from launch.derived import derive, divisors
from launch.problems import Problem
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
                f"rewards.{reward}",
                name,
                "the prompt (data.system_prompt) never asks for what this reward wants",
                registry.get(reward).mend,
            )
    limit, longest = (
        recipe["rewards"].get("length_cosine", {}).get("max_tokens"),
        recipe["grpo"]["max_completion_length"],
    )
    if limit is not None and limit > longest:
        yield Problem(
            "rewards.length_cosine.max_tokens",
            limit,
            f"no completion reaches it: max_completion_length is {longest}",
            f"set it to {longest}",
            warning=True,
        )


def batches(recipe: dict) -> Iterator[Problem]:
    grpo, derived = recipe["grpo"], derive(recipe)
    generations, batch, ranks = grpo["num_generations"], derived["generation_batch"], derived["ranks"]
    per_device, accumulation = grpo["per_device_train_batch_size"], grpo["gradient_accumulation_steps"]
    micro_batch = per_device * ranks
    if batch % micro_batch:
        here = divisors(batch // ranks) if batch % ranks == 0 else []
        yield Problem(
            "grpo.generation_batch_size",
            batch,
            f"must be a multiple of per_device_train_batch_size x cluster.nodes x cluster.gpus_per_node = "
            f"{per_device} x {ranks} = {micro_batch}",
            f"keep it with grpo.per_device_train_batch_size={here[-1]} (or {', '.join(map(str, here[-4:-1])) or here[-1]} "
            f"and more gradient_accumulation_steps)"
            if here
            else f"{ranks} ranks cannot share {batch}: use {_near_divisors(batch, ranks)} ranks, or another batch such as "
            f"{max(1, batch // micro_batch) * micro_batch}, which is another experiment",
        )
    if batch % generations:
        yield Problem(
            "grpo.num_generations",
            generations,
            f"must divide the generation batch: {ranks} ranks (cluster.nodes x cluster.gpus_per_node) x {per_device} "
            f"(per_device_train_batch_size) x {derived['steps_per_generation']} (steps_per_generation, or "
            f"gradient_accumulation_steps) = {batch} completions",
            f"use one of {', '.join(map(str, divisors(batch, 2)[:12]))}, or change the batch",
        )
    elif batch % micro_batch == 0 and _arm(recipe) == "colocate" and not derived["groups_whole_on_each_rank"]:
        yield Problem(
            "grpo.num_generations",
            generations,
            f"a rank holds {derived['generation_batch_per_rank']} completions, which is no whole number of groups",
            "it works, but a prompt is then prefilled by two engines",
            warning=True,
        )
    yield from _evaluation(recipe, derived)
    every = derived["steps_per_generation"] * grpo["num_iterations"]
    if accumulation % every and every % accumulation:
        follows = f" (generation_batch_size {batch} / (per_device_train_batch_size {per_device} x {ranks} ranks))"
        yield Problem(
            "grpo.gradient_accumulation_steps",
            accumulation,
            f"and steps_per_generation{follows if grpo.get('generation_batch_size') else ''} x num_iterations = {every}: "
            "one must divide the other",
            f"use {every}; otherwise an optimizer step mixes completions of two policies",
        )
    elif derived["steps_per_generation"] != accumulation:
        yield Problem(
            "grpo.gradient_accumulation_steps",
            accumulation,
            f"an optimizer step sees {derived['optimizer_batch']} completions and {batch} are sampled from one policy",
            f"on-policy is {derived['steps_per_generation']}; leave it if you mean it",
            warning=True,
        )


def _near_divisors(batch: int, ranks: int) -> str:
    found = [number for number in divisors(batch) if ranks / 2 <= number <= ranks * 2]
    return " or ".join(str(number) for number in sorted(found, key=lambda number: abs(number - ranks))[:3]) or "1"


def _evaluation(recipe: dict, derived: dict) -> Iterator[Problem]:
    grpo, held_out = recipe["grpo"], recipe["data"]["eval_split"]
    strategy = grpo.get("eval_strategy", "no")
    if strategy != "no" and not held_out:
        yield Problem("grpo.eval_strategy", strategy, "needs held-out problems (data.eval_split)", "name a split")
    if strategy == "steps" and "eval_steps" not in grpo:
        yield Problem(
            "grpo.eval_steps", None, "must be stated with eval_strategy: steps", "TRL would evaluate at every step"
        )
    if strategy != "steps" and "eval_steps" in grpo:
        yield Problem(
            "grpo.eval_steps", grpo["eval_steps"], "means nothing without eval_strategy: steps", "leave it out"
        )
    if held_out:
        per_device = grpo.get("per_device_eval_batch_size", 8)
        generations = grpo.get("num_generations_eval") or grpo["num_generations"]
        if per_device * derived["ranks"] % generations:
            yield Problem(
                "grpo.per_device_eval_batch_size",
                per_device,
                f"for data.eval_split: x {derived['ranks']} ranks (cluster.nodes x cluster.gpus_per_node) must be a multiple "
                f"of the {generations} generations of an evaluation (num_generations_eval, or num_generations)",
                f"such as {generations}",
            )
    if grpo.get("save_strategy") != "steps":
        for name in ("save_steps", *(("save_total_limit",) if grpo.get("save_strategy") == "no" else ())):
            if name in grpo:
                yield Problem(
                    f"grpo.{name}",
                    grpo[name],
                    f"means nothing with save_strategy {grpo.get('save_strategy')}",
                    "leave it out, or state save_strategy: steps",
                )


def parallelism(recipe: dict) -> Iterator[Problem]:
    cluster, ranks = recipe["cluster"], derive(recipe)["ranks"]
    if _arm(recipe) == "colocate":
        size, field = recipe["grpo"]["vllm_tensor_parallel_size"], "grpo.vllm_tensor_parallel_size"
        if ranks % size:
            yield Problem(
                field,
                size,
                f"must divide cluster.nodes x cluster.gpus_per_node = {cluster['nodes']} x {cluster['gpus_per_node']} = "
                f"{ranks} ranks (TRL does not check this before loading)",
                f"use one of {', '.join(map(str, divisors(ranks)))}",
            )
        elif not cluster["tensor_parallel_spans_nodes"] and cluster["gpus_per_node"] % size:
            yield Problem(
                field,
                size,
                f"must divide cluster.gpus_per_node = {cluster['gpus_per_node']}: a TP group would span nodes, and "
                "cluster.tensor_parallel_spans_nodes is false",
                "use a smaller size, or say cluster.tensor_parallel_spans_nodes: true",
            )
    elif _arm(recipe) == "server":
        size, field = cluster["server"]["tensor_parallel_size"], "cluster.server.tensor_parallel_size"
    else:
        return
    shape = _shape(recipe)
    heads, kv_heads = shape.get("num_attention_heads", size), shape.get("num_key_value_heads", size)
    if heads % size:
        yield Problem(
            field,
            size,
            f"must divide the {heads} attention heads of model.path (vLLM refuses it)",
            f"use one of {', '.join(map(str, divisors(heads)))}",
        )
    elif kv_heads % size and size % kv_heads:
        yield Problem(
            field,
            size,
            f"must divide, or be a multiple of, the {kv_heads} key-value heads of model.path",
            f"use one of {', '.join(map(str, divisors(kv_heads)))}",
        )
    if shape.get("intermediate_size", size) % size:
        yield Problem(
            field,
            size,
            f"must divide the intermediate size {shape['intermediate_size']} of model.path",
            "use a smaller size",
        )


def lengths(recipe: dict) -> Iterator[Problem]:
    grpo, needed = recipe["grpo"], derive(recipe)["max_sequence_tokens"]
    prompt, completion = recipe["data"]["max_prompt_tokens"], grpo["max_completion_length"]
    made_of = f"data.max_prompt_tokens {prompt} + grpo.max_completion_length {completion}"
    limit = _shape(recipe).get("max_position_embeddings")
    if limit and needed > limit:
        yield Problem(
            "grpo.max_completion_length",
            grpo["max_completion_length"],
            f"{made_of} = {needed} is more than the {limit} positions of model.path",
            "shorten one of them",
        )
    if _arm(recipe) in VLLM_ARMS:
        field, length = "grpo.vllm_max_model_length", grpo["vllm_max_model_length"]
        if length < needed:
            yield Problem(
                field, length, f"must be at least {made_of} = {needed} (TRL does not check this)", f"set it to {needed}"
            )
        if limit and length > limit:
            yield Problem(
                field, length, f"must be at most the {limit} positions of model.path", f"set it to {min(limit, needed)}"
            )


def cautions(recipe: dict) -> Iterator[Problem]:
    """Settings that run, and that people have regretted (each with its public report)."""
    grpo, large = recipe["grpo"], _shape(recipe).get("hidden_size", 0) >= 1024
    if large and grpo["learning_rate"] > 3e-6 and not recipe["lora"]:
        yield Problem(
            "grpo.learning_rate",
            grpo["learning_rate"],
            "above 3e-6 full fine-tuning of models this size has stayed flat or collapsed (open-r1 436, 474)",
            "3e-6 is what the published 1.5B and 7B runs used",
            warning=True,
        )
    if large and recipe["model"]["dtype"] == "float32" and grpo["bf16"]:
        yield Problem(
            "model.dtype",
            "float32",
            "keeps the master weights in 4 bytes each",
            "fine where it fits; bfloat16 halves it",
            warning=True,
        )
    if (
        _arm(recipe) in VLLM_ARMS
        and grpo["vllm_importance_sampling_correction"]
        and grpo["max_completion_length"] >= 2048
    ):
        mode = grpo["vllm_importance_sampling_mode"]
        if mode.startswith("sequence"):
            yield Problem(
                "grpo.vllm_importance_sampling_mode",
                mode,
                "sums log-ratios over all tokens, so long completions get masked (TRL 5814, 4772)",
                "token_truncate for completions of thousands of tokens",
                warning=True,
            )


RULES = (
    prompt_asks,
    batches,
    parallelism,
    lengths,
    sampling,
    speedups,
    adapters,
    paged_cache,
    loss,
    device,
    memory,
    cautions,
)
