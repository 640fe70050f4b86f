"""The seam to vLLM's weight transfer and TRL's client: fails when a new version moves what training/gloo_transfer.py and
training/server_client.py stand on. tests/training/test_server.py runs it all."""

import inspect
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from trl.generation.vllm_client import VLLMClient
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.utils import network_utils

from training.gloo_transfer import BACKEND, GlooWeightTransferEngine, broadcast, join
from training.server_client import GlooClient, NcclClient, address_towards


def test_vllm_finds_the_engine_by_its_name_and_asks_it_for_what_it_defines():
    assert BACKEND in WeightTransferEngineFactory._registry
    assert WeightTransferEngine.__abstractmethods__ == {
        "init_transfer_engine", "start_weight_update", "finish_weight_update", "receive_weights", "shutdown",
    }  # fmt: skip
    assert not GlooWeightTransferEngine.__abstractmethods__
    for name in (*WeightTransferEngine.__abstractmethods__, "update_weights"):
        theirs = list(inspect.signature(getattr(WeightTransferEngine, name)).parameters)
        assert list(inspect.signature(getattr(GlooWeightTransferEngine, name)).parameters) == theirs


def test_the_one_step_left_out_of_vllms_own_update_is_the_accelerators():
    source = inspect.getsource(WeightTransferEngine.update_weights)
    body = [line.strip() for line in source.split('"""')[2].splitlines() if line.strip() and "#" not in line]
    assert body == [
        "typed_update_info = self.parse_update_info(update_info)",
        "self.receive_weights(typed_update_info)",
        "torch.accelerator.synchronize()",
    ]


@pytest.mark.parametrize("client", [GlooClient, NcclClient])
def test_the_clients_replace_methods_that_trl_calls_with_the_same_arguments(client):
    own = [name for name, value in vars(client).items() if inspect.isfunction(value) and hasattr(VLLMClient, name)]
    assert "init_communicator" in own
    for name in own:
        theirs = list(inspect.signature(getattr(VLLMClient, name)).parameters)
        assert list(inspect.signature(getattr(client, name)).parameters) == theirs
    for name in ("_post", "_start_weight_update", "_finish_weight_update", "get_world_size", "close_communicator"):
        assert callable(getattr(VLLMClient, name))


def test_trl_announces_the_address_and_port_that_the_nccl_client_sets(monkeypatch):
    source = inspect.getsource(VLLMClient.init_communicator)
    assert '"master_address": get_ip()' in source
    assert '"master_port": self.group_port' in source
    monkeypatch.setenv("VLLM_HOST_IP", "192.0.2.7")
    assert network_utils.get_ip() == "192.0.2.7"


def test_the_way_to_a_server_on_this_host_is_the_loopback_interface():
    assert address_towards("http://127.0.0.1:8000") == "127.0.0.1"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_a_broadcast_brings_every_type_over_bit_for_bit(dtype):
    sent = torch.randn(3, 5).to(dtype)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with ThreadPoolExecutor(2) as pool:
        sender = pool.submit(join, "127.0.0.1", port, 0, 2, listener.detach())
        receiver = pool.submit(join, "127.0.0.1", port, 1, 2)
        received = torch.empty(3, 5, dtype=dtype)
        works = [broadcast(sender.result(), sent), broadcast(receiver.result(), received)]
        for work in works:
            work.wait()
    assert torch.equal(sent.view(torch.uint8), received.view(torch.uint8))
