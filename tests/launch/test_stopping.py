"""What signals to the launcher come to, and in which stage of a run."""

import os
import signal
import time

import pytest

from launch.progress import Progress
from launch.recipe import ROOT, load
from launch.run import make_run_folder
from launch.stopping import AGAIN, SAME_SIGNAL_SECONDS, Ending, Requests
from record import LineWriter

RECIPE = load(ROOT / "recipes" / "tiny_generate.yaml")


@pytest.fixture
def run(tmp_path):
    """A run's folder, its progress, and a function that says an event as rank 0 does."""
    folder = make_run_folder(RECIPE, tmp_path, [])
    progress = Progress(folder, RECIPE)
    writer = LineWriter(folder.events_path)

    def reach(event: str) -> None:
        writer.write({"event": event, "unix_seconds": time.time(), "seconds": 1.0})
        progress.follow()

    return folder, progress, reach


def receive(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(SAME_SIGNAL_SECONDS + 0.1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_in_training_the_first_asks_for_a_checkpoint_and_the_second_ends_it_now(run, number):
    folder, progress, reach = run
    reach("training")
    with Requests() as requests:
        ending = Ending(folder, progress, requests, [])
        assert not ending.wanted()
        receive(number)
        assert not ending.wanted()
        assert folder.stop_requested() == number
        assert ending.exit_code is None, "the ranks say what came of it"
        receive(signal.SIGTERM)
        assert ending.wanted()
        assert ending.exit_code == 128 + signal.SIGTERM
        assert not ending.kill
        receive(signal.SIGTERM)
        assert ending.kill


def test_one_signal_that_arrives_twice_at_once_is_one(run):
    folder, progress, reach = run
    reach("training")
    with Requests() as requests:
        ending = Ending(folder, progress, requests, [])
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert not ending.wanted()
        assert not ending.wanted()


def test_while_it_starts_and_on_ctrl_c_a_run_ends_at_once(run):
    folder, progress, reach = run
    with Requests() as requests:
        starting = Ending(folder, progress, requests, [])
        receive(signal.SIGUSR1)
        assert starting.wanted()
        assert starting.exit_code == AGAIN
    reach("training")
    with Requests() as requests:
        training = Ending(folder, progress, requests, [])
        receive(signal.SIGINT)
        assert training.wanted()
        assert training.exit_code == 130
    assert folder.stop_requested() == 0


def test_after_the_last_step_a_run_is_left_to_end_by_itself(run, capsys):
    folder, progress, reach = run
    reach("training")
    reach("trained")
    with Requests() as requests:
        ending = Ending(folder, progress, requests, [])
        receive(signal.SIGTERM)
        assert not ending.wanted()
        assert "about to end by itself" in capsys.readouterr().err
        receive(signal.SIGTERM)
        assert ending.wanted()


def test_what_a_watch_finds_ends_the_run_and_is_kept_as_its_cause(run):
    folder, progress, _ = run
    found = [None]
    with Requests() as requests:
        ending = Ending(folder, progress, requests, [lambda: None, lambda: found[0]])
        assert not ending.wanted()
        found[0] = "the reason"
        assert ending.wanted()
        assert ending.cause == "the reason"
        assert ending.exit_code is None


def test_handlers_are_given_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)]
    with Requests():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [
        signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    ] == before
