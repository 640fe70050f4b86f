"""Every metric, defined once: its function, and as the docstring its definition (`python -m analysis metrics` prints them).

A metric is a number of one run, or None where it has no meaning for the run (a server's idle share without a server). Where it
would have a meaning, and the record lacks what it needs, it raises Missing with the reason: such a metric is named and left
out, never 0. Throughput is of the training steps after the first of each attempt, which carry compilation and other
first-time costs. A device is a GPU, or without GPUs a rank or a server worker (one core each, as the launcher starts them).
"""

from datetime import datetime

from analysis.frames import Frames
from analysis.metric import (
    HIGHER,
    LOWER,
    METRICS,
    Missing,
    devices,
    markdown,
    measure,
    metric,
    need,
    ranks,
    readme,
    timed_seconds,
    timed_sum,
    workers,
)  # fmt: skip

__all__ = ["METRICS", "Missing", "cost", "devices", "markdown", "measure", "phase_shares", "readme"]


@metric("steps_per_second", "1/s", HIGHER)
def _steps_per_second(run):
    """Timed steps over their wall time."""
    return len(run.timed) / timed_seconds(run)


@metric("completions_per_second", "1/s", HIGHER)
def completions_per_second(run):
    """Raw step throughput: completions sampled and trained on, over the wall time of the timed steps."""
    return len(run.timed) * need(run.manifest, "derived", "optimizer_batch") / timed_seconds(run)


@metric("per_device", "1/s", HIGHER)
def _per_device(run):
    """completions_per_second over all devices that the run holds, the server's too."""
    return completions_per_second(run) / devices(run)


@metric("normalised", "1/s", HIGHER)
def _normalised(run):
    """completions_per_second x all devices / training devices, as the post scales its server arm (8/7)."""
    return completions_per_second(run) * devices(run) / ranks(run)


@metric("tokens_per_second", "1/s", HIGHER)
def _tokens_per_second(run):
    """Completion tokens of all ranks over the wall time of the timed steps."""
    return timed_sum(run, "completion_tokens") / timed_seconds(run)


@metric("tokens_per_second_per_device", "1/s", HIGHER)
def _tokens_per_second_per_device(run):
    """tokens_per_second over all devices that the run holds."""
    return _tokens_per_second(run) / devices(run)


@metric("trained_tokens_per_second", "1/s", HIGHER)
def _trained_tokens_per_second(run):
    """Prompt and completion tokens over the wall time of the timed steps."""
    return timed_sum(run, "tokens") / timed_seconds(run)


@metric("median_step_seconds", "s", LOWER)
def _median_step_seconds(run):
    """Median wall time of a timed step, first micro-batch to after the optimizer."""
    timed_seconds(run)
    return run.timed["seconds"].median()


def _steady(run: Frames):
    intervals = run.steady_phases
    if not len(intervals):
        raise Missing("no phase intervals of training steps after the first")
    return intervals


def phase_seconds(run: Frames, *phases: str) -> float:
    """Seconds in these phases over the training steps after the first, mean over the ranks."""
    intervals = _steady(run)
    inside = intervals[intervals["phase"].isin(phases)]
    return float(inside["seconds"].sum() / intervals["rank"].nunique())


def phase_shares(run: Frames) -> dict[str, float]:
    """Each phase's share of the time of the training steps after the first, over all ranks, largest first; empty without."""
    totals = run.steady_phases.groupby("phase")["seconds"].sum().sort_values(ascending=False)
    return {phase: float(seconds / totals.sum()) for phase, seconds in totals.items()}


@metric("trainers_idle", "share", LOWER)
def trainers_idle(run):
    """Share of its time in which a trainer waits for other ranks, and in the server arm for the server's answer; mean over
    the ranks whose phases the record holds."""
    waiting = ("wait", "generate") if workers(run) else ("wait",)
    intervals = _steady(run)
    by_rank = intervals.groupby("rank")["seconds"].sum()
    waits = intervals[intervals["phase"].isin(waiting)].groupby("rank")["seconds"].sum()
    return (waits.reindex(by_rank.index, fill_value=0.0) / by_rank).mean()


@metric("server_idle", "share", LOWER)
def server_idle(run):
    """Share of rank 0's training time in which the server has no request; none without a server."""
    if not workers(run):
        return None
    if not len(run.server_phases):
        raise Missing("no phases.server.jsonl, or no request in it")
    intervals = _steady(run)
    first = intervals[intervals["rank"] == intervals["rank"].min()]
    start, length = first["start_unix_seconds"].to_numpy(), first["seconds"].to_numpy()
    end, busy = start + length, 0.0
    for begun, seconds in zip(run.server_phases["start_unix_seconds"], run.server_phases["seconds"], strict=True):
        overlap = (end.clip(max=begun + seconds) - start.clip(min=begun)).clip(min=0)
        busy += overlap.sum()
    return 1 - busy / length.sum()


@metric("devices_idle", "share", LOWER)
def _devices_idle(run):
    """trainers_idle and server_idle, weighted by devices."""
    return (trainers_idle(run) * ranks(run) + (server_idle(run) or 0.0) * workers(run)) / devices(run)


@metric("sync_share", "share", LOWER)
def _sync_share(run):
    """Share of the ranks' time in which weights go to the engine."""
    return phase_seconds(run, "sync") / _steady(run).groupby("rank")["seconds"].sum().mean()


@metric("generation_tokens_per_second", "1/s", HIGHER)
def _generation_tokens_per_second(run):
    """Completion tokens of all ranks over the seconds of the phase generate, mean over ranks."""
    seconds = phase_seconds(run, "generate")
    tokens = run.steps[run.steps["step"] > 1]["completion_tokens"]
    if not seconds or tokens.isna().any():
        raise Missing("no seconds of the phase generate, or steps without completion_tokens")
    return tokens.sum() / seconds


def _timed_completions(run: Frames) -> int:
    """Completions of the timed steps.

    Raises:
        Missing: there is no timed step.
    """
    if not len(run.timed):
        raise Missing("no step was timed")
    return len(run.timed) * need(run.manifest, "derived", "optimizer_batch")


def _model_flops(run: Frames) -> tuple[float, float]:
    """Model FLOPs of the timed steps, sampling and training, all devices together: 2 a parameter and token forward, twice that
    backward (with LoRA once), attention's two products over half a square (2204.02311, appendix B). Neither recomputation nor
    scoring counts."""
    work = need(run.manifest, "work")
    tokens, count = timed_sum(run, "tokens"), _timed_completions(run)
    passes = need(run.manifest, "recipe", "grpo").get("num_iterations") or 1
    gradients = 1 if run.manifest["recipe"].get("lora") else 2  # of what came in, and of the weights
    length = tokens * passes / count
    forward = tokens * (2 * work["parameters"] + work["attention_flops"] * length)
    return forward, (1 + gradients) * forward * passes


def _peak(run: Frames) -> float | None:
    """Operations a second of one device; None without GPUs."""
    return need(run.manifest, "work").get("peak_flops_per_second")


@metric("mfu", "share", HIGHER)
def _mfu(run):
    """Model FLOPs of sampling (2N a token) and training (6N a token), attention included, recomputation and scoring not,
    over wall time x all GPUs x dense bfloat16 peak (PaLM, 2204.02311, appendix B); none without GPUs."""
    peak = _peak(run)
    return sum(_model_flops(run)) / timed_seconds(run) / devices(run) / peak if peak else None


@metric("training_mfu", "share", HIGHER)
def _training_mfu(run):
    """Model FLOPs of training alone over the seconds of the phase forward_backward x training GPUs x peak."""
    peak = _peak(run)
    if not peak:
        return None
    share = len(run.timed) / max(1, (run.steps["step"] > 1).sum())  # the phases of all steps after the first
    return _model_flops(run)[1] / share / phase_seconds(run, "forward_backward") / ranks(run) / peak


@metric("roofline_share", "share", HIGHER)
def _roofline_share(run):
    """Least possible seconds over measured ones: decoding at memory bandwidth (weights once a token of the longest
    completion, the cache of all), prefill, training at peak, one after the other; none without GPUs."""
    peak = _peak(run)
    if not peak:
        return None
    work = need(run.manifest, "work")
    engines, size = work["engines"], work["tensor_parallel"]
    sampled, tokens = timed_sum(run, "completion_tokens"), timed_sum(run, "tokens")
    count = _timed_completions(run)
    prompt, completion = (tokens - sampled) / count, sampled / count
    longest = timed_sum(run, "max_completion_tokens")
    cache = sampled / engines * (prompt + completion / 2) * work["kv_bytes_per_token"]
    decoding = (longest * work["weights_bytes"] + cache) / size / work["memory_bytes_per_second"]
    prefill = (tokens - sampled) / engines * 2 * work["parameters"] / size / peak
    training = _model_flops(run)[1] / ranks(run) / peak
    return (decoding + prefill + training) / timed_seconds(run)


def _hours(run: Frames) -> float:
    attempts = run.manifest.get("attempts") or [run.manifest]
    spans = [(attempt.get("start"), attempt.get("end")) for attempt in attempts]
    if any(start is None or end is None for start, end in spans):
        raise Missing("the record has no end: the run is going on, or was killed")
    return (
        sum((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() for start, end in spans)
        / 3600
    )


@metric("hours", "h", LOWER)
def _wall_hours(run):
    """Wall time from the launcher's start to the exit status, all attempts together."""
    return _hours(run)


@metric("gpu_hours", "h", LOWER)
def _gpu_hours(run):
    """Hours x all GPUs that the run holds, the server's too; none without GPUs."""
    gpus = need(run.manifest, "derived", "gpus")
    return gpus * _hours(run) if gpus else None


def cost(gpu_hours: float | None, price_per_gpu_hour: float) -> float | None:
    """What a run cost, in the price's money; None without GPU-hours."""
    return None if gpu_hours is None else gpu_hours * price_per_gpu_hour


@metric("reward_area", "reward", HIGHER, outcome=True)
def _reward_area(run):
    """Mean over the steps of the training reward: 1 is a reward of 1 from the first step on."""
    rewards = run.steps["reward"]
    if not len(rewards) or rewards.isna().any():
        raise Missing(f"{int(rewards.isna().sum())} of {len(rewards)} steps have no reward")
    return rewards.mean()


def _held_out(run: Frames, step: int) -> float | None:
    found = run.evaluations[run.evaluations["step"] == step]["accuracy"]
    return None if found.empty or found.isna().iloc[-1] else found.iloc[-1]


@metric("accuracy_before", "share", HIGHER, outcome=True)
def _accuracy_before(run):
    """Accuracy on the held-out problems before the first step; none without such problems."""
    return _held_out(run, 0)


@metric("accuracy_after", "share", HIGHER, outcome=True)
def _accuracy_after(run):
    """Accuracy on the held-out problems after the last step; none without such problems."""
    return _held_out(run, run.steps["step"].max()) if len(run.steps) else None


@metric("accuracy_gain", "share", HIGHER, outcome=True)
def _accuracy_gain(run):
    """accuracy_after less accuracy_before."""
    before, after = _accuracy_before(run), _accuracy_after(run)
    return None if before is None or after is None else after - before


def _peak_bytes(run: Frames, column: str) -> float | None:
    if not need(run.manifest, "derived", "gpus"):
        return None
    values = run.phases[column].dropna() if column in run.phases else ()
    if not len(values):
        raise Missing(f"no {column} in the phases")
    return max(values)


@metric("peak_allocated_bytes", "B", LOWER)
def _peak_allocated_bytes(run):
    """Most memory of tensors by torch, over training ranks and phases; none without GPUs."""
    return _peak_bytes(run, "peak_allocated_bytes")


@metric("peak_device_bytes", "B", LOWER)
def _peak_device_bytes(run):
    """Most memory taken of a training GPU by NVML, over ranks and phases; none without GPUs."""
    return _peak_bytes(run, "peak_device_bytes")


@metric("slept_share", "share", HIGHER)
def _slept_share(run):
    """Memory by NVML that sleep gives back (peak in the phase `sleep`, as it begins, less the peak in `score`, while the
    engine sleeps), over the engine's share of the GPU; from the second step on; none without sleep mode."""
    grpo = run.manifest["recipe"].get("grpo") or {}
    if not grpo.get("vllm_enable_sleep_mode") or not need(run.manifest, "derived", "gpus"):
        return None
    intervals = _steady(run)
    peaks = intervals[intervals["peak_device_bytes"].notna()].groupby("phase")["peak_device_bytes"].max()
    if not {"sleep", "score"} <= set(peaks.index):
        raise Missing("no peak_device_bytes in the phases sleep and score")
    whole = need(run.manifest, "hardware", "devices")[0]["memory_bytes"]
    return (peaks["sleep"] - peaks["score"]) / (grpo["vllm_gpu_memory_utilization"] * whole)


@metric("sentinel_nearest", "share", LOWER)
def _sentinel_nearest(run):
    """How near the worst step came to the weight-sync sentinel's limit (1 is at it); none without an engine."""
    nearness = run.steps["sentinel_level"] / run.steps["sentinel_limit"]
    return None if nearness.isna().all() else nearness.max()
