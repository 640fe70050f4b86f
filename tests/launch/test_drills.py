"""A sample of the fault drills (`make drills` runs them all), and how the sample is drawn."""

from collections import Counter

import pytest

from tests.drills.drill import Job, drill
from tests.drills.scenarios import FAULTS, TARGETS, Scenario, every, sample
from tests.drills.two_nodes import TwoNodes

SAMPLE = (
    Scenario("colocate", "rank", "SIGKILL", "saving"),
    Scenario("colocate", "launcher", "SIGTERM", "training"),
    Scenario("colocate", "launcher", "SIGKILL", "generation"),
    Scenario("server", "server", "SIGSTOP", "sync"),
    Scenario("two nodes", "link", "cut", "training"),
    Scenario("two nodes", "node", "SIGKILL", "generation"),
)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SAMPLE, ids=str)
def test_a_struck_run_ends_names_its_cause_leaves_nothing_and_is_taken_up_again(tmp_path, scenario):
    row = drill(scenario, tmp_path / "runs", TwoNodes if scenario.layout == "two nodes" else Job)
    assert row["shortfalls"] == [], row


def test_a_sample_has_every_kind_of_fault_as_often_as_the_others():
    drawn = sample(48, seed=0)
    assert len(set(drawn)) == 48
    assert set(drawn) <= set(every())
    counts = Counter((scenario.target, scenario.fault) for scenario in drawn)
    assert set(counts) == {(target, fault) for target in TARGETS for fault in FAULTS[target]}
    assert max(counts.values()) - min(counts.values()) <= 1
    assert drawn == sample(48, seed=0) != sample(48, seed=1)
