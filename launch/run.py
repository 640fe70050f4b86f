"""Starts a checked recipe, follows its record, and sees to it that nothing is left when it ends."""

import contextlib
import os
import platform
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil

from launch.children import adopt_orphans, die_with_parent, end_descendants
from launch.command import command, environment, node_logs
from launch.conclude import conclude, hear_verdict
from launch.derived import derive
from launch.nodes import Place, serves
from launch.peers import Peers
from launch.progress import Progress
from launch.recipe import ROOT, recipe_hash
from launch.resume import launcher, locked, take_up
from launch.roofline import work_of
from launch.server import Server, trainer_environment
from launch.stalled import StoppedProcesses
from launch.stopping import Ending, Requests
from record import RunFolder, utc_now
from record.provenance import git_state

TERMINATE_SECONDS = 25  # torchrun itself kills a rank that does not follow after 15 (launch/environment.py)
LOST_SECONDS = 3


def make_run_folder(recipe: dict, runs: Path, overrides: list[str], place: Place | None = None) -> RunFolder:
    """Makes runs/<recipe>/<utc>-<sha7>-s<seed>/ with the manifest as far as it is known before the start.

    Raises:
        OSError: the folder cannot be made or written.
    """
    git = git_state()
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    name = f"{stamp}-{(git['commit'] or 'nogit')[:7]}-s{recipe['grpo']['seed']}"
    path, suffix = runs / recipe["name"] / name, 1
    while path.exists():
        suffix += 1
        path = runs / recipe["name"] / f"{name}-{suffix}"
    path.mkdir(parents=True)
    folder = RunFolder(path)
    folder.logs_path.mkdir()
    variables = environment(recipe, path, place)
    folder.update(
        recipe=recipe,
        recipe_hash=recipe_hash(recipe),
        overrides=overrides,
        derived=derive(recipe),
        work=work_of(recipe),
        seed=recipe["grpo"]["seed"],
        argv=sys.argv,
        command=shlex.join(command(recipe, path, place)),
        nodes=list(place.hosts) if place else None,
        environment={name: value for name, (value, _) in variables.items()}
        | {
            name: os.environ[name]
            for name in os.environ
            if name.startswith(("NCCL_", "GLOO_", "VLLM_", "OMP_", "ACCELERATE_", "COLOCATE_"))
        },
        git=git,
        wandb_id=uuid.uuid4().hex[:16],
        host={"machine": platform.machine(), "cpus": os.cpu_count(), "memory_bytes": psutil.virtual_memory().total},
        start=utc_now(),
    )
    folder.begin_attempt(from_step=0, checkpoint=None, git=git, changed={}, launcher=launcher())
    return folder


def run(recipe: dict, runs: Path, overrides: list[str], resumed: RunFolder | None = None) -> tuple[int, RunFolder]:
    """Runs a checked recipe to its end, or takes a run of it up again. Returns the exit code (0 finished, 1 failed, 2 refused
    by a rank before any engine, 75 stopped so that the same command resumes, 130 interrupted) and the run's folder. No process
    that it started is alive afterwards.

    Args:
        resumed: what launch.resume.unfinished gave.

    Raises:
        OSError: the run's folder cannot be made or written.
        StillGoing: another launcher has just taken it up.
    """
    with opened(recipe, runs, overrides, resumed) as (folder, lock):
        return follow(recipe, folder, lock), folder


@contextlib.contextmanager
def opened(
    recipe: dict, runs: Path, overrides: list[str], resumed: RunFolder | None, place: Place | None = None
) -> Iterator[tuple[RunFolder, int]]:
    """The run's folder, new or taken up again, and its lock (launch/resume.py, locked).

    Raises:
        OSError: the run's folder cannot be made or written.
        StillGoing: another launcher has just taken it up.
    """
    folder = resumed or make_run_folder(recipe, runs, overrides, place)
    with locked(folder) as lock:
        if resumed:
            # sections from after its start; the hash is the same, so that they decide nothing (launch/recipe.py, recipe_hash)
            folder.update(recipe=recipe | folder.manifest()["recipe"])
            step = take_up(folder, git_state())
            print(f"resuming {folder.path} from step {step} (--fresh starts anew)", flush=True)
        else:
            print(f"run record: {folder.path}", flush=True)
        yield folder, lock


def follow(recipe: dict, folder: RunFolder, lock: int | None, peers: Peers | None = None) -> int:
    """Starts what this node has to carry of a run, and follows it to its end. Returns the exit code.

    Args:
        lock: the run's lock, for its ranks to hold too; None on a node that does not lead.
        peers: the other nodes, if there are any.
    """
    place = peers.place if peers else None
    serving = place is not None and serves(recipe, place.number)
    progress = Progress(folder, recipe, silent=place is not None and not place.leads)
    adopt_orphans()
    server = _server_here(recipe, folder, peers)
    ranks = None
    with Requests() as requests:
        watches = [StoppedProcesses(), *([server.failure] if server else []), *([peers.look] if peers else [])]
        ending = Ending(folder, progress, requests, watches)
        try:
            host = _await_server(recipe, folder, server, peers, progress, ending)
            if host is not None and not serving:
                ranks = _start_ranks(recipe, folder, host, lock, place)
            if server and server.cause is None:
                server.watch()
            if ranks:
                _follow(ranks, progress, ending, peers)
            while serving and not ending.wanted() and not peers.over():
                time.sleep(0.2)
            if server:  # a rank that lost its server may have told torchrun before the server was looked at
                ending.cause = ending.cause or server.failure()
        finally:
            if server:
                server.stop()
            end_descendants(grace_seconds=0 if ending.kill else 2 if ending.cause else 10)
            progress.follow()
            progress.close()
    returncode = ranks.returncode if ranks else None
    if peers is None:
        return conclude(folder, returncode, ending, server)
    if not place.leads:
        return hear_verdict(folder, returncode, ending, peers)
    if folder.manifest()["exit"]["status"] == "running":
        stopped = f"stopped by {ending.signal_name}" if ending.exit_code is not None else None
        peers.ending(ending.cause or stopped or "its ranks have ended", sure=False)
        peers.settle()
    code = conclude(folder, returncode, ending, server, peers)
    peers.close(code, folder.manifest()["exit"]["cause"])
    return code


def _server_here(recipe: dict, folder: RunFolder, peers: Peers | None) -> Server | None:
    """The server of a run in the server arm, if this node carries it."""
    if recipe["recipe"]["arm"] != "server":
        return None
    if peers is None:
        return Server(recipe, folder)
    if not serves(recipe, peers.place.number):
        return None
    return Server(recipe, folder, peers.place, tell=lambda facts: peers.say(server=facts))


def _follow(ranks: subprocess.Popen, progress: Progress, ending: Ending, peers: Peers | None) -> None:
    """Until the ranks have left; bounded in time once they have been told to. Those that wait for a lost node's will not."""
    told_at = None
    while ranks.poll() is None:
        progress.follow()
        if ending.wanted():
            if told_at is None:
                ranks.terminate()
                told_at = time.monotonic()
            patience = LOST_SECONDS if peers and peers.lost() else TERMINATE_SECONDS
            if ending.kill or time.monotonic() - told_at > patience:
                break
        time.sleep(0.2)


def _await_server(
    recipe: dict, folder: RunFolder, server: Server | None, peers: Peers | None, progress: Progress, ending: Ending
) -> str | None:
    """Starts the server, if this node carries it, and waits for it wherever it is. Returns its host, "" in the other arms; None
    if it failed, or if the person has had enough."""
    if recipe["recipe"]["arm"] != "server":
        return ""
    if server:
        server.start()
        progress.say(f"vLLM server starting on {server.url}")
    while not ending.wanted():
        if server and server.healthy():
            progress.say("vLLM server healthy")
            return server.host
        facts = peers.server() if peers and not server else None
        if facts and facts["healthy_seconds"] is not None:
            if peers.place.leads:  # one launcher writes the manifest
                folder.update(server=facts)
                progress.say(f"vLLM server healthy on {facts['url']}")
            if (folder.manifest().get("server") or {}).get("url") == facts["url"]:  # of this attempt
                return facts["host"]
        time.sleep(0.2)
    return None


def _start_ranks(
    recipe: dict, folder: RunFolder, server: str, lock: int | None, place: Place | None
) -> subprocess.Popen:
    variables = {name: value for name, (value, _) in environment(recipe, folder.path, place).items()}
    if server:
        variables |= trainer_environment(recipe, server)
    logs = node_logs(folder.path, place)
    logs.mkdir(exist_ok=True)
    with open(logs / "torchrun.log", "wb") as log:
        return subprocess.Popen(
            command(recipe, folder.path, place), cwd=ROOT, env=os.environ | variables, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock] if lock is not None else [],
            start_new_session=True,  # a Ctrl-C reaches the launcher alone, which stops the ranks in order
            preexec_fn=die_with_parent,  # noqa: PLW1509, no thread runs yet
        )  # fmt: skip
