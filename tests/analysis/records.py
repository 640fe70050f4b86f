"""Records as a run leaves them, with figures that are set by hand."""

from pathlib import Path

from record import LineWriter, RunFolder


def write_record(
    path: Path,
    arm: str = "colocate",
    step_seconds=(9.0, 2.0, 2.0),
    phases: dict[int, list[tuple]] | None = None,
    server_phases=(),
    *,
    seed: int = 0,
    ranks: int = 2,
    gpus: int = 0,
    status: str = "finished",
    reward: float = 0.5,
    accuracy: tuple[float, float] | None = None,
    tokens: tuple[int, int] = (300, 200),
    manifest: dict | None = None,
) -> Path:
    """A run's folder. Phases are (phase, step, start, seconds) by rank; `tokens` are all and the completions', of each step;
    64 completions a step; `gpus` 0 is a run on CPUs. `manifest` goes over what this makes."""
    path.mkdir(parents=True)
    folder = RunFolder(path)
    server = {"nodes": 1, "gpus_per_node": 1, "tensor_parallel_size": 1} if arm == "server" else None
    folder.update(
        **{
            "recipe": {
                "name": f"made_up_{arm}",
                "recipe": {"arm": arm, "experiments": ["C1"], "version": 1},
                "model": {"path": "made/up", "dtype": "bfloat16"},
                "data": {"max_prompt_tokens": 100},
                "rewards": {"accuracy_boxed": {"weight": 1.0}},
                "cluster": {"gpu": "H100-80GB" if gpus else "cpu", "server": server},
                "accelerate": "ddp",
                "grpo": {"max_completion_length": 64, "num_iterations": 1, "gradient_checkpointing": False},
            },
            "recipe_hash": arm,
            "overrides": [],
            "derived": {"ranks": ranks, "gpus": gpus, "optimizer_batch": 64, "generation_batch": 64},
            "seed": seed,
            "git": {"commit": "c" * 40, "dirty": False},
            "packages": {"python": "3.11"},
            "hardware": {"kind": "cpu"}
            if not gpus
            else {"kind": "cuda", "devices": [{"name": "NVIDIA H100", "memory_bytes": 8e10}]},
            "host": {"machine": "x86_64", "cpus": 2, "memory_bytes": 2**34},
            "start": "2026-01-01T00:00:00.000Z",
            "end": "2026-01-01T02:00:00.000Z",
            "exit": {"status": status, "cause": None if status == "finished" else "out of memory"},
        }
        | (manifest or {})
    )
    metrics = LineWriter(folder.metrics_path)
    before, after = accuracy or (None, None)
    if accuracy:
        metrics.write({"step": 0, "split": "eval", "seconds": 1.0, "rewards/accuracy_boxed/mean": before})
    for step, seconds in enumerate(step_seconds, start=1):
        line = {"step": step, "split": "train", "seconds": seconds, "reward": reward}
        line |= {"tokens": tokens[0], "completion_tokens": tokens[1], "completions/max_length": 10.0}
        metrics.write(line)
    if accuracy:
        metrics.write(
            {"step": len(step_seconds), "split": "eval", "seconds": 1.0, "rewards/accuracy_boxed/mean": after}
        )
    metrics.close()
    for rank, intervals in (phases or {}).items():
        _write_intervals(folder.phases_path(rank), intervals)
    if server_phases:
        _write_intervals(folder.server_phases_path, server_phases)
    return path


def _write_intervals(path: Path, intervals) -> None:
    writer = LineWriter(path)
    for phase, step, start, seconds in intervals:
        writer.write(
            {"phase": phase, "step": step, "split": "train", "start_unix_seconds": start, "seconds": seconds}
            | {"peak_allocated_bytes": None, "peak_reserved_bytes": None, "peak_device_bytes": None}
        )
    writer.close()
