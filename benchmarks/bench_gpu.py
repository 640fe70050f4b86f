"""What a step costs on the GPUs of a machine: the arms against each other, and the tuned recipe against TRL's defaults,
each run through this project's own launcher.

    python benchmarks/bench_gpu.py --suite tuned_1.5b arms_1.5b              # all of these that have not finished yet
    python benchmarks/bench_gpu.py --suite tuned_7b --gpu 1 --seconds 500    # beside another, on the second GPU
    python benchmarks/bench_gpu.py --only 'arms_1.5b/*_32-r0' --list
    python benchmarks/bench_gpu.py --table results/h200/bench                # the table of what has been measured

The suites are in bench_gpu.yaml. Models are random, at the true 1.5B and 7B shapes: the times say what hardware and code do,
and nothing of learning. Repeats are interleaved, forth and back.

Two GPUs and more (`make bench-multi-gpu GPUS=2` runs it all, with benchmarks/kill_gpu.py):

    python benchmarks/bench_gpu.py --gpu 0,1 --suite pair_1.5b --seconds 560      # colocate against server: 1 serves, 1 trains
    python benchmarks/bench_gpu.py --gpu 0,1,2,3 --set gpus=4 --suite pair_1.5b   # the same suite on 4: 1 serves, 3 train
    python benchmarks/bench_gpu.py --table results/multi_gpu/2                    # throughput three ways, idle shares

All arms of a suite get the same completions a step, by the project's rule for pairs (launch/pair.py): where the ranks cannot
share the suite's number, the nearest that they can. An item that needs more GPUs than --gpu names is said and left out.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import sys
import time
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.bench_table import table  # noqa: E402
from benchmarks.campaign import Campaign  # noqa: E402
from benchmarks.inputs import (  # noqa: E402
    make_data,
    make_models,
    model_name,
    on_one_node,
    shipped_recipe,
    training_ranks,
)
from launch.check_values import VLLM_ARMS  # noqa: E402
from launch.recipe import apply_overrides, grpo_arguments  # noqa: E402
from launch.shrink import PAGED_CACHE  # noqa: E402

CONTENT = YAML(typ="safe").load(Path(__file__).with_suffix(".yaml").read_text())
GENERATIONS = 8
# What moves the speed and not the algorithm: TRL's defaults in the default variant, the recipe's values in the tuned one.
SPEED = ("per_device_train_batch_size", "gradient_checkpointing", "gradient_checkpointing_kwargs", "optim",
         "use_liger_kernel", "generation_kwargs", "vllm_gpu_memory_utilization")  # fmt: skip


def configurations(changes: dict | None = None) -> dict[str, dict]:
    """SUITE/ITEM-rREPEAT -> every setting, suite by suite, in the order of running.

    Args:
        changes: settings of every item, over those of the YAML file.
    """
    found = {}
    for suite, content in CONTENT["suites"].items():
        given = content.get("items") or _ladder(content["ladder"])
        defaults, last = CONTENT["defaults"] | content.get("common", {}), changes or {}
        items = _sharing({name: _placed(defaults | own | last) for name, own in given.items()})
        for repeat in range(content["repeats"]):
            for position, (name, settings) in list(enumerate(items.items()))[:: -1 if repeat % 2 else 1]:
                place = {"suite": suite, "item": name, "repeat": repeat, "position": position}
                found[f"{suite}/{name}-r{repeat}"] = settings | place
    return found


def _placed(item: dict) -> dict:
    """The item with as many GPUs as its engine, and a rank beside its server, need at least."""
    least = item["tp"] + 1 if item["arm"] == "server" else item["tp"]
    return item | {"gpus": max(item["gpus"], least)}


def _sharing(items: dict[str, dict]) -> dict[str, dict]:
    """A suite's items with batches that the ranks of every arm on equally many GPUs can share, whole groups over all of them:
    the nearest to what was asked for."""
    shared = {}
    for name, item in items.items():
        ranks = {training_ranks(other) for other in items.values() if other["gpus"] == item["gpus"]}
        unit = math.lcm(GENERATIONS, *ranks)
        shared[name] = item | {"batch": max(1, round(item["batch"] / unit)) * unit}
    return shared


def _ladder(levers: list[str]) -> dict[str, dict]:
    steps = {f"{count}_{levers[count - 1]}": {"variant": levers[:count]} for count in range(1, len(levers) + 1)}
    return {"0_default": {}} | steps


def recipe(item: dict, model: Path, data: Path) -> dict:
    """The recipe of an item: its shape's and arm's own, on its GPUs, with the speed settings of its variant."""
    content = on_one_node(item, model, data)
    levers = [] if item["variant"] == "default" else item["variant"]
    grpo, tuned = content["grpo"], _speed_of_recipe(item) if "tuned" in levers else {}
    for name in SPEED:
        of_the_arm = item["arm"] == "colocate" or not name.startswith("vllm_")
        if of_the_arm and (default := grpo_arguments()[name]["default"]) is not None:
            grpo[name] = default
        else:
            grpo.pop(name, None)
    grpo |= {
        "max_steps": item["warm_up"] + item["steps"], "num_generations": GENERATIONS,
        "max_completion_length": item["completion"],
    }  # fmt: skip
    if item["arm"] in VLLM_ARMS:
        grpo["vllm_max_model_length"] = item["prompt"] + item["completion"]
    if item["arm"] == "colocate":
        grpo["vllm_enable_sleep_mode"] = item["sleep"]
    if item.get("gpu") == "cpu" and item["arm"] == "continuous_batching":
        grpo["transformers_continuous_batching_config"] = dict(PAGED_CACHE)
    changes = dict(tuned)
    for lever in levers:
        changes |= {} if lever == "tuned" else CONTENT["levers"][lever]
    content = apply_overrides(
        content, [f"{key}={json.dumps(value)}" for key, value in changes.items()], "bench_gpu.yaml"
    )
    grpo = content["grpo"]
    if not grpo["gradient_checkpointing"]:
        grpo.pop("gradient_checkpointing_kwargs", None)
        content["sources"].pop("grpo.gradient_checkpointing_kwargs", None)
    share = item["batch"] // training_ranks(item)  # of a rank, in completions
    largest = min(grpo["per_device_train_batch_size"], share)
    grpo["per_device_train_batch_size"] = next(size for size in range(largest, 0, -1) if share % size == 0)
    grpo["gradient_accumulation_steps"] = share // grpo["per_device_train_batch_size"]
    return content


def _speed_of_recipe(item: dict) -> dict:
    """The speed settings that the shape's own recipe states, as dotted overrides."""
    content = shipped_recipe(item)
    stated = {f"grpo.{name}": content["grpo"][name] for name in SPEED if content["grpo"].get(name) is not None}
    return stated | {f"speedups.{name}": value for name, value in (content.get("speedups") or {}).items()}


def resolved(item: dict) -> dict:
    """The item's settings with those that follow from its recipe, under the names that analysis reads."""
    grpo = recipe(item, Path("model"), Path("data"))["grpo"]
    return item | {
        "micro_batch": grpo["per_device_train_batch_size"], "accumulation": grpo["gradient_accumulation_steps"],
        "checkpointing": grpo["gradient_checkpointing"], "utilization": grpo.get("vllm_gpu_memory_utilization"),
    }  # fmt: skip


def chosen(arguments) -> dict[str, dict]:
    """The configurations that are asked for and that the GPUs of --gpu can carry."""
    given = len((arguments.gpu or "0").split(","))

    def asked(name: str, item: dict) -> bool:
        patterns = arguments.only or ["*"]
        matches = any(fnmatch.fnmatch(text, each) for each in patterns for text in (name, name.rpartition("-r")[0]))
        return matches and (not arguments.suite or item["suite"] in arguments.suite)

    changes = {key: YAML(typ="safe").load(value) for key, _, value in (item.partition("=") for item in arguments.set)}
    named = {name: item for name, item in configurations(changes).items() if asked(name, item)}
    if not arguments.suite and not arguments.only:
        named = {name: item for name, item in named.items() if item.get("gpu") != "cpu" and item["gpus"] == given}
    for name, item in list(named.items()):
        if item.get("gpu") != "cpu" and item["gpus"] > given:
            print(f"{name:34} not run: needs {item['gpus']} GPUs, and --gpu names {given}", flush=True)
            del named[name]
    suites = arguments.suite or list(CONTENT["suites"])  # in the order asked for
    return {
        name: resolved(item) for name, item in sorted(named.items(), key=lambda pair: suites.index(pair[1]["suite"]))
    }


def unfinished(items: dict[str, dict], out: Path) -> dict[str, dict]:
    """Those without a row of a finished run.

    Raises:
        ValueError: a row is of the same item on another number of GPUs.
    """
    left = {}
    for name, item in items.items():
        row = json.loads(file.read_text()) if (file := out / f"{name}.json").exists() else None
        if row and row["settings"].get("gpus", 1) != item["gpus"]:
            raise ValueError(f"{file} is of {row['settings'].get('gpus', 1)} GPUs, not {item['gpus']}: another --out")
        if row is None or row["status"] != "finished":
            left[name] = item
    return left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, help="default: results/h200/bench, and results/multi_gpu/N for runs on N GPUs"
    )
    parser.add_argument("--work", type=Path, default=Path("/tmp/bench_gpu"), help="models, data, runs and logs")
    parser.add_argument("--device", default="cuda", help="where the random models are made")
    parser.add_argument("--gpu", help="indices, such as 0,1, for CUDA_VISIBLE_DEVICES; two campaigns take one each")
    parser.add_argument(
        "--suite", nargs="*", choices=list(CONTENT["suites"]), help="in this order; by default all on GPUs"
    )
    parser.add_argument("--only", nargs="*", help="names, or patterns of names such as 'arms_1.5b/*_32'")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="start nothing that would not end within them"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of every item, in YAML")
    parser.add_argument("--commit", help="of this checkout, where it is not one of git")
    parser.add_argument("--list", action="store_true", help="what would run, and how long that is guessed to take")
    parser.add_argument("--table", type=Path, metavar="OUT", help="write OUT/table.md from its rows, and print it")
    arguments = parser.parse_args()
    if arguments.table:
        text = table(arguments.table)
        (arguments.table / "table.md").write_text(text)
        print(text, end="")
        return 0
    work, items = arguments.work.resolve(), chosen(arguments)
    most = max((item["gpus"] for item in items.values()), default=1)
    out = arguments.out or ROOT / "results" / ("h200/bench" if most == 1 else f"multi_gpu/{most}")
    try:
        items = unfinished(items, out.resolve())
    except ValueError as error:
        parser.error(str(error))
    if arguments.list:
        print("\n".join(f"{item['seconds']:5} s  {name}" for name, item in items.items()))
        return 0
    if arguments.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = arguments.gpu
    begun = time.monotonic()
    make_models({(item["shape"], item["mean"]) for item in items.values()}, work / "models", arguments.device)
    for tokens in sorted({item["prompt"] for item in items.values()}):
        make_data(work / "data" / str(tokens), tokens, distinct=True)
    taken = time.monotonic() - begun
    print(f"models and data: {taken:.0f} s", flush=True)

    def recipe_of(item: dict) -> dict:
        return recipe(
            item, work / "models" / model_name(item["shape"], item["mean"]), work / "data" / str(item["prompt"])
        )

    def added(name: str) -> dict:
        changes = "".join(f" --set {change}" for change in arguments.set)
        gpus = f" --gpu {arguments.gpu}" if items[name]["gpus"] > 1 else ""
        command = f"python benchmarks/bench_gpu.py --only {name}{gpus}{changes}"
        return {"command": command, "commit": arguments.commit}

    place = work / f"gpu{arguments.gpu or 0}"
    lines = Campaign(recipe_of, out.resolve(), place, added).measure(items, arguments.seconds - taken)
    print(f"\n{time.monotonic() - begun:.0f} s\n" + "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
