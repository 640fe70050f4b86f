"""The server arm with its real server, without a GPU: whole runs, and every way in which one can end early."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from safetensors import safe_open

from launch.recipe import ROOT
from record import read_lines
from tests.real_runs import folder_of, launch, launch_command, wait_until

RECIPE = "recipes/tiny_server.yaml"
SHORT = ("grpo.max_steps=3", "grpo.per_device_train_batch_size=16", "grpo.max_completion_length=24")
LONG = ("grpo.max_steps=500", "grpo.per_device_train_batch_size=64", "data.eval_split=null")
END_SECONDS = 30  # from the fault to the end of everything
LOG_PROB_TOLERANCE = 1e-3  # tests/training/test_runs.py says why


# Two ranks and a server of two workers: every group has more than one member on each side.
TWO_AND_TWO = (
    "cluster.gpus_per_node=2", "cluster.server.gpus_per_node=2", "cluster.server.tensor_parallel_size=2",
    "grpo.per_device_train_batch_size=8", "data.eval_split=null",
)  # fmt: skip


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return launch(RECIPE, tmp_path_factory.mktemp("runs"), [*SHORT, *TWO_AND_TWO])


@pytest.mark.slow
def test_the_record_says_how_the_server_was_started(outcome):
    assert outcome.code == 0, outcome.output
    server = outcome.run.manifest["server"]
    assert server["weight_transfer"] == "gloo"
    assert server["healthy_seconds"] > 0
    assert server["url"].startswith("http://127.0.0.1:")
    assert "--trust-remote-code" not in server["command"]


@pytest.mark.slow
def test_a_server_of_two_workers_gets_the_weights_of_two_ranks(outcome):
    """The tiny model's head is tied to its embedding, so this is also a test of repack_heads."""
    assert all(row["sampling/sampling_logp_difference/max"] < LOG_PROB_TOLERANCE for row in outcome.run.metrics)
    assert len({row["sentinel/limit"] for row in outcome.run.train_steps()}) > 1


@pytest.mark.slow
def test_the_servers_busy_time_is_in_the_record_and_agrees_with_what_its_client_saw(outcome):
    run = outcome.run
    client = {
        phase: sum(row["seconds"] for row in run.phases[0] if row["phase"] == phase) for phase in ("generate", "sync")
    }
    for phase, limit_seconds in (("generate", client["generate"]), ("sync", client["sync"])):
        busy = sum(row["seconds"] for row in run.server_phases if row["phase"] == phase)
        assert 0 < busy <= limit_seconds + 0.05, phase
        assert busy > 0.3 * limit_seconds, phase
    ends = [row["start_unix_seconds"] + row["seconds"] for row in run.server_phases]
    assert all(row["start_unix_seconds"] >= end - 1e-3 for row, end in zip(run.server_phases[1:], ends, strict=False))


def begin(runs: Path, overrides=LONG, **environment) -> subprocess.Popen:
    return subprocess.Popen(
        launch_command(RECIPE, runs, overrides), cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def steps(runs: Path, count: int):
    folder = folder_of(runs)
    return folder and (folder / "metrics.jsonl").exists() and len(read_lines(folder / "metrics.jsonl")[0]) >= count


def named(launcher: subprocess.Popen, *parts: str) -> psutil.Process | None:
    """The launcher's descendant whose command line has one of the parts, the guard aside."""
    for process in psutil.Process(launcher.pid).children(recursive=True):
        line = " ".join(process.cmdline())
        if "launch.guard" not in line and any(part in line for part in parts):
            return process
    return None


def front_end(launcher):
    return named(launcher, "vllm.entrypoints")


def engine_worker(launcher):
    return named(launcher, "VLLM::Worker") or named(launcher, "VLLM::EngineCore")


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


class Ending:
    """Ends what a test starts with it, and checks that nothing else had to."""

    def __init__(self, launcher: subprocess.Popen, runs: Path):
        self.launcher, self.runs = launcher, runs
        self.family = psutil.Process(launcher.pid).children(recursive=True)
        self.since = time.monotonic()

    def check(self, code: int, status: str) -> tuple[str, str]:
        """Waits for the end. Returns the output and the recorded cause."""
        output, _ = self.launcher.communicate(timeout=END_SECONDS)
        assert time.monotonic() - self.since < END_SECONDS
        assert self.launcher.returncode == code, output
        assert running(self.family) == []
        folder = folder_of(self.runs)
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["exit"]["status"] == status, manifest["exit"]
        if (folder / "metrics.jsonl").exists():
            assert read_lines(folder / "metrics.jsonl")[1] == 0
        return output, manifest["exit"]["cause"]


def generating(launcher, runs: Path) -> bool:
    url = json.loads((folder_of(runs) / "manifest.json").read_text())["server"]["url"]
    with urllib.request.urlopen(url + "/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return any(line.startswith("vllm:num_requests_running") and float(line.split()[-1]) > 0 for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [front_end, engine_worker])
def test_a_server_killed_while_generating_ends_the_job(tmp_path, victim):
    launcher = begin(tmp_path)
    wait_until(lambda: steps(tmp_path, 1), 240, "first step")
    process = victim(launcher)
    wait_until(lambda: generating(launcher, tmp_path), 60, "generation")
    ending = Ending(launcher, tmp_path)
    process.kill()
    output, cause = ending.check(1, "failed")
    assert cause.startswith("the vLLM server")
    assert cause in output
    last_lines = [line for line in output.splitlines() if line.startswith("  | ")]
    assert last_lines, "the server's last lines"
    assert not any("leaked" in line for line in last_lines), "the noise of its teardown"


@pytest.mark.slow
def test_a_server_killed_while_syncing_ends_the_job(tmp_path):
    with safe_open(ROOT / "tiny" / "checkpoint" / "model.safetensors", "pt") as checkpoint:
        tensors = len(checkpoint.keys())
    syncing = tmp_path / "syncing"
    launcher = begin(
        tmp_path, PYTHONPATH=str(ROOT / "tests" / "training" / "slow_sync"), SYNCING_FILE=str(syncing),
        TENSORS_UNTIL_SLOW=str(tensors),
    )  # fmt: skip
    wait_until(syncing.exists, 240, "sync of the second step")
    ending = Ending(launcher, tmp_path)
    engine_worker(launcher).kill()
    _, cause = ending.check(1, "failed")
    assert cause.startswith("the vLLM server")


@pytest.mark.slow
def test_a_server_killed_before_it_is_healthy_ends_the_job(tmp_path):
    launcher = begin(tmp_path)
    process = wait_until(lambda: front_end(launcher), 30, "server")
    time.sleep(3)
    ending = Ending(launcher, tmp_path)
    process.kill()
    output, cause = ending.check(1, "failed")
    assert cause == "the vLLM server died (killed by SIGKILL)"
    assert "ranks started" not in output


@pytest.mark.slow
def test_a_server_that_takes_too_long_ends_the_job(tmp_path):
    launcher = begin(tmp_path, [*LONG, "grpo.vllm_server_timeout=3"])
    wait_until(lambda: front_end(launcher), 30, "server")
    _, cause = Ending(launcher, tmp_path).check(1, "failed")
    assert cause.startswith("the vLLM server was not healthy within 3 s")


@pytest.mark.slow
def test_a_trainer_that_is_killed_takes_the_server_along(tmp_path):
    launcher = begin(tmp_path)
    wait_until(lambda: steps(tmp_path, 1), 240, "first step")
    rank = named(launcher, "-m training")
    ending = Ending(launcher, tmp_path)
    rank.kill()
    _, cause = ending.check(1, "failed")
    assert "-9" in cause


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["starting", "training"])
def test_ctrl_c_takes_the_server_along(tmp_path, moment):
    launcher = begin(tmp_path)
    if moment == "starting":
        wait_until(lambda: front_end(launcher), 30, "server")
        time.sleep(5)
    else:
        wait_until(lambda: steps(tmp_path, 1), 240, "first step")
    ending = Ending(launcher, tmp_path)
    os.killpg(launcher.pid, signal.SIGINT)
    _, cause = ending.check(130, "interrupted")
    assert cause == "stopped by SIGINT"


@pytest.mark.slow
def test_a_launcher_that_is_killed_takes_the_server_along(tmp_path):
    launcher = begin(tmp_path)
    wait_until(lambda: steps(tmp_path, 1), 240, "first step")
    family = psutil.Process(launcher.pid).children(recursive=True)
    assert any("VLLM" in " ".join(process.cmdline()) for process in family)
    launcher.kill()
    launcher.wait()

    wait_until(lambda: running(family) == [], END_SECONDS, "end of all processes")


def test_a_taken_port_is_refused_before_anything_is_made(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = launch(RECIPE, tmp_path / "runs", [*SHORT, f"cluster.server.port={port}"])
    assert outcome.code == 2
    assert f"cluster.server.port = {port}" in outcome.output
    assert "mend:" in outcome.output
    assert not (tmp_path / "runs").exists()
