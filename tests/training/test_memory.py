"""The peaks of memory that each interval of the phase clock records."""

import pytest
import torch

from record import LineWriter, read_lines
from training.memory import NOT_MEASURED, MemoryMeter, probes
from training.phases import PhaseClock


def test_without_a_gpu_the_peaks_are_null_and_not_zero(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    clock = PhaseClock(LineWriter(tmp_path / "phases.jsonl"), peaks=probes(use_cpu=False)[1])
    with clock("other"), clock("generate"):
        pass
    rows, _ = read_lines(tmp_path / "phases.jsonl")
    assert len(rows) == 3
    for row in rows:
        assert {name: row[name] for name in NOT_MEASURED} == dict.fromkeys(NOT_MEASURED)


def test_a_peak_belongs_to_the_interval_in_which_it_was(tmp_path):
    """The clock asks once a border, and what it is told goes to the interval that ends there."""
    told = iter([{"peak_allocated_bytes": value} for value in (10, 20, 30, 40)])
    clock = PhaseClock(LineWriter(tmp_path / "phases.jsonl"), peaks=lambda: next(told))
    with clock("other"), clock("generate"):
        pass
    rows, _ = read_lines(tmp_path / "phases.jsonl")
    assert [(row["phase"], row["peak_allocated_bytes"]) for row in rows] == [
        ("other", 20),
        ("generate", 30),
        ("other", 40),
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_a_peak_is_seen_and_forgotten_at_the_next_border():
    peaks, size = MemoryMeter(), 2**30
    before = peaks()
    torch.empty(size, dtype=torch.uint8, device="cuda")  # freed at once: a peak, and nothing else
    during = peaks()
    after = peaks()
    assert during["peak_allocated_bytes"] - before["peak_allocated_bytes"] >= size
    assert after["peak_allocated_bytes"] < size
    if during["peak_device_bytes"] is not None:
        assert during["peak_device_bytes"] >= during["peak_reserved_bytes"]
