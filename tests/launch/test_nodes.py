"""Runs on two hosts (tests/hosts.py), started with launch/multinode.sh on each; and what a node finds out about its place."""

import json
import os
import socket
import subprocess
import sys

import psutil
import pytest

from analysis.load import load_run
from launch.nodes import Misplaced, addresses, gpus_of, hosts_fit, hosts_given, node_count, place_here, serves
from launch.recipe import ROOT, load
from tests.hosts import Hosts
from tests.real_runs import SHORT, sets, wait_until

TWO_NODES = ("cluster.nodes=2", "cluster.gpus_per_node=1")
LOG_PROB_TOLERANCE = 1e-3  # tests/training/test_runs.py says why


@pytest.fixture(scope="module")
def hosts():
    with Hosts() as made:
        yield made


class Started:
    """A run on both hosts; each writes its output to a file of its own."""

    def __init__(self, hosts: Hosts, folder, recipe: str, overrides, port: int):
        self.hosts, self.runs = hosts, folder / "runs"
        self.logs = [folder / f"node{number}.log" for number in range(2)]
        variables = {"PYTHON": sys.executable, "MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": str(port)}
        command = ["bash", "launch/multinode.sh", recipe, *sets(overrides), "--runs", str(self.runs)]
        self.processes = []
        for number in (1, 0):  # the first node comes last: the other waits for it
            with open(self.logs[number], "wb") as log:
                started = hosts.start(number, command, stdout=log, stderr=subprocess.STDOUT, env=variables)
                self.processes.insert(0, started)

    def output(self, number: int) -> str:
        return self.logs[number].read_text()

    def end(self, seconds: float) -> list[int]:
        return [process.wait(seconds) for process in self.processes]

    @property
    def folder(self):
        return next((path.parent for path in self.runs.glob("*/*/manifest.json")), None)

    def manifest(self) -> dict:
        return json.loads((self.folder / "manifest.json").read_text())

    def steps(self, count: int) -> bool:
        assert all(process.poll() is None for process in self.processes), self.output(0) + self.output(1)
        metrics = self.folder and self.folder / "metrics.jsonl"
        return bool(metrics) and metrics.exists() and len(metrics.read_text().splitlines()) >= count


def assert_finished(run: Started) -> None:
    assert run.end(400) == [0, 0], run.output(0) + run.output(1)
    manifest = run.manifest()
    assert manifest["exit"] == {"status": "finished", "cause": None}
    assert manifest["nodes"] == run.hosts.names
    record = load_run(run.folder)
    assert record.torn_lines == 0
    assert [row["step"] for row in record.train_steps()] == [1, 2, 3]
    assert all(row["sampling/sampling_logp_difference/max"] < LOG_PROB_TOLERANCE for row in record.metrics)
    for number in range(2):
        assert run.hosts.processes(number) == []
    # one table and one account of the progress, on the first node
    assert "preflight: " in run.output(0)
    assert "0 error(s)" in run.output(0)
    assert "step 3/3" in run.output(0)
    assert "preflight: " not in run.output(1)
    assert "step 3/3" not in run.output(1)
    assert f"node 1 (host {run.hosts.names[1]}) of 2" in run.output(1)


@pytest.mark.slow
def test_zero3_and_one_engine_over_two_hosts(hosts, tmp_path):
    overrides = [*SHORT, *TWO_NODES, "cluster.tensor_parallel_spans_nodes=true"]
    run = Started(hosts, tmp_path, "recipes/tiny_zero3_tp2.yaml", overrides, 29510)
    assert_finished(run)
    assert sorted(load_run(run.folder).phases) == [0, 1]
    command = run.manifest()["command"]
    assert f"--rdzv-id {run.folder.name}" in command
    for number in range(2):
        assert (run.folder / "logs" / f"node{number}" / "torchrun.log").exists()
    assert not list((run.folder / "logs").glob("node0/*/attempt_0/1")), "the second rank's logs are the second node's"


@pytest.mark.slow
def test_a_server_on_a_node_of_its_own(hosts, tmp_path):
    server = "cluster.server={nodes: 1, gpus_per_node: 1, tensor_parallel_size: 1}"
    overrides = [*SHORT, "grpo.per_device_train_batch_size=16", "data.eval_split=null", server]
    run = Started(hosts, tmp_path, "recipes/tiny_server.yaml", overrides, 29520)
    assert_finished(run)
    assert run.manifest()["server"]["url"].startswith(f"http://{hosts.addresses[1]}:")
    assert run.manifest()["server"]["healthy_seconds"] > 0
    record = load_run(run.folder)
    assert sorted(record.phases) == [0]
    assert {row["phase"] for row in record.server_phases} == {"generate", "sync"}
    assert not (run.folder / "logs" / "node1").exists()


@pytest.mark.slow
def test_a_rank_that_is_killed_on_one_host_ends_both_with_its_cause(hosts, tmp_path):
    overrides = [*SHORT, *TWO_NODES, "grpo.max_steps=100000", "data.eval_split=null"]
    run = Started(hosts, tmp_path, "recipes/tiny_generate.yaml", overrides, 29530)
    wait_until(lambda: run.steps(2), 240, "step 2")
    (rank,) = hosts.find(1, "-u", "training", str(run.folder))
    rank.kill()
    assert run.end(60) == [1, 1]
    cause = "rank 1 was killed by SIGKILL (exit code -9)"
    assert run.manifest()["exit"] == {"status": "failed", "cause": cause}
    for number in range(2):
        assert f"failed: {cause}" in run.output(number)
        assert hosts.processes(number) == []
    assert load_run(run.folder).torn_lines == 0


def multinode(*arguments, **variables) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if name not in ("MASTER_ADDR", "HOSTS", "HOSTFILE")}
    return subprocess.run(
        ["bash", "launch/multinode.sh", *arguments], cwd=ROOT, env=kept | {"PYTHON": sys.executable} | variables,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_nodes_that_were_given_different_recipes_find_out_when_they_meet(tmp_path):
    """Two launchers on this host: no leave is needed for that."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1] - 1
    started = []
    for number in (1, 0):
        recipe = ["recipes/tiny_colocate.yaml", *sets([*TWO_NODES, f"grpo.seed={number}"])]
        variables = {
            "PYTHON": sys.executable,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(port),
            "NODE_RANK": str(number),
        }
        started.append(
            subprocess.Popen(["bash", "launch/multinode.sh", *recipe, "--runs", str(tmp_path / "runs")], cwd=ROOT,
                             env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )  # fmt: skip
    second, first = (process.communicate(timeout=200)[0] for process in started)
    assert [process.returncode for process in started] == [2, 2], first + second
    assert "differs between the nodes: start all nodes with the same recipe" in first
    assert "refused by node 0" in second
    assert "differs between the nodes" in second
    assert list((tmp_path / "runs").iterdir()) == [], "no record, and no left-over of the meeting"


def test_an_engine_over_two_hosts_needs_the_recipes_leave(tmp_path):
    done = multinode(
        "recipes/tiny_zero3_tp2.yaml", *sets(TWO_NODES), "--runs", str(tmp_path / "runs"), MASTER_ADDR="127.0.0.1"
    )
    assert done.returncode == 2
    assert "cluster.tensor_parallel_spans_nodes: true" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_run_on_several_nodes_says_how_to_start_it_where_nothing_says_where_they_are():
    done = multinode("recipes/tiny_colocate.yaml", *sets([*TWO_NODES, "grpo.per_device_train_batch_size=8"]))
    assert done.returncode == 2
    for word in ("Slurm", "HOSTS=a,b,c", "MASTER_ADDR"):
        assert word in done.stderr


def test_the_dry_run_prints_what_a_person_would_paste_on_every_node():
    done = multinode("recipes/qwen72b_colocate.yaml", "--dry-run", MASTER_PORT="29600")
    assert done.returncode == 0, done.stderr
    assert "4 node(s), 32 H100-80GB GPUs: 32 training ranks, 2 colocated engines, TP 16" in done.stdout
    assert "GPU-hours: about " in done.stdout
    assert "sbatch --nodes=4 --gpus-per-node=8 launch/slurm.sbatch recipes/qwen72b_colocate.yaml" in done.stdout
    for number in range(4):
        assert f"# node {number} (NODE{number}): ranks {8 * number} to {8 * number + 7}" in done.stdout
        assert f"export MASTER_ADDR=NODE0 MASTER_PORT=29600 NODE_RANK={number}" in done.stdout
        assert f"--nnodes 4 --node-rank {number} --rdzv-backend static --rdzv-endpoint NODE0:29600" in done.stdout
    assert done.stdout.count("export NCCL_SOCKET_IFNAME=") == 1, "what is the same on all nodes is said once"


def test_the_dry_run_of_the_server_arm_says_which_node_serves():
    done = multinode("recipes/qwen72b_server.yaml", "--dry-run", HOSTS="a,b,c,d,e")
    assert done.returncode == 0, done.stderr
    assert "5 node(s), 40 H100-80GB GPUs" in done.stdout
    assert "# node 3 (d): ranks 24 to 31" in done.stdout
    assert "# node 4 (e): the vLLM server, 8 GPUs" in done.stdout
    assert "vllm.entrypoints.openai.api_server" in done.stdout.partition("# node 4")[2]


@pytest.mark.parametrize("hosts", ["a,b", "a,b,c,d,e"])
def test_another_number_of_hosts_than_the_recipes_is_refused(hosts):
    done = multinode("recipes/qwen72b_colocate.yaml", "--dry-run", HOSTS=hosts)
    assert done.returncode == 2
    assert "the recipe needs 4 (cluster.nodes = 4)" in done.stderr


def test_help_needs_no_recipe_and_nothing_is_a_mistake():
    assert "usage:" in multinode("--help").stdout
    assert multinode().returncode == 2


def test_node_counts_and_roles_follow_from_the_recipe():
    colocated, served, beside = (load(ROOT / "recipes" / f"{name}.yaml") for name in
                                 ("qwen72b_colocate", "qwen72b_server", "tiny_server"))  # fmt: skip
    assert [node_count(recipe) for recipe in (colocated, served, beside)] == [4, 5, 1]
    assert [serves(served, number) for number in range(5)] == [False] * 4 + [True]
    assert gpus_of(beside, 0) == 2


def test_a_hostfile_is_read_as_mpiruns_are(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("a slots=8\n# a comment\n\nb\n")
    assert hosts_given({"HOSTFILE": str(file)}) == ("HOSTFILE", ["a", "b"])
    with pytest.raises(Misplaced, match="cannot be read"):
        hosts_given({"HOSTFILE": str(tmp_path / "none")})
    assert hosts_given({}) is None


def test_an_ssh_option_is_no_host():
    recipe = load(ROOT / "recipes" / "tiny_colocate.yaml", ["cluster.nodes=2"])
    assert [problem.value for problem in hosts_fit(recipe, ("HOSTS", ["a", "-oProxyCommand=x"]))] == [
        "-oProxyCommand=x"
    ]


def test_the_place_of_a_node_is_that_of_its_route_to_the_master():
    here = addresses()
    place = place_here({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "3000", "NODE_RANK": "1"})
    assert (place.address, place.interface, place.is_master) == ("127.0.0.1", "lo", True)
    assert (place.master_port, place.meeting_port, place.wish) == (3000, 3001, 1)
    for name, address in here.items():
        found = place_here({"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": name})
        assert (found.address, found.interface) == (address, name), "a person's own choice"
    assert psutil.net_if_addrs().keys() >= here.keys()


@pytest.mark.parametrize(
    ("variables", "field"),
    [
        ({}, "cluster.nodes"),
        ({"MASTER_ADDR": "no.such.host.invalid"}, "MASTER_ADDR"),
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "65535"}, "MASTER_PORT"),
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "http"}, "MASTER_PORT"),
        ({"MASTER_ADDR": "127.0.0.1", "NODE_RANK": "-1"}, "NODE_RANK"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused_by_name(variables, field):
    with pytest.raises(Misplaced) as refused:
        place_here(variables)
    assert refused.value.problem.field == field
