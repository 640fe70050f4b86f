"""What the launcher decides about a server before it starts one, and the guard that ends a server's family."""

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from launch.command import device_shares, environment
from launch.recipe import ROOT, load
from launch.server import (
    LOOPBACK,
    address,
    free_port,
    server_command,
    start_limit_seconds,
    trainer_environment,
    weight_transfer,
)
from launch.server_watch import busy_seconds
from tests.real_runs import wait_until

TINY, ONE_NODE, OWN_NODES = (
    ROOT / "recipes" / f"{name}.yaml" for name in ("tiny_server", "qwen7b_server", "qwen72b_server")
)


def test_the_server_listens_on_loopback_beside_the_trainers_and_on_a_named_interface_elsewhere():
    assert address(load(TINY)["cluster"]["server"]) == LOOPBACK
    elsewhere = load(OWN_NODES)["cluster"]["server"]
    assert address(elsewhere | {"interface": "lo"}) == LOOPBACK
    for interface in (None, "eth77"):
        with pytest.raises(ValueError, match=r"cluster.server.interface = .*this host has .*lo"):
            address(elsewhere | {"interface": interface})


def test_weights_go_over_nccl_where_there_are_gpus_unless_the_recipe_says_otherwise():
    assert weight_transfer(load(TINY)) == "gloo"
    assert weight_transfer(load(ONE_NODE)) == "nccl"
    assert weight_transfer(load(ONE_NODE, ["cluster.server.weight_transfer=gloo"])) == "gloo"


def test_remote_code_is_trusted_only_where_the_recipe_says_so():
    assert "--trust-remote-code" not in server_command(load(ONE_NODE), LOOPBACK, 1)
    assert "--trust-remote-code" in server_command(load(ONE_NODE, ["model.trust_remote_code=true"]), LOOPBACK, 1)


def test_the_start_limit_grows_with_the_model_and_yields_to_the_recipe():
    small, large = start_limit_seconds(load(TINY)), start_limit_seconds(load(OWN_NODES))
    assert 300 <= small < 301
    assert 1200 < large - 300 < 1600, "145 GB at 100 MB/s"
    assert start_limit_seconds(load(OWN_NODES, ["grpo.vllm_server_timeout=60"])) == 60


def test_ranks_and_server_share_no_device(monkeypatch):
    recipe = load(ONE_NODE)  # 7 + 1
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device_shares(recipe) == ("0,1,2,3,4,5,6", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9,8,7,6,5,4,3,2")
    assert device_shares(recipe) == ("9,8,7,6,5,4,3", "2")
    assert trainer_environment(recipe, LOOPBACK)["CUDA_VISIBLE_DEVICES"] == "9,8,7,6,5,4,3"


def test_without_a_gpu_ranks_and_server_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert environment(load(TINY))["OMP_NUM_THREADS"][0] == "4"


def test_the_way_to_the_server_takes_no_proxy_and_keeps_the_persons_exceptions(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.delenv("no_proxy", raising=False)
    found = trainer_environment(load(TINY), LOOPBACK)
    assert found["no_proxy"] == found["NO_PROXY"] == "example.org,127.0.0.1"


def test_a_free_port_is_free_and_not_one_that_the_kernel_hands_out():
    port = free_port(LOOPBACK)
    with socket.create_server((LOOPBACK, port)):
        assert port < 32_768


def test_busy_seconds_are_those_of_the_trainers_requests():
    metrics = "\n".join(
        [
            "# HELP http_request_duration_seconds Duration",
            'http_request_duration_seconds_sum{handler="/v1/completions",method="POST"} 2.5',
            'http_request_duration_seconds_sum{handler="/update_weights",method="POST"} 0.5',
            'http_request_duration_seconds_sum{handler="/finish_weight_update",method="POST"} 0.25',
            'http_request_duration_seconds_sum{handler="/metrics",method="GET"} 77.0',
            'http_request_duration_seconds_count{handler="/v1/completions",method="POST"} 9.0',
        ]
    )
    assert busy_seconds(metrics) == {"generate": 2.5, "sync": 0.75}


# A family like a server's: the guarded command starts a child that would outlive it, and ignores being asked to stop.
FAMILY = (
    "import signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)'])\n"
    "time.sleep(600)"
)


def alive(processes):
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def family_of(pid: int, count: int) -> list[psutil.Process]:
    def grown():
        found = psutil.Process(pid).children(recursive=True)
        return found if len(found) >= count else None

    return wait_until(grown, 20, "family")


@pytest.mark.parametrize("end", ["command killed", "guard asked to stop"])
def test_the_guard_ends_the_whole_family(end):
    guard = subprocess.Popen([sys.executable, "-m", "launch.guard", sys.executable, "-c", FAMILY], cwd=ROOT)
    family = family_of(guard.pid, 2)
    time.sleep(0.5)
    if end == "command killed":
        family[0].kill()
    else:
        guard.terminate()
    assert guard.wait(15) == 128 + signal.SIGKILL
    assert alive(family) == []


def test_the_guard_ends_the_family_when_its_own_parent_is_killed():
    parent = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-m', 'launch.guard', *sys.argv[1:]])",
         sys.executable, "-c", FAMILY], cwd=ROOT,
    )  # fmt: skip
    family = family_of(parent.pid, 3)
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    wait_until(lambda: alive(family) == [], 15, "end of the family")


def test_the_guard_passes_the_commands_exit_code_on():
    done = subprocess.run(
        [sys.executable, "-m", "launch.guard", sys.executable, "-c", "raise SystemExit(7)"], cwd=ROOT, check=False
    )
    assert done.returncode == 7
