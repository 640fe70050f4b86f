"""From a data set to TRL's columns: the hub's columns, local JSON lines and parquet, what is left out, what is refused."""

import json

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from launch.recipe import ROOT, load
from training.data import Refused, load_split


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(ROOT / "tiny" / "checkpoint", padding_side="left")


def recipe(path, **data) -> dict:
    """qwen1.5b_colocate on a local folder with the columns of MATH-lighteval."""
    resolved = load(ROOT / "recipes" / "qwen1.5b_colocate.yaml")
    resolved["data"] |= {"path": str(path), "config": None, "revision": None, "max_prompt_tokens": 640} | data
    return resolved


def write(folder, rows, split="train"):
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


ROWS = [
    {"problem": f"What is ${n} + 1$?", "solution": rf"It is $\boxed{{{n + 1}}}$.", "level": "Level 1", "type": "x"}
    for n in range(5)
]


def test_the_committed_sample_has_all_that_a_recipe_wants(tokenizer):
    rows, report = load_split(recipe("./data/math_sample"), "train", tokenizer)
    assert report["rows"] == report["kept_rows"] == len(rows) == 320
    assert set(rows.column_names) == {"prompt", "gold"}
    system, user = rows[0]["prompt"]
    assert system == {"role": "system", "content": recipe("./data/math_sample")["system_prompt"]}
    assert user["role"] == "user"
    assert r"\boxed{" in rows[0]["gold"], "the worked solution goes to the rewards whole"


def test_the_order_is_the_files(tmp_path, tokenizer):
    rows, _ = load_split(recipe(write(tmp_path, ROWS)), "train", tokenizer)
    assert [row["prompt"][-1]["content"] for row in rows] == [row["problem"] for row in ROWS]


@pytest.mark.parametrize("form", ["jsonl", "json", "parquet", "one file"])
def test_the_same_rows_from_every_form(tmp_path, tokenizer, form):
    write(tmp_path, ROWS)
    path = tmp_path
    if form == "json":
        (tmp_path / "train.jsonl").rename(tmp_path / "train.json")
    elif form == "parquet":
        Dataset.from_list(ROWS).to_parquet(tmp_path / "train.parquet")
        (tmp_path / "train.jsonl").unlink()
    elif form == "one file":
        path = tmp_path / "train.jsonl"
    rows, _ = load_split(recipe(path), "train", tokenizer)
    assert [row["gold"] for row in rows] == [row["solution"] for row in ROWS]


def test_long_prompts_and_missing_golds_are_left_out_and_counted(tmp_path, tokenizer):
    long = {"problem": "x" * 3000, "solution": "1"}
    rows = [*ROWS, long, {"problem": "no gold", "solution": None}, {"problem": "empty gold", "solution": "  "}]
    kept, report = load_split(recipe(write(tmp_path, rows)), "train", tokenizer)
    assert len(kept) == len(ROWS)
    assert (report["rows"], report["kept_rows"]) == (8, 5)
    assert (report["too_long_rows"], report["without_gold_rows"]) == (1, 2)
    assert report["longest_prompt_tokens"] > 640


def test_the_limit_counts_the_whole_prompt_as_the_template_writes_it(tmp_path, tokenizer):
    folder = write(tmp_path, ROWS[:1])
    _, report = load_split(recipe(folder), "train", tokenizer)
    tokens = report["longest_prompt_tokens"]
    assert load_split(recipe(folder, max_prompt_tokens=tokens), "train", tokenizer)[1]["kept_rows"] == 1
    with pytest.raises(Refused, match="max_prompt_tokens"):
        load_split(recipe(folder, max_prompt_tokens=tokens - 1), "train", tokenizer)


def test_without_a_system_prompt_there_is_none(tmp_path, tokenizer):
    resolved = recipe(write(tmp_path, ROWS)) | {"system_prompt": None}
    rows, _ = load_split(resolved, "train", tokenizer)
    assert [message["role"] for message in rows[0]["prompt"]] == ["user"]


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({"prompt_column": "question"}, "data.prompt_column"),
        ({"gold_column": "answer"}, "data.gold_column"),
        ({"path": "./nowhere"}, "./nowhere"),
    ],
)
def test_what_is_not_there_is_refused_by_name(tmp_path, tokenizer, data, names):
    with pytest.raises(Refused, match=names):
        load_split(recipe(**{"path": write(tmp_path, ROWS)} | data), "train", tokenizer)


def test_a_missing_split_a_torn_file_and_too_few_rows_are_refused(tmp_path, tokenizer):
    folder = write(tmp_path, ROWS)
    with pytest.raises(Refused, match=r"no test\.jsonl"):
        load_split(recipe(folder), "test", tokenizer)
    with pytest.raises(Refused, match=r"5 rows .* 6 are needed"):
        load_split(recipe(folder), "train", tokenizer, at_least_rows=6)
    (folder / "test.jsonl").write_text('{"problem": "half')
    with pytest.raises(Refused, match="split test"):
        load_split(recipe(folder), "test", tokenizer)
