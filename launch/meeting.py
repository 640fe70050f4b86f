"""The nodes meet before a run starts: each says what it has found, node 0 decides, and all get its answer.

The talking is a small torchrun job over all nodes (training/meet.py; c10d rendezvous at MASTER_ADDR, the port after
MASTER_PORT, gloo), so that the rendezvous and the network interface are tried before any engine loads.
"""

import contextlib
import dataclasses
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from launch.children import die_with_parent, end_descendants
from launch.environment import environment
from launch.nodes import Place, node_count
from launch.recipe import ROOT
from record import read_json, write_json

WAIT_SECONDS = 600  # for the other nodes to come
_NAME = "colocate-grpo-meeting"


class Apart(Exception):
    """The nodes have not met; the message says why, and what to look at."""


def meet(
    recipe: dict, place: Place, said: dict, decide: Callable[[Place, list[dict]], dict], stopped: Callable[[], bool],
    wait_seconds: float = WAIT_SECONDS, say: Callable[[str], None] = print,
) -> tuple[Place, dict]:  # fmt: skip
    """This node's place with its number, and the answer of node 0.

    Args:
        said: goes to all nodes (JSON).
        decide: gets node 0's place and what the nodes have said, by number; its answer (JSON) goes to all. Called on node 0
            alone.
        stopped: whether the person has had enough.

    Raises:
        Apart: a node is missing, was lost, or cannot be reached; or the person has had enough.
    """
    count = node_count(recipe)
    said = said | {"token": secrets.token_hex(8), "host": socket.gethostname(), "address": place.address,
                   "is_master": place.is_master, "wish": place.wish}  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="meeting-"))
    job = None
    try:
        write_json(folder / "said.json", said)
        # several launchers on the master's host (as when Slurm is tried on one machine): the first one's
        hosting = place.is_master and (place.wish in (None, 0) or not _answers(place, patience_seconds=10))
        if not hosting:
            _await_master(place, stopped, wait_seconds, say)
        job = _start(recipe, place, folder, count, wait_seconds, hosting)
        say(f"meeting {count - 1} other node(s) at {place.master_address}:{place.meeting_port}")
        heard = _await(folder / "heard.json", job, folder, place, stopped)
        ordered = in_order(heard)
        number = next(index for index, other in enumerate(ordered) if other["token"] == said["token"])
        place = dataclasses.replace(place, number=number, hosts=tuple(other["host"] for other in ordered))
        if place.leads:
            write_json(folder / "decision.json", decide(place, ordered))
        answer = _await(folder / "answer.json", job, folder, place, stopped)
        with contextlib.suppress(subprocess.TimeoutExpired):  # all have the answer; what is left of it is ended below
            job.wait(20)
        return place, answer
    finally:
        if job and job.poll() is None:
            job.terminate()
        end_descendants(grace_seconds=5)
        shutil.rmtree(folder, ignore_errors=True)


def in_order(heard: list[dict]) -> list[dict]:
    """What the nodes have said, by their numbers: those that people or Slurm gave them, if these are 0, 1, 2 and so on; else
    the master first and the others as torchrun ranked them."""
    if sorted(node["wish"] if node["wish"] is not None else -1 for node in heard) == list(range(len(heard))):
        return sorted(heard, key=lambda node: node["wish"])
    return sorted(heard, key=lambda node: not node["is_master"])


def _start(recipe, place, folder, count, wait_seconds, hosting) -> subprocess.Popen:
    conf = f"is_host={int(hosting)},read_timeout=30,join_timeout={max(30, int(wait_seconds))},last_call_timeout=1"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", str(count), "--nproc-per-node", "1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{place.master_address}:{place.meeting_port}", "--rdzv-id", _NAME,
        "--rdzv-conf", conf, "--local-addr", place.address, "-m", "training.meet", str(folder),
    ]  # fmt: skip
    variables = {name: value for name, (value, _) in environment(recipe, None, place).items()}
    variables |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    with open(folder / "log", "wb") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=os.environ | variables, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=die_with_parent,  # noqa: PLW1509, no thread runs yet
        )  # fmt: skip


def _answers(place: Place, patience_seconds: float) -> bool:
    end = time.monotonic() + patience_seconds
    while time.monotonic() < end:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((place.master_address, place.meeting_port), timeout=3),
        ):
            return True
        time.sleep(0.2)
    return False


def _await_master(place: Place, stopped, wait_seconds: float, say) -> None:
    """Until the master's port answers: torchrun would say less about what it is waiting for."""
    end, told, why = time.monotonic() + wait_seconds, False, None
    while time.monotonic() < end:
        if stopped():
            raise Apart("stopped while waiting for the other nodes")
        try:
            with socket.create_connection((place.master_address, place.meeting_port), timeout=3):
                return
        except OSError as error:
            why = error
        if not told:
            say(f"waiting for the first node at {place.master_address}:{place.meeting_port} ({why})")
            told = True
        time.sleep(0.5)
    raise Apart(
        f"the first node did not answer at {place.master_address}:{place.meeting_port} within {wait_seconds:.0f} s ({why}).\n"
        f"  mend: start the launcher there too; MASTER_ADDR must be its address, and its ports {place.master_port} and "
        f"{place.meeting_port} open to the other nodes"
    )


def _await(path: Path, job: subprocess.Popen, folder: Path, place: Place, stopped):
    while not path.exists():
        if stopped():
            raise Apart("stopped during the meeting")
        if job.poll() is not None and not path.exists():
            raise Apart(_why(folder, place))
        time.sleep(0.05)
    return read_json(path)


def _why(folder: Path, place: Place) -> str:
    log = (folder / "log").read_text(errors="replace")
    if "EADDRINUSE" in log or "address already in use" in log.lower():
        why = f"somebody listens on port {place.meeting_port} here already; mend: another MASTER_PORT, on every node"
    elif "RendezvousTimeoutError" in log:
        why = "not all nodes came in time; mend: start the launcher on every node, with the same MASTER_ADDR and MASTER_PORT"
    else:
        why = (
            f"a node left, or cannot be reached on the interface {place.interface} ({place.address}); mend: look at the other "
            "nodes' words, at the firewall between them, and set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME if it is another "
            "interface"
        )
    lines = [line for line in log.splitlines() if line.strip()][-6:]
    return "\n".join([f"the nodes have not met: {why}", *(f"  | {line}" for line in lines)])
