"""The command and the environment that start a recipe's ranks on a node, as a person would paste them."""

import importlib.util
import os
import shlex
import sys
from pathlib import Path

from launch.recipe import topology
from launch.shapes import is_local


def environment(recipe: dict, run_folder: Path | None = None) -> dict[str, tuple[str, str]]:
    """The variables that the launcher sets: name -> (value, why). What the person has set already is left alone."""
    table: dict[str, tuple[str, str]] = {
        "PYTHONUNBUFFERED": ("1", "a log ends with what was said last"),
        "TOKENIZERS_PARALLELISM": ("false", "its threads do not survive forks"),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": ("15", "seconds that torchrun gives a rank to stop before it kills it"),
        "VLLM_LOGGING_LEVEL": ("WARNING", "the record says what matters"),
        "VLLM_NO_USAGE_STATS": ("1", "no connection that nobody asked for"),
    }
    if recipe["cluster"]["gpu"] == "cpu":
        server = recipe["cluster"]["server"] or {"gpus_per_node": 0}
        threads = max(1, (os.cpu_count() or 1) // (recipe["cluster"]["gpus_per_node"] + server["gpus_per_node"]))
        table |= {
            "CUDA_VISIBLE_DEVICES": ("", "the recipe says cpu"),
            "DS_ACCELERATOR": ("cpu", "DeepSpeed would look for CUDA"),
            "OMP_NUM_THREADS": (
                str(threads),
                "cores / ranks, the server's too: more threads than cores fight each other",
            ),
            "VLLM_CPU_OMP_THREADS_BIND": ("nobind", "vLLM would bind every rank to the same cores"),
            "VLLM_CPU_KVCACHE_SPACE": ("1", "GiB a rank; vLLM would take half of the memory"),
            "GLOO_SOCKET_IFNAME": ("lo", "one node: no need of a name that resolves"),
        }
        if recipe["cluster"]["nodes"] > 1:
            del table["GLOO_SOCKET_IFNAME"]
    elif importlib.util.find_spec("flashinfer") is None:
        table["VLLM_USE_FLASHINFER_SAMPLER"] = ("0", "flashinfer is not installed")
    if is_local(recipe["model"]["path"]) and is_local(recipe["data"]["path"]):
        table["HF_HUB_OFFLINE"] = ("1", "model and data are local files")
    deepspeed = topology(recipe["accelerate"]).get("deepspeed_config")
    if deepspeed:
        # what `accelerate launch` sets for such a file (accelerate/utils/launch.py, prepare_deepspeed_cmd_env)
        table |= {
            "ACCELERATE_USE_DEEPSPEED": ("true", f"accelerate_configs/{recipe['accelerate']}.yaml"),
            "ACCELERATE_DEEPSPEED_CONFIG_FILE": (deepspeed["deepspeed_config_file"], "the same file"),
            "ACCELERATE_DEEPSPEED_ZERO3_INIT": (str(deepspeed["zero3_init_flag"]).lower(), "the same file"),
        }
    tracking = recipe["tracking"]
    table["WANDB_PROJECT"] = (tracking["project"], "tracking.project")
    if not os.environ.get("WANDB_API_KEY"):
        table["WANDB_MODE"] = ("offline", "no WANDB_API_KEY: `wandb sync` uploads the run later")
    if run_folder is not None:
        table["WANDB_DIR"] = (str(run_folder), "wandb's files lie beside the record")
    return {name: entry for name, entry in table.items() if name not in os.environ}


def computes_in(recipe: dict) -> str:
    """The type that trainer and engine both compute in."""
    return "bfloat16" if recipe["grpo"]["bf16"] else recipe["model"]["dtype"]


def device_shares(recipe: dict) -> tuple[str, str]:
    """CUDA_VISIBLE_DEVICES of the training ranks, and of a server on their node: the ranks' come first."""
    cluster, server = recipe["cluster"], recipe["cluster"]["server"]
    ranks = cluster["gpus_per_node"] if server["on_training_node"] else 0
    count = ranks + server["gpus_per_node"]
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = given.split(",") if given else [str(index) for index in range(count)]
    return ",".join(devices[:ranks] if ranks else devices), ",".join(devices[ranks:count])


def command(recipe: dict, run_folder: Path) -> list[str]:
    """The torchrun command of a single node. A free port is chosen by torchrun itself."""
    return [
        sys.executable, "-m", "torch.distributed.run",
        "--nnodes", "1", "--nproc-per-node", str(recipe["cluster"]["gpus_per_node"]),
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1",
        "--log-dir", str(run_folder / "logs"), "--redirects", "3",
        "-m", "training", str(run_folder),
    ]  # fmt: skip


def pasteable(recipe: dict, run_folder: Path) -> str:
    """Environment and command as lines for a shell, from the repository's root."""
    lines = [f"export {name}={shlex.quote(value)}" for name, (value, _) in environment(recipe, run_folder).items()]
    return "\n".join([*lines, shlex.join(command(recipe, run_folder))])
