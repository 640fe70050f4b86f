"""The reward functions as TRL calls them: signature, formulas, None, logging, the registry."""

from __future__ import annotations

import importlib
import math

import pytest

import rewards
from rewards import registry
from rewards.length import cosine
from rewards.repetition import repeated_tokens

TABLE = {"max_tokens": 100}


def message(text: str) -> list[dict]:
    return [{"role": "assistant", "content": text}]


def test_trl_finds_each_reward_by_its_dotted_name():
    """trl/scripts/grpo.py splits at the last dot, imports the module and takes the attribute; it logs __name__."""
    for name in registry.names():
        function = getattr(importlib.import_module("rewards"), name)
        assert callable(function)
        assert function.__name__ == name
    from rewards.accuracy import gold_column  # the submodule stays importable behind the function

    assert gold_column({"answer": ["1"]}) == ["1"]


def test_trl_logs_bound_rewards_under_their_registered_name():
    from trl.trainer.utils import get_callable_name

    for name in registry.names():
        params = TABLE if name == "length_cosine" else {}
        assert get_callable_name(registry.load(name, **params)) == name


def test_strings_and_chat_messages_get_the_same_reward():
    texts = [r"So \boxed{4}.", r"So \boxed{5}."]
    assert rewards.accuracy(completions=texts, gold=["4", "4"]) == [1.0, 0.0]
    assert rewards.accuracy(completions=[message(t) for t in texts], gold=["4", "4"]) == [1.0, 0.0]


def test_as_the_trainer_calls_it():
    extra, metrics = {}, {}
    prompts = [[{"role": "user", "content": "2+2?"}]] * 4
    completions = [message(t) for t in (r"\boxed{4}", r"\boxed{5}", "no idea", r"\boxed{4}")]
    graded = rewards.accuracy(
        prompts=prompts, completions=completions, completion_ids=[[1]] * 4, answer=["4", "4", "4", ""], trainer_state=None,
        log_extra=extra.__setitem__, log_metric=metrics.__setitem__,
    )  # fmt: skip
    assert graded == [1.0, 0.0, 0.0, None]
    assert extra["reason"] == ["correct", "wrong", "no_answer", "unusable_gold"]
    assert metrics == {
        "accuracy/correct": 0.25, "accuracy/wrong": 0.25, "accuracy/no_answer": 0.25, "accuracy/unusable_gold": 0.25,
        "accuracy/out_of_time": 0.0, "accuracy/out_of_memory": 0.0,
    }  # fmt: skip


def test_the_gold_column_has_three_names():
    for name in ("gold", "answer", "solution"):
        assert rewards.accuracy(completions=[r"\boxed{4}"], **{name: [r"2+2 is \boxed{4}."]}) == [1.0]
    assert rewards.accuracy(completions=[r"\boxed{4}"], solution=["5"], gold=["4"]) == [1.0]
    with pytest.raises(ValueError, match="gold, answer or solution"):
        rewards.accuracy(completions=[r"\boxed{4}"])


def test_one_reward_per_completion_or_an_error():
    """NeMo-RL#3635: a second score for one completion shifted all later rewards."""
    with pytest.raises(ValueError, match="3 golds for 2 completions"):
        rewards.accuracy(completions=["a", "b"], gold=["1", "2", "3"])
    assert rewards.accuracy(completions=[], gold=[]) == []


def test_odd_completions_are_wrong_and_no_error():
    odd = [
        "",
        None,
        [],
        [{}],
        [{"role": "assistant", "content": None}],
        [{"content": [{"type": "text", "text": r"\boxed{4}"}]}],
    ]
    assert rewards.accuracy(completions=odd, gold=["4"] * 6) == [0.0] * 5 + [1.0]


@pytest.mark.parametrize(
    ("text", "boxed", "think", "think_answer"),
    [
        (r"<think>a</think><answer>\boxed{4}</answer>", 1.0, 1.0, 1.0),
        ("<think>a</think> 4", 0.0, 1.0, 0.0),
        ("a</think> 4", 0.0, 1.0, 0.0),  # the template pre-filled <think> (trl#6966)
        ("<think></think>a", 0.0, 0.0, 0.0),  # Soup#814: TRL pays 1.0
        ("<think>a</think>", 0.0, 0.0, 0.0),
        ("<think>a", 0.0, 0.0, 0.0),
        ("x<think>a</think>b", 0.0, 0.0, 0.0),
        ("<think>a</think>b</think>c", 0.0, 0.0, 0.0),
        ("<think>a<think>b</think>c", 0.0, 0.0, 0.0),
        ("a</think>\n<answer>4</answer>\n", 0.0, 1.0, 1.0),
        ("<think>a</think>so <answer>4</answer>", 0.0, 1.0, 0.0),
        ("<think>a</think><answer></answer>", 0.0, 1.0, 0.0),
        ("<think>a</think><answer>4</answer><answer>5</answer>", 0.0, 1.0, 0.0),
        (r"\boxed{\frac{1}{2}}", 1.0, 0.0, 0.0),
        (r"\boxed{1} or \boxed{2}", 0.0, 0.0, 0.0),
        (r"\boxed{}", 0.0, 0.0, 0.0),
        (r"\boxed{\frac{1}{2}", 0.0, 0.0, 0.0),
        (r"<think>\boxed{1}</think>no box", 0.0, 1.0, 0.0),
        ("", 0.0, 0.0, 0.0),
    ],
)
def test_formats(text, boxed, think, think_answer):
    completions = [text, message(text)]
    assert rewards.format_boxed(completions=completions) == [boxed] * 2
    assert rewards.format_think(completions=completions) == [think] * 2
    assert rewards.format_think_answer(completions=completions) == [think_answer] * 2


def test_cosine_follows_the_paper():
    """CosFn(t, T, eta_min, eta_max) of arXiv 2502.03373 at the ends and in the middle, and monotone between."""
    assert cosine(0, 100, 2.0, 1.0) == 2.0
    assert cosine(100, 100, 2.0, 1.0) == pytest.approx(1.0)
    assert cosine(50, 100, 2.0, 1.0) == pytest.approx(1.5)
    assert cosine(25, 100, -10.0, 0.0) == pytest.approx(-5 * (1 + math.cos(math.pi / 4)))
    lengths = [cosine(t, 100, 2.0, 1.0) for t in range(101)]
    assert lengths == sorted(lengths, reverse=True)


def test_length_cosine():
    texts = [r"\boxed{4}", r"\boxed{4}", r"\boxed{5}", r"\boxed{5}", r"\boxed{4}", "x"]
    ids = [[0] * n for n in (0, 50, 0, 50, 100, 50)]
    graded = registry.load("length_cosine", max_tokens=100)(
        prompts=None, completions=texts, completion_ids=ids, gold=["4"] * 5 + [None]
    )
    assert graded == [2.0, pytest.approx(1.5), -10.0, pytest.approx(-5.0), -10.0, None]


def test_length_cosine_refuses_to_guess():
    with pytest.raises(ValueError, match="max_tokens"):
        registry.load("length_cosine")
    with pytest.raises(ValueError, match="max_completion_length"):
        rewards.length_cosine(completions=["a"], completion_ids=[[1]], gold=["1"])
    with pytest.raises(ValueError, match="completion_ids"):
        rewards.length_cosine(completions=["a"], gold=["1"], max_tokens=5)


@pytest.mark.parametrize(
    ("tokens", "n", "expected"),
    [([1, 2, 3, 4], 2, 0), ([1, 2, 1, 2], 2, 2), ([1, 2, 1, 2, 1], 2, 3), ([1] * 10, 3, 9), ([1, 2], 3, 0), ([], 2, 0),
     ([1, 2, 3, 1, 2, 4, 1, 2, 3], 3, 3)],
)  # fmt: skip
def test_repeated_tokens_against_the_algorithm(tokens, n, expected):
    """Algorithm 1 of arXiv 2502.03373 marks every token of an n-gram that was seen before."""
    marked, seen = [False] * len(tokens), set()
    for start in range(len(tokens) - n + 1):
        ngram = tuple(tokens[start : start + n])
        if ngram in seen:
            marked[start : start + n] = [True] * n
        seen.add(ngram)
    assert repeated_tokens(tokens, n) == sum(marked) == expected


def test_repetition():
    loop, fresh = [7] * 100, list(range(100))
    graded = registry.load("repetition", ngram_tokens=10, max_penalty=-1.0)(
        completions=["a", "b", ""], completion_ids=[loop, fresh, []]
    )
    assert graded == [pytest.approx(-0.99), 0.0, 0.0]
    assert rewards.repetition(completions=["a b " * 100])[0] == pytest.approx(-0.05 * 198 / 200)


@pytest.mark.parametrize("name", registry.names())
def test_each_row_of_the_registry_is_whole(name):
    row = registry.get(name)
    assert row.formula and row.range and row.source and row.none_means
    assert bool(row.asks_for) == bool(row.mend)
    assert not row.asks_for or registry.prompt_asks_for(name, row.mend)  # the mend cures what it reports


def test_prompts_that_do_not_ask():
    assert not registry.prompt_asks_for("format_boxed", "Solve the problem.")
    assert not registry.prompt_asks_for("format_think_answer", "Reason in <think> and </think>.")
    assert registry.prompt_asks_for("format_think", "First <think> your thoughts </think>, then the answer.")
    assert registry.prompt_asks_for("accuracy", "")
    assert not registry.prompt_asks_for("accuracy_boxed", "Answer briefly.")


def test_registry_errors_name_field_value_rule_and_mend():
    with pytest.raises(KeyError, match="there are accuracy"):
        registry.get("acuracy")
    errors = registry.check_params("repetition", {"ngram": 3, "ngram_tokens": 0, "max_penalty": 1.0})
    assert len(errors) == 3
    assert "rewards.repetition.ngram=3: not a parameter; use ngram_tokens, max_penalty" in errors
    assert registry.check_params("length_cosine", {"max_tokens": True}) != []


def test_defaults_of_the_registry_are_those_of_the_functions():
    import inspect

    for name in registry.names():
        signature = inspect.signature(getattr(rewards, name))
        for key, default in registry.get(name).params.items():
            written = signature.parameters[key].default
            assert written is None if default == registry.REQUIRED else written == default


def test_readme_table_has_every_reward():
    from pathlib import Path

    text = Path(rewards.__file__).with_name("README.md").read_text()
    for name in registry.names():
        assert f"| `{name}` |" in text
