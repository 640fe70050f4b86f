"""Many records as one table: known answers, what is left out, what a resumed run did twice, committed files, arms."""

import json
import shutil
import tarfile

import pytest

from analysis import compare
from analysis.aggregate import aggregate, compared, differing, pair
from analysis.frames import read_frames
from analysis.load import load_run
from analysis.metrics import METRICS, cost, measure, readme
from analysis.results import export
from analysis.runs import load
from analysis.tables import arms
from analysis.tables import runs as runs_table
from benchmarks.fit_memory import RESULTS, rows
from benchmarks.inputs import MODELS
from launch.derived import derive
from launch.recipe import ROOT, read_yaml, resolve
from launch.roofline import flops, work_of
from launch.shapes import model_shape
from tests.analysis.records import write_record

PHASES = [
    ("other", 0, 0.0, 9.0),
    ("generate", 2, 10.0, 3.0),
    ("forward_backward", 2, 13.0, 5.0),
    ("wait", 2, 18.0, 2.0),
]


def row(found, name):
    rows = found.runs[found.runs["path"].str.endswith(name)]
    assert len(rows) == 1
    return rows.iloc[0]


def test_throughput_idle_share_and_accuracy_come_back_as_set(tmp_path):
    write_record(tmp_path / "c" / "run", phases={0: PHASES, 1: PHASES}, accuracy=(0.25, 0.75))
    write_record(tmp_path / "s" / "run", "server", (9.0, 4.0, 4.0), {0: PHASES}, [("generate", 2, 10.0, 2.5)], ranks=1)
    found = load(tmp_path)
    colocate, server = row(found, "c/run"), row(found, "s/run")
    assert colocate["completions_per_second"] == pytest.approx(2 * 64 / 4)
    assert colocate["per_device"] == pytest.approx(16)
    assert colocate["normalised"] == pytest.approx(32)
    assert colocate["tokens_per_second"] == pytest.approx(2 * 200 / 4)
    assert colocate["trained_tokens_per_second"] == pytest.approx(2 * 300 / 4)
    assert colocate["trainers_idle"] == colocate["devices_idle"] == pytest.approx(0.2)
    assert (colocate["accuracy_before"], colocate["accuracy_after"], colocate["reward_area"]) == (0.25, 0.75, 0.5)
    assert colocate[["server_idle", "mfu", "gpu_hours", "peak_device_bytes"]].isna().all(), (
        "no meaning there: none, not 0"
    )
    assert colocate["hours"] == pytest.approx(2)
    assert server["completions_per_second"] == pytest.approx(16)
    assert server["per_device"] == pytest.approx(8)
    assert server["normalised"] == pytest.approx(32), "one device of two trains: 2/1 for the post's 8/7"
    assert server["trainers_idle"] == pytest.approx(0.5)
    assert server["server_idle"] == pytest.approx(0.75)
    assert server["devices_idle"] == pytest.approx((0.5 + 0.75) / 2)
    steps = found.steps[found.steps["path"] == colocate["path"]]
    assert steps["step"].tolist() == [1, 2, 3]
    assert steps["seconds"].tolist() == [9.0, 2.0, 2.0]


def test_mfu_roofline_and_cost_come_back_as_set(tmp_path):
    work = {"parameters": 1000, "attention_flops": 0, "weights_bytes": 2000, "kv_bytes_per_token": 0, "engines": 2,
            "tensor_parallel": 1, "peak_flops_per_second": 1e6, "memory_bytes_per_second": 1e5}  # fmt: skip
    write_record(tmp_path / "run", phases={0: PHASES}, gpus=2, manifest={"work": work})
    run = row(load(tmp_path), "run")
    # 2 steps of 300 tokens in 4 s: 2 + 6 operations a parameter and token, on 2 GPUs
    assert run["mfu"] == pytest.approx(600 * 8 * 1000 / 4 / 2 / 1e6)
    # 5 s of forward and backward in the phases of both steps, mean over ranks
    assert run["training_mfu"] == pytest.approx(600 * 6 * 1000 / 5 / 2 / 1e6)
    decoding = 2 * 10 * 2000 / 1e5  # the weights once a token of the longest completion
    prefill = (600 - 400) / 2 * 2 * 1000 / 1e6
    training = 600 * 6 * 1000 / 2 / 1e6
    assert run["roofline_share"] == pytest.approx((decoding + prefill + training) / 4)
    assert run["gpu_hours"] == pytest.approx(4)
    assert cost(run["gpu_hours"], 2.5) == pytest.approx(10)
    assert cost(None, 2.5) is None
    assert "| 10.00 |" in runs_table(load(tmp_path).runs, price=2.5)


@pytest.mark.parametrize("name", ["qwen7b_colocate", "qwen7b_server", "llama1b_generate"])
def test_what_a_run_records_of_its_model_gives_the_planners_operations(tmp_path, name):
    """The launcher writes `work` into the manifest; from it and the planner's longest lengths come the planner's own FLOPs."""
    path = ROOT / "recipes" / f"{name}.yaml"
    recipe = resolve(read_yaml(path), name, str(path))
    derived = derive(recipe)
    work, planned = work_of(recipe), flops(recipe, model_shape(recipe["model"]["path"]))
    tokens = derived["optimizer_batch"] * derived["max_sequence_tokens"]
    manifest = {"recipe": recipe, "derived": derived, "work": work}
    write_record(tmp_path / "run", step_seconds=(9.0, 2.0), tokens=(tokens, tokens // 2), manifest=manifest)
    values, missing = measure(read_frames(tmp_path / "run"), ["mfu"])
    assert not missing
    forward = planned["training"] / (4 if recipe["grpo"]["gradient_checkpointing"] else 3)  # the planner recomputes
    passes = 1 + 3 * recipe["grpo"]["num_iterations"]
    gpus = derived["gpus"]
    assert values["mfu"] == pytest.approx(passes * forward / 2.0 / gpus / work["peak_flops_per_second"])


def test_what_was_added_to_the_memory_measurements_follows_from_their_shapes_and_records():
    measured = [row for row in rows() if (RESULTS / f"{row['name']}.json").exists()]  # and not those of the benchmark
    assert len(measured) >= 20
    with tarfile.open(RESULTS / "records.tar.gz") as archive:
        for row in measured:
            model = {"path": MODELS[row["item"]["shape"]], "revision": None}
            recipe = row["recipe"] | {"model": row["recipe"]["model"] | model}
            assert row["work"] == work_of(recipe), row["name"]
            lines = map(json.loads, archive.extractfile(f"{row['name']}/metrics.jsonl"))
            longest = [line["completions/max_length"] for line in lines if line["split"] == "train"]
            assert [step["max_completion_tokens"] for step in row["steps"]] == longest
    found = load(RESULTS).runs
    utilization = found.loc[found["status"] == "finished", "training_mfu"]
    assert utilization.notna().all()
    assert utilization.between(0.05, 0.7).all(), "between a GPU that waits and more than any training reaches"


def test_what_is_torn_of_another_version_or_lacks_a_metric_is_named_and_never_zero(tmp_path):
    runs = tmp_path / "runs"
    write_record(runs / "whole", phases={0: PHASES})
    write_record(runs / "other_version", manifest={"schema_version": 99})
    (write_record(runs / "cut") / "manifest.json").write_text('{"schema_version": 1, "rec')
    write_record(runs / "no_phases")
    write_record(runs / "failed", step_seconds=(9.0,), status="failed")
    write_record(runs / "no_derived", manifest={"derived": {}})
    torn = write_record(runs / "torn")
    whole = (torn / "metrics.jsonl").read_text()
    lines = whole.splitlines()
    (torn / "metrics.jsonl").write_text("\n".join([lines[0], lines[1][:20], '"no record"', lines[2], lines[2][:30]]))
    (tmp_path / "exported.json").write_text('{"figures": {"arm": "colo')
    found = load(tmp_path)
    names = {path.rsplit("/", 1)[1] for path in found.runs["path"]}
    assert names == {"whole", "no_phases", "failed", "no_derived", "torn"}
    told = "\n".join(found.problems)
    assert "other_version/manifest.json: schema_version is 99" in told
    assert "cut/manifest.json: not a JSON file" in told
    assert "exported.json: left out: not a JSON file" in told
    assert "runs/torn: 3 torn lines left out" in told
    assert row(found, "torn")["completions_per_second"] == pytest.approx(64 / 2), "the one timed step that is whole"
    assert row(found, "torn")["steps"] == 2
    assert any("no_phases" in line and "trainers_idle" in line for line in found.lacking)
    assert row(found, "no_phases")[["trainers_idle", "devices_idle"]].isna().all()
    assert any("no_derived" in line and "derived.optimizer_batch" in line for line in found.lacking)
    failed = row(found, "failed")
    assert (failed["status"], failed["cause"]) == ("failed", "out of memory")
    assert failed[["completions_per_second", "median_step_seconds", "tokens_per_second"]].isna().all()
    assert any("failed (failed)" in line and "completions_per_second" in line for line in found.lacking)
    assert "| failed | 1 |" in runs_table(found.runs)
    table = aggregate(found.runs, ["completions_per_second"])
    assert (table.loc[0, "finished"], table.loc[0, "unfinished"]) == (4, 1)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing")


def test_a_step_that_a_resumed_run_did_again_counts_once(tmp_path):
    attempts = [
        {"start": "2026-01-01T00:00:00.000Z", "end": "2026-01-01T01:00:00.000Z", "from_step": None},
        {"start": "2026-01-01T05:00:00.000Z", "end": "2026-01-01T05:30:00.000Z", "from_step": 2},
    ]
    lost = [("generate", 3, 40.0, 100.0), ("wait", 4, 140.0, 100.0)]
    again = [
        ("other", 0, 300.0, 60.0),
        ("generate", 3, 360.0, 6.0),
        ("wait", 3, 366.0, 4.0),
        ("generate", 4, 370.0, 10.0),
    ]
    run = write_record(
        tmp_path / "run", step_seconds=(9.0, 2.0, 50.0, 50.0), phases={0: PHASES + lost + again}, ranks=1, gpus=1,
        manifest={"attempts": attempts},
    )  # fmt: skip
    with open(run / "metrics.jsonl", "a") as file:  # as a record that kept its lost lines would look
        for step, seconds in ((3, 30.0), (4, 4.0)):
            file.write(json.dumps({"step": step, "split": "train", "seconds": seconds, "reward": 1.0, "tokens": 300,
                                   "completion_tokens": 200}) + "\n")  # fmt: skip
    found = load(run)
    row = found.runs.iloc[0]
    assert row["steps"] == 4
    assert row["completions_per_second"] == pytest.approx(2 * 64 / (2.0 + 4.0)), (
        "steps 2 and 4: 3 is the first of an attempt"
    )
    assert row["trainers_idle"] == pytest.approx((2 + 4) / (10 + 20)), "200 lost seconds count nowhere"
    assert row["gpu_hours"] == pytest.approx(1.5), "both attempts were paid for, and not the time between"


def test_an_exported_run_has_the_row_of_its_record(tmp_path):
    write_record(tmp_path / "runs" / "run", phases={0: PHASES}, accuracy=(0.25, 0.75), gpus=2)
    record = load(tmp_path / "runs")
    (tmp_path / "results").mkdir()
    export(load_run(tmp_path / "runs" / "run"), tmp_path / "results" / "run.json")
    exported = load(tmp_path / "results")
    for name in record.runs.columns.drop(["path", "source", "collection", "torn_lines"]):
        assert exported.runs[name].iloc[0] == pytest.approx(record.runs[name].iloc[0], nan_ok=True), name
    assert exported.steps["reward"].tolist() == record.steps["reward"].tolist()
    assert exported.evaluations["accuracy"].tolist() == [0.25, 0.75]
    assert not exported.problems
    assert [line.split(": ", 1)[1] for line in exported.lacking] == [line.split(": ", 1)[1] for line in record.lacking]


def test_every_committed_record_is_read_and_none_is_damaged():
    found = load(ROOT / "results")
    assert {"export", "memory"} <= set(found.runs["source"])
    assert found.problems == []
    failed = found.runs[found.runs["status"] != "finished"]
    assert len(failed), "failures are rows too"
    assert found.runs["path"].is_unique
    assert set(METRICS) <= set(found.runs.columns)


def test_the_runs_of_an_exported_comparison_are_rows_that_say_what_work_they_did(tmp_path):
    for arm, seconds in (("colocate", 2.0), ("server", 4.0)):
        busy = [("generate", 2, 10.0, 2.5)] if arm == "server" else ()
        write_record(
            tmp_path / "runs" / arm, arm, (9.0, seconds), {0: PHASES}, busy, ranks=1, gpus=1 + (arm == "server")
        )
    runs = [load_run(tmp_path / "runs" / arm) for arm in ("colocate", "server")]
    compare.export(compare.compare(runs), runs, tmp_path / "comparison.json")
    found = load(tmp_path / "comparison.json")
    assert found.runs[["model", "gpu", "optimizer_batch", "status", "steps"]].drop_duplicates().values.tolist() == [
        ["made/up", "H100-80GB", 64, "finished", 2]
    ]
    assert found.runs["gpus"].tolist() == [1, 2]
    pairs = pair(found.runs, "colocate", "server")
    assert compared(pairs, "completions_per_second").mean == pytest.approx(2.0)
    assert compared(pairs, "per_device").mean == pytest.approx(4.0)
    both = load([tmp_path / "comparison.json", tmp_path / "runs"])
    assert both.runs["source"].tolist() == ["record", "record"], "a run whose record is there is no second row"


def test_the_table_of_metrics_is_the_one_that_is_committed():
    assert readme() == (ROOT / "analysis" / "README.md").read_text(), "run: python -m analysis metrics --write"


def test_arms_are_paired_by_seed_within_what_was_recorded_together(tmp_path):
    for campaign, speeds in (("a", (2.0, 4.0)), ("b", (1.0, 8.0))):
        for seed in range(5):
            for arm, seconds in zip(("colocate", "server"), speeds, strict=True):
                slow = seconds * (1 + seed)  # the machine: shared by a pair
                path = tmp_path / campaign / arm / f"run{seed}"
                write_record(path, arm, (9.0, slow), seed=seed, accuracy=(0.1, 0.5 + 0.01 * seed), ranks=1)
    shutil.rmtree(tmp_path / "b" / "server" / "run4")
    found = load([tmp_path / "a", tmp_path / "b"])
    found.runs["collection"] = found.runs["path"].map(lambda path: path.split("/")[-3])
    pairs = pair(found.runs, "colocate", "server")
    assert len(pairs) == 9, "a run without a partner is in no pair"
    assert (pairs["seed_first"] == pairs["seed_second"]).all()
    ours = pairs[pairs["collection_first"] == "a"]
    speedup = compared(ours, "completions_per_second")
    assert (speedup.mean, speedup.low, speedup.high) == pytest.approx((2.0, 2.0, 2.0)), "as set, in every pair"
    assert compared(ours, "normalised").mean == pytest.approx(1.0), "the server's one trainer of two devices: times 2"
    assert differing(pairs, "accuracy_after").count == 5, "of what was learnt a seed run twice is one value"
    table = aggregate(found.runs, ["accuracy_after"], ["arm"]).set_index("arm")
    assert table.loc["colocate", "mean"] == pytest.approx(0.52)
    assert (table.loc["colocate", "count"], table.loc["colocate", "finished"]) == (5, 10)
    text = arms(found.runs, ["completions_per_second"])
    assert "| a | colocate / server | 5 | 2.00 [2.00, 2.00] |" in text
    with pytest.raises(ValueError, match="no metric is called speed"):
        arms(found.runs, ["speed"])
