"""Rules about single values: stated, of the right kind, in range, sourced."""

import math
from collections.abc import Iterator

from launch.arguments import (
    ALTERNATIVES,
    COUNT_OR_RATIO,
    LEFT_OUT,
    MANAGED,
    MAPPINGS,
    NULL_MEANS,
    NUMBERS,
    STATED,
    STATED_COLOCATED,
    STATED_WITH_VLLM,
    WORDS,
)
from launch.problems import Problem, nearest
from launch.recipe import SOURCED, grpo_arguments
from rewards import registry

VLLM_ARMS = ("colocate", "server")


def stated(recipe: dict) -> Iterator[Problem]:
    """Every value that decides the algorithm is there, and none that the arm never reads."""
    arm, grpo = recipe["recipe"]["arm"], recipe["grpo"]
    names = STATED + (STATED_WITH_VLLM if arm in VLLM_ARMS else ()) + (STATED_COLOCATED if arm == "colocate" else ())
    for name in names:
        if name not in grpo:
            yield Problem(
                f"grpo.{name}",
                None,
                f"must be stated in the arm {arm} (recipe.arm): it decides the algorithm, and TRL's default may move",
                "state the value that you mean; recipes/tiny_colocate.yaml states them all",
            )
    for one, other in ALTERNATIVES:
        if grpo.get(one) is not None and grpo.get(other) is not None:
            yield Problem(
                f"grpo.{one}", grpo[one], f"not together with {other} = {grpo[other]}", "keep the one that you mean"
            )
    if "max_steps" not in grpo and "num_train_epochs" not in grpo:
        yield Problem("grpo.max_steps", None, "state max_steps or num_train_epochs", "TRL would train for 3 epochs")
    unread = [name for name in grpo if name.startswith("vllm_") and name not in names and arm not in VLLM_ARMS]
    if arm == "server":
        unread = [name for name in grpo if name in STATED_COLOCATED]
    if arm != "continuous_batching":
        unread += [name for name in grpo if name == "transformers_continuous_batching_config"]
    for name in unread:
        if name not in MANAGED and name not in LEFT_OUT:
            mend = "use cluster.server" if arm == "server" else "leave it out"
            yield Problem(f"grpo.{name}", grpo[name], f"means nothing in the arm {arm} (recipe.arm)", mend)


def numbers(recipe: dict) -> Iterator[Problem]:
    for name, value in recipe["grpo"].items():
        if value is None and name not in NULL_MEANS and name not in MANAGED:
            yield Problem(
                f"grpo.{name}", "null", "must have a value", "state it, or leave the line out if it need not be stated"
            )
        elif name in NUMBERS and value is not None:
            yield from _in_range(f"grpo.{name}", value, NUMBERS[name])
            if name in COUNT_OR_RATIO and isinstance(value, float) and 1 < value < float("inf") and value % 1:
                yield Problem(
                    f"grpo.{name}", value, "must be a ratio below 1, or a whole number", f"such as {int(value)}"
                )


def _in_range(field: str, value, limits: tuple) -> Iterator[Problem]:
    least, least_allowed, most, most_allowed = limits
    if not isinstance(value, int | float) or isinstance(value, bool):
        yield Problem(field, value, "must be a number", "write one, without quotes")
        return
    low = value < least or (value == least and not least_allowed)
    high = value > most or (value == most and not most_allowed)
    if low or high or math.isnan(value):
        rule = f"must be {'at least' if least_allowed else 'above'} {least} and {'at most' if most_allowed else 'below'} {most}"
        yield Problem(field, value, rule, "correct the number")


def words(recipe: dict) -> Iterator[Problem]:
    for name, allowed in WORDS.items():
        value = recipe["grpo"].get(name)
        if name in recipe["grpo"] and value is not None and value not in allowed:
            near = nearest(value, allowed)
            mend = f"did you mean {near}?" if near else "choose one"
            rule = f"must be one of {', '.join(allowed)}"
            if value in grpo_arguments()[name].get("choices", ()):
                rule += "; TRL's others need packages, numbers or metrics that no recipe has"
            yield Problem(f"grpo.{name}", value, rule, mend)


def mappings(recipe: dict) -> Iterator[Problem]:
    for name, keys in MAPPINGS.items():
        value = recipe["grpo"].get(name)
        if value is None:
            continue
        allowed = keys[recipe["recipe"]["arm"]] if name == "generation_kwargs" else keys
        if not isinstance(value, dict):
            yield Problem(f"grpo.{name}", value, "must be a mapping", f"with keys from: {', '.join(allowed) or 'none'}")
            continue
        for key, item in value.items():
            field = f"grpo.{name}.{key}"
            if key not in allowed:
                near = nearest(key, allowed)
                known = f"known here: {', '.join(allowed) or 'none in this arm'}"
                yield Problem(field, item, "unknown key, or set elsewhere", f"did you mean {near}?" if near else known)
                continue
            kind, least, most = allowed[key]
            if kind in (list[str], list[int]):
                inner = str if kind == list[str] else int
                sizes = (
                    [len(part) if isinstance(part, str) else part for part in item] if isinstance(item, list) else []
                )
                if not sizes or not all(isinstance(part, inner) and not isinstance(part, bool) for part in item):
                    yield Problem(field, item, f"must be a list of {inner.__name__}, not empty", "write [..]")
                elif not all(least <= size <= most for size in sizes):
                    yield Problem(field, item, f"each must be within {least} and {most}", "correct it")
            elif kind is bool:
                if not isinstance(item, bool):
                    yield Problem(field, item, "must be true or false", "without quotes")
            elif kind is int and (not isinstance(item, int) or isinstance(item, bool)):
                yield Problem(field, item, "must be a whole number", "write one, without quotes")
            else:
                yield from _in_range(field, item, (least, True, most, True))


def rewards(recipe: dict) -> Iterator[Problem]:
    for name, reward in recipe["rewards"].items():
        if name not in registry.REWARDS:
            near = nearest(name, registry.REWARDS)
            mend = f"did you mean {near}?" if near else f"one of {', '.join(registry.REWARDS)}"
            yield Problem(f"rewards.{name}", reward["weight"], "must be a reward of rewards/registry.py", mend)
            continue
        yield from _in_range(
            f"rewards.{name}", reward["weight"], (0, True, 1000, True)
        )  # penalties are negative themselves
        parameters = {key: value for key, value in reward.items() if key != "weight"}
        for error in registry.check_params(name, parameters):
            field, _, rest = error.partition(": ")
            rule_text, _, mend = rest.partition("; ")
            yield Problem(field, None, rule_text, mend or "see rewards/README.md")
        for key, value in parameters.items():
            if isinstance(value, float) and not math.isfinite(value):
                yield Problem(f"rewards.{name}.{key}", value, "must be a finite number", "correct it")
    if all(reward["weight"] == 0 for reward in recipe["rewards"].values()):
        yield Problem(
            "rewards", list(recipe["rewards"]), "at least one weight must not be 0", "there would be nothing to learn"
        )


LABELS = ("published", "inferred", "ours")


def sources(recipe: dict) -> Iterator[Problem]:
    """Every value of the sections in SOURCED has a label with its reference. A key covers all below it, a longer one wins."""
    labels = recipe["sources"]
    for key, text in labels.items():
        label, colon, reference = text.partition(":")
        if label not in LABELS or not colon or not reference.strip():
            yield Problem(
                f"sources.{key}",
                text,
                "must be `published: ...`, `inferred: ...` or `ours: ...`",
                "say where the value comes from",
            )
        if not _known_key(recipe, key):
            yield Problem(
                f"sources.{key}", text, "labels a value that the recipe does not have", "correct the key, or drop it"
            )
    for section in SOURCED:
        for key in leaves(section, recipe[section]) if recipe[section] else ():
            parts = key.split(".")
            if not any(".".join(parts[:depth]) in labels for depth in range(1, len(parts) + 1)):
                yield Problem(f"sources.{key}", None, f"{key} has no source", f"label {key} or all of {section}")


def label_of(recipe: dict, key: str) -> str:
    """The label and reference that cover a dotted key: those of the longest labelled prefix."""
    parts = key.split(".")
    covering = [".".join(parts[:depth]) for depth in range(len(parts), 0, -1)]
    return next((recipe["sources"][prefix] for prefix in covering if prefix in recipe["sources"]), "")


def leaves(prefix: str, value) -> Iterator[str]:
    """The dotted keys of the values in a section."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(f"{prefix}.{key}", item)
    else:
        yield prefix


def _known_key(recipe: dict, key: str) -> bool:
    node = {section: recipe[section] for section in (*SOURCED, "recipe", "accelerate", "tracking")}
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    return True


RULES = (stated, numbers, words, mappings, rewards, sources)
