"""How a run has ended: its exit status for the record and for whoever started it, the one cause, and the lines that show it."""

import re
import signal
import sys

from launch.command import node_logs
from launch.peers import Peers
from launch.resume import disk_is_full
from launch.server import SERVER, Server, last_lines
from launch.stopping import AGAIN, Ending
from record import RunFolder

FINISHED, FAILED, REFUSED = 0, 1, 2


def hear_verdict(folder: RunFolder, returncode: int | None, ending: Ending, peers: Peers) -> int:
    """On a node that does not lead: says what it knows of the end, and ends as node 0 concludes."""
    mine = ending.cause if ending.cause != peers.cause else None
    stopped = f"stopped by {ending.signal_name}" if ending.exit_code is not None else None
    cause = mine or stopped or (f"torchrun ended with exit code {returncode}" if returncode else None)
    peers.ending(cause, sure=bool(mine), code=ending.exit_code)
    verdict = peers.verdict()
    if verdict:
        code, cause = verdict["code"], verdict["cause"]
    elif folder.manifest()["exit"]["status"] == "finished":  # node 0 is gone, and the work is done
        code, cause = FINISHED, None
    else:
        code, cause = FAILED, mine or stopped or peers.lost() or "node 0 has not concluded the run"
        _finish(folder, "failed", cause)
    said = {FINISHED: "finished", FAILED: "failed", REFUSED: "refused"}.get(code, "interrupted")
    print(f"{said}{f': {cause}' if cause else ''} (logs: {node_logs(folder.path, peers.place)})", file=sys.stderr)
    peers.close(code, cause)
    return code


def conclude(
    folder: RunFolder, returncode: int | None, ending: Ending, server: Server | None, peers: Peers | None = None
) -> int:
    """Gives the record its exit status where the ranks could not, and says what happened."""
    status = folder.manifest()["exit"]["status"]
    if status == "finished":
        if returncode:
            print(
                f"warning: the run finished, then a rank crashed on its way out (exit code {returncode})",
                file=sys.stderr,
            )
        return FINISHED
    if status == "interrupted":
        cause = folder.manifest()["exit"]["cause"]
        print(f"interrupted, {cause}; the same command resumes from there: {folder.path}", file=sys.stderr)
        return AGAIN
    if ending.exit_code is not None or (peers and peers.interrupted() is not None):
        mine = ending.exit_code is not None
        _finish(folder, "interrupted", f"stopped by {ending.signal_name}" if mine else peers.cause)
        print(f"interrupted; the record holds every finished step: {folder.path}", file=sys.stderr)
        return ending.exit_code if mine else peers.interrupted()
    cause, refused, shown = _blame(folder, returncode, ending, server, peers)
    _finish(folder, "failed", cause)
    print(f"failed: {cause}", file=sys.stderr)
    if not refused:
        print("\n".join(f"  | {line}" for line in shown[-12:]), file=sys.stderr)
        print(f"  the ranks' logs: {folder.logs_path}", file=sys.stderr)
    return REFUSED if refused else FAILED


def _blame(folder, returncode, ending, server, peers) -> tuple[str, bool, list[str]]:
    """The cause of a failure, whether it was bad input that a rank refused, and the log lines that tell most of it."""
    errors = folder.errors()
    if sure := _sure(ending, peers):  # what the ranks then say only follows from it
        of_server = (server and server.cause) or SERVER in sure
        return sure, False, last_lines(folder) if of_server else _log_lines(folder)
    if not errors and (full := disk_is_full(folder)):
        return full, False, _log_lines(folder)
    if killed := killed_rank(folder):
        return killed, False, _log_lines(folder)
    if errors:
        first = errors[0]
        cause = f"rank {first['rank']}: {first['kind']}: {first['message']}"
        return cause, first["kind"] == "Refused", first["traceback"].splitlines()
    return ending.cause or f"torchrun ended with exit code {returncode}", False, _log_lines(folder)


def _sure(ending: Ending, peers: Peers | None) -> str | None:
    """A cause that does not follow from another: this node's own, another's, or that one is lost."""
    if peers is None:
        return ending.cause
    mine = ending.cause if ending.cause != peers.cause else None
    return mine or peers.sure() or peers.lost()


def _finish(folder: RunFolder, status: str, cause: str) -> None:
    try:
        folder.finish(status, cause)
    except OSError as error:  # a full disk: what happened is said all the same
        print(f"warning: {error.filename}: {error.strerror}: the record stays without its exit status", file=sys.stderr)


def killed_rank(folder: RunFolder) -> str | None:
    """torchrun's own word on a rank that a signal ended (the out-of-memory killer's, for one): it leaves no error behind,
    and what the other ranks then say of lost connections only follows from it. torchrun's root cause may be such a
    follower: it goes by whole seconds."""
    killed = []
    for log in folder.logs_path.rglob("torchrun.log"):  # one a node
        text = log.read_text(errors="replace")
        closed_by_torchrun = set(re.findall(r"Sending process (\d+) closing signal", text))
        killed += [
            (int(rank), signal.Signals(-int(code) if int(code) < 0 else int(code) - 128), code)
            for rank, code, pid in re.findall(
                r"rank +: (\d+) [^\n]*\n +exitcode +: (-\d+|129|130|143) \(pid: (\d+)\)", text
            )
            if pid not in closed_by_torchrun  # a rank that is asked to leave does so with 128 + the signal
        ]
    # a watchdog that misses a peer aborts its own rank: the word of a follower too
    killed.sort(key=lambda entry: entry[1] == signal.SIGABRT)
    if killed and (killed[0][1] != signal.SIGABRT or not folder.errors()):
        rank, number, code = killed[0]
        return f"rank {rank} was {'killed' if code.startswith('-') else 'ended'} by {number.name} (exit code {code})"
    return None


def _log_lines(folder: RunFolder) -> list[str]:
    """The lines of the rank's log that was written to last."""
    logs = [log for log in folder.logs_path.rglob("std*.log") if log.stat().st_size]
    return max(logs, key=lambda log: log.stat().st_mtime).read_text(errors="replace").splitlines() if logs else []
