"""The numbers that follow from a recipe: ranks, batches, groups. Derived and shown, never left to a crash."""


def derive(recipe: dict) -> dict:
    """Batch arithmetic of a resolved recipe, as TRL 1.16.0 does it (trl/trainer/grpo_config.py, __post_init__).

    Counts are of completions unless the name says otherwise. A generation batch is what is sampled from one policy; an
    optimizer batch is what one optimizer step sees. `ranks` train; `gpus` are all that the run holds, the server's too.
    """
    cluster, grpo, arm = recipe["cluster"], recipe["grpo"], recipe["recipe"]["arm"]
    server = cluster["server"] if arm == "server" else None
    ranks = cluster["nodes"] * cluster["gpus_per_node"]
    server_gpus = server["nodes"] * server["gpus_per_node"] if server else 0
    per_device = grpo["per_device_train_batch_size"]
    accumulation_steps = grpo["gradient_accumulation_steps"]
    micro_batch = per_device * ranks
    if grpo.get("generation_batch_size") is not None:
        steps_per_generation = max(1, grpo["generation_batch_size"] // micro_batch)
        generation_batch = grpo["generation_batch_size"]
    else:
        steps_per_generation = grpo.get("steps_per_generation") or accumulation_steps
        generation_batch = micro_batch * steps_per_generation
    tensor_parallel = grpo.get("vllm_tensor_parallel_size") or 1
    engines = {"colocate": ranks // tensor_parallel, "server": server["data_parallel_size"] if server else 0}.get(
        arm, 0
    )
    on_cpu = cluster["gpu"] == "cpu"
    return {
        "ranks": ranks,
        "gpus": 0 if on_cpu else ranks + server_gpus,
        "server_gpus": 0 if on_cpu else server_gpus,
        "engines": engines,
        "steps_per_generation": steps_per_generation,
        "generation_batch": generation_batch,
        "generation_batch_per_rank": generation_batch // ranks,
        "generation_batch_per_engine": generation_batch // engines if engines else None,
        "prompts_per_generation": generation_batch // grpo["num_generations"],
        "optimizer_batch": micro_batch * accumulation_steps,
        "groups_whole_on_each_rank": (generation_batch // ranks) % grpo["num_generations"] == 0,
        "max_new_tokens_per_generation": generation_batch * grpo["max_completion_length"],
        "max_sequence_tokens": recipe["data"]["max_prompt_tokens"] + grpo["max_completion_length"],
    }


def divisors(number: int, at_least: int = 1) -> list[int]:
    """The divisors of `number` from `at_least` on: the values that a message can offer."""
    return [candidate for candidate in range(at_least, number + 1) if number % candidate == 0]
