"""A real Slurm of two nodes for the tests: munged, slurmctld and two slurmd on the hosts of tests/hosts.py, all of its own."""

import secrets
import subprocess
from pathlib import Path

from tests.hosts import Hosts, program
from tests.real_runs import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={names[0]}({addresses[0]})
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerType=sched/backfill
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait=30
NodeName={names[0]} NodeAddr={addresses[0]} CPUs=2 RealMemory=1000
NodeName={names[1]} NodeAddr={addresses[1]} CPUs=2 RealMemory=1000
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A cluster on two hosts; commands run on the first."""

    def __init__(self, hosts: Hosts, folder: Path):
        self.hosts, self.folder = hosts, folder
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self):
        for name in PROGRAMS:
            program(name)
        self.folder.chmod(0o755)
        for name in ("state", *(f"spool-{host}" for host in self.hosts.names)):
            (self.folder / name).mkdir()
        (self.folder / "key").write_bytes(secrets.token_bytes(128))
        (self.folder / "key").chmod(0o400)
        text = CONFIGURATION.format(folder=self.folder, names=self.hosts.names, addresses=self.hosts.addresses)
        (self.folder / "slurm.conf").write_text(text)
        self._daemon(0, "munged", "--foreground", "--force", "--num-threads=2",
                     *(f"--{what}-file={self.folder}/{what}" for what in ("key", "log", "pid", "seed")),
                     f"--socket={self.folder}/munge.socket")  # fmt: skip
        wait_until((self.folder / "munge.socket").exists, 20, "munged")
        self._daemon(0, "slurmctld", "-D")
        for number in range(2):
            self._daemon(number, "slurmd", "-D", "-N", self.hosts.names[number])
        wait_until(lambda: self.run("sinfo", "-h", "-o", "%T %D").stdout.strip() == "idle 2", 60, "two idle nodes")
        return self

    def __exit__(self, *_):
        """The hosts end what runs on them (Hosts.__exit__)."""

    def _daemon(self, number: int, name: str, *arguments: str) -> None:
        with open(self.folder / f"{name}-{number}.out", "wb") as log:
            command = [program(name), *arguments]
            self.hosts.start(number, command, stdout=log, stderr=subprocess.STDOUT, env=self.variables)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess:
        """A command of Slurm on the first host."""
        process = self.hosts.start(0, list(command), env=self.variables | variables, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)  # fmt: skip
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` says."""
        shown = self.run("scontrol", "--oneliner", "show", "job", number).stdout
        return dict(field.split("=", 1) for field in shown.split() if "=" in field)
