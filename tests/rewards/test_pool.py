"""The limits hold from outside, nothing else is lost, and no process outlives its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from rewards.grading import grade_batch
from rewards.limits import Limits, default_workers
from rewards.pool import Pool

ROOT = Path(__file__).resolve().parents[2]
TOWER = "9^{9^{9^{9^{9}}}}"  # never ends, in C code that no signal handler interrupts


def job(answer: str, gold: str = "x+5") -> dict:
    return {"gold": gold, "answer": answer}


@pytest.fixture
def impatient():
    """A pool with one second for each completion."""
    pool = Pool(Limits(time_seconds=1.0, workers=2))
    yield pool
    pool.close()


def session_processes(session: int) -> list[int]:
    """The living processes of a session: a supervisor and its workers."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(entry))
    return found


def alive_after(session: int, seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while (alive := session_processes(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive


def test_a_completion_that_overruns_costs_itself_alone(impatient):
    impatient.run([job("x+5")])
    jobs = [job("x+5"), job(TOWER), job("5+x"), job(TOWER), job("x+6"), job(r"\sin^2 x+\cos^2 x+x+4")]
    start = time.monotonic()
    results = impatient.run(jobs)
    assert time.monotonic() - start < 4
    assert [r["status"] for r in results] == ["ok", "out_of_time", "ok", "out_of_time", "ok", "ok"]
    assert [r.get("verdict") for r in results] == [True, None, True, None, False, True]
    assert all(1.0 <= r["seconds"] <= 1.2 for r in results if r["status"] == "out_of_time")


def test_reasons_and_rewards_of_overruns(impatient):
    verdicts = grade_batch(["5", TOWER, "5"], [rf"\boxed{{{TOWER}}}", r"\boxed{5}", r"\boxed{5}"], pool=impatient)
    assert [(v.reward, v.reason) for v in verdicts] == [(0.0, "out_of_time"), (None, "unusable_gold"), (1.0, "correct")]


@pytest.mark.slow
def test_a_completion_that_eats_memory_is_stopped():
    pool = Pool(Limits(time_seconds=60.0, memory_bytes=256 * 1024 * 1024, workers=1))
    try:
        pool.run([job("x+5")])
        results, peak = [], 0
        thread = threading.Thread(target=lambda: results.extend(pool.run([job("x^{2}+" * 150_000 + "1"), job("5+x")])))
        thread.start()
        while thread.is_alive():
            for pid in session_processes(pool.supervisor_pid):
                try:
                    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                except (OSError, IndexError):
                    continue
                peak = max(peak, resident)
            time.sleep(0.01)
    finally:
        pool.close()
    assert [r["status"] for r in results] == ["out_of_memory", "ok"]
    assert peak <= 1.2 * 256 * 1024 * 1024


def test_order_is_kept(pool):
    answers = [f"x+{k}" for k in range(60)]
    results = pool.run([job(answer, "x+7") for answer in answers])
    assert [r["verdict"] for r in results] == [answer == "x+7" for answer in answers]


def test_two_threads_share_a_pool(pool):
    """math-verify's own limits raise outside the main thread (huggingface/Math-Verify#55)."""
    verdicts: dict[int, list] = {}

    def grade(k: int) -> None:
        texts = [rf"\boxed{{\sin^2 x + {j}}}" for j in range(8)]
        verdicts[k] = [v.reward for v in grade_batch([rf"{k + 1}-\cos^2 x"] * 8, texts, pool=pool)]

    threads = [threading.Thread(target=grade, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == {k: [float(j == k) for j in range(8)] for k in range(4)}


def test_a_killed_worker_is_replaced(pool):
    pool.run([job("x+5")])
    for pid in session_processes(pool.supervisor_pid):
        if pid != pool.supervisor_pid:
            os.kill(pid, signal.SIGKILL)
    assert [r["verdict"] for r in pool.run([job("5+x"), job("x+4")])] == [True, False]


def test_a_killed_supervisor_is_restarted_and_the_batch_finished(impatient):
    impatient.run([job("x+5")])
    first = impatient.supervisor_pid
    threading.Timer(0.3, os.kill, (first, signal.SIGKILL)).start()
    results = impatient.run([job(TOWER), job("5+x"), job("x+4")])
    assert [r["status"] for r in results] == ["out_of_time", "ok", "ok"]
    assert impatient.supervisor_pid != first
    assert alive_after(first, 5) == []


def test_a_forked_child_has_its_own_pool():
    """A data loader forks: the child must not talk to its parent's supervisor."""
    code = """
        import os
        from rewards.grading import grade_batch
        from rewards.pool import shared
        grade = lambda: [v.reward for v in grade_batch([r"\\sin x"] * 2, [r"\\boxed{\\sin(x)+0}", r"\\boxed{\\cos x}"])]
        first, pid = grade(), shared().supervisor_pid
        child = os.fork()
        if child == 0:
            import rewards.grading
            rewards.grading._memo = rewards.grading._Memo()
            ok = grade() == first == [1.0, 0.0] and shared().supervisor_pid != pid
            shared().close()
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert grade() == first and shared().supervisor_pid == pid
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, check=True, timeout=120)


BUSY = textwrap.dedent("""
    import sys, threading
    from rewards.limits import Limits
    from rewards.pool import Pool
    pool = Pool(Limits(time_seconds=60.0, workers=2))
    pool.run([{"gold": "x", "answer": "x+0"}])
    print(pool.supervisor_pid, flush=True)
    tower = {"gold": "5", "answer": "9^{9^{9^{9^{9}}}}"}
    if sys.argv[1] == "exit":
        threading.Thread(target=pool.run, args=([tower] * 4,), daemon=True).start()
        import time; time.sleep(0.5)
        sys.exit(0)
    pool.run([tower] * 4)
""")


@pytest.mark.parametrize("ending", ["exit", "SIGINT", "SIGTERM", "SIGKILL"])
def test_no_process_outlives_its_parent(ending, tmp_path):
    """While both workers are inside a tower. SIGINT goes to the whole process group, as Ctrl-C does."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(
        [sys.executable, "-c", BUSY, ending], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path,
        env=environment, start_new_session=True,
    )  # fmt: skip
    supervisor = int(parent.stdout.readline())
    assert supervisor in session_processes(supervisor)
    if ending != "exit":
        time.sleep(0.5)
        os.killpg(parent.pid, getattr(signal, ending))
    parent.wait(timeout=20)
    parent.stdout.close()
    assert alive_after(supervisor, 5) == []


def test_ctrl_c_leaves_a_pool_that_works(impatient):
    """The exchange is cut in its middle; the next call must not read the old batch's results."""
    impatient.run([job("x+5")])
    threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,)).start()
    with pytest.raises(KeyboardInterrupt):
        impatient.run([job(TOWER)] * 8)
    assert [r["verdict"] for r in impatient.run([job("x+4"), job("5+x")])] == [False, True]


def test_import_is_cheap_and_clean():
    """The launcher reads the registry in milliseconds; the trainer's process loads no sympy for a reward."""
    code = (
        "import sys, time; start = time.perf_counter(); import rewards, rewards.registry;"
        "print(time.perf_counter() - start);"
        "rewards.accuracy(completions=['\\\\boxed{4}'], gold=['4']);"
        "print([m for m in ('sympy', 'math_verify', 'torch', 'latex2sympy2_extended', 'mpmath') if m in sys.modules])"
    )
    seconds, modules = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    ).stdout.splitlines()
    assert modules == "[]"
    assert float(seconds) < 0.5  # 0.03 s on an idle machine


def test_odd_text_survives_the_pipe(pool):
    """Lone surrogates, NUL, a megabyte: frames are JSON in ASCII."""
    for text in ("\ud800", "x\x00y", "\\" * 9999, "é" * 1000):
        assert pool.run([job(text)])[0]["status"] in ("ok", "error")
    assert pool.run([job("5+x")])[0]["verdict"] is True


def test_workers_share_the_cpus_of_a_node(monkeypatch):
    cpus = len(os.sched_getaffinity(0))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(4 * cpus))
    assert default_workers() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert default_workers() == min(8, cpus)


@pytest.mark.parametrize("bad", [{"time_seconds": 0}, {"memory_bytes": 1000}, {"workers": 0}])
def test_limits_refuse_nonsense(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Limits(**bad)


def test_under_torchrun_each_rank_has_its_own_pool(tmp_path):
    """Two processes with the launcher's variables grade at once; both get their own verdicts."""
    code = textwrap.dedent(r"""
        import json, os
        from rewards import accuracy
        rank = int(os.environ["RANK"])
        print(json.dumps(accuracy(completions=[rf"\boxed{{\tan {k}}}" for k in (1, 2, 3)], gold=[rf"\tan {rank + 1}+0"] * 3)))
    """)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"},
        )
        for rank in (0, 1)
    ]  # fmt: skip
    rewards = [json.loads(process.communicate(timeout=120)[0]) for process in ranks]
    assert rewards == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
