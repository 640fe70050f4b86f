"""Ends a run at a step with a checkpoint, and takes it up there again.

transformers saves model, optimizer, scheduler, random numbers of each rank and its own state, and comes back to the data's
position inside an epoch. What it leaves open is here, for the pinned versions (transformers 5.17.0, TRL 1.16.0):

    when a checkpoint is whole      sealed after all ranks have written, and only then are older ones deleted (`save`)
    completions in use              TRL's `_buffered_inputs` and `_step`: a generation batch may feed several steps
    the data's order in later epochs  TRL's sampler draws one permutation an epoch from a generator that starts with the seed
    the sentinel's level            learnt in the first steps of the run

tests/training/test_resume.py compares resumed runs with unbroken ones. The engines' random numbers come back where they are the
rank's own (colocated, generate()); a server is a process of its own and is seeded anew (launch/server.py).
"""

import errno
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate.utils import broadcast, gather_object, send_to_device
from transformers import TrainerCallback, TrainerState
from transformers.trainer_utils import rotate_checkpoints

from record import RunFolder
from record.checkpoints import checkpoints, checksum, file_names, is_sealed, seal, size_bytes


class NothingLeft(Exception):
    """The checkpoint is of the last step: there is nothing to train, all is loaded."""


def state_path(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"grpo_state_{rank}.pt"


def save(trainer, write: Callable[[], None]) -> None:
    """Writes the checkpoint of this step, on all ranks, and seals it.

    Until it is sealed nothing is deleted: a kill at any point leaves the last whole checkpoint.

    Args:
        write: transformers' own part.

    Raises:
        OSError: there is no room; what was written of it is removed again.
    """
    run, rank = Path(trainer.args.output_dir), trainer.accelerator.process_index
    checkpoint = run / f"checkpoint-{trainer.state.global_step}"
    if is_sealed(checkpoint):  # transformers saves once more at the end of an epoch
        return
    limit, trainer.args.save_total_limit = trainer.args.save_total_limit, None
    try:
        write()
        torch.save(_state(trainer), state_path(checkpoint, rank))
        trainer.accelerator.wait_for_everyone()
        sums = _checksums(trainer.accelerator, checkpoint)
        if trainer.accelerator.is_main_process:
            seal(checkpoint, sums)
            rotate_checkpoints(str(run), save_total_limit=limit)
    except Exception as error:
        if not _is_full(checkpoint, error):
            raise
        shutil.rmtree(checkpoint, ignore_errors=True)
        raise OSError(errno.ENOSPC, _no_room(run), str(checkpoint)) from error
    finally:
        trainer.args.save_total_limit = limit
    trainer.accelerator.wait_for_everyone()


def _is_full(checkpoint: Path, error: Exception) -> bool:
    """Writers have errors of their own for a full disk: torch a RuntimeError, safetensors a SafetensorError. On another rank
    the checkpoint is then missing, since the first has removed it."""
    said = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
    missing = "No such file" in str(error) and not checkpoint.exists()
    return said or missing or shutil.disk_usage(checkpoint.parent).free < 1 << 20


def _no_room(run: Path) -> str:
    whole = [path for path in checkpoints(run) if is_sealed(path)]
    text = f"no room for a checkpoint ({shutil.disk_usage(run).free / 1e9:.2f} GB are free"
    text += f", {whole[0].name} takes {size_bytes(whole[0]) / 1e9:.2f} GB and is intact" if whole else ""
    return text + "); free some space, or set grpo.save_total_limit lower, then start the same command again"


def _checksums(accelerator, checkpoint: Path) -> dict[str, dict]:
    """Checksums of all files, on every rank. The work is spread over the ranks that see a file: on several nodes that share a
    folder a file may show on the others only later."""
    seen = gather_object([file_names(checkpoint)])
    mine = {}
    for number, name in enumerate(sorted(set().union(*seen))):
        ranks = [rank for rank, names in enumerate(seen) if name in names]
        if ranks[number % len(ranks)] == accelerator.process_index:
            mine[name] = checksum(checkpoint / name, to_disk=True)
    return {name: value for part in gather_object([mine]) for name, value in part.items()}


def _state(trainer) -> dict:
    """What a rank must remember of the generation in use, as tensors and plain values."""
    in_use = trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations) != 0
    return {
        "micro_steps": trainer._step,
        "inputs": trainer._buffered_inputs if in_use else None,
        "prompts_sha256": trainer.prompts_sha256,
        "sentinel": trainer.sentinel.state() if trainer.sentinel else None,
    }


def restore(trainer, checkpoint: Path) -> None:
    """Takes up a checkpoint on this rank, as far as it is not transformers' part; before `trainer.train`.

    Raises:
        OSError: a file is missing.
    """
    path = state_path(checkpoint, trainer.accelerator.process_index)
    state = torch.load(path, map_location="cpu", weights_only=True)
    trainer._step = state["micro_steps"]
    trainer._buffered_inputs = send_to_device(state["inputs"], trainer.accelerator.device)
    trainer.prompts_sha256 = state["prompts_sha256"]
    if trainer.sentinel and state["sentinel"]:
        trainer.sentinel.restore(state["sentinel"])
    trainer.epochs_done = int(TrainerState.load_from_json(checkpoint / "trainer_state.json").epoch)


def train(trainer, checkpoint: Path | None) -> None:
    """Trains to the end, or to the step after which the launcher wants an end; from a checkpoint if there is one."""
    if checkpoint is None:
        trainer.train()
        return
    restore(trainer, checkpoint)
    # without a GPU a rank's device is cpu:<rank>; transformers has torch load the optimizer there, and torch knows cpu alone
    torch.serialization.register_package(
        0, lambda storage: None, lambda storage, location: storage if location.startswith("cpu:") else None
    )
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint))
    except NothingLeft:
        trainer._load_rng_state(str(checkpoint))  # transformers does so when the first step begins


class Endings(TrainerCallback):
    """Ends training after a step when the launcher asks for it, with a checkpoint; says what was saved.

    `stopped` is then the signal's name. All ranks end at the same step: rank 0 looks, and tells the others.
    """

    def __init__(self, folder: RunFolder, trainer, say: Callable[[str], None]):
        self.stopped: str | None = None
        self._folder, self._trainer, self._say = folder, trainer, say
        self._started = time.monotonic()

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step >= state.max_steps:
            raise NothingLeft
        self._say("training")

    def on_step_end(self, args, state, control, **kwargs):
        accelerator = self._trainer.accelerator
        asked = torch.zeros(1, dtype=torch.int64, device=accelerator.device)
        if accelerator.is_main_process:
            asked += self._folder.stop_requested()
        if number := broadcast(asked).item():
            self.stopped = signal.Signals(number).name
            control.should_save = control.should_training_stop = True
        self._started = time.monotonic()

    def on_save(self, args, state, control, **kwargs):
        if self._trainer.accelerator.is_main_process:
            seconds = time.monotonic() - self._started
            path = self._folder.path / f"checkpoint-{state.global_step}"
            self._say(f"{path.name} is whole ({size_bytes(path) / 1e6:.1f} MB, {seconds:.1f} s)")
