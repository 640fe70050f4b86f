"""The benchmark on one GPU: its recipes can be started, its order is interleaved, its table says what its rows say."""

import json

import pytest

from benchmarks.bench_gpu import CONTENT, SPEED, configurations, recipe, resolved
from benchmarks.bench_table import table
from benchmarks.inputs import MODELS, TOKENIZER, make_data
from launch.check import check
from launch.recipe import grpo_arguments, resolve
from launch.shapes import KNOWN

ITEMS = configurations()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Prompts, and for each shape a folder with its configuration and a tokenizer, and weights in name: what a check reads."""
    folder = tmp_path_factory.mktemp("inputs")
    make_data(folder / "data", CONTENT["defaults"]["prompt"], distinct=True)
    for shape in ("1.5b", "7b", "tiny"):
        (folder / shape).mkdir()
        (folder / shape / "model.safetensors").touch()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / shape / name).write_text((TOKENIZER / name).read_text())
        (folder / shape / "config.json").write_text(json.dumps(KNOWN[MODELS.get(shape, MODELS["1.5b"])]))
    return folder


def built(name: str, inputs) -> dict:
    item = ITEMS[name]
    return recipe(item, inputs / item["shape"], inputs / "data")


def test_every_item_can_be_started(inputs):
    problems = {
        name: [str(problem) for problem in check(resolve(built(name, inputs), "bench", name)) if not problem.warning]
        for name in ITEMS
    }
    assert not {name: found for name, found in problems.items() if found}


def test_the_default_variant_is_trl_and_does_the_same_rollout_work_as_the_tuned_one(inputs):
    default, tuned = (built(f"tuned_1.5b/{name}-r0", inputs) for name in ("default", "tuned"))
    for name in SPEED:
        assert default["grpo"].get(name) == grpo_arguments()[name]["default"], name
    assert "speedups" not in default
    work = [
        content["grpo"]["per_device_train_batch_size"] * content["grpo"]["gradient_accumulation_steps"]
        for content in (default, tuned)
    ]
    assert work == [128, 128]
    bookkeeping = {*SPEED, "gradient_accumulation_steps"}
    science = [
        {name: value for name, value in content["grpo"].items() if name not in bookkeeping}
        for content in (default, tuned)
    ]
    assert science[0] == science[1]


def test_prompts_are_distinct_and_of_two_lengths(inputs):
    rows = [json.loads(line)["problem"] for line in (inputs / "data" / "train.jsonl").read_text().splitlines()]
    assert len(set(rows)) == len(rows) == 64
    assert len({len(text) for text in rows}) == 2


def test_repeats_run_forth_and_back():
    assert [name for name in ITEMS if name.startswith("tuned_1.5b/")] == [
        f"tuned_1.5b/{name}" for name in ("default-r0", "tuned-r0", "tuned-r1", "default-r1")
    ]


def row(name: str, seconds: list[float], status: str = "finished") -> dict:
    steps = [
        {"step": index + 1, "seconds": value, "completion_tokens": 128 * 512} for index, value in enumerate(seconds)
    ]
    phases = {
        "generate": {str(index + 1): {"seconds": value / 2, "peak_device_bytes": 2**30} for index, value in enumerate(seconds)},
        "grade": {"3": {"seconds": 0.25, "peak_device_bytes": 3 * 2**30}},
    }  # fmt: skip
    found = {"settings": resolved(ITEMS[name]), "status": status, "cause": None, "steps": steps, "phases": phases}
    return found | {"packages": {"torch": "2.11.0"}, "commit": "abc"}


def test_the_table_leaves_the_warm_up_out_and_pairs_repeat_with_repeat(tmp_path):
    rows = {
        "tuned_1.5b/default-r0": row("tuned_1.5b/default-r0", [50, 50, 8.0, 8.0]),
        "tuned_1.5b/default-r1": row("tuned_1.5b/default-r1", [50, 50, 12.0, 12.0]),
        "tuned_1.5b/tuned-r0": row("tuned_1.5b/tuned-r0", [50, 50, 4.0, 4.0]),
        "tuned_1.5b/tuned-r1": row("tuned_1.5b/tuned-r1", [50, 50, 4.0, 4.0]),
        "arms_1.5b/generate_32-r0": row("arms_1.5b/generate_32-r0", [], "failed") | {"cause": "out of\nmemory"},
    }
    for name, content in rows.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    lines = table(tmp_path).splitlines()
    default, tuned = (next(line for line in lines if line.startswith(f"| {name} |")) for name in ("default", "tuned"))
    assert default.startswith("| default | 2 | 10.00 (8.00 to 12.00) | 12.8 | 512 | 1 | 5.00 |")
    assert tuned.startswith("| tuned | 2 | 4.00 (4.00 to 4.00) | 32.0 | 512 | 2.50 (2.00, 3.00) | 2.00 |")
    assert tuned.endswith("| 0.12 | 3.0 |")  # the grading, in half of the steps
    assert any(line.startswith("| generate_32 | repeat 0 failed: out of memory |") for line in lines)
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
