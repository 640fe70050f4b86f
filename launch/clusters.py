"""The GPU kinds that a recipe may name, with what the checks need of them (NVIDIA's data sheets)."""

from typing import NamedTuple


class Kind(NamedTuple):
    memory_bytes: int
    per_node_most: int  # GPUs in the largest node that is sold with them


_GB = 10**9

GPUS = {
    "A10G-24GB": Kind(24 * _GB, 8),
    "L4-24GB": Kind(24 * _GB, 8),
    "RTX4090-24GB": Kind(24 * _GB, 8),
    "L40S-48GB": Kind(48 * _GB, 8),
    "A100-40GB": Kind(40 * _GB, 16),
    "A100-80GB": Kind(80 * _GB, 8),
    "H100-80GB": Kind(80 * _GB, 8),
    "H100-94GB": Kind(94 * _GB, 8),
    "GH200-96GB": Kind(96 * _GB, 4),
    "H200-141GB": Kind(141 * _GB, 8),
    "B200-180GB": Kind(180 * _GB, 8),
}
CPU = "cpu"
CPU_RANKS_MOST = 64
