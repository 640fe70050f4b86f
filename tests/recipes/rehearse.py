"""Trains shrunk recipes in one process, one after the other: `python -m tests.recipes.rehearse RECIPES.json`.

For what a launcher, a second rank and an engine would only make slow: arguments, model, data, rewards, loss and optimizer.
The file holds resolved recipes of the arms `generate` and `continuous_batching`; a line of JSON comes out for each, with the
steps made and the error, if there was one.
"""

import json
import sys
import tempfile
import traceback
from pathlib import Path


def without_engine(content: dict) -> dict:
    """A shrunk recipe's sections in the arm `generate`, on one rank, without what only an engine or DeepSpeed would read."""
    content = json.loads(json.dumps(content))
    grpo, cluster = content["grpo"], content["cluster"]
    content["recipe"]["arm"], content["accelerate"] = "generate", "cpu"
    cluster.update(gpus_per_node=1, server=None)
    for name in [
        name
        for name in grpo
        if name.startswith("vllm_") or "continuous_batching" in name or name == "generation_kwargs"
    ]:
        del grpo[name]
    return content


def rehearse(recipe: dict, folder: str) -> int:
    """Trains a resolved recipe here. Returns the steps made."""
    from transformers import AutoTokenizer
    from trl import GRPOTrainer

    from rewards import registry
    from training.arguments import to_grpo_config
    from training.data import load_split

    path = recipe["model"]["path"]
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    args = to_grpo_config(recipe, folder, [])
    rewards = [
        registry.load(name, **{key: value for key, value in reward.items() if key != "weight"})
        for name, reward in recipe["rewards"].items()
    ]
    splits = {}
    for which in ("train", "eval"):
        split = recipe["data"][f"{which}_split"]
        splits[which] = load_split(recipe, split, tokenizer)[0] if split else None
    if splits["eval"]:
        splits["eval"] = splits["eval"].select(range(4))
    trainer = GRPOTrainer(
        model=path, reward_funcs=rewards, args=args, train_dataset=splits["train"], eval_dataset=splits["eval"],
        processing_class=tokenizer,
    )  # fmt: skip
    trainer.train()
    return trainer.state.global_step


def main() -> None:
    for recipe in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        outcome = {"name": recipe["name"], "steps": 0, "error": None}
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome["steps"] = rehearse(recipe, folder)
            except Exception:
                outcome["error"] = traceback.format_exc()
        print(f"\noutcome {json.dumps(outcome)}", flush=True)


if __name__ == "__main__":
    main()
