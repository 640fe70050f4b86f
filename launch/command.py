"""The command and the environment that start a recipe's ranks on a node, as a person would paste them."""

import os
import shlex
import sys
from pathlib import Path

from launch.environment import environment
from launch.nodes import Place


def computes_in(recipe: dict) -> str:
    """The type that trainer and engine both compute in."""
    return "bfloat16" if recipe["grpo"]["bf16"] else recipe["model"]["dtype"]


def device_shares(recipe: dict) -> tuple[str, str]:
    """CUDA_VISIBLE_DEVICES of the training ranks, and of a server: the ranks' come first where they share a node."""
    cluster, server = recipe["cluster"], recipe["cluster"]["server"]
    ranks, serving = cluster["gpus_per_node"], server["gpus_per_node"]
    first = ranks if server["on_training_node"] else 0
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = given.split(",") if given else [str(index) for index in range(max(ranks, first + serving))]
    return ",".join(devices[:ranks]), ",".join(devices[first : first + serving])


def command(recipe: dict, run_folder: Path, place: Place | None = None) -> list[str]:
    """The torchrun command of a node. On a single one torchrun itself chooses a free port.

    On several nodes they have met, so each has its number: the rendezvous is torchrun's static one, at node 0. Ranks then
    follow the nodes' numbers; c10d's would follow the spelling of their addresses. The rendezvous id keeps a left-over of
    another run out.
    """
    if place is None:
        where, logs = ["--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
                       "--local-addr", "127.0.0.1"], run_folder / "logs"  # fmt: skip
    else:
        logs = node_logs(run_folder, place)
        where = [
            "--nnodes", str(recipe["cluster"]["nodes"]), "--node-rank", str(place.number),
            "--rdzv-backend", "static", "--rdzv-endpoint", f"{place.master_address}:{place.master_port}",
            "--rdzv-id", run_folder.name, "--rdzv-conf", "timeout=120", "--local-addr", place.address,
        ]  # fmt: skip
    return [
        sys.executable, "-m", "torch.distributed.run", *where, "--nproc-per-node", str(recipe["cluster"]["gpus_per_node"]),
        "--log-dir", str(logs), "--redirects", "3",
        "-m", "training", str(run_folder),
    ]  # fmt: skip


def node_logs(run_folder: Path, place: Place | None) -> Path:
    """Where a node's torchrun and ranks write their logs."""
    return run_folder / "logs" / f"node{place.number}" if place else run_folder / "logs"


def pasteable(recipe: dict, run_folder: Path) -> str:
    """Environment and command of a single node as lines for a shell, from the repository's root."""
    lines = [f"export {name}={shlex.quote(value)}" for name, (value, _) in environment(recipe, run_folder).items()]
    return "\n".join([*lines, shlex.join(command(recipe, run_folder))])
