"""python -m tests.drills [--count N] [--seed N] [--jobs N] [--layouts a,b] FILE: drills, a row each in FILE (JSON lines), and a
table. Rows that FILE has already are not drilled again, so that an interrupted series goes on."""

import argparse
import os
import platform
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from record import LineWriter, read_lines, utc_now
from record.provenance import git_state
from tests.drills.drill import Job, Missed, drill
from tests.drills.scenarios import Scenario, sample
from tests.drills.two_nodes import TwoNodes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="drills at a time")
    parser.add_argument("--layouts", default="colocate,server,two nodes")
    arguments = parser.parse_args()
    scenarios = sample(arguments.count, arguments.seed, arguments.layouts.split(","))
    done = {key(row) for row in (read_lines(arguments.file)[0] if arguments.file.exists() else [])}
    writer = LineWriter(arguments.file)
    with (
        tempfile.TemporaryDirectory(prefix="drills-") as folder,
        cancelling(ThreadPoolExecutor(arguments.jobs)) as pool,
    ):
        waiting = {
            pool.submit(provenanced, scenario, Path(folder) / f"drill{number}"): scenario
            for number, scenario in enumerate(scenarios)
            if str(scenario) not in done
        }
        for number, future in enumerate(as_completed(waiting), start=1):
            row = future.result()
            writer.write(row)
            print(
                f"{number}/{len(waiting)}  {waiting[future]}: {'; '.join(row['shortfalls']) or 'as it should be'}",
                flush=True,
            )
    rows = [row for row in read_lines(arguments.file)[0] if key(row) in {str(scenario) for scenario in scenarios}]
    print(table(rows))
    return int(any(row["shortfalls"] for row in rows))


@contextmanager
def cancelling(pool: ThreadPoolExecutor):
    """The pool; on Ctrl-C the drills that go on are waited for, and no other begins."""
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def provenanced(scenario: Scenario, runs: Path) -> dict:
    try:
        row = drill(scenario, runs, TwoNodes if scenario.layout == "two nodes" else Job)
    except Missed as missed:
        row = vars(scenario) | {"shortfalls": [str(missed)]}
    return row | {"git": git_state(), "cpus": os.cpu_count(), "python": platform.python_version(), "end": utc_now()}


def key(row: dict) -> str:
    return str(Scenario(row["layout"], row["target"], row["fault"], row["moment"]))


def table(rows: list[dict]) -> str:
    """Target and fault, how many drills, seconds to the end, and the shortfalls."""
    lines = [
        "| struck | by | drills | as it should be | seconds to the end, median (most) |",
        "|---|---|---|---|---|",
    ]
    kinds = dict.fromkeys((row["target"], row["fault"]) for row in rows)
    for target, fault in kinds:
        group = [row for row in rows if (row["target"], row["fault"]) == (target, fault)]
        seconds = [row["end_seconds"] for row in group if row.get("end_seconds") is not None]
        well = sum(not row["shortfalls"] for row in group)
        times = f"{statistics.median(seconds):.1f} ({max(seconds):.1f})" if seconds else "-"
        lines.append(f"| {target} | {fault} | {len(group)} | {well} | {times} |")
    lines += [f"\n{key(row)}: {'; '.join(row['shortfalls'])}" for row in rows if row["shortfalls"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
