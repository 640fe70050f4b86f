"""The ledger of claims: what the README shows is what the records say, and records turn every status as they should."""

import pandas
import pytest

from analysis.claims import CONTRADICTED, NOT_RUN, PARTLY, SUPPORTED, claims, details, ledger, status, table
from analysis.criteria import UNDECIDED, Finding
from analysis.runs import Runs, assemble, load
from launch.recipe import ROOT
from tests.analysis.records import write_record

MODEL = "Qwen/Qwen2.5-Math-1.5B"


def test_the_readme_shows_what_the_committed_records_say():
    found = load(ROOT / "results")
    assert table(claims(found)) in (ROOT / "README.md").read_text(), "run: python -m analysis claims --write"


def test_every_claim_of_the_paper_has_criteria_for_and_against_and_one_headline():
    entries = ledger()
    assert list(entries) == [f"C{number}" for number in range(1, 13)]
    for name, entry in entries.items():
        assert sum(bool(item.get("headline")) for item in entry["criteria"]) == 1, name
        for item in entry["criteria"]:
            assert item["supports"], name
            assert item["contradicts"], name
            assert sum(kind in item for kind in ("ratio", "difference", "value")) == 1, item["says"]


def test_without_records_nothing_is_said():
    for claim in claims(assemble([], [])):
        assert claim.paper.status == NOT_RUN
        assert claim.small is None or claim.small.status == NOT_RUN
        assert claim.paper.headline == "-"


def campaign(path, speedup: float, repeats: int = 5, gpus: int = 8, batches=(56, 448)) -> Runs:
    """A made-up experiment 1: both arms, the largest batch worth `speedup`, normalised."""
    for arm in ("colocate", "server"):
        ranks = gpus - (arm == "server")
        for batch in batches:
            faster = speedup if arm == "colocate" and batch == max(batches) else 1.0
            for repeat in range(repeats):
                machine = 1 + 0.01 * repeat
                rate = batch**0.5 * faster * machine / (gpus / ranks)  # completions a second
                recipe = {"arm": arm, "experiments": ["C1"]}
                server = {"nodes": 1, "gpus_per_node": 1, "tensor_parallel_size": 1} if arm == "server" else None
                manifest = {
                    "recipe": {
                        "name": f"made_up_{arm}", "recipe": recipe, "model": {"path": MODEL}, "rewards": {},
                        "cluster": {"gpu": "H100-80GB", "server": server}, "grpo": {},
                    },
                    "derived": {"ranks": ranks, "gpus": gpus, "optimizer_batch": batch},
                }  # fmt: skip
                seconds = batch / rate
                folder = path / "made_up" / f"{arm}-{batch}-{repeat}"
                write_record(folder, arm, (9.0, seconds, seconds), seed=repeat, ranks=ranks, manifest=manifest)
    return load(path)


@pytest.fixture(scope="module")
def faster(tmp_path_factory):
    """The records of an experiment 1 in which colocate is 1.43x faster at the largest batch."""
    return campaign(tmp_path_factory.mktemp("runs"), 1.43)


def the_claim(name, runs):
    return next(claim for claim in claims(Runs(runs, pandas.DataFrame(), pandas.DataFrame())) if claim.id == name)


def test_a_speed_up_set_by_hand_supports_the_claim_and_comes_back_as_set(faster):
    claim = the_claim("C1", faster.runs)
    assert claim.paper.status == SUPPORTED, details([claim])
    assert claim.paper.hardware == "8 x H100-80GB"
    assert claim.paper.headline == "1.43x [1.43, 1.43], n = 5"
    assert claim.small.status == NOT_RUN, "records of the paper's scale are no small ones"


def test_slower_at_the_largest_batch_is_only_a_part(faster):
    runs = faster.runs.copy()
    runs.loc[(runs["arm"] == "colocate") & (runs["optimizer_batch"] == 448), "normalised"] *= 0.8 / 1.43
    claim = the_claim("C1", runs)
    assert [finding.verdict for finding in claim.paper.findings] == [CONTRADICTED, SUPPORTED, SUPPORTED]
    assert claim.paper.status == PARTLY
    assert "0.80x" in claim.paper.headline


def test_fewer_gpus_speak_in_small_only_and_too_few_runs_do_not_speak(faster):
    claim = the_claim("C1", faster.runs.assign(gpus=4, devices=4))
    assert (claim.paper.status, claim.small.status) == (NOT_RUN, SUPPORTED)
    assert claim.small.hardware == "4 x H100-80GB"
    few = the_claim("C1", faster.runs[faster.runs["seed"] < 4])
    assert few.paper.status == NOT_RUN
    assert few.paper.headline == "1.43x (1.43 to 1.43), n = 4"
    assert "too few" in details([few])


def test_failed_runs_are_in_no_ratio_and_memory_failures_count_where_they_are_asked_for(faster):
    runs = faster.runs.copy()
    runs.loc[runs["seed"] == 0, "status"] = "failed"
    assert the_claim("C1", runs).paper.status == NOT_RUN, "four pairs are left"
    runs = runs.assign(model="Qwen/Qwen2.5-Math-72B", accelerate="zero3", cause="torch.OutOfMemoryError: CUDA")
    claim = the_claim("C10", runs)
    without = next(finding for finding in claim.paper.findings if "without" in finding.says)
    assert without.estimate.count == 10
    assert without.estimate.mean == pytest.approx(2 / 10)
    assert without.verdict == CONTRADICTED


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([SUPPORTED, SUPPORTED], SUPPORTED), ([SUPPORTED, NOT_RUN], PARTLY), ([SUPPORTED, CONTRADICTED], PARTLY),
        ([CONTRADICTED, NOT_RUN], CONTRADICTED), ([UNDECIDED, NOT_RUN], PARTLY), ([NOT_RUN, NOT_RUN], NOT_RUN),
    ],
)  # fmt: skip
def test_the_status_of_a_claim_follows_from_its_criteria(verdicts, expected):
    assert status([Finding("", verdict, None, "ratio", ()) for verdict in verdicts]) == expected
