"""Peak memory and step time of many configurations on one GPU, each a run of this project's own launcher.

    python benchmarks/measure_memory.py --out results/memory_h200            # all that are not there yet
    python benchmarks/measure_memory.py --out OUT --only colocate_ddp --seconds 300
    python benchmarks/measure_memory.py --list                               # the split, before anything is measured

Models are random, at the true 1.5B and 7B shapes; prompts are of two lengths, so that a batch is padded; a random model
never ends a completion, so that all have the full length. Each configuration trains 3 steps. One that fails is a row with its
cause. Which half is fitted is drawn by the seed in the YAML file. Left out: runs on several GPUs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.campaign import Campaign  # noqa: E402
from benchmarks.inputs import make_data, make_models, on_one_node  # noqa: E402

CAMPAIGN = Path(__file__).with_suffix(".yaml")
GENERATIONS, STEPS = 4, 3


def configurations() -> dict[str, dict]:
    """Name -> every setting, with `half`: "fitted" or "held_out"."""
    content = YAML(typ="safe").load(CAMPAIGN.read_text())
    named = content["configurations"]
    fitted = set(random.Random(content["split_seed"]).sample(sorted(named), len(named) // 2))
    return {
        name: content["defaults"] | (given or {}) | {"half": "fitted" if name in fitted else "held_out"}
        for name, given in named.items()
    }


def recipe(item: dict, model: Path, data: Path) -> dict:
    """The recipe of a configuration: the shape's own, on one GPU, with the configuration's settings and without a save."""
    content = on_one_node(item, model, data)
    grpo = content["grpo"]
    grpo |= {
        "max_steps": STEPS, "num_generations": GENERATIONS,
        "per_device_train_batch_size": item["batch"], "gradient_accumulation_steps": item["accumulation"],
        "max_completion_length": item["completion"], "gradient_checkpointing": item["checkpointing"],
    }  # fmt: skip
    grpo.pop("gradient_checkpointing_kwargs", None)
    if item["checkpointing"]:
        grpo["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    if item["arm"] == "colocate":
        grpo |= {"vllm_max_model_length": item["prompt"] + item["completion"],
                 "vllm_gpu_memory_utilization": item["utilization"], "vllm_enable_sleep_mode": item["sleep"]}  # fmt: skip
    return content


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "memory_h200")
    parser.add_argument("--work", type=Path, default=Path("/tmp/measure_memory"), help="models, data, runs and logs")
    parser.add_argument("--device", default="cuda", help="where the random models are made")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="start nothing that would not end within them"
    )
    parser.add_argument("--only", nargs="*", help="names, in this order; all by default")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of every configuration, in YAML"
    )
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    arguments.out, arguments.work = arguments.out.resolve(), arguments.work.resolve()
    items = configurations()
    if arguments.list:
        print("\n".join(f"{item['half']:9} {name}" for name, item in items.items()))
        return 0
    begun, work = time.monotonic(), arguments.work
    changes = {key: YAML(typ="safe").load(value) for key, _, value in (item.partition("=") for item in arguments.set)}
    chosen = {
        name: items[name] | changes for name in arguments.only or items if not (arguments.out / f"{name}.json").exists()
    }
    make_models({(item["shape"], None) for item in chosen.values()}, work / "models", arguments.device)
    for tokens in sorted({item["prompt"] for item in chosen.values()}):
        make_data(work / "data" / str(tokens), tokens)
    taken = time.monotonic() - begun
    print(f"models and data: {taken:.0f} s", flush=True)

    def recipe_of(item: dict) -> dict:
        return recipe(item, work / "models" / item["shape"], work / "data" / str(item["prompt"]))

    lines = Campaign(recipe_of, arguments.out, work).measure(chosen, arguments.seconds - taken)
    print(f"\n{time.monotonic() - begun:.0f} s\n" + "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
