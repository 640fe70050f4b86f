"""Is the algorithm the same? On one fixed rollout, the loss and all gradients of one optimizer step with each lever of the
tuned recipes, against the default's, and against one computed in a wider type.

    python benchmarks/check_equal.py                     # one GPU, bfloat16 against float32; results/h200/equal_1.5b.json
    python benchmarks/check_equal.py --device cpu        # the tiny model, float32 against float64

The tolerance is measured, not chosen: what the default itself differs from the wider type by, in relative L2 distance over all
gradients, in the completions' parts of the loss, and in the mean of the tokens' log-probabilities. A variant may
differ from the default by no more. One variant changes the algorithm on purpose (`control`); it must be found out. The engine's
levers are compared before: the same tokens and log-probabilities from the same random numbers.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import in_process
from record import write_json

MICRO_BATCH, ACCUMULATION = 8, 4
COMPLETION_TOKENS = {"cuda": 128, "cpu": 24}
SEED = 0
FLAT = {"detokenize": False, "flat_logprobs": True}

# The changes of each variant: sections of the recipe, over the default's. `wider` is the reference.
NO_CHECKPOINTING = {"gradient_checkpointing": False, "gradient_checkpointing_kwargs": None}
ONE_BATCH = {"per_device_train_batch_size": MICRO_BATCH * ACCUMULATION, "gradient_accumulation_steps": 1}
VARIANTS = {
    "default": {},
    "reference": {"wider": True},
    "default_again": {},  # what one and the same computation differs by from run to run
    "no_checkpointing": {"grpo": NO_CHECKPOINTING},
    "one_micro_batch": {"grpo": ONE_BATCH},
    "score_in_loss": {"speedups": {"score_in_loss": True}},
    "all": {"grpo": NO_CHECKPOINTING | ONE_BATCH, "speedups": {"score_in_loss": True}},
    "control": {"grpo": {"scale_rewards": "none"}},
    # last: liger-kernel changes transformers' functions for the whole process
    "liger": {"grpo": {"use_liger_kernel": True}},
    "tuned": {
        "grpo": NO_CHECKPOINTING | ONE_BATCH | {"use_liger_kernel": True},
        "speedups": {"score_in_loss": True},
    },
}


def share_of_even_ids(completion_ids, **_) -> list[float]:
    """A reward that differs from completion to completion, so that there are gradients."""
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]


def generate(trainer, prompts: list, generation_kwargs: dict) -> dict:
    """One generation with random numbers that start anew: prompts, ids and log-probabilities, a list a completion."""
    import numpy
    import torch

    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(SEED)
    engine = trainer.vllm_generation
    engine.llm.reset_prefix_cache()
    engine.generation_kwargs = generation_kwargs
    begun = time.monotonic()
    _, ids, logps, _ = engine.generate(prompts, None, num_generations=trainer.num_generations)
    logps = [[token[0] for token in completion] for completion in logps]
    return {
        "prompts": prompts,
        "ids": [list(each) for each in ids],
        "logps": logps,
        "seconds": time.monotonic() - begun,
    }


def rollouts(trainer, prompts: list) -> tuple[dict, list[dict]]:
    """The rollout that all variants get, and a row for each way to generate it."""
    import trl.generation.vllm_generation as trl_generation

    from training import outputs

    default = generate(trainer, prompts, {})
    rows = [_same("default, once more", default, generate(trainer, prompts, {}))]
    rows.append(_same("detokenize: false, flat_logprobs: true", default, generate(trainer, prompts, FLAT)))
    outputs.process_when_finished(trainer.vllm_generation.llm.llm_engine.output_processor)
    original, trl_generation.extract_logprobs = trl_generation.extract_logprobs, outputs.extract_logprobs
    try:
        rows.append(_same("outputs_when_finished", default, generate(trainer, prompts, FLAT)))
    finally:
        trl_generation.extract_logprobs = original
    return default, rows


def _same(name: str, default: dict, other: dict) -> dict:
    pairs = list(zip(default["ids"], other["ids"], strict=True))
    return {
        "name": name, "completions": len(pairs), "tokens": sum(map(len, other["ids"])),
        "same_tokens": sum(a == b for a, b in pairs) == len(pairs),
        "same_logps": default["logps"] == other["logps"], "seconds": other["seconds"],
    }  # fmt: skip


def fixed(rollout: dict):
    """A class for the place where TRL builds its engine, that has this rollout to give."""

    class FixedRollout:
        def __init__(self, **_):
            pass

        def sync_weights(self):
            pass

        def generate(self, prompts, images, num_generations, profiler=None):
            if prompts != rollout["prompts"]:
                raise ValueError("the trainer asks for completions of other prompts than those of the rollout")
            return prompts, rollout["ids"], [[[value] for value in each] for each in rollout["logps"]], None

    return FixedRollout


def observed_trainer():
    """The project's trainer, with what it computes in its one step kept: the loss, and by completion the log-probabilities and
    the part of the loss. A completion is known by its tokens, since TRL shuffles them."""
    import torch

    from training.trainer import RecordedGRPOTrainer

    class Observed(RecordedGRPOTrainer):
        loss, gradients = 0.0, None

        def __init__(self, *args, **kwargs):
            self.completions = {}
            super().__init__(*args, **kwargs)

        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            self.loss += loss.item()
            return loss

        def _get_per_token_logps_and_entropies(self, *args, **kwargs):
            scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            if torch.is_grad_enabled():
                self._logps = scored[0].detach()
            return scored

        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            masks = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1).bool()
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            parts = -(inputs["advantages"] * inputs["importance_sampling_ratio"][:, 0])
            parts = parts * inputs["completion_mask"].sum(1) / inputs["num_items_in_batch"]
            for row, part in enumerate(parts.double().tolist()):
                kept = self._logps[row][inputs["completion_mask"][row].bool()].double().tolist()
                self.completions[tuple(ids[row][masks[row]].tolist())] = (part, kept)
            return loss

    return Observed


def step(content: dict, changes: dict, folder: Path) -> dict:
    """One optimizer step (at learning rate 0) of a new trainer: loss, gradients, parts of the loss, log-probabilities.

    Returns:
        `gradients`: name -> tensor as it is before clipping; `completions`: token ids -> (part of the loss, log-probabilities).
    """
    from transformers import TrainerCallback

    from training.phases import PhaseClock

    changed = content | {"grpo": content["grpo"] | changes.get("grpo", {})}
    changed["grpo"] = {name: value for name, value in changed["grpo"].items() if value is not None}
    changed["speedups"] = changes.get("speedups", {})
    wider = {"bfloat16": "float32", "float32": "float64"}[content["model"]["dtype"]] if changes.get("wider") else None
    if wider:
        changed["grpo"]["bf16"] = False
    trainer = in_process.build(changed, PhaseClock(None), folder, [share_of_even_ids], observed_trainer(), wider)

    class Gradients(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **_):
            trainer.gradients = {
                name: weight.grad.detach().clone()
                for name, weight in trainer.accelerator.unwrap_model(trainer.model).named_parameters()
            }

    trainer.add_callback(Gradients())
    trainer.train()
    return {"loss": trainer.loss, "gradients": trainer.gradients, "completions": trainer.completions}


def distances(one: dict, other: dict) -> dict:
    """How far `other` is from `one`: loss, gradients (relative to those of `one`) and log-probabilities.

    Returns:
        gradient_relative_l2: ||g' - g|| / ||g|| over all parameters; gradient_cosine; worst_parameter and by_kind: the relative
        distance of one parameter, and of all of a kind (q_proj, ...); loss: |l' - l|; loss_parts: the sum over completions of
        |part' - part|, which the former cannot exceed, and which does not cancel out by chance; logps_mean, logps_max: over
        tokens, natural logarithm.
    """
    squares = {}
    for name, first in one["gradients"].items():
        a, b = first.double(), other["gradients"][name].double()
        squares[name] = [
            value.item() for value in ((b - a).square().sum(), a.square().sum(), (a * b).sum(), b.square().sum())
        ]
    apart, own, product, others = (sum(values) for values in zip(*squares.values(), strict=True))
    worst = max(squares, key=lambda name: squares[name][0] / max(squares[name][1], 1e-300))
    kinds: dict[str, list] = {}
    for name, (difference, size, *_) in squares.items():
        sums = kinds.setdefault(name.split(".")[-2], [0.0, 0.0])
        sums[:] = sums[0] + difference, sums[1] + size
    parts = [abs(other["completions"][key][0] - part) for key, (part, _) in one["completions"].items()]
    logps = [
        abs(a - b)
        for key, (_, values) in one["completions"].items()
        for a, b in zip(values, other["completions"][key][1], strict=True)
    ]
    return {
        "gradient_relative_l2": (apart / own) ** 0.5,
        "gradient_cosine": product / (own * others) ** 0.5,
        "worst_parameter": {"name": worst, "relative_l2": (squares[worst][0] / squares[worst][1]) ** 0.5},
        "by_kind": {kind: (difference / size) ** 0.5 if size else None for kind, (difference, size) in kinds.items()},
        "loss": abs(other["loss"] - one["loss"]), "loss_parts": sum(parts),
        "logps_mean": sum(logps) / len(logps), "logps_max": max(logps),
    }  # fmt: skip


def row(name: str, result: dict, default: dict, reference: dict | None, rollout: dict) -> dict:
    """What is recorded of a variant. The engine's log-probabilities are compared with its own."""
    rows = zip(rollout["prompts"], rollout["ids"], rollout["logps"], strict=True)
    sampled = {(*prompt, *ids): logps for prompt, ids, logps in rows}
    apart = [
        abs(a - b)
        for key, (_, values) in result["completions"].items()
        for a, b in zip(values, sampled[key], strict=True)
        if b is not None
    ]
    found = {
        "name": name, "loss": result["loss"],
        "gradient_norm": sum(g.double().square().sum().item() for g in result["gradients"].values()) ** 0.5,
        "engine_logps": {"mean": sum(apart) / len(apart), "max": max(apart), "tokens": len(apart)},
    }  # fmt: skip
    if name != "default":
        found["from_default"] = distances(default, result)
    if reference and name != "reference":
        found["from_reference"] = distances(reference, result)
    return found


def judged(rows: dict[str, dict]) -> dict:
    """The tolerances, and by variant what is within them; empty until the reference is there."""
    if "from_default" not in rows.get("reference", {}):
        return {}
    own = rows["default"]["from_reference"]
    limits = {"gradient_relative_l2": own["gradient_relative_l2"], "loss": own["loss_parts"],
              "logps_mean": own["logps_mean"]}  # fmt: skip
    within = {
        name: {key: found["from_default"][key] <= limit for key, limit in limits.items()}
        for name, found in rows.items()
        if name not in ("default", "reference") and "from_default" in found
    }
    return {"tolerance": limits, "within": within}


def main() -> int:
    parser = in_process.parser(__doc__)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), help="variants, after default and reference")
    arguments = parser.parse_args()
    begun = time.monotonic()
    out = (arguments.out or in_process.ROOT / f"results/h200/equal_{arguments.shape}.json").resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    content = in_process.prepare(arguments, {
        "batch": MICRO_BATCH, "accumulation": ACCUMULATION, "completion": COMPLETION_TOKENS[arguments.device],
        "checkpointing": True, "utilization": 0.2, "sleep": False,
    })  # fmt: skip
    content["grpo"] |= {"max_steps": 1, "learning_rate": 0.0, "max_grad_norm": 0.0}

    import torch
    import trl.trainer.grpo_trainer as trl_trainer

    from training.phases import PhaseClock

    torch.set_float32_matmul_precision("highest")  # the reference is in float32, not TF32
    folder, clock = arguments.work / "check", PhaseClock(None)
    in_process.install(arguments, content, clock)
    trainer = in_process.build(content, clock, folder, [share_of_even_ids])
    prompts = in_process.prompts(trainer, MICRO_BATCH * ACCUMULATION)
    trainer.vllm_generation.sync_weights()
    result = in_process.provenance() | {"model": content["model"]["path"], "settings": content["grpo"]}
    rollout, result["generation"] = rollouts(trainer, prompts)
    for generated in result["generation"]:
        print(generated, flush=True)
    trl_trainer.VLLMGeneration = fixed(rollout)
    del trainer

    rows, steps = {}, {}
    chosen = [name for name in VARIANTS if name in ("default", "reference", *arguments.only)]
    for name in chosen:
        if time.monotonic() - begun > arguments.seconds:
            result["stopped"] = f"after {arguments.seconds:.0f} s"
            break
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        try:
            found = step(content, VARIANTS[name], folder)
            if name in ("default", "reference"):
                steps[name] = found
            rows[name] = row(name, found, steps["default"], steps.get("reference"), rollout)
            if name == "reference":
                rows["default"] = row("default", steps["default"], steps["default"], found, rollout)
            del found
        except Exception as error:  # one variant is never the end of the check
            rows[name] = {"name": name, "cause": f"{type(error).__name__}: {error}"}
        result |= {"variants": list(rows.values()), "seconds": round(time.monotonic() - begun, 1)} | judged(rows)
        write_json(out, result)
        print(rows[name], flush=True)
    print(f"{result['seconds']} s\n{result.get('tolerance')}\n{result.get('within')}", flush=True)
    return int(any("cause" in each for each in rows.values()))


if __name__ == "__main__":
    in_process.run(main)
