"""The table of environment variables: what a run gets, what the page says, and what of a person's own is refused."""

import importlib.metadata
import sys

import pytest

from launch.environment import NOT_SET, README, TABLE, broken, environment, markdown, plain_interface
from launch.nodes import Place
from launch.recipe import ROOT, load

TINY, LARGE = (ROOT / "recipes" / f"{name}.yaml" for name in ("tiny_colocate", "qwen72b_colocate"))
PLACE = Place("10.0.0.1", 29500, "10.0.0.2", "eth7", False, None, 1, ("a", "b"))


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for variable in TABLE:
        monkeypatch.delenv(variable.name, raising=False)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def values(recipe, place=None) -> dict[str, str]:
    return {name: value for name, (value, _) in environment(recipe, None, place).items()}


def test_the_page_says_what_the_table_says():
    assert README.read_text() == markdown(), "run: python -m launch variables --write"
    for variable in TABLE:
        assert f"`{variable.name}`" in markdown()
        assert all(variable[2:]), f"{variable.name}: a word is missing"
    assert len({variable.name for variable in TABLE}) == len(TABLE)
    assert all(name in markdown() for name, _ in NOT_SET)


def test_on_one_node_without_a_gpu_gloo_stays_on_the_loopback():
    found = values(load(TINY))
    assert found["GLOO_SOCKET_IFNAME"] == "lo"
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert not any(name.startswith(("NCCL_", "TORCH_NCCL")) for name in found)


def test_on_several_nodes_gloo_nccl_and_vllm_take_the_way_to_the_master():
    found = values(load(LARGE), PLACE)
    assert found["GLOO_SOCKET_IFNAME"] == found["NCCL_SOCKET_IFNAME"] == "eth7"
    assert found["VLLM_HOST_IP"] == "10.0.0.2"
    assert found["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in found
    assert "NCCL_SOCKET_IFNAME" not in values(load(TINY), PLACE)


def test_what_deepspeed_compiles_stays_in_the_environment_that_it_was_compiled_for(monkeypatch, tmp_path):
    sharded, plain = load(ROOT / "recipes" / "tiny_zero3_tp2.yaml"), load(TINY)
    for prefix in (tmp_path / "a", tmp_path / "b"):
        prefix.mkdir()
        monkeypatch.setattr(sys, "prefix", str(prefix))
        assert values(sharded)["TORCH_EXTENSIONS_DIR"] == str(prefix / "torch_extensions")
        assert "TORCH_EXTENSIONS_DIR" not in values(plain)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert "TORCH_EXTENSIONS_DIR" not in values(sharded), "torch's own folder where the system's Python is used"


def test_a_persons_own_value_wins(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert "GLOO_SOCKET_IFNAME" not in values(load(LARGE), PLACE)


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
@pytest.mark.parametrize(("version", "refused"), [("0.25.1", True), ("0.31.0", False)])
def test_expandable_segments_are_refused_where_sleep_mode_breaks_on_them(monkeypatch, name, version, refused):
    installed = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda p: version if p == "vllm" else installed(p))
    monkeypatch.setenv(name, "max_split_size_mb:512,expandable_segments:True")
    asleep = load(LARGE)
    assert asleep["grpo"]["vllm_enable_sleep_mode"]
    assert [problem.field for problem in broken(asleep, False)] == ([name] if refused else [])
    awake = load(LARGE, ["grpo.vllm_enable_sleep_mode=false"])
    assert list(broken(awake, False)) == []


def test_a_watchdog_that_is_switched_off_is_refused_on_gpus(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    assert [problem.field for problem in broken(load(LARGE), True)] == ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
    assert list(broken(load(TINY), False)) == []


@pytest.mark.parametrize(("value", "refused"), [("eth77", True), ("lo", False), ("^docker", False), ("eth", False)])
def test_an_interface_that_is_not_there_is_refused_on_several_nodes(monkeypatch, value, refused):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", value)
    assert [problem.field for problem in broken(load(LARGE), True)] == (["NCCL_SOCKET_IFNAME"] if refused else [])
    assert list(broken(load(LARGE), False)) == []


def test_lists_prefixes_and_exclusions_are_no_single_interface():
    assert plain_interface("lo")
    assert plain_interface("eth0")
    assert not any(map(plain_interface, ("", "^lo", "eth", "eth0,eth1", "=eth0:1")))
