"""What stands between a checked recipe and its start on this node: too few GPUs, a taken port, a package that is missing."""

import glob
import importlib.util
import os
import socket
from collections.abc import Iterator
from typing import NamedTuple

from launch.clusters import CPU
from launch.nodes import Misplaced, Place, gpus_of, node_count, place_here, serves
from launch.problems import Problem


class Gpu(NamedTuple):
    index: int
    name: str
    memory_bytes: int
    free_bytes: int
    processes: list[int]  # other people's, or left over: nothing of ours has started yet


def _chosen() -> list[str] | None:
    """CUDA_VISIBLE_DEVICES as a list; None where it is not set."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if chosen is None else [d.strip() for d in chosen.split(",") if d.strip() not in ("", "-1")]


def visible_gpus() -> int:
    """NVIDIA GPUs that a rank on this machine would see, without loading CUDA."""
    chosen = _chosen()
    return len(glob.glob("/dev/nvidia[0-9]*")) if chosen is None else len(chosen)


def gpus() -> list[Gpu] | None:
    """The GPUs that a rank here would see, as the driver knows them (nvidia-ml-py); None where it cannot be asked."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, or one that does not answer
        return None
    try:
        every = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        found = []
        for index, handle in enumerate(every):
            names = (str(index), pynvml.nvmlDeviceGetUUID(handle))
            if (chosen := _chosen()) is None or any(name in chosen for name in names):
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                processes = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
                found.append(Gpu(index, pynvml.nvmlDeviceGetName(handle), memory.total, memory.free, processes))
        return found
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def taken(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody listens on this port of the loopback interface, or of another (0.0.0.0: of any)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection that is closing does not count
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def startable(recipe: dict, place: Place | None = None) -> Iterator[Problem]:
    """Why `launch run` cannot start a checked recipe on this node, if it cannot.

    Args:
        place: where several nodes are; None to look for it in the environment.
    """
    cluster = recipe["cluster"]
    server = cluster["server"]
    if node_count(recipe) > 1 and place is None:
        try:
            place = place_here()
        except Misplaced as error:
            yield error.problem
            return
    number = place.likely_number if place else 0
    if server and server["nodes"] > 1:
        yield Problem(
            "cluster.server.nodes",
            server["nodes"],
            "TRL 1.16 talks to one server, and one vLLM server's GPUs must be in one node here",
            "cluster.server.nodes: 1, with tensor_parallel_size x data_parallel_size up to its GPUs",
        )
    holds_server = server and (server["on_training_node"] or serves(recipe, number))
    if holds_server and server["port"] and taken(server["port"]):
        yield Problem(
            "cluster.server.port",
            server["port"],
            "somebody listens on it already",
            "another one, or null for a free one",
        )
    if recipe["lora"] and importlib.util.find_spec("peft") is None:
        mend = "pip install the version of it in environment.yml, or --set lora=null"
        yield Problem("lora", recipe["lora"], "the package peft is not installed", mend)
    if cluster["gpu"] != CPU:
        here, wanted = visible_gpus(), gpus_of(recipe, number)
        if here < wanted:
            serving = serves(recipe, number)
            field = "cluster.server.gpus_per_node" if serving else "cluster.gpus_per_node"
            yield Problem(
                field,
                server["gpus_per_node"] if serving else cluster["gpus_per_node"],
                f"the run needs {wanted} GPUs and {here} are here",
                f"--set {field}, or --shrink to run it without a GPU",
            )
        if (
            recipe["model"]["attn_implementation"] == "flash_attention_2"
            and importlib.util.find_spec("flash_attn") is None
        ):
            yield Problem(
                "model.attn_implementation",
                "flash_attention_2",
                "the package flash-attn is not installed",
                "install it, or --set model.attn_implementation=sdpa",
            )
