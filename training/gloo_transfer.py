"""Weights from the trainer to a vLLM server over gloo, where there is no NCCL: on CPUs, or by choice of the recipe.

This is the server's end, a weight-transfer engine as vLLM defines them (vllm/distributed/weight_transfer/base.py, 0.31.0),
and the group that both ends join. The trainer's end is training/server_client.py. The server finds it through

    --worker-extension-cls training.gloo_transfer.Registration --weight-transfer-config '{"backend": "gloo"}'

since the extension is imported in each worker before the engine is made. Nothing needs to be installed for it.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo

BACKEND = "gloo"
TIMEOUT_SECONDS = 300  # for the other end of a transfer; the launcher notices a dead server long before


def join(host: str, port: int, rank: int, world_size: int, listening: int | None = None) -> ProcessGroupGloo:
    """The group of the trainer (rank 0) and the server's workers. Blocks until all of them are there.

    Args:
        listening: rank 0's listening socket as a file descriptor, which the store takes over: bound to one address, and to
            a port that nobody can take in between (a store that binds for itself listens on every interface).
    """
    timeout = timedelta(seconds=TIMEOUT_SECONDS)
    store = TCPStore(
        host, port, world_size, is_master=listening is not None, timeout=timeout, wait_for_workers=False,
        master_listen_fd=listening,
    )  # fmt: skip
    return ProcessGroupGloo(PrefixStore("weights", store), rank, world_size, timeout)


def broadcast(group: ProcessGroupGloo, tensor: torch.Tensor):
    """Starts the broadcast of a contiguous CPU tensor of any shape and type from rank 0; returns the work to wait for.
    As bytes, because gloo does not know every type."""
    return group.broadcast([tensor.reshape(-1).view(torch.uint8)], BroadcastOptions())


@dataclass
class InitInfo(WeightTransferInitInfo):
    host: str
    port: int
    world_size: int


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """What the trainer is about to send: one entry a tensor, in its order."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class GlooWeightTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Receives a whole model, tensor by tensor, and loads it as vLLM loads a checkpoint."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    _group: ProcessGroupGloo | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        parallel = self.parallel_config
        rank = 1 + parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._group = join(init_info.host, init_info.port, rank, init_info.world_size)
        _unlink_shared_memory()

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict) -> None:
        # vLLM's own method would end with torch.accelerator.synchronize(), which needs an accelerator
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        if self._group is None:
            raise RuntimeError("weights are announced before the trainer has joined: call init_transfer_engine first")

        def received():
            for name, dtype, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
                weight = torch.empty(shape, dtype=getattr(torch, dtype))
                broadcast(self._group, weight).wait()
                yield name, weight

        with torch.no_grad():
            self.model.load_weights(received())

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        with torch.no_grad():
            finalize_layerwise_reload(self.model, self.model_config)
            if self.device.type == "cpu":
                repack_heads(self.model)

    def shutdown(self) -> None:
        self._group = None


def _unlink_shared_memory() -> None:
    """Takes the names of a CPU TP group's shared memory away. All workers have mapped it once they have joined the group, and
    vLLM leaves the files in /dev/shm behind (_CPUSHMDistributed, 0.31.0)."""
    if "VLLM_DIST_IDENT" in os.environ:
        for path in Path("/dev/shm").glob(f"{os.environ['VLLM_DIST_IDENT']}-*cpushm_*"):
            path.unlink(missing_ok=True)


def repack_heads(model: torch.nn.Module) -> None:
    """Renews the packed copy that a head multiplies with on a CPU, after vLLM's layerwise reload.

    A head tied to the embedding shares its weight, which the reload replaces; but what it multiplies with is a packed copy
    (dispatch_cpu_unquantized_gemm in vllm/model_executor/layers/utils.py, 0.31.0), and the reload leaves that as it was,
    warning only of a "ParallelLMHead: Failed to load weights". The engine would go on sampling from new layers under the
    first checkpoint's head.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)


class Registration:
    """The worker extension: vLLM adds it to its worker class. It brings no methods; importing its module is the point."""


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, GlooWeightTransferEngine)
