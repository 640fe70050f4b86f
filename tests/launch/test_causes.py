"""Which line of several is the cause: from torchrun's closing report, as torch 2.13 writes it."""

import pytest

from launch.conclude import killed_rank
from record import RunFolder

FOLLOWER = "  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 100) \n"


def failure(rank, code, pid, name):
    return f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {pid})  ({name})\n"


@pytest.mark.parametrize(
    ("report", "error", "cause"),
    [
        ("Failures:\n" + failure(1, -9, 101, "SIGKILL") + "Root Cause (first observed failure):\n" + FOLLOWER, True,
         "rank 1 was killed by SIGKILL (exit code -9)"),
        ("Root Cause (first observed failure):\n" + failure(1, -11, 101, "SIGSEGV"), False,
         "rank 1 was killed by SIGSEGV (exit code -11)"),
        # torchrun ended rank 1 itself, after rank 0 had failed
        ("Sending process 101 closing signal SIGTERM\n" + failure(1, -9, 101, "SIGKILL") + FOLLOWER, True, None),
        # the watchdog of a rank that lost its peer
        (failure(1, -6, 101, "SIGABRT") + FOLLOWER, True, None),
        (failure(0, -6, 100, "SIGABRT") + failure(1, -9, 101, "SIGKILL"), False,
         "rank 1 was killed by SIGKILL (exit code -9)"),
        (failure(1, 143, 101, "") + FOLLOWER, True, "rank 1 was ended by SIGTERM (exit code 143)"),
        ("Sending process 101 closing signal SIGTERM\n" + failure(1, 143, 101, "") + FOLLOWER, True, None),
        (failure(0, -6, 100, "SIGABRT"), False, "rank 0 was killed by SIGABRT (exit code -6)"),
        ("", True, None),
    ],
)  # fmt: skip
def test_a_killed_rank_is_told_from_those_that_follow_it(tmp_path, report, error, cause):
    folder = RunFolder(tmp_path)
    folder.logs_path.mkdir()
    (folder.logs_path / "torchrun.log").write_text(report)
    if error:
        folder.write_error(0, "RuntimeError", "Connection reset by peer", "")
    assert killed_rank(folder) == cause
