"""500 broken recipes: each is refused with an error that names what was broken, or runs as meant.

"Runs as meant" is taken in three depths. Of all that pass `check`: TRL builds its GRPOConfig for the recipe's number of ranks,
and vLLM its sampling parameters. Of a sample (slow): two steps of training at this machine's size.
"""

import pytest

from launch.check import check
from launch.problems import RecipeError
from launch.recipe import resolve
from tests.launch.mutate import Mutant, mutants

SEED, COUNT, TRAINED = 1, 500, 16


def verdict(mutant: Mutant) -> tuple[dict | None, list]:
    """The resolved recipe if it may run, else None; and the errors."""
    try:
        recipe = resolve(mutant.content, mutant.base, mutant.base)
        errors = [problem for problem in check(recipe) if not problem.warning]
    except RecipeError as error:
        return None, error.problems
    return (None if errors else recipe), errors


def names(errors: list, keys: list[str]) -> bool:
    """Whether an error names one of the keys: whole, by its last part, or by the section that holds it."""
    text = "\n".join(f"{problem.field} {problem.rule}" for problem in errors)
    fields = {problem.field for problem in errors}
    return any(
        key in text or key.rpartition(".")[2] in text or not fields.isdisjoint(sections_of(key)) for key in keys
    ) or any(key.startswith("cluster.server.") and "cluster.server" in text for key in keys)


def sections_of(key: str) -> set[str]:
    parts = key.split(".")
    return {".".join(parts[:depth]) for depth in range(1, len(parts))}


@pytest.fixture(scope="module")
def judged() -> list[tuple[Mutant, dict | None, list]]:
    return [(mutant, *verdict(mutant)) for mutant in mutants(SEED, COUNT)]


def test_the_mutants_are_a_fair_trial(judged):
    refused = sum(recipe is None for _, recipe, _ in judged)
    assert len(judged) == COUNT
    assert refused > COUNT // 2, "the mutator breaks too little"
    assert refused < COUNT, "no mutant passes: `check` refuses everything"
    assert len({mutant.how for mutant, _, _ in judged}) == 12


def test_a_refusal_names_what_was_broken_and_says_how_to_mend_it(judged):
    for mutant, recipe, errors in judged:
        if recipe is None:
            assert names(errors, mutant.keys), f"{mutant.base}, {mutant.how} of {mutant.keys}: {errors}"
            assert all(problem.rule and problem.mend for problem in errors)


def test_trl_and_vllm_take_what_passes(judged):
    from transformers import ContinuousBatchingConfig, GenerationConfig
    from vllm import SamplingParams

    from training.arguments import planned_config

    for mutant, recipe, _ in judged:
        if recipe is None:
            continue
        grpo = recipe["grpo"]
        told = f"{mutant.base}, {mutant.how} of {mutant.keys}"
        config = planned_config(recipe)
        ranks = recipe["cluster"]["nodes"] * recipe["cluster"]["gpus_per_node"]
        assert (
            config.generation_batch_size == grpo["per_device_train_batch_size"] * ranks * config.steps_per_generation
        ), told
        sampling = {key: grpo[key] for key in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
        extra = grpo.get("generation_kwargs") or {}
        if recipe["recipe"]["arm"] in ("colocate", "server"):
            sampling["min_p"] = sampling["min_p"] or 0.0
            SamplingParams(max_tokens=grpo["max_completion_length"], logprobs=0, **sampling, **extra)
        else:
            GenerationConfig(max_new_tokens=grpo["max_completion_length"], do_sample=True, **sampling, **extra)
        ContinuousBatchingConfig(**(grpo.get("transformers_continuous_batching_config") or {}))


@pytest.mark.slow
def test_a_sample_of_what_passes_trains(judged, tmp_path):
    from tests.recipes.shrunk import rehearsal, run_rehearsals

    passing = [(mutant, recipe) for mutant, recipe, _ in judged if recipe and mutant.how != "sources"]
    step = max(1, len(passing) // TRAINED)
    rehearsals = [rehearsal(mutant.content, f"{n}-{mutant.base}") for n, (mutant, _) in enumerate(passing[::step])]
    for name, outcome in run_rehearsals(rehearsals, tmp_path, timeout_seconds=800).items():
        assert outcome["error"] is None, f"{name}: {outcome['error']}"
        assert outcome["steps"] == 2
