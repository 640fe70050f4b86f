"""Exhibits: from committed records, from real records of a GPU, and from synthetic ones whose figures are set by hand.

What is synthetic says so by its name, stays in a temporary folder, and is shown nowhere else.
"""

import tarfile

import pytest

from analysis import learning, pictures
from analysis.exhibits import KINDS, arms_table, exhibit, gallery, left_out, own_records, records, runs_table
from analysis.load import load_run
from analysis.provenance import provenance
from analysis.results import export, load_results
from launch.recipe import ROOT
from record import write_json
from tests.analysis.legible import faults
from tests.analysis.records import write_record

BATCHES, SEEDS = (64, 128, 256), (0, 1)


def synthetic_sweep(path, pairs, tensor_parallel=1):
    """(arm, seconds of a step by batch): two seeds each, the second a tenth slower in both arms, so that ratios stay."""
    for arm, step_seconds in pairs.items():
        for batch, seconds in step_seconds.items():
            for seed in SEEDS:
                ranks = 7 if arm == "server" else 8
                write_record(
                    path / f"synthetic_{arm}" / f"b{batch}-tp{tensor_parallel}-s{seed}", arm,
                    (99.0, *[seconds * (1 + seed / 10)] * 2), seed=seed, ranks=ranks, gpus=8,
                    manifest={
                        "derived": {"ranks": ranks, "gpus": 8, "optimizer_batch": batch, "generation_batch": batch},
                        "recipe": recipe(arm, tensor_parallel),
                    },
                )  # fmt: skip
    return records(path)


def recipe(arm, tensor_parallel):
    server = {"nodes": 1, "gpus_per_node": 1, "tensor_parallel_size": 1} if arm == "server" else None
    return {
        "name": f"synthetic_{arm}",
        "recipe": {"arm": arm, "experiments": ["C1"], "version": 1},
        "model": {"path": "Qwen/Qwen2.5-Math-1.5B", "dtype": "bfloat16"},
        "data": {"max_prompt_tokens": 100},
        "rewards": {},
        "cluster": {"gpu": "H100-80GB", "server": server},
        "accelerate": "zero3",
        "grpo": {"max_completion_length": 64, "vllm_tensor_parallel_size": tensor_parallel},
    }


def drawn(axis, label):
    """x -> y of the errorbar of that label."""
    bars = next(bars for bars in axis.containers if bars.get_label() == label)
    return dict(bars.lines[0].get_xydata().tolist())


def test_throughput_and_speed_up_of_a_sweep_come_back_as_set(tmp_path):
    given = synthetic_sweep(
        tmp_path,
        {"colocate": dict.fromkeys(BATCHES, 2.0), "server": {batch: batch / 40 for batch in BATCHES}},
    )
    (picture,) = exhibit("throughput_by_batch", given).pictures
    assert faults(picture.figure) == []
    raw, per_device, normalised, speedup = picture.figure.axes
    slower = (1 + 1 / 1.1) / 2  # the mean of both seeds' rates
    for batch in BATCHES:
        assert drawn(raw, "colocate")[batch] == pytest.approx(batch / 2 * slower)
        assert drawn(raw, "server")[batch] == pytest.approx(40 * slower)
        assert drawn(per_device, "colocate")[batch] == pytest.approx(batch / 16 * slower)
        assert drawn(per_device, "server")[batch] == pytest.approx(5 * slower)
        assert drawn(normalised, "server")[batch] == pytest.approx(40 * 8 / 7 * slower)
        assert drawn(speedup, "raw")[batch] == pytest.approx(batch / 80)
        assert drawn(speedup, "normalised as in the post")[batch] == pytest.approx(batch / 80 * 7 / 8)
    assert any("1.43" in text.get_text() for text in speedup.get_legend().get_texts()), "the paper's figure beside it"
    assert "colocate over server" in picture.caption
    assert len(picture.paths) == len(BATCHES) * len(SEEDS) * 2
    assert exhibit("throughput_by_tp", given).pictures == []


def test_tensor_parallel_sizes_are_set_against_the_smallest(tmp_path):
    for size, seconds in ((1, 2.0), (2, 2.5), (4, 4.0)):
        given = synthetic_sweep(tmp_path / f"tp{size}", {"colocate": {64: seconds}}, size)
        (tmp_path / f"tp{size}" / "synthetic_colocate").rename(tmp_path / f"colocate_tp{size}")
    given = records(tmp_path)
    (picture,) = exhibit("throughput_by_tp", given).pictures
    assert faults(picture.figure) == []
    speedup = picture.figure.axes[1]
    (bars,) = speedup.containers
    assert bars.lines[0].get_xydata().tolist() == [[2, pytest.approx(0.8)], [4, pytest.approx(0.5)]]
    assert exhibit("throughput_by_batch", given).pictures == [], "one batch is no curve"


@pytest.mark.parametrize("name", KINDS)
def test_an_exhibit_of_the_committed_records_is_legible_or_says_that_it_is_not_measured(name):
    shown = exhibit(name)
    if not shown.pictures:
        assert "Not measured yet." in shown.html
        assert "<code>python -m " in shown.html or "<code>make " in shown.html, "what makes the records"
    assert len(shown.pictures) <= 1 or name in ("evaluations", "memory_by_phase"), "all arms and seeds in one"
    for picture in shown.pictures:
        assert faults(picture.figure) == []
        lines = provenance(picture.paths)
        assert lines
        for line in lines:
            assert "results/" in line
            assert "not recorded" not in line.replace("commit not recorded", ""), "command, hardware and versions"
            assert "trl 1." in line
    assert f"{ROOT}/" not in shown.html, "paths count from the repository's root"


def synthetic_evaluation(arm, seed, values):
    return {
        "schema_version": 1, "bench": "synthetic", "status": "finished", "argv": ["-m", "training.evaluate", "synthetic"],
        "model": {"trained": arm and {"arm": arm, "seed": seed}}, "sampling": {"samples": 8},
        "figures": {"pass_at_k": [{"k": k, "value": value, "low": value - 0.05, "high": value + 0.04} for k, value in values]},
    }  # fmt: skip


def test_evaluations_stand_beside_their_base(tmp_path):
    trained = [(arm, seed) for arm in ("server", "colocate") for seed in (0, 1, 2)]
    for arm, seed in [(None, None), *trained]:
        folder = tmp_path / f"{arm}-{seed}"
        folder.mkdir()
        best = 0.9 if arm else 0.4
        write_json(folder / "evaluation.json", synthetic_evaluation(arm, seed, [(1, best - 0.1), (8, best)]))
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "evaluation.json").write_text("{")
    given = records(tmp_path)
    assert "torn" in " ".join(given.found.problems)
    (picture,) = exhibit("evaluations", given).pictures
    assert faults(picture.figure) == []
    for axis, best in zip(picture.figure.axes, (0.8, 0.9), strict=True):
        heights = [bar.get_height() for bar in axis.patches][::2]
        assert heights == pytest.approx([best - 0.5, *[best] * 6]), "the base first"
        names = [label.get_text().replace("\n", " ") for label in axis.get_xticklabels()]
        assert names[:2] + names[-1:] == ["base model", "colocate seed 0", "server seed 2"]
    assert "python -m training.evaluate synthetic" in " ".join(provenance(picture.paths))


@pytest.fixture(scope="module")
def gpu_records(tmp_path_factory):
    """The real records of the measurements on one H200."""
    folder = tmp_path_factory.mktemp("h200")
    with tarfile.open(ROOT / "results" / "memory_h200" / "records.tar.gz") as archive:
        archive.extractall(folder)  # without a filter, which Python 3.11 has from 3.11.4 on; the archive is ours
    return records(folder)


def test_records_of_ones_own_from_a_gpu(gpu_records):
    by_arm = {
        picture.caption.split(" by phase")[0]: picture for picture in exhibit("memory_by_phase", gpu_records).pictures
    }
    assert set(by_arm) == {"Memory of colocate", "Memory of generate()", "Memory of continuous batching"}
    for picture in by_arm.values():
        assert faults(picture.figure) == []
        assert "NVIDIA H200" in " ".join(provenance(picture.paths))
    committed = {picture.caption: picture for picture in exhibit("memory_by_phase").pictures}
    widths = [
        sorted(round(bar.get_width(), 6) for axis in picture.figure.axes for bar in axis.patches)
        for picture in (by_arm["Memory of colocate"], committed[by_arm["Memory of colocate"].caption])
    ]
    assert widths[0] == widths[1], "a run's record and its exported measurement draw the same"


def test_runs_that_failed_and_what_is_left_out_are_shown(tmp_path):
    write_record(
        tmp_path / "synthetic" / "a", status="failed", manifest={"recipe": recipe("colocate", 1) | {"name": "<b>&"}}
    )
    write_record(tmp_path / "synthetic" / "b")
    (tmp_path / "synthetic" / "b" / "metrics.jsonl").open("a").write('{"step": 4, "spl')
    given = records(tmp_path)
    table = runs_table(given).html
    assert "failed: out of memory" in table
    assert "&lt;b&gt;&amp;" in table
    assert "<b>" not in table
    assert "torn" in left_out(given).html
    assert "made_up_colocate" in arms_table(given).html
    page = gallery(given).html
    assert page.count("<h3>") == len(KINDS)
    assert page.count("Not measured yet.") == len(KINDS) - 1, "two steps of reward are a curve, and nothing else"


def test_an_empty_folder_is_no_error(tmp_path):
    given = records(tmp_path)
    assert "There are no runs." in runs_table(given).html
    assert gallery(given).html.count("Not measured yet.") == len(KINDS)
    with pytest.raises(FileNotFoundError, match="not-there"):
        own_records(str(tmp_path / "not-there"))
    with pytest.raises(ValueError, match="no exhibit 'pie'"):
        exhibit("pie")


def test_an_engine_that_sleeps_is_an_arm_of_its_own_where_learning_is_compared(tmp_path):
    for sleep, rewards in ((False, (0.25, 0.5)), (True, (0.75, 1.0))):
        slept = recipe("colocate", 1) | {"rewards": {"accuracy_boxed": {"weight": 1.0}}}
        slept["grpo"] |= {"vllm_enable_sleep_mode": sleep}
        for seed, reward in enumerate(rewards):
            run = write_record(
                tmp_path / f"{sleep}-{seed}",
                seed=seed,
                reward=reward,
                accuracy=(0.1, reward),
                manifest={"recipe": slept},
            )
            export(load_run(run), tmp_path / f"{sleep}-{seed}.json")
    result = learning.compare(load_results(tmp_path))
    means = {arm: entry["held_out_accuracy"]["mean"] for arm, entry in result["arms"].items()}
    assert means == {"colocate": 0.375, "colocate_sleep": 0.875}
    assert "| colocate_sleep | 2 |" in learning.table(result)
    exported = records(*tmp_path.glob("*.json"))
    for picture in (*pictures.reward_curves(exported), *pictures.outcomes(exported)):
        assert faults(picture.figure) == []
        assert len(picture.paths) == 4  # of each seed both
