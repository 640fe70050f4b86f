"""Every figure, on committed records where there are some: legible, told apart in grey, and showing what the records hold.

What is synthetic here says so by its name, and is shown nowhere else.
"""

import json

import numpy
import pandas
import pytest
from matplotlib.colors import to_rgb

from analysis import figures, learning
from analysis.frames import read_frames
from analysis.results import load_results
from analysis.style import ARMS, PHASES, new_figure, save, svg
from analysis.timeline import timeline, typical_steps
from launch.recipe import ROOT
from tests.analysis.legible import faults

RESULTS = ROOT / "results"


def luminance(color: str) -> float:
    """Of Rec. 601, 0 to 1: what a black-and-white print leaves of a colour."""
    return float(numpy.dot(to_rgb(color), (0.299, 0.587, 0.114)))


@pytest.mark.parametrize("looks", [ARMS, PHASES])
def test_looks_are_apart_in_grey(looks):
    looks = list(looks.values())
    for index, look in enumerate(looks):
        for other in looks[:index]:
            alike = abs(luminance(look.color) - luminance(other.color)) < 0.08
            assert not alike or look.hatch != other.hatch, (look.label, other.label)
    if looks[0] is ARMS["colocate"]:
        for name in ("marker", "line", "hatch"):
            drawn = [getattr(look, name) for look in looks if look.label != "base model"]
            assert len(set(drawn)) == len(drawn), f"arms differ by {name} too"


def committed_pair():
    return [read_frames(next((RESULTS / "timeline" / recipe).iterdir())) for recipe in ("tiny_server", "tiny_colocate")]


def test_the_timeline_shows_each_second_of_each_rank_once():
    runs = committed_pair()
    figure = timeline(runs)
    assert faults(figure) == []
    for axis, run in zip(figure.axes, runs, strict=True):
        labels = [label.get_text() for label in axis.get_yticklabels()]
        assert len(labels) == run.phases["rank"].nunique() + (len(run.server_phases) > 0)
        shown = run.steady_phases[run.steady_phases["step"].isin(typical_steps(run, 3))]
        for rank, intervals in shown.groupby("rank"):
            place = labels.index(next(label for label in labels if label.endswith(f"rank {rank}")))
            drawn = sum(
                path.get_extents().width
                for bars in axis.collections
                for path in bars.get_paths()
                if abs(path.get_extents().y0 - (place - 0.38)) < 1e-6 and bars.get_linewidth()[0] == 0
            )
            assert drawn == pytest.approx(intervals["seconds"].sum(), rel=1e-6)
    server, _ = (axis.get_title(loc="left") for axis in figure.axes)
    assert "server: 3 steps" in server
    with pytest.raises(ValueError, match="fewer than 8 steps"):
        timeline(runs, 8)


@pytest.mark.parametrize("faster", [4, 40, 400])
def test_a_timeline_of_many_ranks_and_of_unequal_arms_is_legible(faster):
    server, colocate = committed_pair()
    ranks = [colocate.phases[colocate.phases["rank"] == 0].assign(rank=rank) for rank in range(16)]
    colocate.phases = pandas.concat(ranks, ignore_index=True)
    for column in ("start_unix_seconds", "seconds"):
        colocate.phases[column] /= faster
    figure = timeline([server, colocate])
    assert faults(figure) == []
    assert len(figure.axes[1].get_yticklabels()) == 16


def test_the_readmes_figure_is_what_the_records_draw(tmp_path):
    from matplotlib import image

    committed = RESULTS / "timeline" / "timeline.png"
    drawn, shown = image.imread(save(timeline(committed_pair()), tmp_path / "timeline.png")), image.imread(committed)
    assert drawn.shape == shown.shape
    assert abs(drawn - shown).mean() < 0.002, "python -m analysis figures --only timeline --out results/timeline"


def test_a_server_waits_where_it_has_no_request():
    from analysis.timeline import _server_row

    busy = [
        {"phase": "generate", "start_unix_seconds": 12.0, "seconds": 2.0},
        {"phase": "sync", "start_unix_seconds": 8.0, "seconds": 3.0},
        {"phase": "generate", "start_unix_seconds": 19.0, "seconds": 9.0},
    ]
    row = _server_row(busy, 10.0, 20.0)
    assert row == [
        ("sync", 0.0, 1.0), ("wait", 1.0, 1.0), ("generate", 2.0, 2.0), ("wait", 4.0, 5.0), ("generate", 9.0, 1.0)
    ]  # fmt: skip
    assert sum(length for _, _, length in row) == 10.0


def test_curves_and_outcomes_of_the_arms():
    result = learning.compare(load_results(RESULTS / "arms" / "learning"))
    assert faults(figures.reward_curves(result["curves"])) == []
    groups = [
        (label, [{"arm": arm} | entry[name] for arm, entry in result["arms"].items()])
        for name, label in learning.OUTCOMES.items()
    ]
    figure = figures.accuracy_bars(groups, "mean over seeds, 0 to 1")
    assert faults(figure) == []
    heights = [patch.get_height() for patch in figure.axes[0].patches][::2]
    assert heights == [entry["held_out_accuracy"]["mean"] for entry in result["arms"].values()]


def test_memory_of_every_measured_configuration():
    measured = [json.loads(path.read_text()) for path in sorted((RESULTS / "memory_h200").glob("*.json"))]
    for chosen in (measured, [item for item in measured if item["settings"]["sleep"]], measured[:1]):
        figure = figures.memory_by_phase(chosen)
        assert faults(figure) == []
        assert len(figure.axes) == len(chosen)
    bars = figures.memory_by_phase(measured[:1]).axes[0].patches
    peaks = [
        steps[max(steps, key=int)]["peak_device_bytes"] / 2**30
        for name, steps in measured[0]["phases"].items()
        if name not in ("wait", "other")
    ]
    assert max(bar.get_width() for bar in bars) == pytest.approx(max(peaks))


def test_the_checks_of_legibility_find_faults():
    figure = new_figure(6, 4)
    axis, empty = figure.subplots(1, 2)
    axis.plot([0, 1], [1, 0], label="its own legend")
    axis.legend(loc="upper left")
    axis.text(0.4, 0.5, "one text", transform=axis.transAxes)
    axis.text(0.45, 0.52, "another", transform=axis.transAxes)
    figure.text(0.9, 0.02, "goes on beyond the edge of the picture")
    empty.set_title("nothing", loc="left")
    found = " ".join(faults(figure))
    for fault in ("'one text' overlaps 'another'", "is clipped", "axes 'nothing' are empty", "the legend covers"):
        assert fault in found


def test_the_same_figure_is_the_same_file(tmp_path):
    curves = {"colocate": numpy.linspace(0, 1, 20).reshape(2, 10)}
    assert svg(figures.reward_curves(curves)) == svg(figures.reward_curves(curves))
    first, second = (save(figures.reward_curves(curves), tmp_path / name) for name in ("a.png", "b.png"))
    assert first.read_bytes() == second.read_bytes()
