import itertools
import time

import pytest

from record import LineWriter, read_lines
from training.phases import PhaseClock


def clocked(tmp_path, body):
    path = tmp_path / "phases.rank0.jsonl"
    clock = PhaseClock(LineWriter(path))
    body(clock)
    return read_lines(path)[0]


def test_an_inner_phase_interrupts_the_outer_one_and_nothing_is_counted_twice(tmp_path):
    def body(clock):
        with clock("generate"):
            time.sleep(0.02)
            with clock("sync"):
                time.sleep(0.03)
            time.sleep(0.01)

    rows = clocked(tmp_path, body)
    assert [row["phase"] for row in rows] == ["generate", "sync", "generate"]
    for earlier, later in itertools.pairwise(rows):
        assert later["start_unix_seconds"] == pytest.approx(
            earlier["start_unix_seconds"] + earlier["seconds"], abs=2e-6
        )
    assert rows[1]["seconds"] >= 0.03


def test_intervals_belong_to_the_step_in_which_they_began(tmp_path):
    def body(clock):
        with clock("other"):
            clock.step, clock.split = 1, "eval"
            with clock("grade"):
                clock.step = 2

    rows = clocked(tmp_path, body)
    assert [(row["phase"], row["step"], row["split"]) for row in rows] == [
        ("other", 0, "train"), ("grade", 1, "eval"), ("other", 2, "eval"),
    ]  # fmt: skip


def test_a_phase_that_fails_is_closed(tmp_path):
    def body(clock):
        with clock("other"):
            with pytest.raises(RuntimeError), clock("grade"):
                raise RuntimeError
            with clock("sync"):
                pass

    assert [row["phase"] for row in clocked(tmp_path, body)] == ["other", "grade", "other", "sync", "other"]


def test_an_unknown_phase_is_refused():
    with pytest.raises(ValueError, match="phase 'cooking'"):
        PhaseClock(None).start("cooking")


def test_borders_wait_for_the_device():
    calls = []
    clock = PhaseClock(None, synchronize=lambda: calls.append(None))
    with clock("generate"):
        pass
    assert len(calls) == 2
