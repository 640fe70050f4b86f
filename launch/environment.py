"""The variables that the launcher sets for a run: each one's value, why, and by what it is read, from which version on.

`environment` gives those of a recipe on a node; `markdown` is the table in launch/README.md (`python -m launch variables
--write` makes it anew). What a person has set already is left alone, except where it breaks the run: `broken` says where.
"""

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from launch.nodes import Place
from launch.problems import Problem
from launch.recipe import ROOT, topology
from launch.shapes import is_local

README = ROOT / "launch" / "README.md"


class Run(NamedTuple):
    """What a value may depend on. `place` is None on a single node."""

    recipe: dict
    folder: Path | None
    place: Place | None

    @property
    def on_cpu(self) -> bool:
        return self.recipe["cluster"]["gpu"] == "cpu"

    @property
    def deepspeed(self) -> dict | None:
        return topology(self.recipe["accelerate"]).get("deepspeed_config")


class Variable(NamedTuple):
    """`value` of a run, None where it is not set there. `shown` and `when` are the table's words on both."""

    name: str
    value: Callable[[Run], str | None]
    shown: str
    when: str
    why: str
    since: str


def _always(value: str) -> Callable[[Run], str]:
    return lambda run: value


def _on_cpu(value: str) -> Callable[[Run], str | None]:
    return lambda run: value if run.on_cpu else None


def _on_gpu(value: str) -> Callable[[Run], str | None]:
    return lambda run: None if run.on_cpu else value


def _threads(run: Run) -> str | None:
    server = run.recipe["cluster"]["server"]
    beside = server["gpus_per_node"] if server and server["on_training_node"] else 0
    ranks = run.recipe["cluster"]["gpus_per_node"] + beside
    return str(max(1, (os.cpu_count() or 1) // ranks)) if run.on_cpu else None


def _gloo_interface(run: Run) -> str | None:
    if run.place:
        return run.place.interface
    return "lo" if run.on_cpu else None


def _deepspeed(key: str | None) -> Callable[[Run], str | None]:
    def value(run: Run) -> str | None:
        if run.deepspeed is None:
            return None
        found = run.deepspeed[key] if key else True
        return str(found).lower() if isinstance(found, bool) else found

    return value


def _extensions(run: Run) -> str | None:
    own = sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK)
    return str(Path(sys.prefix) / "torch_extensions") if run.deepspeed and own else None


def _flashinfer(run: Run) -> str | None:
    return "0" if not run.on_cpu and importlib.util.find_spec("flashinfer") is None else None


def _offline(run: Run) -> str | None:
    return "1" if is_local(run.recipe["model"]["path"]) and is_local(run.recipe["data"]["path"]) else None


# `since`: a release that reads the name for certain; some of the releases before it may do so too.
TABLE = (
    Variable("PYTHONUNBUFFERED", _always("1"), "1", "always", "a log ends with what was said last", "Python 2"),
    Variable("TOKENIZERS_PARALLELISM", _always("false"), "false", "always", "its threads do not survive forks",
             "tokenizers 0.9"),
    Variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _always("15"), "15", "always",
             "seconds that torchrun gives a rank to stop before it kills it (its default: 30)", "torch 2.13"),
    Variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", _on_gpu("1"), "1", "on GPUs",
             "a collective that fails or runs out of time (grpo.ddp_timeout) ends its rank; with 0 it hangs for ever",
             "torch 2.2 (before: NCCL_ASYNC_ERROR_HANDLING)"),
    Variable("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", _on_gpu("480"), "480", "on GPUs",
             "seconds after which a rank whose NCCL watchdog is itself stuck is ended (torch's default, stated)", "torch 2.2"),
    Variable("NCCL_SOCKET_IFNAME", lambda run: run.place.interface if run.place and not run.on_cpu else None,
             "the interface of the route to MASTER_ADDR", "on GPUs, several nodes",
             "NCCL would take the first one that it finds, which may be a bridge of containers", "NCCL 2.0"),
    Variable("GLOO_SOCKET_IFNAME", _gloo_interface, "lo; on several nodes the interface of the route to MASTER_ADDR",
             "without a GPU, or several nodes", "gloo would look the host's own name up, which need not resolve", "torch 1.2"),
    Variable("VLLM_HOST_IP", lambda run: run.place.address if run.place else None, "this node's address on that interface",
             "several nodes", "vLLM would guess it by a route to the Internet", "vLLM 0.6"),
    Variable("VLLM_LOGGING_LEVEL", _always("WARNING"), "WARNING; INFO for a server", "always",
             "the record says what matters", "vLLM 0.6"),
    Variable("VLLM_NO_USAGE_STATS", _always("1"), "1", "always", "no connection that nobody asked for", "vLLM 0.6"),
    Variable("VLLM_USE_FLASHINFER_SAMPLER", _flashinfer, "0", "on GPUs without flashinfer", "flashinfer is not installed",
             "vLLM 0.8"),
    Variable("CUDA_VISIBLE_DEVICES", _on_cpu(""), "empty; in the server arm the ranks' or the server's share",
             "without a GPU, or a server beside the ranks", "the recipe says cpu", "CUDA"),
    Variable("DS_ACCELERATOR", _on_cpu("cpu"), "cpu", "without a GPU", "DeepSpeed would look for CUDA", "DeepSpeed 0.9"),
    Variable("OMP_NUM_THREADS", _threads, "cores / ranks of a node", "without a GPU",
             "cores / ranks, the server's too: more threads than cores fight each other", "OpenMP"),
    Variable("VLLM_CPU_OMP_THREADS_BIND", _on_cpu("nobind"), "nobind", "without a GPU",
             "vLLM would bind every rank to the same cores", "vLLM 0.31"),
    Variable("VLLM_CPU_KVCACHE_SPACE", _on_cpu("1"), "1", "without a GPU", "GiB a rank; vLLM would take half of the memory",
             "vLLM 0.6"),
    Variable("VLLM_USE_AOT_COMPILE", _on_cpu("0"), "0", "without a GPU",
             "what vLLM 0.31.0 saves of a model compiled for a CPU it cannot load, and it compiles anew at every start; "
             "torch's own cache takes its place", "vLLM 0.31"),
    Variable("HF_HUB_OFFLINE", _offline, "1", "model and data are folders", "model and data are local files",
             "huggingface_hub 0.12"),
    # what `accelerate launch` sets for such a file (accelerate/utils/launch.py, prepare_deepspeed_cmd_env)
    Variable("ACCELERATE_USE_DEEPSPEED", _deepspeed(None), "true", "with DeepSpeed", "the recipe's accelerate file",
             "accelerate 1.0"),
    Variable("ACCELERATE_DEEPSPEED_CONFIG_FILE", _deepspeed("deepspeed_config_file"), "the file of accelerate_configs/",
             "with DeepSpeed", "the same file", "accelerate 1.0"),
    Variable("ACCELERATE_DEEPSPEED_ZERO3_INIT", _deepspeed("zero3_init_flag"), "zero3_init_flag", "with DeepSpeed",
             "the same file", "accelerate 1.0"),
    Variable("TORCH_EXTENSIONS_DIR", _extensions, "torch_extensions in the virtual environment",
             "with DeepSpeed, in a virtual environment of one's own",
             "it compiles against the environment's headers, for a minute; in the folder that all environments of a home share "
             "(~/.cache/torch_extensions) each would compile anew after another one", "torch 1.0"),
    Variable("WANDB_PROJECT", lambda run: run.recipe["tracking"]["project"], "tracking.project", "always",
             "tracking.project", "wandb 0.12"),
    Variable("WANDB_MODE", lambda run: None if os.environ.get("WANDB_API_KEY") else "offline", "offline",
             "without WANDB_API_KEY", "no WANDB_API_KEY: `wandb sync` uploads the run later", "wandb 0.12"),
    Variable("WANDB_DIR", lambda run: str(run.folder) if run.folder else None, "the run's folder", "always",
             "wandb's files lie beside the record", "wandb 0.12"),
)  # fmt: skip

# Left to the person, with a rule.
NOT_SET = (
    ("PYTORCH_CUDA_ALLOC_CONF, PYTORCH_ALLOC_CONF", "expandable_segments:True is refused with vllm_enable_sleep_mode and vLLM "
     "before 0.31: its sleep mode needs a memory pool of its own and stops with an assertion. vLLM 0.31 turns it off around "
     "that pool"),
    ("NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME", "yours win; on several nodes they must name an interface that the node has. "
     "A prefix, a list or `^` is passed on, and does not choose the address that the node gives to others"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0 is refused: a rank that lost its peer would wait for ever"),
    ("COLOCATE_KV_CACHE_BYTES", "a colocated engine's KV cache in bytes, instead of what vllm_gpu_memory_utilization leaves: "
     "for several runs on one GPU. vLLM measures the free memory while it starts; it would take what a neighbour allocates "
     "for its own, and stop with an assertion where one releases"),
    ("MASTER_ADDR, MASTER_PORT, NODE_RANK", "where the nodes of a run meet (the port, 29500 by default, and the next one), and "
     "this node's number, if it shall not be left to the meeting"),
)  # fmt: skip


def environment(recipe: dict, run_folder: Path | None = None, place: Place | None = None) -> dict[str, tuple[str, str]]:
    """The variables that the launcher sets: name -> (value, why). What the person has set already is left alone."""
    run = Run(recipe, run_folder, place)
    found = {variable.name: (variable.value(run), variable.why) for variable in TABLE}
    return {name: entry for name, entry in found.items() if entry[0] is not None and name not in os.environ}


def broken(recipe: dict, several_nodes: bool) -> Iterator[Problem]:
    """Values of the person's own that break this run."""
    asleep = recipe["grpo"].get("vllm_enable_sleep_mode")
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if asleep and "expandable_segments:True" in os.environ.get(name, "") and _vllm_before((0, 31)):
            yield Problem(
                name,
                os.environ[name],
                "grpo.vllm_enable_sleep_mode needs a memory pool, which vLLM before 0.31 refuses with expandable_segments",
                f"unset {name}, or set it without expandable_segments:True",
            )
    if recipe["cluster"]["gpu"] != "cpu" and os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") == "0":
        yield Problem(
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
            "0",
            "a rank whose peer is gone would wait for ever",
            "unset it",
        )
    here = psutil.net_if_addrs()
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if several_nodes else ():
        value = os.environ.get(name, "")
        if plain_interface(value) and value not in here:
            yield Problem(name, value, "this node has no such interface", f"one of {', '.join(sorted(here))}")


def plain_interface(value: str) -> bool:
    """Whether a *_SOCKET_IFNAME names one interface; NCCL takes prefixes, lists and exclusions too."""
    return bool(value) and not set(value) & set("^=,:") and (value[-1].isdigit() or value in psutil.net_if_addrs())


def _vllm_before(version: tuple[int, int]) -> bool:
    """Whether vLLM is installed, and older."""
    for name in ("vllm", "vllm-cpu"):
        try:
            major, minor, *_ = importlib.metadata.version(name).split(".")
        except importlib.metadata.PackageNotFoundError:
            continue
        return (int(major), int(minor)) < version
    return False


def markdown() -> str:
    """launch/README.md."""
    lines = [
        "# The environment of a run",
        "",
        "Written by `python -m launch variables --write` from the table in `launch/environment.py`; a test compares the two.",
        "`python -m launch show RECIPE` prints the variables of one recipe. What you have set yourself is left alone.",
        "",
        "| variable | value | when | why | read by, at the latest since |",
        "|---|---|---|---|---|",
        *(f"| `{v.name}` | {v.shown} | {v.when} | {v.why} | {v.since} |" for v in TABLE),
        "",
        "## Yours to set",
        "",
        "| variable | rule |",
        "|---|---|",
        *(f"| `{name}` | {rule} |" for name, rule in NOT_SET),
    ]
    return "\n".join(lines) + "\n"
