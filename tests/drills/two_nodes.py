"""A run on two hosts of this machine (tests/hosts.py), for the drills."""

import subprocess
import sys
from pathlib import Path

import psutil

from tests.drills.drill import OVERRIDES, Job
from tests.drills.scenarios import Scenario
from tests.hosts import Hosts
from tests.real_runs import sets

MASTER_PORT = 29500


class TwoNodes(Job):
    """Two launchers, each with one rank: the same surface as Job's. The second host is the one that is struck."""

    def __init__(self, scenario: Scenario, runs: Path, environment: dict[str, str] | None = None):
        self.runs, self.log = runs, runs.parent / f"{runs.name}.log"
        self.frozen = 1 if (scenario.target, scenario.fault) == ("node", "SIGSTOP") else None
        self.hosts = Hosts().__enter__()
        overrides = [*OVERRIDES, "cluster.nodes=2", "cluster.gpus_per_node=1"]
        command = ["bash", "launch/multinode.sh", "recipes/tiny_colocate.yaml", "--runs", str(runs)]
        command += sets(overrides)
        variables = {"PYTHON": sys.executable, "MASTER_ADDR": self.hosts.addresses[0], "MASTER_PORT": str(MASTER_PORT)}
        self.launchers = []
        for number in (0, 1):
            with open(self.log, "ab") as log:
                started = self.hosts.start(
                    number, command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                    env=variables | (environment or {}),
                )  # fmt: skip
            self.launchers.append(started)

    def launcher(self, number: int) -> psutil.Process:
        return next(p for p in self.hosts.processes(number) if "launch" in p.cmdline() and "run" in p.cmdline())

    def node(self) -> list[psutil.Process]:
        return self.hosts.processes(1)

    def cut(self) -> None:
        self.hosts.cut()

    def left(self) -> list[psutil.Process]:
        return [process for number in (0, 1) if number != self.frozen for process in self.hosts.processes(number)]

    def over(self) -> bool:
        watched = [launcher for number, launcher in enumerate(self.launchers) if number != self.frozen]
        return all(launcher.poll() is not None for launcher in watched) and not self.left()

    def code(self) -> int | None:
        """The first node's: it concludes the record. The second may have been struck."""
        return self.launchers[0].poll()

    def clear(self) -> None:
        self.hosts.__exit__()
