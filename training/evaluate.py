"""Evaluate a model: `python -m training.evaluate MODEL --bench math500|aime24|heldout`.

Samples with vLLM, grades with the project's own reward, and leaves in one folder every completion with its verdict
(completions.jsonl) and what they come to, with all that is needed to repeat it (evaluation.json). It leaves out: training,
and tables over several models (`python -m analysis evaluation`).
"""

import argparse
import fcntl
import json
import os
import re
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from record import LineWriter, read_json, read_lines, utc_now, write_json
from record.provenance import git_state
from training.benches import BENCHES, BadInput, problem
from training.estimates import estimate
from training.evaluation_input import DEFAULT_COMPLETION_TOKENS, prepare

SCHEMA_VERSION = 1
FINISHED, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
COMPLETIONS_PER_BATCH = 2048  # sampled, graded and written together: what an interruption can cost
RESULT, COMPLETIONS = "evaluation.json", "completions.jsonl"
DECIDES = ("bench", "model", "data", "prompt", "sampling", "reward")  # equal: the same evaluation, which may be resumed


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m training.evaluate", description=__doc__.split("\n\n")[1])
    made.add_argument(
        "model", help="a hub id, a folder with weights, a run's folder (its last checkpoint) or a checkpoint"
    )
    made.add_argument("--bench", required=True, help=f"{', '.join(BENCHES)}; heldout: a recipe's held-out problems")
    made.add_argument("--samples", type=int, default=1, metavar="N", help="completions a problem (default: 1)")
    made.add_argument("--k", type=int, nargs="+", help="the k of pass@k, each at most N (default: 1, 2, 4, ... and N)")
    made.add_argument("--recipe", type=Path, help="a recipe or run whose prompts, problems and sampling are taken; "
                      "default: the recipe that MODEL was trained with")  # fmt: skip
    made.add_argument(
        "--revision",
        help="of a model on the hub (or of the one that adapters are for): a commit, so that tomorrow's model is today's",
    )
    made.add_argument(
        "--data", help="local problems in the bench's columns: a folder with SPLIT.jsonl (.json, .parquet)"
    )
    made.add_argument("--split", help="which split of the problems")
    made.add_argument("--problems", type=int, metavar="M", help="only the first M problems")
    made.add_argument(
        "--system-prompt", help="a name in launch/system_prompts.yaml, or none; default: the recipe's, or boxed"
    )
    made.add_argument("--reward", choices=("accuracy", "accuracy_boxed"), help="default: the recipe's, or accuracy")
    made.add_argument("--temperature", type=float, help="default: the recipe's, or 1; 0 is greedy")
    made.add_argument("--top-p", type=float, help="default: the recipe's, or 1")
    made.add_argument(
        "--max-completion-tokens", type=int, help=f"default: the recipe's, or {DEFAULT_COMPLETION_TOKENS}"
    )
    made.add_argument("--seed", type=int, default=0)
    made.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="default: the recipe's, or the checkpoint's"
    )
    made.add_argument("--tensor-parallel", type=int, default=1, metavar="GPUS")
    made.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    made.add_argument("--trust-remote-code", action="store_true")
    made.add_argument("--out", type=Path, help="a new folder; default: runs/evaluation/MODEL_BENCH_nN_sSEED")
    made.add_argument("--resume", action="store_true", help="go on with an interrupted evaluation in that folder")
    return made


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 finished, 1 failed, 2 refused before any engine started, 130 interrupted."""
    arguments = parser().parse_args(argv)
    try:
        if arguments.out:
            check_out(arguments.out, arguments.resume)
        settings, rows = prepare(arguments)
        out = arguments.out or default_folder(settings)
        lock = open_folder(out, settings, arguments.resume)
        try:
            run(out, settings, rows, arguments)
        except BaseException as error:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            cause = f"{type(error).__name__}: {error}"[:1000]
            write_json(out / RESULT, read_json(out / RESULT) | {"status": status, "cause": cause, "end": utc_now()})
            raise
        finally:
            os.close(lock)
    except BadInput as error:
        print(error, file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(f"error: {error.filename or 'file system'}: {error.strerror or error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted; --resume goes on from the completions that are saved", file=sys.stderr)
        return INTERRUPTED
    except Exception:
        traceback.print_exc()
        return FAILED
    print(f"  record  {out}")
    return FINISHED


def default_folder(settings: dict) -> Path:
    trained, adapter = settings["model"]["trained"], settings["model"]["adapter"]
    path = adapter["path"] if adapter else settings["model"]["path"]
    model = f"{trained['recipe']}-{trained['run']}-{trained['steps']}" if trained else path
    name = re.sub(r"[^\w.-]+", "-", model).strip("-.")
    sampling = settings["sampling"]
    return Path("runs/evaluation") / f"{name}_{settings['bench']}_n{sampling['samples']}_s{sampling['seed']}"


def check_out(out: Path, resume: bool) -> bool:
    """Whether something is in the folder, to be resumed.

    Raises:
        BadInput: something is there, and it is not to be resumed.
    """
    if out.exists() and not out.is_dir():
        raise BadInput(problem("--out", str(out), "is a file, and a folder is made", "give another --out"))
    begun = out.exists() and any(out.iterdir())
    if begun and not resume:
        rule = "exists already, and nothing is overwritten"
        raise BadInput(problem("--out", str(out), rule, "another --out; or --resume if it was interrupted"))
    return begun


def open_folder(out: Path, settings: dict, resume: bool) -> int:
    """Makes the folder, or takes up an interrupted evaluation with the same settings.

    Returns:
        A descriptor whose lock keeps other evaluations out of the folder until it is closed, or this process ends.

    Raises:
        BadInput: something is there already that would be overwritten or mixed up.
    """
    begun = check_out(out, resume)
    out.mkdir(parents=True, exist_ok=True)
    lock = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if begun:
            _check_resumable(out, settings)
        else:
            write_json(out / RESULT, _provenance() | settings | {"status": "running", "figures": None})
    except BlockingIOError:
        os.close(lock)
        rule = "another evaluation is writing there"
        raise BadInput(problem("--out", str(out), rule, "wait for it, or give another --out")) from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _check_resumable(out: Path, settings: dict) -> None:
    try:
        before = read_json(out / RESULT)
    except (OSError, ValueError) as error:
        raise BadInput(problem("--out", str(out), f"no evaluation to resume: {error}", "give another --out")) from error
    if before.get("status") == "finished":
        raise BadInput(problem("--resume", str(out), "this evaluation is finished", "read it, or give another --out"))
    for section in DECIDES:
        was, now = before.get(section), json.loads(json.dumps(settings[section]))
        if was != now:
            both = isinstance(was, dict) and isinstance(now, dict)
            keys = {key: [was.get(key), now[key]] for key in now if was.get(key) != now[key]} if both else [was, now]
            if not keys:
                continue  # only that a key which is null now did not exist then
            mend = "resume with the same arguments, or give another --out"
            raise BadInput(problem(section, keys, "what was begun (first) differs from what is asked (second)", mend))


def _provenance() -> dict:
    return {"schema_version": SCHEMA_VERSION, "argv": sys.orig_argv[1:], "git": git_state(), "start": utc_now()}


def run(out: Path, settings: dict, rows: list[dict], arguments) -> None:
    """Samples and grades what is not there yet, a batch at a time, and writes the result."""
    from training.sampler import Sampler, prepare_environment

    saved, _ = read_lines(out / COMPLETIONS) if (out / COMPLETIONS).exists() else ([], 0)
    done = {(row["problem"], row["sample"]) for row in saved}
    samples = settings["sampling"]["samples"]
    missing = [i for i in range(len(rows)) if any((i, sample) not in done for sample in range(samples))]
    resumed, seconds, tokens = len(rows) - len(missing), 0.0, 0
    if missing:
        prepare_environment(threads=os.cpu_count() or 1)
        sampler = Sampler(_engine(settings, rows, arguments), settings["sampling"], settings["model"]["adapter"])
        writer = LineWriter(out / COMPLETIONS)
        size = max(1, COMPLETIONS_PER_BATCH // samples)
        for start in range(0, len(missing), size):
            batch = missing[start : start + size]
            begun = time.monotonic()
            sampled = dict(sampler({i: rows[i]["ids"] for i in batch}, progress=sys.stderr.isatty()))
            seconds += time.monotonic() - begun
            tokens += sum(sample["tokens"] for of_problem in sampled.values() for sample in of_problem)
            for row in _graded(rows, sampled, settings["reward"]):
                if (row["problem"], row["sample"]) not in done:
                    writer.write(row)
            print(
                f"problems {resumed + start + len(batch)} of {len(rows)}, {tokens / seconds:.0f} tokens/s", flush=True
            )
        writer.close()
        saved, _ = read_lines(out / COMPLETIONS)
    figures = summarize(saved, settings["sampling"]) | {
        "resumed_problems": resumed,
        "sampling_seconds": seconds if missing else None,
        "completion_tokens_per_second": tokens / seconds if missing else None,
    }
    from training.recording import hardware, software

    machine = {"cpus": os.cpu_count(), "tensor_parallel": arguments.tensor_parallel}
    begun = read_json(out / RESULT)
    write_json(
        out / RESULT,
        begun
        | {"packages": software(), "hardware": hardware() | machine, "end": utc_now()}
        | {"status": "finished", "cause": None, "figures": figures},
    )
    print(report(figures))


def _engine(settings: dict, rows: list[dict], arguments) -> dict:
    model = settings["model"]
    return {
        "model": model["path"],
        "revision": model["revision"],
        "tokenizer_revision": model["revision"],
        "dtype": model["dtype"],
        "seed": settings["sampling"]["seed"],
        "max_model_len": max(len(row["ids"]) for row in rows) + settings["sampling"]["max_completion_tokens"],
        "tensor_parallel_size": arguments.tensor_parallel,
        "gpu_memory_utilization": arguments.gpu_memory_utilization,
        "trust_remote_code": model["trust_remote_code"],
    }


def _graded(rows: list[dict], sampled: dict[int, list[dict]], reward: str) -> list[dict]:
    """One row a completion, in the form that `python -m rewards grade` reads, so that it can be graded again."""
    from rewards.accuracy import verdicts

    flat = [
        {"problem": i, "sample": number, "prompt": rows[i]["prompt"][-1]["content"], "gold": rows[i]["gold"]} | sample
        for i, of_problem in sampled.items()
        for number, sample in enumerate(of_problem)
    ]
    graded = verdicts(
        [row["prompt"] for row in flat],
        [row["completion"] for row in flat],
        boxed_only=reward == "accuracy_boxed",
        gold=[row["gold"] for row in flat],
    )
    return [
        row | {"reward": verdict.reward, "reason": verdict.reason, "gold_parsed": verdict.gold_parsed,
               "answer_parsed": verdict.answer_parsed}
        for row, verdict in zip(flat, graded, strict=True)
    ]  # fmt: skip


def summarize(rows: list[dict], sampling: dict) -> dict:
    """What the completions come to. A problem without a usable gold is in no pass@k, and counted; a completion that overran
    the grader's limits is not right, and counted in `reasons`."""
    correct: Counter = Counter()
    unusable = set()
    for row in rows:
        if row["reward"] is None:
            unusable.add(row["problem"])
        correct[row["problem"]] += row["reward"] == 1.0
    graded = [count for index, count in sorted(correct.items()) if index not in unusable]
    lengths = [row["tokens"] for row in rows]
    return {
        "problems": len(graded),
        "unusable_gold_problems": len(unusable),
        "completions": len(rows),
        "pass_at_k": [estimate(graded, sampling["samples"], k) for k in sampling["k"]] if graded else [],
        "reasons": dict(Counter(row["reason"] for row in rows)),
        "truncated_share": sum(row["truncated"] for row in rows) / len(rows),
        "mean_completion_tokens": sum(lengths) / len(lengths),
    }


def report(figures: dict) -> str:
    lines = [f"  problems  {figures['problems']} ({figures['unusable_gold_problems']} more without a usable gold)"]
    for entry in figures["pass_at_k"]:
        bounds = f"[{entry['low']:.3f}, {entry['high']:.3f}]"
        lines.append(f"  pass@{entry['k']:<4} {entry['value']:.3f}  95 % interval {bounds} ({entry['interval']})")
    lines.append(f"  truncated {figures['truncated_share']:.1%}; verdicts {figures['reasons']}")
    return "\n".join(lines)


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM.

    A class of its own, since Python ends with the signal itself instead of our exit status when a plain
    KeyboardInterrupt passed through exec(), which dataclasses use while they are imported, even if it was caught
    (run_eval_code_obj in CPython's Python/pythonrun.c).
    """


def raise_on_signals() -> None:
    """Makes SIGINT and SIGTERM raise Interrupted."""

    def handler(number, frame):
        raise Interrupted(signal.Signals(number).name)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


if __name__ == "__main__":
    raise_on_signals()
    sys.exit(main())
