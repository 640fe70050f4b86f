"""`python -m rewards grade < in.jsonl > out.jsonl`: grade from the command line, as the trainer does."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict

from rewards.grading import grade_batch
from rewards.limits import from_environment
from rewards.pool import Pool

BATCH_LINES = 256
_HELP = """\
Reads JSON lines with "gold" and "completion" (strings; "prompt" is optional), and writes each line back, in order, with

  reward         1.0, 0.0, or null where the gold allows no verdict
  reason         correct, wrong, no_answer, unusable_gold, out_of_time or out_of_memory
  gold_parsed    how the gold was read
  answer_parsed  the final answer as it was read; null where the completion gives none
  seconds        wall-clock time in the worker; 0 for a shortcut

Other fields are kept. A line that cannot be read is reported on stderr with its number, and left out; every other line
is graded, and the exit status is then 2.
"""


def _read(lines, errors: list[str]) -> Iterator[dict]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            errors.append(f"line {number}: not JSON ({error}); write one object a line")
            continue
        missing = [key for key in ("gold", "completion") if not isinstance(record, dict) or key not in record]
        if missing:
            errors.append(f"line {number}: {' and '.join(missing)} missing; each line is an object that has them")
        elif not isinstance(record["completion"], str):
            kind = type(record["completion"]).__name__
            errors.append(f"line {number}: completion is a {kind}, not a string; give its text")
        elif not isinstance(record.get("prompt"), (str, type(None))):
            errors.append(f"line {number}: prompt is a {type(record['prompt']).__name__}, not a string; give its text")
        else:
            yield record


def _batches(records: Iterator[dict]) -> Iterator[list[dict]]:
    batch = []
    for record in records:
        batch.append(record)
        if len(batch) == BATCH_LINES:
            yield batch
            batch = []
    if batch:
        yield batch


def grade(source, target, boxed_only: bool = False, pool: Pool | None = None) -> list[str]:
    """Grade the JSON lines of `source` onto `target`; the errors of the lines left out."""
    errors: list[str] = []
    for batch in _batches(_read(source, errors)):
        verdicts = grade_batch(
            [record["gold"] for record in batch],
            [record["completion"] for record in batch],
            [record.get("prompt") or "" for record in batch],
            boxed_only=boxed_only,
            pool=pool,
        )
        for record, verdict in zip(batch, verdicts, strict=True):
            target.write(json.dumps({**record, **asdict(verdict)}) + "\n")
        target.flush()
    return errors


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0, or 2 if a line could not be read."""
    parser = argparse.ArgumentParser(prog="python -m rewards", description="Grade completions against golds.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "grade", help="JSON lines on stdin to JSON lines on stdout", description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("--boxed-only", action="store_true", help=r"only a \boxed{} counts as an answer")
    command.add_argument("--time-seconds", type=float, help="limit of one completion (default: 5)")
    command.add_argument("--memory-bytes", type=int, help="limit of one completion (default: 536870912)")
    command.add_argument("--workers", type=int, help="worker processes (default: the CPUs, at most 8)")
    arguments = parser.parse_args(argv)
    limits = from_environment()
    given = {key: getattr(arguments, key) for key in ("time_seconds", "memory_bytes", "workers")}
    try:
        limits = type(limits)(**{**asdict(limits), **{key: value for key, value in given.items() if value is not None}})
    except ValueError as error:
        parser.error(str(error))
    pool = Pool(limits)
    try:
        errors = grade(sys.stdin, sys.stdout, arguments.boxed_only, pool)
    except BrokenPipeError:
        return 1
    finally:
        pool.close()
    for error in errors:
        print(f"rewards grade: {error}", file=sys.stderr)
    return 2 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
