"""Two hosts on this machine, for the tests: network namespaces joined by a veth pair, each with its own name and /dev/shm.

They share the file system, as the nodes of a cluster share their storage. No name resolves to the other host.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from launch.recipe import ROOT

PROGRAMS = ("ip", "nsenter", "unshare", "mount")
_SCRIPT = 'hostname "$0"; mount -t tmpfs -o size=2g none /dev/shm; exec "$@"'


class Hosts:
    """`names` and `addresses` of two hosts, and what is started on them."""

    made = 0  # by this process

    def __init__(self):
        number = (os.getpid() + 10_000 * Hosts.made) % 60_000
        Hosts.made += 1
        self.names = [f"h{number}a", f"h{number}b"]
        self.addresses = [f"10.{200 + number // 250 % 50}.{number % 250}.{last}" for last in (1, 2)]
        self._started: list[subprocess.Popen] = []

    def __enter__(self):
        if os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)):
            pytest.skip("two hosts need root and iproute2")
        if subprocess.run(["ip", "netns", "add", self.names[0]], check=False).returncode:
            pytest.skip("two hosts need leave to make network namespaces (a container may not have it)")
        _ip("netns", "add", self.names[1])
        for name in self.names:
            _ip("-n", name, "link", "set", "lo", "up")
        first, second = self.names
        _ip(*f"link add veth0 netns {first} type veth peer name veth0 netns {second}".split())
        for name, address in zip(self.names, self.addresses, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/30", "dev", "veth0")
            _ip("-n", name, "link", "set", "veth0", "up")
        return self

    def __exit__(self, *_):
        for number in range(2):
            self.end_all(number)
        for process in self._started:
            process.wait(20)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def start(self, number: int, command: list[str], **settings) -> subprocess.Popen:
        """Starts a command on host 0 or 1, in the repository's root."""
        settings = {"cwd": ROOT, "start_new_session": True} | settings
        # one thread a rank: each host would count this machine's cores as its own
        settings["env"] = os.environ | {"OMP_NUM_THREADS": "1"} | settings.get("env", {})
        # nsenter, not `ip netns exec`: that hides the control groups, which Slurm's daemons look for
        whole = [
            "nsenter",
            f"--net=/run/netns/{self.names[number]}",
            "unshare",
            "--uts",
            "--mount",
            "sh",
            "-c",
            _SCRIPT,
        ]
        process = subprocess.Popen([*whole, self.names[number], *command], **settings)
        self._started.append(process)
        return process

    def processes(self, number: int) -> list[psutil.Process]:
        """All that run on a host."""
        listed = subprocess.run(["ip", "netns", "pids", self.names[number]], capture_output=True, text=True, check=True)
        found = []
        for pid in listed.stdout.split():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(int(pid))
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def find(self, number: int, *words: str) -> list[psutil.Process]:
        """Those on a host with all of these words in their command line; a path may be a part of one."""
        found = []
        for process in self.processes(number):
            with contextlib.suppress(psutil.Error):  # it has just ended
                line = process.cmdline()
                if all(word in line or ("/" in word and word in " ".join(line)) for word in words):
                    found.append(process)
        return found

    def end_all(self, number: int) -> None:
        end = time.monotonic() + 20
        while (alive := self.processes(number)) and time.monotonic() < end:
            for process in alive:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            time.sleep(0.1)

    def cut(self) -> None:
        """Takes the link between the hosts away; what each has of its own stays."""
        _ip("-n", self.names[1], "link", "set", "veth0", "down")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def program(name: str) -> str:
    """The path of a program, of those for administrators too; skips the test where there is none."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"no {name}")
    return found


def key(folder: Path) -> Path:
    """A new ssh key without a passphrase."""
    path = folder / "key"
    subprocess.run([program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def sshd(hosts: Hosts, folder: Path, number: int, port: int, allowed: Path) -> subprocess.Popen:
    """A real sshd on a host, with a configuration of its own, for whoever holds the key."""
    mine = folder / f"sshd{number}"
    mine.mkdir()
    host_key = key(mine)
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on it
    configuration = mine / "sshd_config"
    configuration.write_text(
        f"Port {port}\nListenAddress {hosts.addresses[number]}\nHostKey {host_key}\nPidFile {mine}/pid\nUsePAM no\n"
        f"AuthorizedKeysFile {allowed}.pub\nPermitRootLogin prohibit-password\nStrictModes no\nPasswordAuthentication no\n"
        "UseDNS no\n"
    )
    log = open(mine / "log", "wb")  # noqa: SIM115, sshd's for its lifetime
    return hosts.start(number, [program("sshd"), "-D", "-e", "-f", str(configuration)], stdout=log, stderr=log)
