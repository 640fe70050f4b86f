"""`--shrink`: a recipe at the size of a machine without a GPU. The same arm, batch logic, loss, data path and trainer; a
random model of the same architecture, the committed sample of problems, one or two ranks, short completions.

What becomes of each section is below, and every line that is lost is printed. A run so shrunk says that the recipe's path is
sound from the YAML to the record; it says nothing about speed or learning.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from launch.problems import Problem, RecipeError
from launch.recipe import ROOT
from launch.shapes import is_local, model_shape

SAMPLE = "./data/math_sample"
TOKENIZER = "./tiny/checkpoint"  # a vocabulary of some hundred tokens: fast to build, and it spells any text
MODELS = Path("runs") / "models"
PROMPT_TOKENS, COMPLETION_TOKENS, STEPS = 640, 16, 2
PAGED_CACHE = {"block_size": 16, "num_blocks": 1024, "max_batch_tokens": 2048}  # of continuous batching, on a host
SMALL = 256  # a hidden size up to which a model already is of this machine's size


def shrink(content: dict, name: str) -> tuple[dict, list[str]]:
    """A copy of a recipe's sections at this machine's size, and a line for each thing that it lost.

    Raises:
        RecipeError: the model's shape is not known here.
    """
    content = json.loads(json.dumps(content))
    lost: list[str] = []
    sources = content.setdefault("sources", {})
    for section in ("model", "data", "cluster", "grpo"):
        sources[section] = "ours: --shrink"
    _model(content, name, lost)
    _data(content, lost)
    _cluster(content, lost)
    _grpo(content, lost)
    content["sources"] = {
        key: text for key, text in sources.items() if not key.startswith(("model.", "data.", "cluster.", "grpo."))
    }
    return content, lost


def _model(content: dict, name: str, lost: list[str]) -> None:
    model = content["model"]
    shape = model_shape(model["path"], model.get("revision"))
    if shape is None:
        problem = Problem(
            "model.path", model["path"], "its shape is not known here", "download its config.json into the hub's cache"
        )
        raise RecipeError(name, [problem])
    if shape["hidden_size"] > SMALL:
        small = small_shape(shape)
        spelling = (ROOT / TOKENIZER / "tokenizer.json").read_text(encoding="utf-8")
        digest = hashlib.sha256((json.dumps(small, sort_keys=True) + spelling).encode()).hexdigest()[:12]
        lost.append(
            f"model: random {small['model_type']}, hidden {small['hidden_size']}, {small['num_hidden_layers']} layers, "
            f"for {model['path']}"
        )
        model["path"], model["revision"] = f"./{MODELS / digest}", None
        make_model(ROOT / MODELS / digest, small)
    if model.get("attn_implementation") == "flash_attention_2":
        lost.append("attn_implementation: sdpa for flash_attention_2, which needs a GPU")
        model["attn_implementation"] = "sdpa"


def small_shape(shape: dict) -> dict:
    """The configuration of a small model of the same architecture: class, tied or untied head, grouped key-value heads.

    Two layers, hidden 128, four heads of 32 (vLLM's CPU attention refuses 24) over two key-value heads, so that TP 2 splits
    both. The vocabulary is the tokenizer's.
    """
    tokenizer = json.loads((ROOT / TOKENIZER / "config.json").read_text())
    copied = ("model_type", "architectures", "tie_word_embeddings")
    grouped = shape["num_key_value_heads"] < shape["num_attention_heads"]
    return {key: shape[key] for key in copied} | {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2 if grouped else 4,
        "intermediate_size": 256,
        "max_position_embeddings": 2048,
        "vocab_size": tokenizer["vocab_size"],
        "bos_token_id": tokenizer["bos_token_id"],
        "eos_token_id": tokenizer["eos_token_id"],
        "pad_token_id": tokenizer["pad_token_id"],
        "dtype": "bfloat16",
    }


def make_model(folder: Path, shape: dict) -> None:
    """Makes the random model in `folder`, unless it is there. Its own process: `launch` imports no torch."""
    if not (folder / "model.safetensors").is_file():
        command = [sys.executable, "-m", "training.random_model", str(folder), TOKENIZER, json.dumps(shape)]
        subprocess.run(command, cwd=ROOT, check=True)


def _data(content: dict, lost: list[str]) -> None:
    data = content["data"]
    if not is_local(data["path"]):
        lost.append(f"data: {SAMPLE} for {data['path']}")
        data["path"] = SAMPLE
        data["config"] = data["revision"] = None
        data["max_prompt_tokens"] = PROMPT_TOKENS  # the small vocabulary spells: more tokens a prompt


def _cluster(content: dict, lost: list[str]) -> None:
    cluster, grpo = content["cluster"], content["grpo"]
    size = grpo.get("vllm_tensor_parallel_size", 1)
    ranks = min(2, size)
    lost.append(
        f"cluster: {ranks} rank(s) without a GPU for {cluster['nodes']} x {cluster['gpus_per_node']} {cluster['gpu']}"
    )
    cluster.update(nodes=1, gpus_per_node=ranks, gpu="cpu", tensor_parallel_spans_nodes=False)
    if cluster.get("server"):
        cluster["server"] = {"nodes": 1, "gpus_per_node": 1, "on_training_node": True, "tensor_parallel_size": 1}
    if size > ranks:
        lost.append(f"vllm_tensor_parallel_size: {ranks} for {size}")
        grpo["vllm_tensor_parallel_size"] = ranks
    smaller = "zero3_offload" if content["accelerate"].startswith("zero") else "cpu"
    if content["accelerate"] != smaller:
        lost.append(f"accelerate: {smaller} for {content['accelerate']}")
        content["accelerate"] = smaller


def _grpo(content: dict, lost: list[str]) -> None:
    grpo = content["grpo"]
    group = grpo["num_generations"]
    lost.append(
        f"lengths: {COMPLETION_TOKENS} completion tokens for {grpo['max_completion_length']}; {STEPS} steps; "
        f"{group} completions a rank for {grpo['per_device_train_batch_size']}"
    )
    if grpo.pop("use_liger_kernel", False):
        lost.append("use_liger_kernel: liger-kernel's kernels need a GPU")
    for key in ("num_train_epochs", "generation_batch_size", "steps_per_generation"):
        grpo.pop(key, None)
    grpo.update(
        max_steps=STEPS,
        max_completion_length=COMPLETION_TOKENS,
        per_device_train_batch_size=group,
        gradient_accumulation_steps=min(2, grpo["gradient_accumulation_steps"]),
    )
    if grpo["bf16"] and content["accelerate"] == "zero3_offload":
        lost.append("bf16: float32, since transformers takes bf16 under DeepSpeed on GPUs alone")
        grpo["bf16"], content["model"]["dtype"] = False, "float32"
    held_out = grpo.get("num_generations_eval") or group
    if content["data"].get("eval_split") and grpo.get("per_device_eval_batch_size", 8) % held_out:
        grpo["per_device_eval_batch_size"] = held_out
    if "vllm_max_model_length" in grpo:
        grpo["vllm_max_model_length"] = content["data"]["max_prompt_tokens"] + COMPLETION_TOKENS
    if grpo.get("vllm_enable_sleep_mode"):
        lost.append(
            "vllm_enable_sleep_mode: dropped, vLLM sleeps on GPUs alone; what is left is the same run without it"
        )
        grpo["vllm_enable_sleep_mode"] = False
    if content["recipe"]["arm"] == "continuous_batching":
        lost.append("transformers_continuous_batching_config: a fixed small cache for one sized by the GPU's memory")
        grpo["transformers_continuous_batching_config"] = dict(PAGED_CACHE)
