"""The nodes of a run: how many a recipe needs, which are there, and this node's place among them.

A node is told where the others are in one of three ways: MASTER_ADDR (and MASTER_PORT) set by a person on each, by srun, or
over ssh; launch/multinode.sh has all three. From there on it is the same: the nodes meet (launch/meeting.py), then torchrun.
"""

import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from launch.problems import Problem

DEFAULT_PORT = 29500  # torchrun's own


@dataclass(frozen=True)
class Place:
    """This node's place in a run on several nodes. `number` is None until the nodes have met; servers have the last ones."""

    master_address: str  # numeric, since names need not resolve
    master_port: int  # of the training's rendezvous; the meeting has the next one
    address: str  # this node's, on the way to the master
    interface: str
    is_master: bool
    wish: int | None  # the number that a person or Slurm gave it
    number: int | None = None
    hosts: tuple[str, ...] = ()  # by number

    @property
    def meeting_port(self) -> int:
        return self.master_port + 1

    @property
    def likely_number(self) -> int:
        """Before the meeting: the number that it is about to get; 0, a training node's, where nothing says which."""
        return self.number if self.number is not None else self.wish or 0

    @property
    def leads(self) -> bool:
        """Node 0 makes the run's folder, shows the progress and concludes the record."""
        return self.number == 0

    def called(self, number: int) -> str:
        return f"node {number} (host {self.hosts[number]})"


def node_count(recipe: dict) -> int:
    """Training nodes, and the server's own."""
    cluster, server = recipe["cluster"], recipe["cluster"]["server"]
    return cluster["nodes"] + (server["nodes"] if server and not server["on_training_node"] else 0)


def serves(recipe: dict, number: int) -> bool:
    """Whether this node carries the server: the last ones do."""
    return number >= recipe["cluster"]["nodes"]


def gpus_of(recipe: dict, number: int) -> int:
    """GPUs that the run uses on a node (ranks, where it is for CPUs)."""
    cluster, server = recipe["cluster"], recipe["cluster"]["server"]
    if serves(recipe, number):
        return server["gpus_per_node"]
    return cluster["gpus_per_node"] + (server["gpus_per_node"] if server and server["on_training_node"] else 0)


def addresses() -> dict[str, str]:
    """This host's interfaces and their IPv4 addresses."""
    return {
        name: found.address
        for name, entries in psutil.net_if_addrs().items()
        for found in entries
        if found.family == socket.AF_INET
    }


def route_to(address: str) -> str:
    """This host's own address on the way to another. Connecting a datagram socket sends nothing.

    Raises:
        OSError: there is no way.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return probe.getsockname()[0]


class Misplaced(Exception):
    """The environment does not say where the nodes are, or says it wrongly; `problem` tells the person."""

    def __init__(self, problem: Problem):
        self.problem = problem
        super().__init__(str(problem))


def place_here(variables: Mapping[str, str] = os.environ) -> Place:
    """This node's place, from MASTER_ADDR, MASTER_PORT, and NODE_RANK or SLURM_NODEID.

    The interface is the one that GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME name, or else that of the route to the master.

    Raises:
        Misplaced: they are not set, or mean nothing here.
    """
    name = variables.get("MASTER_ADDR")
    if not name:
        raise Misplaced(
            Problem(
                "cluster.nodes",
                None,
                "this run is for several nodes, and nothing says where they are",
                "bash launch/multinode.sh RECIPE: inside a Slurm allocation, with HOSTS=a,b,c (ssh), or on every node with "
                "MASTER_ADDR set to the first one's address; or --shrink, which runs it on this machine without a GPU",
            )
        )
    port = _number(variables, "MASTER_PORT", DEFAULT_PORT, range(1, 65535))
    wishes = [_number(variables, variable, None, range(10**6)) for variable in ("NODE_RANK", "SLURM_NODEID")]
    wish = next((number for number in wishes if number is not None), None)
    here = addresses()
    try:
        master = _resolved(name)
        mine = route_to(master)
        if mine.startswith("127.") and name != master and not name.startswith("localhost"):
            mine = master = _outward(here) or mine  # Debian's /etc/hosts maps a host's own name to the loopback
    except OSError as error:
        mend = "an address, or a name that resolves on every node"
        raise Misplaced(Problem("MASTER_ADDR", name, f"no way there from this node ({error})", mend)) from None
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if variables.get(variable) in here:
            mine = here[variables[variable]]
            break
    interface = next((interface for interface, address in here.items() if address == mine), "lo")
    return Place(master, port, mine, interface, master in here.values() or master.startswith("127."), wish)


def _resolved(name: str) -> str:
    """The numeric address of a host. Slurm may know one where no name service does (NodeAddr in its configuration).

    Raises:
        OSError: nobody knows it.
    """
    try:
        return socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except OSError:
        shown = _scontrol("--oneliner", "show", "node", name) if "SLURM_JOB_ID" in os.environ else ""
        if not (found := re.search(r"NodeAddr=(\S+)", shown)) or found[1] == name:
            raise
        return socket.getaddrinfo(found[1], None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]


def _scontrol(*arguments: str) -> str:
    """What Slurm's scontrol says.

    Raises:
        OSError: it is not there, or fails.
    """
    try:
        return subprocess.run(["scontrol", *arguments], capture_output=True, text=True, check=True).stdout
    except subprocess.CalledProcessError as error:
        raise OSError(f"`scontrol {' '.join(arguments)}` failed: {error.stderr.strip()}") from error


def _outward(here: dict[str, str]) -> str | None:
    """This host's address on the default route, or its only one that is not the loopback's."""
    try:
        return route_to("192.0.2.1")  # TEST-NET-1, which nobody has
    except OSError:
        others = [address for address in here.values() if not address.startswith("127.")]
        return others[0] if len(others) == 1 else None


def _number(variables: Mapping[str, str], name: str, default: int | None, allowed: range) -> int | None:
    text = variables.get(name)
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) not in allowed:
        rule = f"must be a whole number from {allowed.start} to {allowed.stop - 1}"
        raise Misplaced(Problem(name, text, rule, f"correct it, or unset it ({default})"))
    return int(text)


def hosts_given(variables: Mapping[str, str] = os.environ) -> tuple[str, list[str]] | None:
    """How the nodes were named, and their names: (HOSTS, HOSTFILE or the Slurm job, hosts); None if they were not.

    Raises:
        Misplaced: the file or the list cannot be read.
    """
    if text := variables.get("HOSTS"):
        return "HOSTS", [host.strip() for host in text.split(",") if host.strip()]
    if name := variables.get("HOSTFILE"):
        try:
            lines = Path(name).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise Misplaced(Problem("HOSTFILE", name, f"cannot be read ({error})", "one host a line")) from None
        words = [line.partition("#")[0].split() for line in lines]  # mpirun's slots=8 and the like may follow
        return "HOSTFILE", [found[0] for found in words if found]
    if variables.get("SLURM_JOB_NODELIST") and variables.get("SLURM_JOB_ID"):
        nodes = variables["SLURM_JOB_NODELIST"]
        try:
            return f"Slurm job {variables['SLURM_JOB_ID']}", _scontrol("show", "hostnames", nodes).split()
        except OSError as error:
            raise Misplaced(Problem("SLURM_JOB_NODELIST", nodes, str(error), "look at Slurm")) from None
    return None


def hosts_fit(recipe: dict, given: tuple[str, list[str]]) -> Iterator[Problem]:
    """Whether the named hosts are those that the recipe needs."""
    how, hosts = given
    needed = node_count(recipe)
    if len(hosts) != needed:
        parts = f"cluster.nodes = {recipe['cluster']['nodes']}"
        if needed != recipe["cluster"]["nodes"]:
            parts += f" and cluster.server.nodes = {recipe['cluster']['server']['nodes']}"
        yield Problem(
            how,
            ",".join(hosts),
            f"names {len(hosts)} node(s), and the recipe needs {needed} ({parts})",
            f"give it {needed}, or --set cluster.nodes (another batch then: `python -m launch show` says which)",
        )
    for host in hosts:
        if host.startswith("-"):
            yield Problem(how, host, "is an option, not a host", "correct it")
