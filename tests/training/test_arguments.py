"""From a recipe to GRPOConfig."""

import pytest

from launch.recipe import ROOT, load
from training.arguments import ARM_ARGUMENTS, config_arguments, planned_config

RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_what_a_recipe_states_is_what_trl_gets(path):
    recipe = load(path)
    config = planned_config(recipe)
    resolved = ("lr_scheduler_type", "optim", "save_strategy")  # TRL makes enumerations of these words
    for key, value in recipe["grpo"].items():
        got = getattr(config, key)
        assert (getattr(got, "value", got) if key in resolved else got) == value, key
    for key, value in ARM_ARGUMENTS[recipe["recipe"]["arm"]].items():
        assert getattr(config, key) == value
    assert config.reward_weights == [reward["weight"] for reward in recipe["rewards"].values()]
    assert config.model_init_kwargs["dtype"] == recipe["model"]["dtype"]
    assert config.world_size == recipe["cluster"]["nodes"] * recipe["cluster"]["gpus_per_node"]


def test_a_plan_differs_from_the_config_of_a_rank_in_the_machine_alone():
    recipe = load(ROOT / "recipes" / "tiny_generate.yaml", ["cluster.gpus_per_node=1"])
    recipe["grpo"]["bf16"] = False
    arguments = config_arguments(recipe, "planned", [])
    arguments["ddp_backend"] = None  # this process is in no group
    from trl import GRPOConfig

    real, planned = GRPOConfig(**arguments).to_dict(), planned_config(recipe).to_dict()
    assert real == planned


def test_trl_itself_refuses_what_does_not_divide():
    recipe = load(ROOT / "recipes" / "qwen1.5b_colocate.yaml")
    recipe["cluster"]["gpus_per_node"] = 6
    with pytest.raises(ValueError, match="224"):
        planned_config(recipe)


def test_the_server_address_reaches_trl():
    recipe = load(ROOT / "recipes" / "qwen1.5b_server.yaml")
    assert config_arguments(recipe, "x", [], "http://127.0.0.1:1")["vllm_server_base_url"] == "http://127.0.0.1:1"
