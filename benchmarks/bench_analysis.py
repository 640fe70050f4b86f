"""How long a million step lines take to load and aggregate, and in how much memory (the goals: 5 s and 1 GB).

    python benchmarks/bench_analysis.py --out results/analysis/bench.json

The lines are those of the committed record under results/timeline, written again with other step numbers, over 10 runs. Loading
and aggregating run in a process of their own, whose peak resident memory is the figure: interpreter and pandas count. The files
are in the page cache: what is measured is this project's code, and not a disk.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from record import read_lines, utc_now, write_json  # noqa: E402
from record.provenance import git_state  # noqa: E402

MEASURED = """
import json, resource, sys, time
begun = time.perf_counter()
from analysis.aggregate import aggregate
from analysis.runs import load
imported = time.perf_counter()
found = load(sys.argv[1], phases=False)
loaded = time.perf_counter()
table = aggregate(found.runs, ["tokens_per_second", "completions_per_second", "reward_area"], ["recipe", "arm"])
done = time.perf_counter()
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "import_seconds": imported - begun, "load_seconds": loaded - imported, "aggregate_seconds": done - loaded,
    "processor_seconds": used.ru_utime + used.ru_stime, "peak_resident_bytes": used.ru_maxrss * 1024,
    "steps": len(found.steps), "runs": len(found.runs), "means": table["mean"].tolist(),
}))
"""


def write_runs(folder: Path, lines: int, runs: int) -> int:
    """Made-up long runs; returns their bytes."""
    source = next((ROOT / "results" / "timeline").glob("tiny_colocate/*"))
    manifest = json.loads((source / "manifest.json").read_text())
    rows = [row for row in read_lines(source / "metrics.jsonl")[0] if row["split"] == "train"]
    size = 0
    for number in range(runs):
        run = folder / "made_up" / str(number)
        run.mkdir(parents=True)
        write_json(run / "manifest.json", manifest | {"seed": number})
        with open(run / "metrics.jsonl", "w", encoding="utf-8") as file:
            for step in range(1, lines // runs + 1):
                size += file.write(json.dumps(rows[step % len(rows)] | {"step": step}) + "\n")
    return size


def measure(lines: int, runs: int) -> dict:
    """Writes the runs, loads them, and says what it took."""
    with tempfile.TemporaryDirectory() as folder:
        size = write_runs(Path(folder), lines, runs)
        command = [sys.executable, "-c", MEASURED, folder]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return {"lines": lines, "file_bytes": size} | json.loads(done.stdout)


def priority() -> str | None:
    """The scheduler's weight of this session, which decides on a machine that others use; None where Linux does not say."""
    file = Path("/proc/self/autogroup")
    return file.read_text().strip() if file.exists() else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.lines, arguments.runs) | {
        "command": f"python benchmarks/bench_analysis.py --lines {arguments.lines} --runs {arguments.runs}",
        "git": git_state(),
        "packages": {"python": platform.python_version()}
        | {name: version(name) for name in ("pandas", "numpy", "msgspec")},
        "hardware": {"machine": platform.machine(), "cpus": os.cpu_count(), "load_average": os.getloadavg()[0],
                     "priority": priority()},
        "end": utc_now(),
    }  # fmt: skip
    print(json.dumps(result, indent=2))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(arguments.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
