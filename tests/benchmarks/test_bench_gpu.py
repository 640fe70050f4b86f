"""The benchmark on GPUs: its recipes can be started and its pairs are pairs, its order is interleaved, its table says what its
rows say."""

import argparse
import itertools
import json
import sys

import pytest

from benchmarks.bench_gpu import CONTENT, SPEED, chosen, configurations, recipe, resolved, unfinished
from benchmarks.bench_table import table
from benchmarks.campaign import figures
from benchmarks.inputs import MODELS, TOKENIZER, make_data
from benchmarks.staged_run import StagedRun
from launch.check import check
from launch.derived import derive
from launch.pair import compare, report
from launch.recipe import grpo_arguments, resolve
from launch.shapes import KNOWN
from record import LineWriter, RunFolder, write_json

ITEMS = configurations()
SEVERAL = [suite for suite, content in CONTENT["suites"].items() if content.get("common", {}).get("gpus", 1) > 1]


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


def built(name: str, inputs, items=ITEMS) -> dict:
    item = items[name]
    return recipe(item, inputs / item["shape"], inputs / "data")


def errors(recipes: dict[str, dict]) -> dict[str, list[str]]:
    found = {name: [str(problem) for problem in check(each) if not problem.warning] for name, each in recipes.items()}
    return {name: problems for name, problems in found.items() if problems}


def test_every_item_can_be_started(inputs):
    assert errors({name: resolve(built(name, inputs), "bench", name) for name in ITEMS}) == {}


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_on_several_gpus_every_item_can_be_started_and_arms_are_pairs(inputs, gpus):
    items = {name: item for name, item in configurations({"gpus": gpus}).items() if item["suite"] in SEVERAL}
    recipes = {name: resolve(built(name, inputs, items), "bench", name) for name in items}
    assert errors(recipes) == {}
    least = {name: max(gpus, 4) if "tp4" in name else gpus for name in items}
    assert {name: items[name]["gpus"] for name in items} == least
    on_cpu = {name for name, item in items.items() if item.get("gpu") == "cpu"}
    assert {name: derive(recipes[name])["gpus"] for name in items if name not in on_cpu} == {
        name: count for name, count in least.items() if name not in on_cpu
    }
    pairs = [
        (one, other) for one, other in itertools.combinations(items, 2)
        if (items[one]["suite"], items[one]["variant"], items[one]["batch"], items[one]["gpus"])
        == (items[other]["suite"], items[other]["variant"], items[other]["batch"], items[other]["gpus"])
        and {items[one]["arm"], items[other]["arm"]} == {"colocate", "server"}
    ]  # fmt: skip
    against = [
        (name, f"{item['suite']}/{item['against']}-r{item['repeat']}")
        for name, item in items.items()
        if "against" in item
    ]
    assert len(pairs) > 20
    assert len(against) == 8
    for one, other in pairs + against:
        comparison = compare(recipes[one], recipes[other])
        assert comparison.is_pair, report(comparison, (one, other))


def options(**given) -> argparse.Namespace:
    return argparse.Namespace(**{"suite": None, "only": None, "set": [], "gpu": None} | given)


def test_an_item_that_needs_more_gpus_is_said_and_left_out(capsys):
    assert {item["gpus"] for item in chosen(options()).values()} == {1}
    found = chosen(options(gpu="0,1", suite=["pair_1.5b"]))
    assert "pair_1.5b/server-r0" in found
    assert "pair_1.5b/colocate_tp4-r0" not in found
    said = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in said] == [
        [f"pair_1.5b/colocate_tp4-r{repeat}", "not run: needs 4 GPUs, and --gpu names 2"] for repeat in (0, 1)
    ]
    assert "pair_1.5b/colocate_tp4-r0" in chosen(options(gpu="0,1,2,3", suite=["pair_1.5b"], set=["gpus=4"]))


def test_rows_of_another_number_of_gpus_are_never_taken_for_ones_own(tmp_path):
    items = chosen(options(gpu="0,1", only=["pair_1.5b/server"]))
    (tmp_path / "pair_1.5b").mkdir()
    write_json(tmp_path / "pair_1.5b/server-r0.json", {"status": "finished", "settings": {"gpus": 2}})
    assert list(unfinished(items, tmp_path)) == ["pair_1.5b/server-r1"]
    with pytest.raises(ValueError, match="is of 2 GPUs, not 4"):
        unfinished(chosen(options(gpu="0,1,2,3", set=["gpus=4"], only=["pair_1.5b/server"])), tmp_path)


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


def record_of(path, arm: str, ranks: int, generate: float) -> RunFolder:
    """A record of three steps of 8 s, the first two of them warm-up, as the ranks of a run and its server leave it."""
    folder = RunFolder(path)
    folder.path.mkdir(parents=True)
    server = {"nodes": 1, "gpus_per_node": 1} if arm == "server" else None
    recipe = {"name": arm, "recipe": {"arm": arm}, "cluster": {"server": server}, "rewards": {"accuracy": {}}}
    manifest = {"schema_version": 1, "recipe": recipe, "derived": {"ranks": ranks, "optimizer_batch": 128}}
    write_json(folder.path / "manifest.json", manifest | {"exit": {"status": "finished", "cause": None}})
    metrics, busy = LineWriter(folder.metrics_path), LineWriter(folder.server_phases_path)
    for step, seconds in enumerate((99.0, 50.0, 8.0), start=1):
        metrics.write(
            {"step": step, "split": "train", "seconds": seconds, "sentinel/level": 0.1, "sentinel/limit": 0.2}
        )
        for rank in range(ranks):
            phases, start = LineWriter(folder.phases_path(rank)), 100.0 * step
            for phase, length in (("generate", generate), ("forward_backward", seconds - generate)):
                phases.write(
                    {"phase": phase, "step": step, "split": "train", "start_unix_seconds": start, "seconds": length}
                )
                start += length
        if server:
            busy.write({"phase": "generate", "start_unix_seconds": 100.0 * step, "seconds": generate})
    return folder


def test_on_several_gpus_the_table_has_throughput_three_ways_and_who_waited(tmp_path):
    for arm, ranks, seconds in (("server", 1, [99.0, 50.0, 8.0]), ("colocate", 2, [99.0, 50.0, 8.0])):
        name = f"pair_1.5b/{arm}-r0"
        found = figures(record_of(tmp_path / "runs" / arm / "run", arm, ranks, 6.0), 2)
        assert found["figures_missing"] == {}
        content = row(name, seconds) | found | {"settings": resolved(ITEMS[name]) | {"warm_up": 2}}
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    lines = table(tmp_path).splitlines()
    assert lines[0] == "# Seconds of a step on several GPUs"
    server, colocate = (next(line for line in lines if line.startswith(f"| {arm} |")) for arm in ("server", "colocate"))
    # 128 completions in 8 s; the trainer waits for 6 s of them, the server for the other 2
    assert server.endswith("| 2 | 16.0 | 8.0 | 32.0 | 75% | 25% | 50% | 0.50 | 1 |")
    assert colocate.endswith("| 2 | 16.0 | 8.0 | 16.0 | 0% | - | 0% | 0.50 | 0.50 (0.50) |")
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_a_record_that_ends_before_its_first_step_says_why_it_has_no_figures(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    manifest = {"schema_version": 1, "exit": {"status": "failed"}, "recipe": {"rewards": {}}, "derived": {"ranks": 2}}
    write_json(folder.path / "manifest.json", manifest)
    found = figures(folder, 1)
    assert found["figures_missing"]
    assert not any(found["figures"].values())


def test_a_run_on_several_gpus_starts_when_they_are_free_and_has_them_until_its_launcher_ends(tmp_path):
    touched = tmp_path / "started"
    command = [sys.executable, "-c", f"import pathlib; pathlib.Path({str(touched)!r}).touch()"]
    run = StagedRun("pair", command, tmp_path / "runs", tmp_path / "log", early=False)
    run.poll()
    assert run.launcher is None
    run.stop()  # out of time before its turn: nothing to stop
    run.release()
    assert run.wait(20) == 0
    assert touched.exists()
    assert not run.has_the_gpu()
