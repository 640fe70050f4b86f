"""The trainer's end of the server arm: TRL's client (trl/generation/vllm_client.py, 1.16.0) with a group that it opens on the
way to the server, over NCCL as TRL does it or over gloo (training/gloo_transfer.py)."""

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from urllib.parse import urlsplit

import torch
from trl.generation.vllm_client import VLLMClient

from training.gloo_transfer import broadcast, join


def address_towards(base_url: str) -> str:
    """This host's address on the way to the server: the loopback address if the server is there."""
    target = urlsplit(base_url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # connecting a datagram socket sends nothing
        probe.connect((target.hostname, target.port))
        return probe.getsockname()[0]


class NcclClient(VLLMClient):
    """TRL's own client. Its group listens where the server can reach it, on a port that is free now: TRL's fixed 51216 may be
    taken by another run, and the address that vLLM guesses may be of an interface that the server does not see."""

    def init_communicator(self, device=0):
        os.environ["VLLM_HOST_IP"] = address_towards(self.base_url)  # what TRL announces (vllm get_ip)
        with socket.create_server((os.environ["VLLM_HOST_IP"], 0)) as free:
            self.group_port = free.getsockname()[1]
        super().init_communicator(device)


class GlooClient(VLLMClient):
    """Sends weights over gloo, from whatever device the trainer computes on."""

    def init_communicator(self, device=0):
        host = address_towards(self.base_url)
        listener = socket.create_server((host, 0))
        port = listener.getsockname()[1]
        world_size = self.get_world_size() + 1
        info = {"host": host, "port": port, "world_size": world_size}
        answer = self._post_aside("init_weight_transfer_engine", {"init_info": info})
        self.communicator = join(host, port, 0, world_size, listening=listener.detach())
        answer.result()

    def update_named_params(
        self, metadata: list[tuple[str, str, list[int]]], named_params: Iterator[tuple[str, torch.Tensor]]
    ):
        """Sends the tensors of `named_params`, which are those of `metadata` (name, type, shape) in its order.

        Raises:
            Exception: the server refused them, or its connection broke.
        """
        names, dtype_names, shapes = (list(field) for field in zip(*metadata, strict=True))
        self._start_weight_update()
        info = {"names": names, "dtype_names": dtype_names, "shapes": shapes}
        answer = self._post_aside("update_weights", {"update_info": info})
        for _, weight in named_params:
            work = broadcast(self.communicator, weight.detach().to("cpu").contiguous())
            while (
                not work.is_completed()
            ):  # waiting in gloo itself would hear neither the server's refusal nor a signal
                if answer.done():
                    answer.result()
                time.sleep(1e-4)
            work.wait()
        answer.result()
        self._finish_weight_update()

    def close_communicator(self):
        self.communicator = None

    def _post_aside(self, route: str, body: dict) -> Future:
        """Posts in a thread: the server answers when it has what this thread is about to send."""
        pool = ThreadPoolExecutor(max_workers=1)
        answer = pool.submit(self._post, f"{self.base_url}/{route}", json=body)
        pool.shutdown(wait=False)
        return answer


CLIENTS = {"nccl": NcclClient, "gloo": GlooClient}
