"""A run on several nodes, as the launcher on each goes through it: meet, agree on the run's folder, run, end together."""

import contextlib
import os
import secrets
import signal
import sys
import time
from pathlib import Path

from launch.conclude import FAILED, FINISHED, REFUSED
from launch.meeting import Apart, meet
from launch.nodes import Place, place_here
from launch.peers import Peers, datagram_socket
from launch.preflight import ERROR, Finding, findings, show, together
from launch.resume import StillGoing, unfinished
from launch.run import follow, opened
from launch.stopping import AGAIN, Requests
from record import RunFolder
from record.provenance import git_state

APPEAR_SECONDS = 90  # network file systems may keep the absence of a file in mind for a minute


def run_on_nodes(
    recipe: dict, runs: Path, overrides: list[str], fresh: bool, wait_seconds: float
) -> tuple[int, RunFolder | None]:
    """This node's part of a run, to the run's end. Returns the exit code, the same on all nodes, and on node 0 the folder."""
    place = place_here()
    with contextlib.ExitStack() as held, Requests() as requests:
        wire = held.enter_context(datagram_socket(place.address))
        mine: list[tuple[RunFolder, int]] = []  # the folder and its lock, on node 0

        def decide(leader: Place, heard: list[dict]) -> dict:
            table = _table(recipe, heard, runs)
            print(show(f"{recipe['name']} on {_named(leader)}", table), flush=True)
            if errors := [finding for finding in table if finding.state == ERROR]:
                return {"refused": [f"{finding.what}: {finding.value}: {finding.mend}" for finding in errors]}
            try:
                resumed = None if fresh else unfinished(recipe, runs)
                mine.append(held.enter_context(opened(recipe, runs, overrides, resumed, leader)))
            except StillGoing as error:
                return {"refused": [f"{error}: another launcher has just taken it up"]}
            except OSError as error:
                return {"refused": [f"{error.filename}: {error.strerror}"]}
            return {"run": str(mine[0][0].path.relative_to(runs)), "meeting": secrets.token_hex(8),
                    "wires": [node["wire"] for node in heard]}  # fmt: skip

        try:
            place, answer = _meet(recipe, runs, place, wire, decide, requests, wait_seconds)
        except Apart as error:
            print(f"failed: {error}", file=sys.stderr)
            code = _interrupted(requests)
            for folder, _ in mine:  # the others were lost before they had the answer
                folder.finish("interrupted" if code else "failed", str(error).splitlines()[0])
            return code or FAILED, None
        if "refused" in answer:
            if not place.leads:
                print("\n".join([f"refused by {place.called(0)}:", *answer["refused"]]), file=sys.stderr)
            return REFUSED, None
        folder = RunFolder(runs / answer["run"])
        if not place.leads:
            _say(
                f"{place.called(place.number)} of {len(place.hosts)}; {place.called(0)} shows the progress of {folder.path}"
            )
            _await_folder(folder)
        peers = Peers(folder, place, answer["meeting"], wire, answer["wires"])
        code = follow(recipe, folder, mine[0][1] if mine else None, peers)
        return code, folder if place.leads else None


def inspect(recipe: dict, runs: Path, shown: str, wait_seconds: float) -> int:
    """The meeting alone: `python -m launch preflight` on several nodes."""
    place = place_here()

    def decide(leader: Place, heard: list[dict]) -> dict:
        table = _table(recipe, heard, runs)
        print(show(f"{shown} on {_named(leader)}", table), flush=True)
        return {"errors": sum(finding.state == ERROR for finding in table)}

    with Requests() as requests, datagram_socket(place.address) as wire:
        try:
            place, answer = _meet(recipe, runs, place, wire, decide, requests, wait_seconds)
        except Apart as error:
            print(f"failed: {error}", file=sys.stderr)
            return _interrupted(requests) or FAILED
    if not place.leads:
        print(f"{place.called(0)} has the table: {answer['errors']} error(s)", file=sys.stderr)
    return REFUSED if answer["errors"] else FINISHED


def _meet(recipe, runs, place, wire, decide, requests, wait_seconds) -> tuple[Place, dict]:
    """`meet`, with this node's findings, and with a file in the runs folder that node 0 must see."""
    found = findings(recipe, runs, place, git_state())
    probe = runs / f".meeting-{secrets.token_hex(8)}"
    with contextlib.suppress(OSError):  # a finding says so
        runs.mkdir(parents=True, exist_ok=True)
        probe.touch()
    try:
        said = {"findings": found, "probe": probe.name, "wire": wire.getsockname()}
        return meet(recipe, place, said, decide, lambda: bool(requests.received), wait_seconds, _say)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _named(place: Place) -> str:
    return ", ".join(place.called(number) for number in range(len(place.hosts)))


def _table(recipe: dict, heard: list[dict], runs: Path) -> list[Finding]:
    """The findings of all nodes as one, and whether they see the same runs folder."""
    names = [f"node {number} ({node['host']})" for number, node in enumerate(heard)]
    found = [[Finding(*finding) for finding in node["findings"]] for node in heard]
    table = together(list(zip(names, found, strict=True)))
    unseen = [name for name, node in zip(names, heard, strict=True) if not (runs / node["probe"]).exists()]
    if unseen:
        table.append(
            Finding("runs folder", f"{runs} of {', '.join(unseen)} is not that of {names[0]}", ERROR,
                    "checkpoints and the record need storage that all nodes see: --runs names a folder there")
        )  # fmt: skip
    return table


def _await_folder(folder: RunFolder) -> None:
    end = time.monotonic() + APPEAR_SECONDS
    while not folder.manifest_path.exists() and time.monotonic() < end:
        os.scandir(folder.path.parent if folder.path.parent.exists() else ".").close()  # makes NFS look again
        time.sleep(0.2)


def _interrupted(requests: Requests) -> int | None:
    """The exit code of a launcher that a signal has ended before there was a run."""
    if not requests.received:
        return None
    return 128 + signal.SIGINT if signal.SIGINT in requests.received else AGAIN
