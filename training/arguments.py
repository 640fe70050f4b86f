"""From a recipe to TRL's GRPOConfig, and the list of GRPOConfig's names that `launch` checks against.

`python -m training.arguments` prints that list for the installed TRL; the committed one is launch/grpo_arguments.json,
so that `launch` can refuse an unknown name or a wrong type without importing torch. A test compares the two.
"""

import dataclasses
import enum
import json
import sys
import types
import typing

# What each arm means in TRL's terms (trl/trainer/grpo_config.py, 1.16.0).
ARM_ARGUMENTS = {
    "colocate": {"use_vllm": True, "vllm_mode": "colocate"},
    "server": {"use_vllm": True, "vllm_mode": "server"},
    "generate": {"use_vllm": False},
    "continuous_batching": {"use_vllm": False, "use_transformers_continuous_batching": True},
}

_JSON_NAMES = {bool: "bool", int: "int", float: "float", str: "str", dict: "dict", list: "list", type(None): "null"}


def grpo_arguments() -> dict[str, dict]:
    """GRPOConfig's names: for each the JSON types it takes, its choices if it is an enumeration, and its default."""
    from trl import GRPOConfig

    hints = typing.get_type_hints(GRPOConfig)
    table = {}
    for field in dataclasses.fields(GRPOConfig):
        if not field.init:
            continue
        accepted, choices = set(), []
        for kind in _members(hints[field.name]):
            origin = typing.get_origin(kind) or kind
            if isinstance(origin, type) and issubclass(origin, enum.Enum):
                choices = [member.value for member in origin]
                accepted.add("str")
            elif kind in (False, True):
                accepted.add("bool")
            elif origin in _JSON_NAMES:
                accepted.add(_JSON_NAMES[origin])
        default = field.default if field.default is not dataclasses.MISSING else None
        default = default.value if isinstance(default, enum.Enum) else default
        table[field.name] = {"types": sorted(accepted), "default": default} | ({"choices": choices} if choices else {})
    return table


def _members(hint) -> list:
    """The alternatives of a union or Literal, flattened."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [member for part in typing.get_args(hint) for member in _members(part)]
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    return [hint]


def to_grpo_config(recipe: dict, output_dir: str, report_to: list[str], server_url: str | None = None):
    """The GRPOConfig of a resolved recipe, in one of its ranks.

    Args:
        server_url: in the server arm, where the launcher has started it.

    Raises:
        ValueError: TRL refuses the combination; `launch check` is there to have said so before.
    """
    from trl import GRPOConfig

    return GRPOConfig(**config_arguments(recipe, output_dir, report_to, server_url))


def config_arguments(recipe: dict, output_dir: str, report_to: list[str], server_url: str | None = None) -> dict:
    """GRPOConfig's arguments: the `grpo` section as it is, and what the other sections decide."""
    model, on_cpu = recipe["model"], recipe["cluster"]["gpu"] == "cpu"
    return dict(
        output_dir=output_dir,
        run_name=recipe["name"],
        report_to=report_to,
        logging_steps=1,  # the record has a line for every step
        disable_tqdm=True,  # the launcher draws the progress, from the record
        eval_on_start=recipe["data"]["eval_split"] is not None,
        # with use_cpu accelerate would ignore DeepSpeed, silently; no GPU is visible on a CPU run anyway
        use_cpu=on_cpu and recipe["deepspeed"] is None,
        ddp_backend="gloo" if on_cpu else None,
        trust_remote_code=model["trust_remote_code"],
        model_init_kwargs={
            "device_map": None,  # TRL's "auto" is refused under ZeRO-3 in a single process
            "dtype": model["dtype"],
            "attn_implementation": model["attn_implementation"],
            "revision": model["revision"],
        },
        vllm_server_base_url=server_url,
        reward_weights=[reward["weight"] for reward in recipe["rewards"].values()],
        **ARM_ARGUMENTS[recipe["recipe"]["arm"]],
        **recipe["grpo"],
    )


def planned_config(recipe: dict):
    """The GRPOConfig as it would be on the recipe's own cluster, built on whatever machine this is: with the recipe's number
    of ranks instead of this process alone, and without asking for the GPUs.

    Raises:
        ValueError: TRL refuses the combination.
    """
    from trl import GRPOConfig

    ranks = recipe["cluster"]["nodes"] * recipe["cluster"]["gpus_per_node"]

    class Planned(GRPOConfig):
        world_size = property(lambda self: ranks)

    return Planned(**config_arguments(recipe, "planned", []) | {"use_cpu": True, "ddp_backend": None})


if __name__ == "__main__":
    json.dump(grpo_arguments(), sys.stdout, indent=1)
    print()
