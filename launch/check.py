"""Looks across a recipe's sections for what would fail later: after a queue, after loading, or silently.

Each rule is a function that yields problems; `check` runs them all, so that everything is reported at once. What TRL
1.16.0 itself accepts without a word is marked "TRL does not check this".
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from launch.derived import derive, divisors
from launch.problems import Problem, nearest
from launch.recipe import MANAGED, ROOT, STATED, STATED_COLOCATED, STATED_WITH_VLLM, system_prompts, topology
from launch.shapes import is_local, model_shape
from rewards import registry

RULES = []


def rule(function):
    RULES.append(function)
    return function


def check(recipe: dict) -> list[Problem]:
    """All problems and warnings of a resolved recipe; none that is an error means that it can be started."""
    problems = [problem for one in RULES if one in FIRST for problem in one(recipe)]
    if not any(not problem.warning for problem in problems):  # the arithmetic needs the numbers to be there
        problems += [problem for one in RULES if one not in FIRST for problem in one(recipe)]
    return problems


def uses_vllm(recipe: dict) -> bool:
    return recipe["recipe"]["arm"] == "colocate"


@rule
def stated(recipe) -> Iterator[Problem]:
    names = STATED + (STATED_WITH_VLLM + STATED_COLOCATED if uses_vllm(recipe) else ())
    for name in names:
        if name not in recipe["grpo"]:
            yield Problem(
                f"grpo.{name}", None, "must be stated: it decides the algorithm, and TRL's default has moved or may move",
                "state the value that you mean; recipes/tiny_colocate.yaml states them all",
            )  # fmt: skip
    grpo = recipe["grpo"]
    if ("max_steps" in grpo) == ("num_train_epochs" in grpo):
        both = {key: grpo[key] for key in ("max_steps", "num_train_epochs") if key in grpo}
        yield Problem("grpo.max_steps", both or None, "state one of max_steps and num_train_epochs", "keep the one that you mean")
    if not uses_vllm(recipe):
        for name in grpo:
            if name.startswith("vllm_") and name not in MANAGED:
                arm = recipe["recipe"]["arm"]
                yield Problem(f"grpo.{name}", grpo[name], f"means nothing in the arm {arm}", "leave it out")


_RANGES = {
    # name: (least, least allowed?, most, most allowed?)
    "per_device_train_batch_size": (1, True, None, None),
    "per_device_eval_batch_size": (1, True, None, None),
    "gradient_accumulation_steps": (1, True, None, None),
    "steps_per_generation": (1, True, None, None),
    "generation_batch_size": (1, True, None, None),
    "num_generations": (2, True, None, None),
    "num_generations_eval": (1, True, None, None),
    "num_iterations": (1, True, None, None),
    "max_completion_length": (1, True, None, None),
    "max_steps": (1, True, None, None),
    "num_train_epochs": (0, False, None, None),
    "temperature": (0, False, None, None),
    "top_p": (0, False, 1, True),
    "top_k": (0, True, None, None),
    "min_p": (0, True, 1, True),
    "repetition_penalty": (0, False, None, None),
    "beta": (0, True, None, None),
    "epsilon": (0, False, None, None),
    "epsilon_high": (0, False, None, None),
    "learning_rate": (0, False, 1, False),
    "warmup_steps": (0, True, None, None),
    "weight_decay": (0, True, None, None),
    "max_grad_norm": (0, True, None, None),
    "adam_beta1": (0, True, 1, False),
    "adam_beta2": (0, True, 1, False),
    "adam_epsilon": (0, False, None, None),
    "top_entropy_quantile": (0, False, 1, True),
    "seed": (0, True, 2**31 - 1, True),
    "vllm_max_model_length": (1, True, None, None),
    "vllm_tensor_parallel_size": (1, True, None, None),
    "vllm_gpu_memory_utilization": (0, False, 1, False),
    "vllm_importance_sampling_clip_max": (0, False, None, None),
    "save_steps": (0, False, None, None),
    "eval_steps": (0, False, None, None),
}


@rule
def ranges(recipe) -> Iterator[Problem]:
    for name, (least, least_allowed, most, most_allowed) in _RANGES.items():
        value = recipe["grpo"].get(name)
        if value is None:
            continue
        low = least is not None and (value < least or (value == least and not least_allowed))
        high = most is not None and (value > most or (value == most and not most_allowed))
        if low or high or math.isnan(value):
            parts = [f"{'at least' if least_allowed else 'above'} {least}"] if least is not None else []
            parts += [f"{'at most' if most_allowed else 'below'} {most}"] if most is not None else []
            yield Problem(f"grpo.{name}", value, f"must be {' and '.join(parts)}", "correct the number")
    choices = {
        "loss_type": ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"),
        "scale_rewards": ("group", "batch", "none", True, False),
        "importance_sampling_level": ("token", "sequence"),
        "vllm_importance_sampling_mode": ("sequence_mask", "sequence_truncate", "token_mask", "token_truncate"),
        "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
        "vllm_model_impl": ("vllm", "transformers", "auto"),
    }
    for name, allowed in choices.items():
        value = recipe["grpo"].get(name)
        if value is not None and value not in allowed:
            near = nearest(value, allowed)
            yield Problem(
                f"grpo.{name}", value, f"must be one of {', '.join(map(str, allowed))}",
                f"did you mean {near}?" if near else "choose one",
            )  # fmt: skip


@rule
def files(recipe) -> Iterator[Problem]:
    """What the recipe names must be there: the model's folder, the data, the accelerate file, the system prompt."""
    path = recipe["model"]["path"]
    try:
        model_shape(path, recipe["model"]["revision"])
    except FileNotFoundError:
        yield Problem("model.path", path, "must be a folder with a config.json", "give the model's folder, or a hub id")
    except (ValueError, OSError) as error:
        yield Problem("model.path", path, str(error), "export the model again with save_pretrained")
    else:
        weights = list(Path(path).glob("*.safetensors")) + list(Path(path).glob("*.bin")) if is_local(path) else [path]
        if not weights:
            yield Problem("model.path", path, "must hold weights (*.safetensors)", "copy the weights beside config.json")
    for field in ("model", "data"):
        value = recipe[field]["path"]
        if not is_local(value) and (value.count("/") > 1 or value != value.strip() or " " in value):
            yield Problem(f"{field}.path", value, "must be a hub id such as org/name", "a folder starts with ./ or /")
    available = sorted(file.stem for file in (ROOT / "accelerate_configs").glob("*.yaml"))
    if recipe["accelerate"] not in available:
        near = nearest(recipe["accelerate"], available)
        mend = f"did you mean {near}?" if near else f"one of {', '.join(available)}"
        yield Problem("accelerate", recipe["accelerate"], "must name a file in accelerate_configs/", mend)
    prompts = system_prompts()
    name = recipe["data"]["system_prompt"]
    if name is not None and name not in prompts:
        mend = f"one of {', '.join(prompts)}, or null for none"
        yield Problem("data.system_prompt", name, "must be a name in launch/system_prompts.yaml", mend)
    yield from _dataset(recipe["data"])


def _dataset(data: dict) -> Iterator[Problem]:
    if not is_local(data["path"]):
        return  # the hub is asked by the ranks, before any engine starts
    for split in filter(None, (data["train_split"], data["eval_split"])):
        try:
            columns = split_columns(data["path"], split)
        except FileNotFoundError as error:
            yield Problem("data.path", data["path"], str(error), f"put {split}.jsonl or {split}.parquet there")
            continue
        except (ValueError, OSError) as error:
            yield Problem("data.path", data["path"], str(error), "write one JSON object on each line")
            continue
        for key in ("prompt_column", "gold_column"):
            if data[key] not in columns:
                near = nearest(data[key], columns)
                mend = f"did you mean {near}?" if near else f"the columns are {', '.join(sorted(columns))}"
                yield Problem(f"data.{key}", data[key], f"must be a column of the split {split}", mend)


def split_file(path: str, split: str) -> Path:
    """The file that holds a split of a local data set: <split>.jsonl, .json or .parquet in a folder, or the file itself.

    Raises:
        FileNotFoundError: there is none.
    """
    folder = Path(path)
    if folder.is_file():
        return folder
    for ending in ("jsonl", "json", "parquet"):
        candidate = folder / f"{split}.{ending}"
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"no file for the split {split} in {path}")


def split_columns(path: str, split: str) -> set[str]:
    """The column names of a split, from its first line or its parquet footer.

    Raises:
        FileNotFoundError, ValueError: no such file; not JSON lines, or no row.
    """
    file = split_file(path, split)
    if file.suffix == ".parquet":
        import pyarrow.parquet

        try:
            return set(pyarrow.parquet.read_schema(file).names)
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{file}: no parquet file ({error})") from error
    with open(file, encoding="utf-8") as lines:
        first = lines.readline()
    try:
        row = json.loads(first)
    except ValueError as error:
        raise ValueError(f"{file}: line 1 is no JSON object ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(f"{file}: line 1 is no JSON object")
    return set(row)


@rule
def rewards_known(recipe) -> Iterator[Problem]:
    for name, reward in recipe["rewards"].items():
        if name not in registry.REWARDS:
            near = nearest(name, registry.REWARDS)
            mend = f"did you mean {near}?" if near else f"one of {', '.join(registry.REWARDS)}"
            yield Problem(f"rewards.{name}", reward["weight"], "must be a reward of rewards/registry.py", mend)
            continue
        if not math.isfinite(reward["weight"]):
            yield Problem(f"rewards.{name}", reward["weight"], "the weight must be a finite number", "correct it")
        parameters = {key: value for key, value in reward.items() if key != "weight"}
        for error in registry.check_params(name, parameters):
            field, _, rest = error.partition(": ")
            rule_text, _, mend = rest.partition("; ")
            yield Problem(field, None, rule_text, mend or "see rewards/README.md")
    if all(reward["weight"] == 0 for reward in recipe["rewards"].values()):
        yield Problem("rewards", list(recipe["rewards"]), "at least one weight must not be 0", "there would be nothing to learn")


FIRST = {stated, ranges, files, rewards_known}


@rule
def prompt_asks(recipe) -> Iterator[Problem]:
    """A format that the prompt never asks for can only be stumbled upon."""
    name, text = recipe["data"]["system_prompt"], recipe["system_prompt"] or ""
    for reward in recipe["rewards"]:
        if not registry.prompt_asks_for(reward, text):
            yield Problem(
                f"rewards.{reward}", name, "the system prompt never asks for what this reward wants",
                registry.get(reward).mend,
            )  # fmt: skip


@rule
def batches(recipe) -> Iterator[Problem]:
    grpo, derived = recipe["grpo"], derive(recipe)
    generations, batch = grpo["num_generations"], derived["generation_batch"]
    sum_up = (
        f"{derived['ranks']} ranks x {grpo['per_device_train_batch_size']} per device x "
        f"{derived['steps_per_generation']} steps per generation = {batch}"
    )
    if grpo.get("generation_batch_size") is not None and grpo.get("steps_per_generation") is not None:
        yield Problem(
            "grpo.generation_batch_size", grpo["generation_batch_size"],
            "not together with steps_per_generation: each gives the other", "keep one of them",
        )  # fmt: skip
    micro_batch = grpo["per_device_train_batch_size"] * derived["ranks"]
    if batch % micro_batch:
        yield Problem(
            "grpo.generation_batch_size", batch, f"must be a multiple of per device x ranks = {micro_batch}",
            f"such as {batch // micro_batch * micro_batch or micro_batch}",
        )  # fmt: skip
    if batch % generations:
        yield Problem(
            "grpo.num_generations", generations, f"must divide the generation batch, {sum_up} completions",
            f"use one of {', '.join(map(str, divisors(batch, 2)[:12]))}, or change the batch",
        )  # fmt: skip
    elif not derived["groups_whole_on_each_rank"] and uses_vllm(recipe):
        yield Problem(
            "grpo.num_generations", generations,
            f"a rank holds {derived['generation_batch_per_rank']} completions, which is no whole number of groups",
            "it works, but a prompt is then prefilled by two engines", warning=True,
        )  # fmt: skip
    if recipe["data"]["eval_split"]:
        per_device = grpo.get("per_device_eval_batch_size", 8)
        eval_generations = grpo.get("num_generations_eval") or generations
        if per_device * derived["ranks"] % eval_generations:
            yield Problem(
                "grpo.per_device_eval_batch_size", per_device,
                f"x {derived['ranks']} ranks must be a multiple of num_generations_eval = {eval_generations}",
                f"such as {eval_generations}",
            )  # fmt: skip
    every = derived["steps_per_generation"] * grpo["num_iterations"]
    accumulation = grpo["gradient_accumulation_steps"]
    if accumulation % every and every % accumulation:
        yield Problem(
            "grpo.gradient_accumulation_steps", accumulation,
            f"and steps_per_generation x num_iterations = {every}: one must divide the other",
            "otherwise an optimizer step mixes completions of two policies",
        )  # fmt: skip


@rule
def parallelism(recipe) -> Iterator[Problem]:
    if not uses_vllm(recipe):
        return
    cluster, ranks = recipe["cluster"], derive(recipe)["ranks"]
    size = recipe["grpo"]["vllm_tensor_parallel_size"]
    field = "grpo.vllm_tensor_parallel_size"
    if ranks % size:
        yield Problem(field, size, f"must divide the {ranks} ranks (TRL does not check this before loading)",
                      f"use one of {', '.join(map(str, divisors(ranks)))}")  # fmt: skip
    elif not cluster["tensor_parallel_spans_nodes"] and cluster["gpus_per_node"] % size:
        yield Problem(field, size, f"must divide the {cluster['gpus_per_node']} GPUs of a node: a TP group would span nodes",
                      "use a smaller size, or set cluster.tensor_parallel_spans_nodes: true")  # fmt: skip
    shape = model_shape(recipe["model"]["path"], recipe["model"]["revision"])
    if shape is None:
        return
    heads, kv_heads = shape.get("num_attention_heads", size), shape.get("num_key_value_heads", size)
    if heads % size:
        yield Problem(field, size, f"must divide the model's {heads} attention heads", f"use one of {divisors(heads)}")
    if kv_heads % size and size % kv_heads:
        yield Problem(field, size, f"must divide, or be a multiple of, the model's {kv_heads} key-value heads",
                      f"use one of {divisors(kv_heads)}")  # fmt: skip
    if shape.get("vocab_size", 0) and shape.get("intermediate_size", size) % size:
        yield Problem(field, size, f"must divide the model's intermediate size {shape['intermediate_size']}",
                      "use a smaller size")  # fmt: skip


@rule
def lengths(recipe) -> Iterator[Problem]:
    needed = derive(recipe)["max_sequence_tokens"]
    made_of = f"data.max_prompt_tokens {recipe['data']['max_prompt_tokens']} + grpo.max_completion_length {recipe['grpo']['max_completion_length']}"
    shape = model_shape(recipe["model"]["path"], recipe["model"]["revision"]) or {}
    limit = shape.get("max_position_embeddings")
    if limit and needed > limit:
        yield Problem("grpo.max_completion_length", recipe["grpo"]["max_completion_length"],
                      f"{made_of} = {needed} is more than the model's {limit} positions", "shorten one of them")  # fmt: skip
    length = recipe["grpo"].get("vllm_max_model_length")
    if not uses_vllm(recipe) or length is None:
        return
    field = "grpo.vllm_max_model_length"
    if length < needed:
        yield Problem(field, length, f"must be at least {made_of} = {needed} (TRL does not check this)", f"set it to {needed}")
    if limit and length > limit:
        yield Problem(field, length, f"must be at most the model's {limit} positions", f"set it to {min(limit, max(needed, 1))}")


@rule
def sampling(recipe) -> Iterator[Problem]:
    grpo = recipe["grpo"]
    kwargs = grpo.get("generation_kwargs") or {}
    corrected = uses_vllm(recipe) and grpo["vllm_importance_sampling_correction"]
    if corrected:
        neutral = {"top_p": (1, 1.0), "top_k": (0, -1, None), "min_p": (0, 0.0, None)}
        for name, allowed in neutral.items():
            value = kwargs.get(name, grpo[name])
            if value not in allowed:
                yield Problem(f"grpo.{name}", value,
                              "with the importance-sampling correction the sampled distribution must not be cut: vLLM's "
                              "log-probabilities are renormalised over what is left, the trainer's are not (TRL 6789)",
                              f"set it to {allowed[0]}, or turn vllm_importance_sampling_correction off")  # fmt: skip
    if "seed" in kwargs:
        yield Problem("grpo.generation_kwargs.seed", kwargs["seed"],
                      "would make all completions of a prompt the same", "grpo.seed seeds the engines too")  # fmt: skip
    for name in ("n", "max_tokens", "logprobs", "best_of"):
        if name in kwargs:
            yield Problem(f"grpo.generation_kwargs.{name}", kwargs[name], "is set by TRL", "leave it out")


@rule
def device(recipe) -> Iterator[Problem]:
    grpo, on_cpu = recipe["grpo"], recipe["cluster"]["gpu"] == "cpu"
    kind = topology(recipe["accelerate"])["distributed_type"]
    if kind == "MULTI_CPU" and not on_cpu:
        yield Problem("accelerate", recipe["accelerate"], f"has no GPU, and cluster.gpu is {recipe['cluster']['gpu']}",
                      "use ddp, zero2 or zero3")  # fmt: skip
    if kind == "MULTI_GPU" and on_cpu:
        yield Problem("accelerate", recipe["accelerate"], "needs GPUs, and cluster.gpu is cpu", "use cpu or zero3_offload")
    if on_cpu and uses_vllm(recipe) and grpo["vllm_enable_sleep_mode"]:
        yield Problem("grpo.vllm_enable_sleep_mode", True, "vLLM has no sleep mode without a GPU", "set it to false")
    batching = grpo.get("transformers_continuous_batching_config") or {}
    if on_cpu and recipe["recipe"]["arm"] == "continuous_batching" and not {"num_blocks", "max_batch_tokens"} <= set(batching):
        yield Problem("grpo.transformers_continuous_batching_config", batching or None,
                      "must state num_blocks and max_batch_tokens without a GPU: transformers would size the cache by the "
                      "host's whole memory, once for each rank", "such as {block_size: 16, num_blocks: 1024, max_batch_tokens: 2048}")  # fmt: skip
    if grpo.get("fp16") and grpo["bf16"]:
        yield Problem("grpo.fp16", True, "not together with bf16", "keep one of them")
    if on_cpu and grpo.get("fp16"):
        yield Problem("grpo.fp16", True, "needs a GPU", "use bf16 or neither")
    if grpo["bf16"] and recipe["model"]["dtype"] == "float16":
        yield Problem("model.dtype", "float16", "does not go with grpo.bf16", "use bfloat16 or float32")
    if grpo.get("save_only_model") and grpo.get("save_strategy", "steps") != "no":
        yield Problem("grpo.save_only_model", True, "a checkpoint without the optimizer cannot be resumed from",
                      "leave it out", warning=True)  # fmt: skip


@rule
def cautions(recipe) -> Iterator[Problem]:
    """Settings that run, and that people have regretted (each with its public report)."""
    grpo, shape = recipe["grpo"], model_shape(recipe["model"]["path"], recipe["model"]["revision"]) or {}
    large = shape.get("hidden_size", 0) >= 1024
    if large and grpo["learning_rate"] > 3e-6:
        yield Problem("grpo.learning_rate", grpo["learning_rate"],
                      "above 3e-6 full fine-tuning of models this size has stayed flat or collapsed (open-r1 436, 474)",
                      "3e-6 is what the published 1.5B and 7B runs used", warning=True)  # fmt: skip
    if large and recipe["model"]["dtype"] == "float32" and grpo["bf16"]:
        yield Problem("model.dtype", "float32", "keeps the master weights in 4 bytes each",
                      "fine where it fits; bfloat16 halves it", warning=True)  # fmt: skip
    if uses_vllm(recipe) and grpo["vllm_importance_sampling_mode"].startswith("sequence") and grpo["max_completion_length"] >= 2048:
        yield Problem("grpo.vllm_importance_sampling_mode", grpo["vllm_importance_sampling_mode"],
                      "sums log-ratios over all tokens, so long completions get masked (TRL 5814, 4772)",
                      "token_truncate for completions of thousands of tokens", warning=True)  # fmt: skip
