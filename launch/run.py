"""Starts a checked recipe, follows its record, and sees to it that nothing is left when it ends."""

import ctypes
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

import psutil

from launch.command import command, environment
from launch.derived import derive
from launch.progress import Progress
from launch.recipe import ROOT, recipe_hash
from launch.resume import disk_is_full, launcher, locked, take_up
from launch.roofline import work_of
from launch.server import Server, trainer_environment
from launch.stalled import StoppedProcesses
from launch.stopping import AGAIN, Ending, Requests
from record import RunFolder, utc_now
from record.provenance import git_state

FINISHED, FAILED, REFUSED = 0, 1, 2
TERMINATE_SECONDS = 25  # torchrun itself kills a rank that does not follow after 15 (launch/command.py)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def make_run_folder(recipe: dict, runs: Path, overrides: list[str]) -> RunFolder:
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
    variables = environment(recipe, path)
    folder.update(
        recipe=recipe,
        recipe_hash=recipe_hash(recipe),
        overrides=overrides,
        derived=derive(recipe),
        work=work_of(recipe),
        seed=recipe["grpo"]["seed"],
        argv=sys.argv,
        command=shlex.join(command(recipe, path)),
        environment={name: value for name, (value, _) in variables.items()}
        | {
            name: os.environ[name]
            for name in os.environ
            if name.startswith(("NCCL_", "GLOO_", "VLLM_", "OMP_", "ACCELERATE_"))
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
    folder = resumed or make_run_folder(recipe, runs, overrides)
    with locked(folder) as lock:
        if resumed:
            step = take_up(folder, git_state())
            print(f"resuming {folder.path} from step {step} (--fresh starts anew)", flush=True)
        else:
            print(f"run record: {folder.path}", flush=True)
        return _run(recipe, folder, lock), folder


def _run(recipe: dict, folder: RunFolder, lock: int) -> int:
    progress = Progress(folder, recipe)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # a rank whose parent dies becomes ours, and is found below
    server = Server(recipe, folder) if recipe["recipe"]["arm"] == "server" else None
    ranks = None
    with Requests() as requests:
        ending = Ending(folder, progress, requests, [StoppedProcesses(), *([server.failure] if server else [])])
        try:
            if server is None or _await_server(server, progress, ending):
                ranks = _start_ranks(recipe, folder, server, lock)
                if server:
                    server.watch()
                _follow(ranks, progress, ending)
            if server:  # a rank that lost its server may have told torchrun before the server was looked at
                ending.cause = ending.cause or server.failure()
        finally:
            if server:
                server.stop()
            _stop_descendants(grace_seconds=0 if ending.kill else 2 if ending.cause else 10)
            progress.follow()
            progress.close()
    return _conclude(folder, ranks.returncode if ranks else None, ending, server)


def _follow(ranks: subprocess.Popen, progress: Progress, ending: Ending) -> None:
    """Until the ranks have left; bounded in time once they have been told to."""
    told_at = None
    while ranks.poll() is None:
        progress.follow()
        if ending.wanted():
            if told_at is None:
                ranks.terminate()
                told_at = time.monotonic()
            if ending.kill or time.monotonic() - told_at > TERMINATE_SECONDS:
                break
        time.sleep(0.2)


def _await_server(server: Server, progress: Progress, ending: Ending) -> bool:
    """Starts the server and waits for it. False if it failed, or if the person has had enough."""
    server.start()
    progress.say(f"vLLM server starting on {server.url}")
    while not ending.wanted():
        if server.healthy():
            progress.say("vLLM server healthy")
            return True
        time.sleep(0.2)
    return False


def _start_ranks(recipe: dict, folder: RunFolder, server: Server | None, lock: int) -> subprocess.Popen:
    variables = {name: value for name, (value, _) in environment(recipe, folder.path).items()}
    if server:
        variables |= trainer_environment(recipe, server.host)
    with open(folder.logs_path / "torchrun.log", "wb") as log:
        return subprocess.Popen(
            command(recipe, folder.path), cwd=ROOT, env=os.environ | variables, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock],
            start_new_session=True,  # a Ctrl-C reaches the launcher alone, which stops the ranks in order
            preexec_fn=_die_with_parent,  # noqa: PLW1509, no thread runs yet
        )  # fmt: skip


def _die_with_parent() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm may send it to every process: it is for the launcher
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _stop_descendants(grace_seconds: float) -> None:
    """Waits for what torchrun left (wandb's uploader, for one), then ends it."""
    alive = psutil.Process().children(recursive=True)
    _, alive = psutil.wait_procs(alive, timeout=grace_seconds)
    for stop in ("terminate", "kill"):
        for child in alive:
            try:
                getattr(child, stop)()
            except psutil.NoSuchProcess:
                continue
        _, alive = psutil.wait_procs(alive, timeout=5)


def _conclude(folder: RunFolder, returncode: int | None, ending: Ending, server: Server | None) -> int:
    """Gives the record its exit status where the ranks could not, and says what happened."""
    status = folder.manifest()["exit"]["status"]
    if status == "finished":
        if returncode:
            print(
                f"warning: the run finished, then a rank crashed on its way out (exit code {returncode})",
                file=sys.stderr,
            )
        return FINISHED
    if status == "interrupted":
        cause = folder.manifest()["exit"]["cause"]
        print(f"interrupted, {cause}; the same command resumes from there: {folder.path}", file=sys.stderr)
        return AGAIN
    if ending.exit_code is not None:
        _finish(folder, "interrupted", f"stopped by {ending.signal_name}")
        print(f"interrupted; the record holds every finished step: {folder.path}", file=sys.stderr)
        return ending.exit_code
    errors = folder.errors()
    refused = False
    if ending.cause:  # what the ranks then say only follows from it
        errors, cause = [], ending.cause
    elif not errors and (full := disk_is_full(folder)):
        cause = full
    elif killed := killed_rank(folder):
        errors, cause = [], killed
    elif errors:
        cause = f"rank {errors[0]['rank']}: {errors[0]['kind']}: {errors[0]['message']}"
        refused = errors[0]["kind"] == "Refused"
    else:
        cause = f"torchrun ended with exit code {returncode}"
    _finish(folder, "failed", cause)
    print(f"failed: {cause}", file=sys.stderr)
    if not refused:
        if server and server.cause:
            shown = server.last_lines()
        else:
            shown = errors[0]["traceback"].splitlines() if errors else _log_lines(folder)
        print("\n".join(f"  | {line}" for line in shown[-12:]), file=sys.stderr)
        print(f"  the ranks' logs: {folder.logs_path}", file=sys.stderr)
    return REFUSED if refused else FAILED


def _finish(folder: RunFolder, status: str, cause: str) -> None:
    try:
        folder.finish(status, cause)
    except OSError as error:  # a full disk: what happened is said all the same
        print(f"warning: {error.filename}: {error.strerror}: the record stays without its exit status", file=sys.stderr)


def killed_rank(folder: RunFolder) -> str | None:
    """torchrun's own word on a rank that a signal ended (the out-of-memory killer's, for one): it leaves no error behind,
    and what the other ranks then say of lost connections only follows from it. torchrun's root cause may be such a
    follower: it goes by whole seconds."""
    text = (folder.logs_path / "torchrun.log").read_text(errors="replace")
    closed_by_torchrun = set(re.findall(r"Sending process (\d+) closing signal", text))
    killed = [
        (int(rank), signal.Signals(int(number)))
        for rank, number, pid in re.findall(r"rank +: (\d+) [^\n]*\n +exitcode +: -(\d+) \(pid: (\d+)\)", text)
        if pid not in closed_by_torchrun
    ]
    # a watchdog that misses a peer aborts its own rank: the word of a follower too
    killed.sort(key=lambda entry: entry[1] == signal.SIGABRT)
    if killed and (killed[0][1] != signal.SIGABRT or not folder.errors()):
        rank, number = killed[0]
        return f"rank {rank} was killed by {number.name} (exit code -{number.value})"
    return None


def _log_lines(folder: RunFolder) -> list[str]:
    """The lines of the rank's log that was written to last."""
    logs = [log for log in folder.logs_path.rglob("std*.log") if log.stat().st_size]
    return max(logs, key=lambda log: log.stat().st_mtime).read_text(errors="replace").splitlines() if logs else []
