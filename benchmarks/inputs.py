"""What measured runs are given: random models at true shapes, prompts of known lengths, and the recipe around them."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

from launch.recipe import SOURCED
from launch.shapes import KNOWN
from launch.shrink import small_shape

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER = ROOT / "tiny" / "checkpoint"  # spells the prompts; the models have the true vocabularies all the same
MODELS = {"1.5b": "Qwen/Qwen2.5-Math-1.5B", "7b": "Qwen/Qwen2.5-Math-7B"}
TINY = "tiny"  # a small model, for machines without a GPU
ROWS, SHORTER_TOKENS = 64, 60


def shipped_recipe(item: dict) -> dict:
    """The recipe in recipes/ of an item's shape and arm."""
    shape = "1.5b" if item["shape"] == TINY else item["shape"]
    return YAML(typ="safe").load((ROOT / f"recipes/qwen{shape}_{item['arm']}.yaml").read_text())


def training_ranks(item: dict) -> int:
    """The GPUs of an item that train: all, or those that its server leaves."""
    return item.get("gpus", 1) - (item.get("tp", 1) if item["arm"] == "server" else 0)


def on_one_node(item: dict, model: Path, data: Path) -> dict:
    """The shape's own recipe with a random model, our prompts and the item's GPUs, without what it does for speed beyond
    TRL's own defaults (generation_kwargs, liger-kernel, speedups); it neither saves nor shuffles.

    Args:
        item: `shape`, `arm`, `prompt` (tokens), `dtype`, `accelerate`; `gpu` where it is not an H200; `gpus` (1), all that the
            run holds, and `tp` (1), those over which an engine is split; in the server arm these serve and the others train.
    """
    content, size = shipped_recipe(item), item.get("tp", 1)
    content["model"] |= {"path": str(model), "dtype": item["dtype"]}
    content["data"] |= {"path": str(data), "config": None, "revision": None, "system_prompt": "tiny_boxed",
                        "max_prompt_tokens": item["prompt"]}  # fmt: skip
    content["rewards"] = {"accuracy_boxed": 1.0}
    content["cluster"] = {"nodes": 1, "gpus_per_node": training_ranks(item), "gpu": item.get("gpu", "H200-141GB")}
    if item["arm"] == "server":
        content["cluster"]["server"] = {"nodes": 1, "gpus_per_node": size, "on_training_node": True,
                                        "tensor_parallel_size": size}  # fmt: skip
    content["accelerate"] = item["accelerate"]
    content.pop("speedups", None)
    for name in ("num_train_epochs", "save_steps", "save_total_limit", "generation_batch_size", "generation_kwargs",
                 "use_liger_kernel"):  # fmt: skip
        content["grpo"].pop(name, None)
    content["grpo"] |= {"shuffle_dataset": False, "save_strategy": "no"}
    if item["arm"] == "colocate":
        content["grpo"]["vllm_tensor_parallel_size"] = size
    content["sources"] = dict.fromkeys(SOURCED, "ours: benchmarks/")
    return content


def model_name(shape: str, mean_completion_tokens: float | None = None) -> str:
    """The folder of a shape's model: one that never ends a completion, or one that ends them at that mean length."""
    return shape if mean_completion_tokens is None else f"{shape}_mean{mean_completion_tokens:g}"


def make_models(wanted: set[tuple[str, float | None]], folder: Path, device: str) -> None:
    """Random models with the shapes of published ones, made on the device by processes of their own.

    Args:
        wanted: shapes ("1.5b", "7b", or TINY: a small one without a published shape), each with the mean length in tokens
            that its completions end at, None for never.

    Raises:
        RuntimeError: one could not be made.
    """
    started = []
    for shape, mean in sorted(wanted, key=str):
        published = KNOWN[MODELS["1.5b" if shape == TINY else shape]]
        config = {
            **(small_shape(published) if shape == TINY else published),
            "dtype": "bfloat16",
            "bos_token_id": None,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }
        made = folder / model_name(shape, mean)
        arguments = [str(made), str(TOKENIZER), json.dumps(config), device, *([] if mean is None else [str(mean)])]
        if not (made / "config.json").is_file():
            started.append(subprocess.Popen([sys.executable, "-m", "training.random_model", *arguments], cwd=ROOT))
    codes = [process.wait() for process in started]
    if any(codes):
        raise RuntimeError("a model could not be made")


def make_data(folder: Path, prompt_tokens: int, distinct: bool = False) -> None:
    """Sums whose prompts have exactly `prompt_tokens` tokens, and in turn 60 fewer, under the tiny tokenizer.

    Args:
        distinct: no two prompts alike. Otherwise there are two, and an engine prefills each but once.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    system = YAML(typ="safe").load((ROOT / "launch/system_prompts.yaml").read_text())["tiny_boxed"]
    draw = random.Random(0)

    def length(text: str) -> int:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        return len(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])

    def text_of(tokens: int) -> str:  # a character is a token
        left = tokens - length("")
        return "".join("+" if index % 2 else draw.choice("3456789") if distinct else "7" for index in range(left))

    lengths = [prompt_tokens, prompt_tokens - SHORTER_TOKENS]
    texts = [text_of(lengths[index % 2]) for index in range(ROWS if distinct else 2)]
    assert [length(text) for text in texts[:2]] == lengths
    rows = [{"problem": texts[index % len(texts)], "solution": r"\boxed{7}"} for index in range(ROWS)]
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f"train.{os.getpid()}"  # two campaigns may share the folder
    written.write_text("".join(json.dumps(row) + "\n" for row in rows))
    written.replace(folder / "train.jsonl")
