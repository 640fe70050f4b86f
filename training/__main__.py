"""One rank of a run: `python -m training RUN_FOLDER`, started by torchrun (launch/command.py prints the command).

It reads the resolved recipe from the folder's manifest, trains, and writes the record. It leaves out: checks of the
recipe (launch/check.py), starting and stopping ranks (launch/run.py), tables and figures (analysis/).
"""

import contextlib
import ctypes
import logging
import os
import signal
import sys
import traceback
from pathlib import Path

from record import LineWriter, RunFolder

_PR_SET_PDEATHSIG = 1


class Stopped(BaseException):
    """SIGTERM or SIGINT reached this rank. No Exception, so that no library swallows it."""


def main() -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # no rank outlives its torchrun
    folder = RunFolder(Path(sys.argv[1]))
    rank = int(os.environ["RANK"])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm may send it to every process; the launcher sees to it
    try:
        train(folder, rank)
    except Stopped as stopped:
        return _leave(128 + stopped.args[0])
    except Exception as error:
        with contextlib.suppress(OSError):  # a full disk takes neither; the launcher finds it
            traceback.print_exc()
            folder.write_error(rank, type(error).__name__, str(error), traceback.format_exc())
        return _leave(1)
    return _leave(0)


def _stop(number, _frame):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough; torchrun kills what does not follow
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Stopped(number)


def _leave(code: int) -> int:
    """Ends the rank at once. The record is written by now; the interpreter's own teardown of engines and process groups
    has crashed finished runs (vLLM 16993) and hung failed ones (NCCL waits for ranks that are gone)."""
    if "wandb" in sys.modules:
        from training import tracking

        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)  # wandb gets ten seconds; the record does not depend on it
        tracking.finish(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def train(folder: RunFolder, rank: int) -> None:
    """The run, from the recipe to the exit status.

    Raises:
        training.data.Refused: bad input, before any engine has started.
    """
    manifest, main_rank = folder.manifest(), rank == 0
    recipe, attempt = manifest["recipe"], manifest["attempts"][-1]
    checkpoint = folder.path / attempt["checkpoint"] if attempt["checkpoint"] else None
    from training.recording import Events, Recorder, hardware, software

    events = Events(folder if main_rank else None)
    events("ranks started")
    logging.getLogger("transformers").setLevel(logging.WARNING)
    from transformers import AutoTokenizer, PrinterCallback

    from rewards import registry
    from training import checkpoints, engine, lora, tracking
    from training.arguments import to_grpo_config
    from training.data import Refused
    from training.memory import probes
    from training.phases import PhaseClock
    from training.sentinel import Sentinel, sampling_is_cut
    from training.trainer import RecordedGRPOTrainer

    events("libraries loaded")
    model, server = recipe["model"], manifest.get("server")
    args = to_grpo_config(recipe, str(folder.path), ["wandb"], server["url"] if server else None)
    if args.world_size != manifest["derived"]["ranks"]:
        raise Refused(f"the recipe is for {manifest['derived']['ranks']} ranks, {args.world_size} were started")
    tokenizer = AutoTokenizer.from_pretrained(
        model["path"], revision=model["revision"], trust_remote_code=model["trust_remote_code"], padding_side="left"
    )
    with args.main_process_first(desc="reading the data"):
        (train_rows, train_report), (eval_rows, eval_report) = _splits(manifest, tokenizer)
    rewards = [
        registry.load(name, **{key: value for key, value in reward.items() if key != "weight"})
        for name, reward in recipe["rewards"].items()
    ]
    events(f"data read: {train_report['kept_rows']} of {train_report['rows']} training problems", data=train_report)
    if main_rank:
        tracking.start(manifest, folder.path)
        folder.update(
            trl_arguments=args.to_dict(),
            packages=software(),
            hardware=hardware(),
            data={"train": train_report, "eval": eval_report},
        )

    args.eval_on_start &= checkpoint is None
    clock = PhaseClock(LineWriter(folder.phases_path(rank)), *probes(args.use_cpu))
    computes_in = "bfloat16" if args.bf16 else "float16" if args.fp16 else model["dtype"]
    speedups, cache_bytes = recipe["speedups"], os.environ.get("COLOCATE_KV_CACHE_BYTES")
    engine.install(
        clock,
        recipe["grpo"]["seed"],
        computes_in,
        server["weight_transfer"] if server else None,
        speedups["outputs_when_finished"],
        {"kv_cache_memory_bytes": int(cache_bytes)} if cache_bytes else None,
    )
    sentinel = Sentinel(computes_in, cut=sampling_is_cut(recipe["grpo"])) if args.use_vllm else None
    with clock("other"):
        trainer = RecordedGRPOTrainer(
            clock=clock,
            sentinel=sentinel,
            score_in_loss=speedups["score_in_loss"],
            model=model["path"],
            reward_funcs=rewards,
            args=args,
            train_dataset=train_rows,
            eval_dataset=eval_rows,
            processing_class=tokenizer,
            peft_config=lora.adapter_config(recipe["lora"]) if recipe["lora"] else None,
        )
        writer = LineWriter(folder.metrics_path) if main_rank else None
        trainer.remove_callback(PrinterCallback)  # the launcher prints from the record
        trainer.add_callback(Recorder(writer, trainer, clock, manifest["derived"]["generation_batch"]))
        endings = checkpoints.Endings(folder, trainer, events)
        trainer.add_callback(endings)
        events("model loaded, engines ready")
        checkpoints.train(trainer, checkpoint)
        if not endings.stopped:
            events("trained", steps=trainer.state.global_step)
            if eval_rows is not None:
                trainer.evaluate()
    _end(folder, trainer, endings.stopped, events)


def _splits(manifest: dict, tokenizer) -> tuple[tuple, tuple]:
    """Rows and report of the training problems, and of the held-out ones (None, None without them)."""
    from training.data import load_split

    recipe, prompts = manifest["recipe"], manifest["derived"]["prompts_per_generation"]
    train, held_out = recipe["data"]["train_split"], recipe["data"]["eval_split"]
    return (
        load_split(recipe, train, tokenizer, at_least_rows=prompts),
        load_split(recipe, held_out, tokenizer) if held_out else (None, None),
    )


def _end(folder: RunFolder, trainer, stopped: str | None, events) -> None:
    """The exit status, when all ranks are done."""
    trainer.accelerator.wait_for_everyone()
    if trainer.accelerator.is_main_process:
        if stopped:
            folder.finish("interrupted", f"stopped by {stopped} after step {trainer.state.global_step}")
        else:
            folder.finish("finished")
    events("stopped" if stopped else "finished")


if __name__ == "__main__":
    sys.exit(main())
