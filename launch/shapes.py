"""A model's shape without loading it: from its folder, from the hub's cache, or from a small table."""

import json
import os
from pathlib import Path

# config.json of the models that the recipes name, as published on the hub: what the checks need of them.
KNOWN = {
    "Qwen/Qwen2.5-Math-1.5B": {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12,
        "num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151936, "tie_word_embeddings": True,
        "max_position_embeddings": 4096},
    "Qwen/Qwen2.5-Math-7B": {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False,
        "max_position_embeddings": 4096},
    "Qwen/Qwen2.5-Math-72B": {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "intermediate_size": 29568, "vocab_size": 152064, "tie_word_embeddings": False,
        "max_position_embeddings": 4096},
}  # fmt: skip


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


def _read(path: Path) -> dict:
    try:
        shape = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no JSON ({error})") from error
    if not isinstance(shape, dict):
        raise ValueError(f"{path} holds no JSON object")
    return shape
