"""`launch advise`: ranked arms and settings that keep the recipe's batch and fit."""

import pytest

from launch.advise import advise, cluster_of, table
from launch.derived import derive
from launch.plan import TOO_LARGE, sound
from launch.recipe import RecipeError, load


@pytest.mark.parametrize("text", ["8", "x", "0xH100-80GB", "8xH100", "eight x H100-80GB"])
def test_a_cluster_is_a_count_and_a_known_kind(text):
    with pytest.raises(RecipeError, match="COUNTxKIND"):
        cluster_of(text)


def test_every_row_fits_keeps_the_batch_and_can_be_started():
    recipe = load("recipes/qwen7b_colocate.yaml")
    rows = advise(recipe, *cluster_of("8xH100-80GB"))
    assert {row.recipe["recipe"]["arm"] for row in rows} >= {"colocate", "server", "generate", "continuous_batching"}
    for other, result in rows:
        assert result.verdict != TOO_LARGE
        assert derive(other)["optimizer_batch"] == derive(recipe)["optimizer_batch"]
        assert sound(other)
        assert derive(other)["gpus"] == 8
    steps = [result.seconds["step"] for _, result in rows if result.verdict == rows[0].plan.verdict]
    assert steps == sorted(steps)


def test_the_72b_needs_sharding_wherever_it_is_placed():
    rows = advise(load("recipes/qwen72b_colocate.yaml"), *cluster_of("32xA100-80GB"))
    assert rows
    assert {row.recipe["accelerate"] for row in rows} <= {"zero3", "zero3_offload"}


def test_where_nothing_fits_the_table_says_so():
    assert "nothing fits" in table(advise(load("recipes/qwen72b_colocate.yaml"), *cluster_of("2xL4-24GB")))
