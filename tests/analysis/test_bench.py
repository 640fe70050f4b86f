"""The benchmark of loading, small: what it measures is the whole table. Its time is not asserted here."""

import json

from benchmarks.bench_analysis import measure
from launch.recipe import ROOT


def test_every_line_is_loaded_and_the_committed_figures_meet_the_goals():
    found = measure(lines=2000, runs=4)
    assert (found["steps"], found["runs"]) == (2000, 4)
    assert all(value > 0 for value in found["means"])
    assert 0 < found["load_seconds"] < found["processor_seconds"] * 100
    committed = json.loads((ROOT / "results" / "analysis" / "bench.json").read_text())
    assert committed["steps"] == 1_000_000
    assert committed["load_seconds"] + committed["aggregate_seconds"] < 5
    assert committed["peak_resident_bytes"] < 1e9
