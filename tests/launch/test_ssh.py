"""launch/multinode.sh with HOSTS: over real sshds on two hosts (tests/hosts.py); and the far end's leash."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from launch.leash import matters
from launch.recipe import ROOT
from tests.hosts import Hosts, key, sshd
from tests.launch.test_nodes import TWO_NODES, Started
from tests.real_runs import SHORT, sets, wait_until

PORT = 2222


@pytest.fixture(scope="module")
def hosts():
    with Hosts() as made:
        yield made


@pytest.fixture(scope="module")
def options(hosts, tmp_path_factory):
    """SSH_OPTIONS with which both hosts can be reached."""
    folder = tmp_path_factory.mktemp("ssh")
    mine = key(folder)
    for number in range(2):
        sshd(hosts, folder, number, PORT, mine)
    wait_until(
        lambda: all("listening on" in (folder / f"sshd{number}" / "log").read_text() for number in range(2)),
        20,
        "sshds",
    )
    return f"-p {PORT} -i {mine} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"


class OverSsh(Started):
    """The same run, started once, on the first host."""

    def __init__(self, hosts: Hosts, folder, recipe: str, overrides, options: str, named: list[str] | None = None):
        self.hosts, self.runs = hosts, folder / "runs"
        self.logs = [folder / "all.log"] * 2
        variables = {"PYTHON": sys.executable, "HOSTS": ",".join(named or hosts.addresses), "SSH_OPTIONS": options,
                     "VLLM_LOGGING_LEVEL": "ERROR"}  # fmt: skip
        command = ["bash", "launch/multinode.sh", recipe, *sets(overrides), "--runs", str(self.runs)]
        with open(self.logs[0], "wb") as log:
            self.processes = [hosts.start(0, command, stdout=log, stderr=subprocess.STDOUT, env=variables)]

    def ours(self, *words: str) -> list:
        """Processes of the run on both hosts; the sshds aside."""
        return [process for number in range(2) for process in self.hosts.find(number, str(self.runs), *words)]


@pytest.mark.slow
def test_one_command_runs_the_recipe_on_both_hosts(hosts, options, tmp_path):
    run = OverSsh(hosts, tmp_path, "recipes/tiny_colocate.yaml", [*SHORT, *TWO_NODES], options)
    assert run.end(400) == [0], run.output(0)
    manifest = run.manifest()
    assert manifest["exit"]["status"] == "finished"
    assert manifest["nodes"] == hosts.names
    assert manifest["environment"]["VLLM_LOGGING_LEVEL"] == "ERROR", "what matters of the environment goes along"
    assert run.output(0).count("preflight: ") == 1
    assert "step 3/3" in run.output(0)
    assert run.ours() == []


@pytest.mark.slow
@pytest.mark.parametrize("end", ["Ctrl-C", "the script is killed"])
def test_the_far_ends_go_with_the_script(hosts, options, tmp_path, end):
    """While the nodes meet, so that it costs little: a node that is not there keeps the other waiting."""
    run = OverSsh(hosts, tmp_path, "recipes/tiny_colocate.yaml", [*SHORT, *TWO_NODES], options, hosts.addresses)
    wait_until(lambda: "meeting 1 other node(s)" in run.output(0), 60, "meeting")
    assert len(run.ours("launch.leash", "launch")) >= 2
    script = run.processes[0]
    if end == "Ctrl-C":
        os.killpg(script.pid, signal.SIGINT)
        assert script.wait(60) == 130
    else:
        script.kill()
    wait_until(lambda: run.ours() == [], 60, "end of all processes")
    assert run.folder is None or run.manifest()["exit"]["status"] == "interrupted"


@pytest.mark.slow
def test_a_host_that_cannot_be_reached_ends_the_others(hosts, options, tmp_path):
    nobody = hosts.addresses[1].rpartition(".")[0] + ".3"  # the net's broadcast address
    run = OverSsh(
        hosts, tmp_path, "recipes/tiny_colocate.yaml", [*SHORT, *TWO_NODES], options, [hosts.addresses[0], nobody]
    )
    assert run.end(60) != [0]
    assert f"the ssh to {nobody} has ended" in run.output(0)
    assert run.ours() == []


def leash(*command: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "launch.leash", *command], cwd=ROOT, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE)  # fmt: skip


# Says who it is, then the name of the first signal.
LISTENER = (
    "import os, signal, sys, time\n"
    "def told(number, frame): print(signal.Signals(number).name, flush=True); os._exit(7)\n"
    "for name in ('SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1'): signal.signal(getattr(signal, name), told)\n"
    "print(os.environ['HF_TOKEN'], flush=True)\n"
    "time.sleep(60)"
)


@pytest.mark.parametrize(
    ("word", "name"), [(b"SIGUSR1\n", b"SIGUSR1"), (b"nonsense\nSIGINT\n", b"SIGINT"), (None, b"SIGHUP")]
)
def test_the_leash_brings_the_environment_passes_signals_on_and_ends_with_its_holder(word, name):
    held = leash(sys.executable, "-c", LISTENER)
    held.stdin.write(json.dumps({"HF_TOKEN": "secret of the near end"}).encode() + b"\n")
    held.stdin.flush()
    assert held.stdout.readline() == b"secret of the near end\n"
    if word is None:
        held.stdin.close()
    else:
        held.stdin.write(word)
        held.stdin.flush()
    assert held.stdout.readline().strip() == name
    assert held.wait(20) == 7
    held.stdout.close()


def test_a_leash_that_nobody_holds_starts_nothing():
    held = leash(sys.executable, "-c", "print('started')")
    out, _ = held.communicate()
    assert (held.returncode, out) == (128 + signal.SIGHUP, b"")


def test_a_leash_that_is_killed_takes_its_command_along():
    held = leash(sys.executable, "-c", LISTENER)
    held.stdin.write(b'{"HF_TOKEN": "x"}\n')
    held.stdin.flush()
    held.stdout.readline()
    held.kill()
    assert held.stdout.readline() == b"SIGTERM\n"
    held.communicate()


def test_only_what_matters_of_the_environment_leaves_the_host():
    mine = {"HF_TOKEN": "t", "NCCL_DEBUG": "INFO", "MASTER_ADDR": "a", "HOME": "/root", "PATH": "/bin", "AWS_SECRET": "s",
            "HOSTNAME": socket.gethostname()}  # fmt: skip
    assert matters(mine) == {"HF_TOKEN": "t", "NCCL_DEBUG": "INFO", "MASTER_ADDR": "a"}
