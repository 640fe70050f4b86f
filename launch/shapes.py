"""A model's shape without loading it: from its folder, from the hub's cache, or from a small table."""

import json
import os
from pathlib import Path

# config.json of the models that the recipes name, as published on the hub: what the checks need of them.
_QWEN = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 4096}
KNOWN = {
    "Qwen/Qwen2.5-Math-1.5B": _QWEN | {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12,
        "num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151936, "tie_word_embeddings": True},
    "Qwen/Qwen2.5-Math-7B": _QWEN | {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False},
    "Qwen/Qwen2.5-Math-72B": _QWEN | {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "intermediate_size": 29568, "vocab_size": 152064, "tie_word_embeddings": False},
    "meta-llama/Llama-3.2-1B-Instruct": {"model_type": "llama", "architectures": ["LlamaForCausalLM"],
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True,
        "max_position_embeddings": 131072},
}  # fmt: skip

# The linear layers of a decoder's layer, as transformers names them in these architectures.
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

# Data sets on the hub that the recipes name, with their splits (rows) and columns, as published.
KNOWN_DATA = {
    "DigitalLearningGmbH/MATH-lighteval": {
        "configs": ("default", "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory",
                    "prealgebra", "precalculus"),
        "splits": ("train", "test"),
        "columns": ("problem", "level", "type", "solution"),
    },
}  # fmt: skip

# Rows of their training splits, as published.
KNOWN_ROWS = {"DigitalLearningGmbH/MATH-lighteval": 7500}


def is_local(path: str) -> bool:
    """Whether a recipe's path names a folder or file; everything else is a hub id. One rule, so that a folder that is
    missing is not looked for on the hub."""
    return path.startswith(("./", "/"))


def model_shape(path: str, revision: str | None = None) -> dict | None:
    """The model's config.json as a dict, or None where it is neither local, nor cached, nor in the table.

    Raises:
        FileNotFoundError, ValueError: a local folder without a config.json, or with one that is no JSON object.
    """
    if is_local(path):
        return _read(Path(path) / "config.json")
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface")) / "hub")
    snapshots = cache.expanduser() / f"models--{path.replace('/', '--')}" / "snapshots"
    found = sorted(snapshots.glob(f"{revision or '*'}/config.json"))
    return _read(found[-1]) if found else KNOWN.get(path)


def parameters(shape: dict) -> int | None:
    """The parameter count of a dense decoder (attention with grouped key-value heads, gated MLP), norms and biases left
    out: 1.54e9 for Qwen2.5-Math-1.5B, as its model card says. None where the shape lacks a number."""
    try:
        hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
        head = shape.get("head_dim") or hidden // heads
        attention = hidden * head * (2 * heads + 2 * shape["num_key_value_heads"])
        layer = attention + 3 * hidden * shape["intermediate_size"]
        embeddings = (1 if shape.get("tie_word_embeddings") else 2) * shape["vocab_size"] * hidden
        return shape["num_hidden_layers"] * layer + embeddings
    except (KeyError, TypeError, ZeroDivisionError):
        return None


def adapter_parameters(shape: dict, lora: dict) -> int:
    """The parameters of LoRA adapters on a dense decoder: r for each input and each output of a linear layer (2106.09685,
    section 4.1).

    Args:
        lora: a recipe's section of that name.
    """
    hidden, wide = shape["hidden_size"], shape["intermediate_size"]
    head = shape.get("head_dim") or hidden // shape["num_attention_heads"]
    queries, keys = head * shape["num_attention_heads"], head * shape["num_key_value_heads"]
    ends = {"q_proj": hidden + queries, "k_proj": hidden + keys, "v_proj": hidden + keys, "o_proj": queries + hidden,
            "gate_proj": hidden + wide, "up_proj": hidden + wide, "down_proj": wide + hidden}  # fmt: skip
    chosen = LINEARS if lora["target_modules"] == "all-linear" else set(lora["target_modules"])
    return shape["num_hidden_layers"] * lora["r"] * sum(ends[name] for name in chosen)


def _read(path: Path) -> dict:
    try:
        shape = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no JSON ({error})") from error
    if not isinstance(shape, dict):
        raise ValueError(f"{path} holds no JSON object")
    return shape
