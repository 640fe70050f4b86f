"""One drill: start a run, strike, see how it ends and what it leaves, start it again."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil

from launch.recipe import ROOT
from launch.stopping import AGAIN
from record import read_lines
from record.checkpoints import checkpoints, is_sealed
from tests.drills.scenarios import MOMENTS, Scenario
from tests.real_runs import folder_of, launch_command, processes_of

STEPS, STRUCK_STEP = 4, 3
END_SECONDS = 60  # from the fault to the end of the job
START_SECONDS = 400  # until the moment comes: a machine with two cores and other work on it
RECIPES = {"colocate": "recipes/tiny_colocate.yaml", "server": "recipes/tiny_server.yaml"}
OVERRIDES = (
    f"grpo.max_steps={STEPS}", "grpo.max_completion_length=24", "data.eval_split=null", "grpo.save_strategy=steps",
    "grpo.save_steps=1", "grpo.save_total_limit=2", "grpo.per_device_train_batch_size=16",
)  # fmt: skip


class Missed(Exception):
    """The moment of a drill did not come."""


class Job:
    """The launcher of a run, and the means to find its parts. tests/drills/two_nodes.py has the same for two nodes."""

    frozen: int | None = None  # the number of a node that cannot end while it is stopped

    def __init__(self, scenario: Scenario, runs: Path, environment: dict[str, str] | None = None):
        self.runs = runs
        command = self.command(scenario)
        self.log = runs.parent / f"{runs.name}.log"
        with open(self.log, "ab") as log:
            self.launchers = [
                psutil.Popen(
                    command, cwd=ROOT, env=os.environ | (environment or {}), stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )
            ]  # fmt: skip

    def command(self, scenario: Scenario) -> list[str]:
        return launch_command(RECIPES[scenario.layout], self.runs, OVERRIDES)

    def seen(self) -> dict:
        """What else goes into the row when the struck run is over, before it is started again."""
        return {}

    def rank(self, number: int) -> psutil.Process | None:
        for process in processes_of(self.runs):
            try:
                if process.environ().get("RANK") == str(number) and "training" in process.cmdline():
                    return process
            except psutil.Error:
                continue
        return None

    def server(self, engine: bool) -> psutil.Process | None:
        names = ("VLLM::Worker", "VLLM::EngineCore") if engine else ("vllm.entrypoints",)
        for process in self.launcher(0).children(recursive=True):
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if "launch.guard" not in line and any(name in line for name in names):
                return process
        return None

    def launcher(self, number: int) -> psutil.Process:
        return self.launchers[number]

    def left(self) -> list[psutil.Process]:
        return processes_of(self.runs)

    def over(self) -> bool:
        return self.launchers[0].poll() is not None and not self.left()

    def code(self) -> int | None:
        return self.launchers[0].poll()

    def clear(self) -> None:
        """Ends what is left of it, for the next drill's sake."""
        for process in [*self.launchers, *processes_of(self.runs)]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        for launcher in self.launchers:
            launcher.wait()


def steps_of(folder: Path | None) -> list[int]:
    if folder is None or not (folder / "metrics.jsonl").exists():
        return []
    return [row["step"] for row in read_lines(folder / "metrics.jsonl")[0]]


def await_moment(job: Job, scenario: Scenario, file: Path) -> None:
    """Returns in the moment at which the scenario strikes.

    Raises:
        Missed: it did not come.
    """

    def started() -> bool:
        if scenario.target == "server":
            return job.server(engine=False) is not None
        folder = folder_of(job.runs)
        if folder is None or not (folder / "events.jsonl").exists():
            return False
        return any(row["event"] == "libraries loaded" for row in read_lines(folder / "events.jsonl")[0])

    reached = file.exists if MOMENTS[scenario.moment] else started
    end = time.monotonic() + START_SECONDS
    while not reached():
        if time.monotonic() > end or job.over():
            raise Missed(f"{scenario}: the moment did not come; see {job.log}")
        time.sleep(0.02)
    if scenario.target == "server" and scenario.moment == "start":
        time.sleep(2)


def targets(job: Job, scenario: Scenario) -> list[psutil.Process]:
    chance = random.Random(str(scenario)).random()  # the same in every series
    if scenario.target == "rank":
        return [job.rank(struck_rank(scenario))]
    if scenario.target == "launcher":
        return [job.launcher(1 if scenario.layout == "two nodes" and chance < 0.5 else 0)]
    if scenario.target == "node":
        return job.node()
    return [(job.server(engine=True) if chance < 0.5 else None) or job.server(engine=False)]


def struck_rank(scenario: Scenario) -> int:
    return 0 if scenario.layout == "server" else 1


def drill(scenario: Scenario, runs: Path, job_class=Job) -> dict:
    """Runs one drill below `runs`, which must be new. Returns its row; `shortfalls` names what was not as it should be."""
    runs.mkdir(parents=True)
    file = runs.parent / f"{runs.name}.moment"
    search_path = [str(Path(__file__).parent / "moment"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "PYTHONPATH": os.pathsep.join(search_path), "DRILL_FILE": str(file),
        "DRILL_PHASE": MOMENTS[scenario.moment] or "", "DRILL_STEP": str(STRUCK_STEP),
        "DRILL_RANK": str(struck_rank(scenario)),
    }  # fmt: skip
    shared_memory = set(os.listdir("/dev/shm"))
    row: dict = {
        "layout": scenario.layout,
        "target": scenario.target,
        "fault": scenario.fault,
        "moment": scenario.moment,
    }
    job = job_class(scenario, runs, environment if MOMENTS[scenario.moment] else None)
    try:
        await_moment(job, scenario, file)
        struck = time.monotonic()
        lift = strike(job, scenario)
        if scenario.harmless:
            time.sleep(10)
            row["steps_while_struck"] = len(steps_of(folder_of(runs)))
            lift()
        while not job.over() and time.monotonic() - struck < END_SECONDS + 60:
            time.sleep(0.1)
        row["end_seconds"] = round(time.monotonic() - struck, 1) if job.over() else None
        if job.frozen is not None:  # once continued, it ends by itself too
            job.frozen = None
            lift()
            end = time.monotonic() + END_SECONDS
            while not job.over() and time.monotonic() < end:
                time.sleep(0.1)
        row["left_processes"] = [" ".join(process.cmdline())[:120] for process in job.left()]
        row["code"] = job.code()
        row |= job.seen()
    finally:
        job.clear()
    output = job.log.read_text(errors="replace")
    folder = folder_of(runs)
    manifest = json.loads((folder / "manifest.json").read_text())
    row["status"], row["cause"] = manifest["exit"]["status"], manifest["exit"]["cause"]
    row["cause_was_said"] = bool(row["cause"]) and row["cause"] in output
    row["steps"] = steps_of(folder)
    row["torn_lines"] = sum(read_lines(path)[1] for path in folder.glob("*.jsonl"))
    row["left_shared_memory"] = orphans(set(os.listdir("/dev/shm")) - shared_memory)
    row["whole_checkpoints"] = sorted(path.name for path in checkpoints(folder) if is_sealed(path))
    if not scenario.harmless:
        row |= restart(scenario, runs, job_class, len(output))
    row["shortfalls"] = list(shortfalls(scenario, row))
    return row


def orphans(names: set[str]) -> list[str]:
    """Those files in /dev/shm that no process has mapped: nobody will take them away. Other runs' are mapped by them."""
    for _ in range(10):
        mapped = set()  # inodes: a semaphore is mapped under another name than it has
        for process in psutil.process_iter():
            with contextlib.suppress(OSError):
                mapped |= {line.split()[4] for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines()}
        left = set()
        for name in names:
            with contextlib.suppress(OSError):
                if str(Path("/dev/shm", name).stat().st_ino) not in mapped:
                    left.add(name)
        names = left
        if not names:
            break
        time.sleep(1)
    return sorted(names)


def strike(job: Job, scenario: Scenario):
    """Does it. Returns what takes it back."""
    if scenario.fault == "cut":
        return job.cut()
    struck = targets(job, scenario)

    def send(number: int) -> None:
        for process in struck:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    if scenario.fault == "SIGKILL":  # a machine that loses its power loses all at once
        send(signal.SIGSTOP)
    send(signal.Signals[scenario.fault])
    return lambda: send(signal.SIGCONT)


def restart(scenario: Scenario, runs: Path, job_class, said: int) -> dict:
    """The same command again, to the end."""
    job = job_class(scenario, runs)
    try:
        end = time.monotonic() + START_SECONDS
        while not job.over() and time.monotonic() < end:
            time.sleep(0.2)
        code = job.code()
    finally:
        job.clear()
    folder = folder_of(runs)
    manifest = json.loads((folder / "manifest.json").read_text())
    output = job.log.read_text(errors="replace")[said:]
    earlier = [attempt.get("exit", {}) for attempt in manifest.get("attempts", [])[:-1]]
    return {
        "again_code": code,
        "again_status": manifest["exit"]["status"],
        "again_steps": steps_of(folder),
        "resumed": "resuming" in output,
        "cause_said_later": earlier[-1].get("cause") if earlier else None,
    }


def shortfalls(scenario: Scenario, row: dict):
    """What was not as it should be, in words."""
    if row["left_processes"] or row["left_shared_memory"]:
        yield f"left behind: {row['left_processes']} {row['left_shared_memory']}"
    if row["torn_lines"] or row["steps"] != list(range(1, len(row["steps"]) + 1)):
        yield f"record: steps {row['steps']}, {row['torn_lines']} torn lines"
    if scenario.harmless:
        if row["code"] != 0 or row["status"] != "finished":
            yield f"a launcher that was only stopped should have finished: code {row['code']}, {row['status']}"
        return
    if row["end_seconds"] is None or row["end_seconds"] > END_SECONDS:
        yield f"took {row['end_seconds']} s to end (None: never)"
    if not row["code"]:
        yield f"exit code {row['code']}"
    if not (row["cause_was_said"] or row["cause_said_later"]):
        yield "no cause was named"
    named = {"rank": f"rank {struck_rank(scenario)}", "server": "server", "node": "node 1", "link": "node 1"}
    cause = row["cause"] or row["cause_said_later"] or ""
    if scenario.moment != "start" and named.get(scenario.target, "") not in cause:
        yield f"the cause does not name the {scenario.target}: {cause}"
    if scenario.in_order and row["code"] != AGAIN:
        yield f"SIGTERM of the launcher should save and exit with {AGAIN}"
    if row["again_code"] != 0 or row["again_status"] != "finished" or row["again_steps"] != list(range(1, STEPS + 1)):
        yield f"the next start: code {row['again_code']}, {row['again_status']}, steps {row['again_steps']}"
    if row["whole_checkpoints"] and not row["resumed"]:
        yield f"the next start did not resume from {row['whole_checkpoints']}"
