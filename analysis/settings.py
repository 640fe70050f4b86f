"""What a run was, in columns: what runs are grouped and paired by."""

SETTINGS = (
    "recipe", "arm", "experiments", "model", "seed", "gpu", "gpus", "devices", "ranks", "accelerate", "tensor_parallel",
    "optimizer_batch", "generation_batch", "max_prompt_tokens", "max_completion_tokens", "checkpointing", "dtype", "loss_type",
    "lora_r", "utilization", "sleep", "status", "cause", "commit", "dirty", "start", "end", "recipe_hash",
)  # fmt: skip


def settings(manifest: dict) -> dict:
    """The settings of a run, from its manifest; None where the manifest does not say. `gpu` is the recipe's kind of GPU, or
    the device's own name where the recipe has none, or "cpu"."""
    recipe, derived = manifest["recipe"], manifest.get("derived") or {}
    cluster, grpo, data = recipe.get("cluster") or {}, recipe.get("grpo") or {}, recipe.get("data") or {}
    arm = recipe["recipe"]["arm"]
    server = cluster.get("server") if arm == "server" else None
    ranks = derived.get("ranks")
    tensor = server["tensor_parallel_size"] if server and "tensor_parallel_size" in server else None
    return {
        "recipe": recipe["name"],
        "arm": arm,
        "experiments": ",".join(recipe["recipe"].get("experiments") or ()) or None,
        "model": (recipe.get("model") or {}).get("path"),
        "seed": manifest.get("seed"),
        "gpu": gpu_kind(cluster.get("gpu"), manifest.get("hardware")),
        "gpus": derived.get("gpus"),
        "devices": ranks + (server["nodes"] * server["gpus_per_node"] if server else 0) if ranks else None,
        "ranks": ranks,
        "accelerate": recipe.get("accelerate"),
        "tensor_parallel": grpo.get("vllm_tensor_parallel_size") if arm == "colocate" else tensor,
        "optimizer_batch": derived.get("optimizer_batch"),
        "generation_batch": derived.get("generation_batch"),
        "max_prompt_tokens": data.get("max_prompt_tokens"),
        "max_completion_tokens": grpo.get("max_completion_length"),
        "checkpointing": grpo.get("gradient_checkpointing"),
        "dtype": (recipe.get("model") or {}).get("dtype"),
        "loss_type": grpo.get("loss_type"),
        "lora_r": (recipe.get("lora") or {}).get("r"),
        "utilization": grpo.get("vllm_gpu_memory_utilization") if arm == "colocate" else None,
        "sleep": grpo.get("vllm_enable_sleep_mode") if arm == "colocate" else None,
        "status": manifest["exit"]["status"],
        "cause": manifest["exit"].get("cause"),
        "commit": (manifest.get("git") or {}).get("commit"),
        "dirty": (manifest.get("git") or {}).get("dirty"),
        "start": manifest.get("start"),
        "end": manifest.get("end"),
        "recipe_hash": manifest.get("recipe_hash"),
    }


def variant(arm: str, sleep: bool | None) -> str:
    """What an arm is called where arms are compared by what they learn: an engine that sleeps makes colocate another one.
    `sleep` as `settings` has it; None, or NaN in a table, where the record does not say."""
    return f"{arm}_sleep" if sleep in (True,) else arm


def gpu_kind(recipe_gpu: str | None, hardware: dict | None) -> str | None:
    """ "cpu", the recipe's kind of GPU, or the name of the device that the run saw."""
    if recipe_gpu:
        return recipe_gpu
    hardware = hardware or {}
    if hardware.get("kind") == "cpu":
        return "cpu"
    return hardware["devices"][0]["name"] if hardware.get("devices") else None
