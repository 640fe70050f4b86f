import json
import math
import os
import subprocess
import sys

import pytest

from launch.recipe import ROOT
from record import LineFollower, LineWriter, RunFolder, clean, read_json, read_lines


def test_missing_numbers_become_null_never_zero():
    row = clean({"nan": math.nan, "inf": [math.inf, -math.inf], "zero": 0.0, "none": None, "deep": {"x": (math.nan,)}})
    assert row == {"nan": None, "inf": [None, None], "zero": 0.0, "none": None, "deep": {"x": [None]}}


def test_scalars_of_numpy_become_plain_numbers():
    numpy = pytest.importorskip("numpy")
    assert clean({"a": numpy.float32(0.5), "b": numpy.int64(3), "c": numpy.float64("nan")}) == {
        "a": 0.5,
        "b": 3,
        "c": None,
    }


def test_a_torn_line_is_counted_and_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\nnot json\n[1]\n{"step": 2}\n{"step": 3')
    rows, torn = read_lines(path)
    assert [row["step"] for row in rows] == [1, 2]
    assert torn == 3


def test_a_new_writer_cuts_off_what_a_crashed_one_tore(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2')
    writer = LineWriter(path)
    writer.write({"step": 2})
    writer.close()
    assert read_lines(path) == ([{"step": 1}, {"step": 2}], 0)


def test_all_lines_but_the_last_are_whole_when_the_writer_is_killed_at_any_time(tmp_path):
    path = tmp_path / "metrics.jsonl"
    program = (
        "import sys; from record import LineWriter\n"
        "writer = LineWriter(sys.argv[1])\n"
        "print('ready', flush=True)\n"
        "for step in range(10**9): writer.write({'step': step, 'text': 'x' * 3000})\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=ROOT, stdout=subprocess.PIPE)
    child.stdout.readline()
    while path.stat().st_size < 1_000_000:
        pass
    child.kill()
    child.wait()
    rows, torn = read_lines(path)
    assert torn == (not path.read_bytes().endswith(b"\n")), "the kernel may end a write between two pages, and no other"
    assert [row["step"] for row in rows] == list(range(len(rows)))
    LineWriter(path).write({"step": len(rows)})
    again, torn = read_lines(path)
    assert torn == 0 and [row["step"] for row in again] == list(range(len(rows) + 1))


def test_a_full_disk_leaves_whole_lines_and_the_old_file(tmp_path):
    """A limit on the file's size stands in for the disk's: the kernel refuses the same writes."""
    program = (
        "import resource, signal, sys; from pathlib import Path; from record import LineWriter, write_json\n"
        "folder = Path(sys.argv[1]); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "write_json(folder / 'manifest.json', {'old': True})\n"
        "writer = LineWriter(folder / 'metrics.jsonl')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "try:\n"
        "    for step in range(100): writer.write({'step': step, 'text': 'x' * 700})\n"
        "except OSError as error: print('line refused')\n"
        "try: write_json(folder / 'manifest.json', {'text': 'x' * 9000})\n"
        "except OSError: print('file refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["line refused", "file refused"]
    rows, torn = read_lines(tmp_path / "metrics.jsonl")
    assert rows
    assert torn == 0
    assert read_json(tmp_path / "manifest.json") == {"old": True}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["manifest.json", "metrics.jsonl"]


def test_a_follower_reads_each_line_once_and_waits_for_half_ones(tmp_path):
    path = tmp_path / "metrics.jsonl"
    follower = LineFollower(path)
    assert follower.read() == []
    path.write_text('{"step": 1}\n{"st')
    assert follower.read() == [{"step": 1}]
    assert follower.read() == []
    with open(path, "a") as file:
        file.write('ep": 2}\n')
    assert follower.read() == [{"step": 2}]


def test_the_first_exit_status_stands(tmp_path):
    folder = RunFolder(tmp_path)
    folder.update(exit={"status": "running", "cause": None})
    folder.finish("finished")
    folder.finish("failed", "a crash at teardown")
    assert folder.manifest()["exit"] == {"status": "finished", "cause": None}


def test_errors_are_told_earliest_first(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_error(1, "ValueError", "the cause", "traceback")
    folder.write_error(0, "RuntimeError", "a consequence", "traceback")
    folder.error_path(2).write_text("{torn")
    assert [error["rank"] for error in folder.errors()] == [1, 0]


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"schema_version": 999})])
def test_a_damaged_or_foreign_manifest_is_named(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json"):
        RunFolder(tmp_path).manifest()


def test_no_manifest_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="not a run's folder"):
        RunFolder(tmp_path).manifest()
    assert os.listdir(tmp_path) == []
