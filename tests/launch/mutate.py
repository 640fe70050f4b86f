"""Breaks recipes, reproducibly: `mutants(seed, count)` yields recipes' contents with one thing wrong, or changed.

Not every mutant is wrong (a seed of 7 is as good as 0). What must hold of each is in test_mutations.py.
"""

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from launch.arguments import MAPPINGS, WORDS
from launch.clusters import GPUS
from launch.recipe import ROOT, grpo_arguments, read_yaml

RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))

WRONG_TYPES = [
    "abc",
    "",
    " ",
    "3e-6",
    "1",
    "true",
    "no",
    3,
    -1,
    0.5,
    True,
    False,
    None,
    [],
    [1],
    {},
    {"a": 1},
    [["x"]],
    "ünï",
]
NUMBERS = [
    0,
    -1,
    1,
    2,
    3,
    7,
    0.1,
    0.5,
    1.5,
    2.5,
    1e-12,
    1e9,
    10**12,
    -0.0,
    2**31,
    float("nan"),
    float("inf"),
    -float("inf"),
]
STRINGS = [
    "",
    " ",
    "none",
    "null",
    "NO",
    "yes",
    "auto",
    "a b",
    "../x",
    "./",
    "/",
    "~",
    "~/model",
    "./missing",
    "x/y/z",
    "org/",
    "/no/such",
    "org/name ",
    "org--name/x",
    "-x",
    "C:\\x",
    "http://host/x",
    "line\nbreak",
    "tab\t",
    "x" * 500,
    "é",
    "main",
    "cuda:0",
    "steps",
]
WORDS_OF_OTHERS = sorted({word for words in WORDS.values() for word in words})


@dataclass
class Mutant:
    base: str
    content: dict
    keys: list[str]  # dotted keys of what was touched
    how: str


def leaves(node, prefix="") -> Iterator[str]:
    for key, value in node.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict) and value:
            yield from leaves(value, path)
        else:
            yield path


def put(content: dict, key: str, value) -> None:
    *parents, last = key.split(".")
    node = content
    for parent in parents:
        if not isinstance(node.get(parent), dict):
            node[parent] = {}
        node = node[parent]
    node[last] = value


def remove(content: dict, key: str) -> None:
    *parents, last = key.split(".")
    node = content
    for parent in parents:
        node = node[parent]
    del node[last]


def settings(content: dict) -> list[str]:
    """The leaves, less `sources`, whose keys hold dots."""
    return list(leaves({name: section for name, section in content.items() if name != "sources"}))


def wrong_type(rng, content):
    key = rng.choice(settings(content))
    put(content, key, rng.choice(WRONG_TYPES))
    return [key]


def odd_number(rng, content):
    key = rng.choice([key for key in settings(content) if isinstance(get(content, key), int | float)])
    put(content, key, rng.choice(NUMBERS))
    return [key]


def odd_string(rng, content):
    key = rng.choice([key for key in settings(content) if isinstance(get(content, key), str)])
    put(content, key, rng.choice(STRINGS + WORDS_OF_OTHERS))
    return [key]


def misspelt_key(rng, content):
    key = rng.choice([key for key in settings(content) if "." in key])
    parent, _, last = key.rpartition(".")
    place = rng.randrange(len(last))
    new = rng.choice(
        [last[:place] + last[place + 1 :], last[:place] + "x" + last[place:], last.upper(), last + " ", f"{last}_s"]
    )
    value = get(content, key)
    remove(content, key)
    put(content, f"{parent}.{new or 'x'}", value)
    return [key, f"{parent}.{new or 'x'}"]


def unknown_key(rng, content):
    section = rng.choice([name for name, value in content.items() if isinstance(value, dict)])
    name = rng.choice(["batch", "vllm", "gpus", "lr", "use_peft", "lora_r", "max_prompt_length", "x", "1", "weight"])
    key = f"{section}.{name}"
    put(content, key, rng.choice(WRONG_TYPES))
    return [key]


def left_out(rng, content):
    key = rng.choice([*settings(content), *content])
    remove(content, key)
    return [key]


def another_argument(rng, content):
    """Some argument of GRPOConfig with a value of its own type."""
    name, argument = rng.choice(sorted(grpo_arguments().items()))
    of_type = {
        "bool": [True, False],
        "int": [0, 1, 2, 4, 7, 100, -1],
        "float": [0.0, 0.5, 1.0, 3.0, -1.0],
        "null": [None],
        "str": argument.get("choices") or ["x", "no", "steps", "auto", ""],
        "list": [[], ["x"], [1.0]],
        "dict": [{}, {"x": 1}],
    }
    put(content, f"grpo.{name}", rng.choice(of_type[rng.choice(argument["types"])]))
    return [f"grpo.{name}"]


def another_word(rng, content):
    """One of TRL's own words, whether or not this repository offers it."""
    name = rng.choice([name for name, argument in grpo_arguments().items() if argument.get("choices") or name in WORDS])
    put(content, f"grpo.{name}", rng.choice([*grpo_arguments()[name].get("choices", []), *WORDS.get(name, ())]))
    return [f"grpo.{name}"]


def mapping(rng, content):
    name = rng.choice(sorted(MAPPINGS))
    known = MAPPINGS[name][content["recipe"]["arm"]] if name == "generation_kwargs" else MAPPINGS[name]
    inner = rng.choice([*known, "seed", "n", "top_p", "max_tokens", "do_sample", "num_cycles", "min_lr"])
    put(content, f"grpo.{name}", {inner: rng.choice([*WRONG_TYPES, *NUMBERS, ["</s>"], [0]])})
    return [f"grpo.{name}.{inner}", f"grpo.{name}"]


def arithmetic(rng, content):
    choices = {
        "cluster.nodes": range(1, 6),
        "cluster.gpus_per_node": range(1, 20),
        "grpo.per_device_train_batch_size": range(1, 80),
        "grpo.num_generations": range(1, 20),
        "grpo.vllm_tensor_parallel_size": range(1, 20),
        "grpo.gradient_accumulation_steps": range(1, 8),
        "grpo.steps_per_generation": range(1, 8),
        "grpo.generation_batch_size": range(2, 500),
        "grpo.num_iterations": range(1, 5),
        "grpo.max_completion_length": range(1, 5000, 100),
        "grpo.vllm_max_model_length": range(1, 5000, 100),
        "data.max_prompt_tokens": range(1, 5000, 100),
        "grpo.per_device_eval_batch_size": range(1, 20),
        "cluster.server.tensor_parallel_size": range(1, 10),
        "cluster.server.gpus_per_node": range(1, 10),
        "cluster.server.nodes": range(1, 4),
        "cluster.server.data_parallel_size": range(1, 5),
        "grpo.vllm_gpu_memory_utilization": [0.01, 0.05, 0.5, 0.95, 1.0, 30],
    }
    keys = rng.sample(sorted(choices), rng.choice([1, 1, 2]))
    for key in keys:
        put(content, key, rng.choice(list(choices[key])))
    return keys


def contradiction(rng, content):
    """A value that is fine by itself and not beside the others."""
    choices = {
        "recipe.arm": ["colocate", "server", "generate", "continuous_batching"],
        "cluster.gpu": ["cpu", "H100", "TPU", *GPUS],
        "accelerate": ["cpu", "ddp", "zero2", "zero3", "zero3_offload", "../x", "zero"],
        "model.dtype": ["float32", "bfloat16", "float16"],
        "model.attn_implementation": ["eager", "sdpa", "flash_attention_2", "flash_attention_3", "paged|sdpa"],
        "model.path": [
            "Qwen/Qwen2.5-Math-72B",
            "Qwen/Qwen2.5-Math-7B",
            "./tiny/checkpoint",
            "meta-llama/Llama-3.2-1B-Instruct",
        ],
        "model.revision": ["main", None, ""],
        "data.path": ["./tiny/data", "./data/math_sample", "DigitalLearningGmbH/MATH-lighteval"],
        "data.train_split": ["test", "train", "validation"],
        "data.eval_split": ["train", "test", "validation", None],
        "data.gold_column": ["problem", "solution", "answer", "level"],
        "data.config": ["default", "algebra", None, "x"],
        "data.system_prompt": ["boxed", "think", "think_answer", None, "x"],
        "grpo.bf16": [True, False],
        "rewards": [
            {"format_think": 1.0},
            {"accuracy": 0.0},
            {"accuracy": -1.0},
            {"length_cosine": 1.0},
            {},
            {"accuracy": {"weight": 1.0, "x": 1}},
            {"length_cosine": {"weight": 1.0, "max_tokens": 100}},
            {"repetition": {"weight": 1.0, "ngram_tokens": 0}},
        ],
        "grpo.loss_type": list(WORDS["loss_type"]),
        "grpo.beta": [0.0, 0.04],
        "grpo.top_p": [0.9],
        "grpo.top_k": [50],
        "grpo.min_p": [0.1],
        "grpo.sync_ref_model": [True],
        "grpo.eval_strategy": ["steps", "epoch"],
        "grpo.save_strategy": ["no", "steps", "epoch", "best"],
        "grpo.vllm_enable_sleep_mode": [True, False],
        "grpo.lr_scheduler_type": list(WORDS["lr_scheduler_type"]),
        "grpo.gradient_checkpointing": [False],
        "grpo.max_steps": [5],
        "grpo.num_train_epochs": [1],
        "grpo.vllm_importance_sampling_mode": list(WORDS["vllm_importance_sampling_mode"]),
        "grpo.vllm_importance_sampling_clip_max": [None, 0.5],
        "grpo.vllm_importance_sampling_clip_min": [0.5, 5.0],
        "grpo.delta": [1.1, 2.0],
        "grpo.epsilon_high": [0.1, 0.28, 5.0],
        "grpo.repetition_penalty": [1.1],
        "grpo.optim": list(WORDS["optim"]),
        "cluster.tensor_parallel_spans_nodes": [True, False],
        "cluster.server": [
            None,
            {"nodes": 1, "gpus_per_node": 1, "tensor_parallel_size": 1},
            {"nodes": 1, "gpus_per_node": 3, "tensor_parallel_size": 2},
        ],
        "grpo.ddp_find_unused_parameters": [True],
        "grpo.save_steps": [10, 0.5, 2.5],
    }
    keys = rng.sample(sorted(choices), rng.choice([1, 2, 2, 3]))
    for key in keys:
        put(content, key, copy.deepcopy(rng.choice(choices[key])))
    return keys


def sources(rng, content):
    key = rng.choice([*content["sources"], "grpo.seed", "grpo.nothing", "x"])
    content["sources"][key] = rng.choice(
        ["", "published", "published:", "guess: us", "Ours: x", 3, None, "ours: a reason"]
    )
    gap = rng.choice(["grpo", "model", "rewards", "cluster", "data"])
    if rng.random() < 0.3:
        content["sources"].pop(gap, None)
    return [f"sources.{key}", f"sources.{gap}"]


HOW = (
    wrong_type,
    odd_number,
    odd_string,
    misspelt_key,
    unknown_key,
    left_out,
    another_argument,
    another_word,
    mapping,
    arithmetic,
    arithmetic,
    contradiction,
    contradiction,
    sources,
)


def get(content: dict, key: str):
    node = content
    for part in key.split("."):
        node = node[part]
    return node


def mutants(seed: int, count: int) -> Iterator[Mutant]:
    rng = random.Random(seed)
    for number in range(count):
        path = RECIPES[number % len(RECIPES)]
        content = json.loads(json.dumps(read_yaml(path)))
        how = rng.choice(HOW)
        keys = how(rng, content)
        yield Mutant(path.name.removesuffix(".yaml"), content, keys, how.__name__)
