"""`python -m rewards grade`: JSON lines in, the same lines with a verdict out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(text: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "rewards", "grade", "--workers", "1", *arguments],
        input=text, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
    )  # fmt: skip


def test_lines_come_back_in_order_with_a_verdict():
    rows = [
        {"id": 1, "gold": r"\frac{1}{2}", "completion": r"So \boxed{0.5}."},
        {"id": 2, "gold": r"\sin 1", "completion": r"So \boxed{\cos 1}."},
        {"id": 3, "gold": "", "completion": r"So \boxed{4}."},
        {"id": 4, "gold": 4, "completion": "I do not know."},
        {"id": 5, "gold": "9", "completion": r"\boxed{9^{9^{9^{9^{9}}}}}"},
    ]
    done = run("\n".join(map(json.dumps, rows)) + "\n\n", "--time-seconds", "1")
    assert done.returncode == 0, done.stderr
    graded = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["id"] for row in graded] == [1, 2, 3, 4, 5]
    assert [row["reward"] for row in graded] == [1.0, 0.0, None, 0.0, 0.0]
    assert [row["reason"] for row in graded] == ["correct", "wrong", "unusable_gold", "no_answer", "out_of_time"]
    assert graded[0]["gold_parsed"] == r"\frac{1}{2}" and graded[0]["answer_parsed"] == "0.5"
    assert graded[3]["answer_parsed"] is None
    assert 1.0 <= graded[4]["seconds"] <= 1.2


def test_bad_lines_are_named_and_good_ones_kept():
    good = json.dumps({"gold": "4", "completion": r"\boxed{4}"})
    bad = [
        "{",
        "[]",
        '{"gold": "4"}',
        '{"gold": "4", "completion": 5}',
        '{"gold": "4", "completion": "x", "prompt": 1}',
    ]
    done = run("\n".join([good, *bad, good]))
    assert done.returncode == 2
    assert [json.loads(line)["reward"] for line in done.stdout.splitlines()] == [1.0, 1.0]
    for number, word in (
        (2, "not JSON"),
        (3, "gold and completion missing"),
        (4, "completion missing"),
        (5, "not a string"),
    ):
        assert f"line {number}: " in done.stderr and word in done.stderr


def test_boxed_only_and_help():
    row = json.dumps({"gold": "4", "completion": "The answer is 4."})
    assert json.loads(run(row).stdout)["reward"] == 1.0
    assert json.loads(run(row, "--boxed-only").stdout)["reason"] == "no_answer"
    assert "gold_parsed" in run("", "--help").stdout
    assert run("", "--time-seconds", "0").returncode == 2
