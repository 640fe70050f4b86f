"""Every argument of the installed GRPOConfig has its decision in launch/arguments.py."""

import json

import pytest

from launch import arguments
from launch.recipe import ROOT, grpo_arguments

TABLES = {
    "MANAGED": arguments.MANAGED,
    "LEFT_OUT": arguments.LEFT_OUT,
    "NUMBERS": arguments.NUMBERS,
    "WORDS": arguments.WORDS,
    "SWITCHES": arguments.SWITCHES,
    "MAPPINGS": arguments.MAPPINGS,
}


@pytest.mark.parametrize("name", sorted(grpo_arguments()))
def test_an_argument_is_in_one_table(name):
    assert [table for table, names in TABLES.items() if name in names] in [[table] for table in TABLES]


def test_the_tables_know_no_other_names():
    known = set(grpo_arguments())
    for table, names in TABLES.items():
        assert set(names) <= known, table
    stated = {*arguments.STATED, *arguments.STATED_WITH_VLLM, *arguments.STATED_COLOCATED, *arguments.NULL_MEANS}
    assert stated <= known
    assert stated.isdisjoint({*arguments.MANAGED, *arguments.LEFT_OUT})


def test_kinds_and_choices_agree_with_trl():
    for name, argument in grpo_arguments().items():
        kinds = set(argument["types"])
        if name in arguments.NUMBERS:
            assert kinds & {"int", "float"}, name
        if name in arguments.SWITCHES:
            assert "bool" in kinds, name
        if name in arguments.MAPPINGS:
            assert "dict" in kinds, name
        if name in arguments.WORDS and "choices" in argument:
            assert set(arguments.WORDS[name]) <= set(argument["choices"]), name
        if name in arguments.NULL_MEANS:
            assert "null" in kinds, name


def test_trls_defaults_are_in_range():
    for name, (least, least_allowed, most, most_allowed) in arguments.NUMBERS.items():
        default = grpo_arguments()[name]["default"]
        if isinstance(default, int | float) and name not in ("max_steps",):  # -1 means "by epochs" there
            assert default > least or (least_allowed and default == least), name
            assert default < most or (most_allowed and default == most), name


def test_the_committed_list_is_that_of_the_installed_trl():
    from training.arguments import grpo_arguments as installed

    committed = json.loads((ROOT / "launch" / "grpo_arguments.json").read_text())
    assert json.loads(json.dumps(installed())) == committed, "python -m training.arguments > launch/grpo_arguments.json"
