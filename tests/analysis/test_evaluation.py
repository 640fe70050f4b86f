"""Tables over evaluations, the committed ones recomputed from their completions, and verdicts beside lighteval's."""

import gzip
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from analysis.claims import claims
from analysis.evaluation import load_evaluations, markdown_table
from analysis.lighteval_verdicts import compare, main, read_completions
from analysis.lighteval_verdicts import markdown_table as verdicts_table
from analysis.runs import load
from launch.recipe import ROOT
from record import read_json
from rewards.grading import grade_batch
from training.estimates import estimate

COMMITTED = ROOT / "results" / "evaluation"
LIGHTEVAL = os.environ.get("LIGHTEVAL_PYTHON") or (importlib.util.find_spec("lighteval") and sys.executable)


def made_up(folder, name, trained=None, **changes):
    samples = changes.get("sampling", {}).get("samples", 4)
    result = {
        "schema_version": 1, "status": "finished", "bench": "math500", "reward": "accuracy",
        "model": {"path": "org/model", "revision": "abcdef0123", "commit": None, "trained": trained, "base_of": None},
        "data": {"path": "org/data", "split": "test", "revision": "1234567890", "problems": 10, "kept_rows": 10,
                 "too_long_rows": 2, "without_gold_rows": 0, "problems_sha256": "a"},
        "prompt": {"system_prompt": "Think.", "system_prompt_name": "think"},
        "sampling": {"samples": 4, "k": [1, 4], "temperature": 1.0, "top_p": 1.0, "max_completion_tokens": 64, "seed": 0},
        "figures": {
            "problems": 9, "unusable_gold_problems": 1, "completions": 40, "truncated_share": 0.25,
            "mean_completion_tokens": 12.5, "reasons": {"correct": 10, "out_of_time": 2, "out_of_memory": 1},
            "pass_at_k": [{"k": 1, "value": 0.25, "low": 0.125, "high": 0.5, "interval": "bootstrap"},
                          {"k": samples, "value": 0.75, "low": 0.5, "high": 0.875, "interval": "wilson"}],
        },
        "git": {"commit": "0123456789"},
    }  # fmt: skip
    (folder / name).mkdir(parents=True)
    (folder / name / "evaluation.json").write_text(json.dumps(result | changes))


def test_models_that_were_asked_the_same_are_in_one_table(tmp_path):
    arm = {"arm": "server", "recipe": "some_server", "steps": 40, "seed": 3}
    made_up(tmp_path, "a", trained=arm)
    made_up(tmp_path, "b", prompt={"system_prompt": None, "system_prompt_name": None})
    made_up(tmp_path, "c", status="failed", figures=None)
    made_up(tmp_path, "other problems", bench="aime24")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "evaluation.json").write_text('{"schema_version": 1, "ben')
    made_up(tmp_path, "newer", schema_version=2)
    evaluations, warnings = load_evaluations(tmp_path)
    aime, math = markdown_table(evaluations).split("\n\nmath500")
    assert aime.startswith("aime24 (org/data, test, 1234567): 10 problems (2 left out")
    assert aime.count("\n|") == math.count("\n|") - 2 == 3
    rows = [line.strip("| ").split(" | ") for line in math.splitlines() if line.startswith("|")][2:]
    assert rows[0][:7] == [
        "org/model@abcdef0",
        "-",
        "-",
        "none",
        "accuracy",
        "0.250 [0.125, 0.500]",
        "0.750 [0.500, 0.875]",
    ]
    assert rows[0][7:] == ["25.0%", "3", "1", "12.5", "0123456"]
    assert rows[1][5] == "failed" and rows[1][6:11] == ["-"] * 5, "a failed one is shown as failed, without figures"
    assert rows[2][:4] == ["some_server, seed 3", "server", "40", "think"]
    assert all(len(row) == len(rows[0]) for row in rows)
    assert [re.search(r"(\w+)/evaluation.json: left out", warning)[1] for warning in warnings] == ["newer", "torn"]


def test_adapters_are_told_from_the_model_that_they_are_for(tmp_path):
    model = {"path": "org/model", "revision": None, "commit": None, "trained": None, "base_of": None}
    adapter = {"path": "some/adapters", "weights_sha256": "a", "r": 8}
    made_up(tmp_path, "a", model=model)
    made_up(tmp_path, "b", model=model | {"adapter": adapter})
    made_up(tmp_path, "c", model=model | {"adapter": adapter, "trained": trained_by("server", 3) | {"recipe": "some"}})
    table = markdown_table(load_evaluations(tmp_path)[0])
    names = [line.strip("| ").split(" | ")[0] for line in table.splitlines() if line.startswith("|")][2:]
    assert names == ["org/model", "org/model with adapters some/adapters", "some, seed 3, LoRA"]


def test_no_evaluations_is_an_error_that_says_where(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"{re.escape(str(tmp_path))}: no evaluations"):
        load_evaluations(tmp_path)


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*/evaluation.json")), ids=lambda path: path.parent.name)
def test_committed_figures_are_those_of_the_committed_completions(path):
    result = read_json(path)
    assert result["git"]["dirty"] is False
    rows = read_completions(path.with_name("completions.jsonl.gz"))
    samples, problems = result["sampling"]["samples"], result["data"]["problems"]
    assert Counter(row["problem"] for row in rows) == dict.fromkeys(range(problems), samples)
    verdicts = grade_batch(
        [row["gold"] for row in rows],
        [row["completion"] for row in rows],
        [row["prompt"] for row in rows],
        boxed_only=result["reward"] == "accuracy_boxed",
    )
    assert [verdict.reward for verdict in verdicts] == [row["reward"] for row in rows]
    correct = Counter(dict.fromkeys(range(problems), 0))
    for row in rows:
        correct[row["problem"]] += row["reward"] == 1.0
    counts = [correct[problem] for problem in range(problems)]
    for entry in result["figures"]["pass_at_k"]:
        again = estimate(counts, samples, entry["k"])
        assert again["interval"] == entry["interval"]
        assert [again[key] for key in ("value", "low", "high")] == pytest.approx(
            [entry[key] for key in ("value", "low", "high")]
        )


def test_the_readmes_show_the_committed_evaluations():
    evaluations, warnings = load_evaluations(COMMITTED)
    assert warnings == []
    arms = {(e["model"]["trained"] or {"arm": "base"})["arm"] for e in evaluations}
    assert arms == {"base", "colocate", "server"}
    tables = markdown_table(evaluations)
    assert tables in (COMMITTED / "README.md").read_text()
    assert tables.split("\n\n")[-1] in (ROOT / "README.md").read_text()


def test_the_readme_shows_the_committed_comparison_with_lighteval():
    result = read_json(COMMITTED / "lighteval" / "verdicts.json")
    assert verdicts_table(result) in (COMMITTED / "README.md").read_text()
    for compared in result["files"].values():
        counts = compared["counts"]
        parts = ("both_right", "both_wrong", "only_ours", "only_lighteval", "no_verdict")
        assert sum(counts[part] for part in parts) == counts["completions"]
        listed = [sum(e["rows"] for e in compared["disagreements"] if e["ours"] is ours) for ours in (True, False)]
        assert listed == [counts["only_ours"], counts["only_lighteval"]]


def trained_by(arm: str, seed: int) -> dict:
    manifest = {
        "recipe": {"name": f"made_up_{arm}", "recipe": {"arm": arm}, "model": {"path": "Qwen/Qwen2.5-Math-7B"}},
        "derived": {"ranks": 8, "gpus": 8, "optimizer_batch": 224}, "seed": seed, "exit": {"status": "finished"},
    }  # fmt: skip
    return {"arm": arm, "recipe": f"made_up_{arm}", "steps": 100, "seed": seed, "manifest": manifest}


def test_evaluations_of_both_arms_decide_the_claim_on_benchmarks(tmp_path):
    for seed in range(5):
        for arm, value in (("colocate", 0.76), ("server", 0.75)):
            figures = {"pass_at_k": [{"k": 1, "value": value, "low": 0.7, "high": 0.8, "interval": "wilson"}]}
            made_up(tmp_path, f"{arm}{seed}", trained=trained_by(arm, seed), figures=figures)
    made_up(tmp_path, "base")
    found = load([tmp_path])
    assert len(found.runs) == 10, "a base is no run"
    claim = next(claim for claim in claims(found) if claim.id == "C8")
    math, aime = claim.paper.findings
    assert (math.verdict, math.figure()) == ("supported", "+0.010 [+0.010, +0.010], n = 5")
    assert aime.verdict == "not run"
    assert claim.paper.status == "partly"


def test_the_first_few_problems_are_not_the_benchmark(tmp_path):
    data = {"path": "org/data", "problems": 10, "kept_rows": 500}
    made_up(tmp_path, "few", trained=trained_by("colocate", 0), data=data)
    assert load([tmp_path]).runs["math500_pass_at_1"].isna().all()


def test_verdicts_are_compared_and_every_disagreement_is_listed_once():
    def judge(gold, completion):  # text equality, and an error on what it cannot take
        return "ValueError" if "!" in completion else float(gold == completion)

    rows = [
        {"gold": "1", "completion": "1", "reward": 1.0},
        {"gold": "1", "completion": "2", "reward": 0.0},
        {"gold": "0.5", "completion": "1/2", "reward": 1.0, "expected": True},
        {"gold": "0.5", "completion": "1/2", "reward": 1.0, "expected": True},
        {"gold": "3", "completion": "3", "reward": 0.0, "expected": False},
        {"gold": "4", "completion": "4!", "reward": 0.0, "expected": False},
        {"gold": "prose", "completion": "4", "reward": None, "expected": None},
    ]
    compared = compare(rows, judge)
    assert compared["counts"] == {
        "completions": 7, "no_verdict": 1, "both_right": 1, "both_wrong": 2, "only_ours": 2, "only_lighteval": 1,
        "lighteval_raised": 1, "truth_known": 4, "ours_wrong": 0, "lighteval_wrong": 3,
    }  # fmt: skip
    assert [(e["completion"], e["ours"], e["lighteval"], e["rows"]) for e in compared["disagreements"]] == [
        ("1/2", True, False, 2),
        ("3", False, True, 1),
    ]


def test_completions_without_verdicts_are_refused_with_what_to_do(tmp_path, capsys):
    path = tmp_path / "completions.jsonl.gz"
    path.write_bytes(
        gzip.compress(b'{"gold": "1", "completion": "1", "reward": 1.0}\n{"gold": "1", "completion": "1"}\n')
    )
    assert main([str(path)]) == 2
    assert "line 2: no reward; grade it first: python -m rewards grade" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.optional
@pytest.mark.skipif(not LIGHTEVAL, reason="no lighteval (an environment of its own; LIGHTEVAL_PYTHON names its python)")
def test_lighteval_itself_gives_its_verdicts(tmp_path):
    rows = [
        {"gold": "8", "completion": "3+5=8 \\boxed{8}", "reward": 1.0},
        {"gold": "8", "completion": "\\boxed{6}", "reward": 0.0},
        {"gold": "\\frac{1}{2}", "completion": "so \\boxed{\\frac12}", "reward": 1.0},
        {
            "gold": "(-\\infty, 2) \\cup (7, \\infty)",
            "completion": "\\boxed{(-\\infty, 2) \\cup (7, \\infty)}",
            "reward": 1.0,
        },
        {"gold": "8", "completion": "\\boxed{8}", "reward": 0.0},
    ]
    completions, out = tmp_path / "completions.jsonl", tmp_path / "verdicts.json"
    completions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run(
        [LIGHTEVAL, "-m", "analysis.lighteval_verdicts", str(completions), "--out", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = read_json(out)
    (compared,) = result["files"].values()
    assert (compared["counts"]["both_right"], compared["counts"]["both_wrong"]) == (3, 1)
    assert [(e["ours"], e["lighteval"]) for e in compared["disagreements"]] == [(False, True)]
    assert result["packages"]["lighteval"]
