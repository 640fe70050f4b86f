"""The launchers' watch over each other, with real files and datagrams between two of them on this machine."""

import json

import pytest

from launch import peers as module
from launch.nodes import Place
from launch.peers import BEAT_SECONDS, SILENT_SECONDS, Peers, datagram_socket
from record import RunFolder


class Clock:
    """Time that passes when it is told to: nothing here depends on how busy the machine is."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def two(tmp_path, clock):
    """Node 0 and node 1 of one run, which have heard of each other."""
    wires = [datagram_socket("127.0.0.1") for _ in range(2)]
    places = [
        Place("127.0.0.1", 29500, "127.0.0.1", "lo", number == 0, number, number, ("a", "b")) for number in range(2)
    ]
    addresses = [wire.getsockname() for wire in wires]
    made = [
        Peers(RunFolder(tmp_path), place, "word", wire, addresses) for place, wire in zip(places, wires, strict=True)
    ]
    after(clock, 3 * BEAT_SECONDS, *made)
    yield made
    for one in made:
        one.close(0, None)


def after(clock: Clock, seconds: float, *looking: Peers) -> list[str | None]:
    """What each says once `seconds` have passed in which these have looked, and the others have not."""
    end = clock.now + seconds
    while clock.now < end:
        causes = [one.look() for one in looking]
        clock.sleep(0.5)
    return causes


def test_two_that_look_after_each_other_have_nothing_to_say(two, clock):
    assert after(clock, 10 * SILENT_SECONDS, *two) == [None, None]


def test_one_that_goes_silent_is_missed_and_named(two, clock):
    assert after(clock, SILENT_SECONDS - 2 * BEAT_SECONDS, two[0]) == [None]
    assert after(clock, 4 * BEAT_SECONDS, two[0]) == ["node 1 (host b) has not been heard of for 30 s"]


def test_a_cut_link_is_noticed_though_the_files_go_on(two, clock):
    two[1]._call = lambda: None  # nothing of node 1 arrives any more
    causes = after(clock, SILENT_SECONDS + 2 * BEAT_SECONDS, *two)
    assert causes[0] == "node 1 (host b) has not been heard of for 30 s (nothing arrives over lo)"


def test_a_firewall_that_passes_no_datagrams_is_no_reason_to_end(tmp_path, clock):
    wires = [datagram_socket("127.0.0.1") for _ in range(2)]
    places = [
        Place("127.0.0.1", 29500, "127.0.0.1", "lo", number == 0, number, number, ("a", "b")) for number in range(2)
    ]
    unheard = [("127.0.0.1", 9), ("127.0.0.1", 9)]
    made = [Peers(RunFolder(tmp_path), place, "word", wire, unheard) for place, wire in zip(places, wires, strict=True)]
    assert after(clock, 3 * SILENT_SECONDS, *made) == [None, None]
    for one in made:
        one.close(0, None)


def test_the_end_of_one_is_the_others_cause(two, clock):
    two[1].ending("rank 1 was killed by SIGKILL", sure=True)
    assert after(clock, 2 * BEAT_SECONDS, two[0]) == ["node 1 (host b): rank 1 was killed by SIGKILL"]
    assert two[0].sure() == two[0].cause
    before = clock.now
    two[0].settle()  # the other has had its say: nothing to wait for
    assert clock.now == before


def test_settling_waits_for_whoever_has_not_ended_until_it_is_lost(two, clock):
    before = clock.now
    two[0].settle()
    assert SILENT_SECONDS - 2 * BEAT_SECONDS < clock.now - before < SILENT_SECONDS + 2 * BEAT_SECONDS
    assert two[0].lost() == "node 1 (host b) has not been heard of for 30 s"


def test_node_0_has_the_last_word(two):
    two[0].say(state="ended", code=75, cause="stopped by SIGUSR1")
    verdict = two[1].verdict()
    assert (verdict["code"], verdict["cause"]) == (75, "stopped by SIGUSR1")


def test_without_node_0_there_is_no_verdict(two):
    assert two[1].verdict() is None


def test_an_interrupted_node_hands_its_exit_code_on(two, clock):
    two[1].ending("stopped by SIGINT", sure=False, code=130)
    after(clock, 2 * BEAT_SECONDS, two[0])
    assert two[0].interrupted() == 130
    assert two[0].sure() is None


def test_files_of_an_earlier_attempt_do_not_count(two, clock, tmp_path):
    stale = {"meeting": "another", "state": "ending", "cause": "long ago", "sure": True, "server": None}
    (tmp_path / "nodes" / "1.json").write_text(json.dumps(stale))
    assert after(clock, 2 * BEAT_SECONDS, two[0]) == [None]


def test_a_file_that_is_read_in_the_middle_of_a_write_is_read_again(two, clock, tmp_path):
    (tmp_path / "nodes" / "1.json").write_text('{"meeting": "wo')
    assert after(clock, 2 * BEAT_SECONDS, two[0]) == [None]
    two[1].ending("whole again", sure=True)
    assert after(clock, 2 * BEAT_SECONDS, two[0]) == ["node 1 (host b): whole again"]
