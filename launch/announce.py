"""What launch/multinode.sh is about to do, for a person: every node's command and environment, the GPUs and the GPU-hours."""

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from launch.clusters import CPU
from launch.command import command, device_shares
from launch.derived import derive
from launch.environment import environment
from launch.nodes import DEFAULT_PORT, Place, gpus_of, node_count, serves
from launch.plan import STEP_ERROR, plan, steps
from launch.server import server_command


def announce(recipe: dict, shown: str, given: tuple[str, list[str]] | None, arguments) -> str:
    """The text of `launch/multinode.sh RECIPE --dry-run`.

    Args:
        given: how the nodes were named, and their names (launch/nodes.py); None if they were not.
        arguments: of the command line; what `run` takes of them is repeated in its commands.
    """
    count = node_count(recipe)
    hosts = tuple(given[1]) if given and len(given[1]) == count else tuple(f"NODE{number}" for number in range(count))
    return "\n".join([*_summary(recipe, shown, given, count), "", *_commands(recipe, shown, hosts, arguments)])


def _summary(recipe: dict, shown: str, given, count: int) -> Iterator[str]:
    cluster, derived, arm = recipe["cluster"], derive(recipe), recipe["recipe"]["arm"]
    kind = "ranks without a GPU" if cluster["gpu"] == CPU else f"{cluster['gpu']} GPUs"
    total = sum(gpus_of(recipe, number) for number in range(count))
    engines = {
        "colocate": f"{derived['engines']} colocated engines, TP {recipe['grpo'].get('vllm_tensor_parallel_size', 1)}",
        "server": "one vLLM server",
    }.get(arm, "no engine")
    yield f"{shown}: {arm}, {count} node(s), {total} {kind}: {derived['ranks']} training ranks, {engines}"
    if given:
        yield f"nodes:     {', '.join(given[1])} ({given[0]})"
    else:
        yield "nodes:     not named yet (NODE0, ... below): a Slurm allocation, HOSTS=a,b,c, or MASTER_ADDR on each"
    if cluster["gpu"] == CPU:
        return
    limit = _slurm_limit_hours()
    if limit is not None:
        yield f"GPU-hours: {total * limit:.0f} at most, {limit:.1f} h of Slurm's time limit are left"
    elif (result := plan(recipe)) and (number := steps(recipe)):
        hours = number * result.seconds["step"] / 3600
        yield (f"GPU-hours: about {hours * total:.0f} (+-{STEP_ERROR:.0%}): {number} steps of {result.seconds['step']:.0f} s, "
               f"{hours:.1f} h, completions at their longest; starts, evaluations and checkpoints not counted")  # fmt: skip
    else:
        yield "GPU-hours: not known (the model's shape or the data's size is not known here)"
    if not given:
        per_node = max(gpus_of(recipe, number) for number in range(count))
        yield f"Slurm:     sbatch --nodes={count} --gpus-per-node={per_node} launch/slurm.sbatch {shown}"


def _slurm_limit_hours() -> float | None:
    """What is left of the allocation's time limit; None outside of one, or without a limit."""
    if not (job := os.environ.get("SLURM_JOB_ID")):
        return None
    command = ["squeue", "--noheader", "--jobs", job, "--format", "%L"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return hours(done.stdout.strip())


def hours(text: str) -> float | None:
    """Slurm's [[days-]hours:]minutes:seconds in hours; None for UNLIMITED and the like."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in [*parts, *([days] if days else [])]):
        return None
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + int(part)
    return int(days or 0) * 24 + seconds / 3600


def _commands(recipe: dict, shown: str, hosts: tuple[str, ...], arguments) -> Iterator[str]:
    port = int(os.environ.get("MASTER_PORT") or DEFAULT_PORT)
    master = os.environ.get("MASTER_ADDR") or hosts[0].rpartition("@")[2]
    repeated = [part for value in arguments.set for part in ("--set", value)]
    repeated += ["--shrink"] if arguments.shrink else []
    repeated += ["--fresh"] if arguments.fresh else []
    repeated += ["--runs", str(arguments.runs)] if arguments.runs != Path("runs") else []
    python = os.environ.get("PYTHON", "python")
    folder = arguments.runs / recipe["name"] / "UTC-COMMIT-sSEED"
    several = len(hosts) > 1
    starts = [_starts(recipe, folder, Place(master, port, _address(host), "INTERFACE", number == 0, number, number, hosts)
                      if several else None) for number, host in enumerate(hosts)]  # fmt: skip
    common = dict(set.intersection(*(set(variables.items()) for variables, _ in starts)))
    yield "# on every node" if several else "# the environment (yours wins)"
    yield from (f"export {name}={shlex.quote(value)}" for name, value in sorted(common.items()))
    for number, (host, (variables, run)) in enumerate(zip(hosts, starts, strict=True)):
        yield f"\n# node {number} ({host}): {_does(recipe, number)}"
        if several:
            yield f"export MASTER_ADDR={shlex.quote(master)} MASTER_PORT={port} NODE_RANK={number}"
        yield from (f"export {name}={shlex.quote(value)}" for name, value in variables.items() if name not in common)
        yield shlex.join([python, "-m", "launch", "run", shown, *repeated])
        yield "# the nodes meet, node 0 makes the run's folder, and this starts:" if several else "# which starts"
        yield shlex.join(["python" if part == run[0] else part for part in run])
    if several:
        yield "\n# INTERFACE is that of the route to MASTER_ADDR. `launch run` sets all but each node's first line by itself."


def _starts(recipe: dict, folder: Path, place: Place | None) -> tuple[dict[str, str], list[str]]:
    """The variables and the command of a node's ranks, or of its server."""
    variables = {name: value for name, (value, _) in environment(recipe, folder, place).items()}
    if place is None or not serves(recipe, place.number):
        return variables, command(recipe, folder, place)
    if recipe["cluster"]["gpu"] != CPU:
        variables["CUDA_VISIBLE_DEVICES"] = device_shares(recipe)[1]
    return variables, server_command(recipe, place.address, recipe["cluster"]["server"]["port"] or "PORT")


def _address(host: str) -> str:
    return host.rpartition("@")[2]


def _does(recipe: dict, number: int) -> str:
    if serves(recipe, number):
        return f"the vLLM server, {recipe['cluster']['server']['gpus_per_node']} GPUs"
    ranks = recipe["cluster"]["gpus_per_node"]
    return f"ranks {number * ranks} to {(number + 1) * ranks - 1}" if ranks > 1 else f"rank {number}"
