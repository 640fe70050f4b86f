"""Whether two recipes do the same work and differ in the generation arm alone.

The same work, read strictly: from one policy the same prompts in the same order are completed the same number of times, and
the optimizer sees them in batches of the same size, under the same loss. Batches are counted in completions over all
training ranks. Where a server takes a GPU from the trainer (7 against 8), the per-device batches must therefore differ (8 k
against 7 k), and step times compare without any scaling. The post kept the per-device batch instead and scaled the server's
throughput by 8/7; analysis can still print that, next to the plain numbers.

TRL's sampler draws prompts from the seed and from generation batch / generations alone, so equal batches are the same
prompts in the same order at any number of ranks (RepeatSampler, trl/trainer/utils.py).
"""

from dataclasses import dataclass, field

from launch.arguments import STATED_COLOCATED
from launch.check_values import VLLM_ARMS
from launch.derived import derive

# Compared as completions over all ranks instead (DERIVED), whatever way each recipe comes to them.
_BATCH_KEYS = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size", "steps_per_generation",
    "per_device_eval_batch_size",
)  # fmt: skip
_DERIVED = ("generation_batch", "prompts_per_generation", "optimizer_batch", "steps_per_generation_batch")
_CORRECTION = (
    "vllm_importance_sampling_correction", "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min",
)  # fmt: skip


@dataclass
class Comparison:
    """What two resolved recipes have in common. Lines are for people: `key: A | B`."""

    arms: tuple[str, str]
    same: list[str] = field(default_factory=list)
    arm_needs: list[str] = field(default_factory=list)
    otherwise: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_pair(self) -> bool:
        return self.arms[0] != self.arms[1] and not self.otherwise


def compare(a: dict, b: dict) -> Comparison:
    """Sorts every difference between two checked, resolved recipes."""
    arms = (a["recipe"]["arm"], b["recipe"]["arm"])
    result = Comparison(arms)
    work_a, work_b = _work(a), _work(b)
    for key in _DERIVED:
        line = f"{key}: {work_a[key]} | {work_b[key]}"
        (result.same if work_a[key] == work_b[key] else result.otherwise).append(line)
    leaves_a, leaves_b = dict(_leaves(_compared(a))), dict(_leaves(_compared(b)))
    for key in sorted(leaves_a.keys() | leaves_b.keys()):
        left, right = leaves_a.get(key, "not stated"), leaves_b.get(key, "not stated")
        if left != right or type(left) is not type(right):
            where = result.arm_needs if _arm_needs(key, arms) else result.otherwise
            where.append(f"{key}: {left} | {right}")
    if a["grpo"]["loss_type"] == b["grpo"]["loss_type"] == "bnpo" and _micro_batch(a) != _micro_batch(b):
        result.notes.append(
            f"bnpo divides by the tokens of a micro-batch, here of {_micro_batch(a)} and {_micro_batch(b)} completions: "
            "the two weigh completions alike on average, not one by one (dapo would)"
        )
    return result


def _work(recipe: dict) -> dict:
    derived = derive(recipe)
    uses = recipe["grpo"]["num_iterations"] * derived["generation_batch"]
    return derived | {"steps_per_generation_batch": uses / derived["optimizer_batch"]}


def _micro_batch(recipe: dict) -> int:
    return recipe["grpo"]["per_device_train_batch_size"]


def _compared(recipe: dict) -> dict:
    """All of a recipe that can differ, less what describes it and what `_DERIVED` compares."""
    grpo = {key: value for key, value in recipe["grpo"].items() if key not in _BATCH_KEYS}
    sections = ("model", "data", "system_prompt", "rewards", "cluster", "accelerate", "deepspeed", "lora", "speedups")
    return {section: recipe[section] for section in sections} | {"grpo": grpo}


def _leaves(value, prefix: str = ""):
    if isinstance(value, dict) and value and prefix != "cluster.server":
        for key, item in value.items():
            yield from _leaves(item, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, value


def _arm_needs(key: str, arms: tuple[str, str]) -> bool:
    """Whether a difference at `key` belongs to the two arms: what only one of them reads, or where its GPUs are."""
    section, _, name = key.partition(".")
    both_vllm = all(arm in VLLM_ARMS for arm in arms)
    if section == "cluster":
        return "server" in arms and name != "gpu"
    if section == "speedups":
        return name == "outputs_when_finished" or not both_vllm
    return section == "grpo" and _grpo_needs(name, both_vllm)


def _grpo_needs(name: str, both_vllm: bool) -> bool:
    if name in STATED_COLOCATED or name.startswith("transformers_continuous_batching_config"):
        return True
    if name.startswith("generation_kwargs"):  # vLLM's names and transformers' differ
        return not both_vllm
    if (
        name in _CORRECTION or name == "vllm_max_model_length"
    ):  # without an engine there is no second policy to correct for
        return not both_vllm
    return name.startswith("vllm_server_")


def report(comparison: Comparison, names: tuple[str, str]) -> str:
    first, second = comparison.arms
    if comparison.is_pair:
        verdict = f"a pair: the same work, {first} against {second}"
    elif first == second:
        verdict = f"no pair: both are {first}"
    else:
        verdict = "no pair: they differ in more than the arm"
    lines = [f"{names[0]} | {names[1]}", verdict]
    for title, items in (
        ("the same, over all ranks", comparison.same), ("differs because the arm does", comparison.arm_needs),
        ("differs otherwise", comparison.otherwise), ("note", comparison.notes),
    ):  # fmt: skip
        lines += [f"  {title}:", *(f"    {item}" for item in items)] if items else []
    return "\n".join(lines)
