"""What stands between a checked recipe and its start here: several nodes, too few GPUs, a package that is not installed."""

import glob
import importlib.util
import os
import socket
from collections.abc import Iterator

from launch.clusters import CPU
from launch.problems import Problem


def visible_gpus() -> int:
    """NVIDIA GPUs that a rank on this machine would see, without loading CUDA."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([device for device in chosen.split(",") if device.strip() not in ("", "-1")])
    return len(glob.glob("/dev/nvidia[0-9]*"))


def taken(port: int) -> bool:
    """Whether somebody listens on this port of the loopback interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection that is closing does not count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def startable(recipe: dict) -> Iterator[Problem]:
    """Why `launch run` cannot start a checked recipe here, if it cannot."""
    cluster = recipe["cluster"]
    server = cluster["server"]
    if cluster["nodes"] > 1 or (server and not server["on_training_node"]):
        field = "cluster.nodes" if cluster["nodes"] > 1 else "cluster.server.on_training_node"
        yield Problem(
            field,
            cluster["nodes"],
            "a run on several nodes cannot be started yet",
            "check, show and pair know it; --shrink runs it on this machine without a GPU",
        )
        return
    if server and server["port"] and taken(server["port"]):
        yield Problem(
            "cluster.server.port",
            server["port"],
            "somebody listens on it already",
            "another one, or null for a free one",
        )
    if cluster["gpu"] != CPU:
        here, wanted = visible_gpus(), cluster["gpus_per_node"] + (server["gpus_per_node"] if server else 0)
        if here < wanted:
            yield Problem(
                "cluster.gpus_per_node",
                cluster["gpus_per_node"],
                f"the run needs {wanted} GPUs and {here} are here",
                "--set cluster.gpus_per_node, or --shrink to run it without a GPU",
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
