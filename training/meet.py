"""The nodes of a run meet before it starts: `python -m training.meet FOLDER`, one process a node, started by torchrun.

FOLDER is the launcher's own (launch/meeting.py), on this node. said.json in it goes to all nodes, and what all have said comes
back in heard.json, by rank. Then the processes wait for a decision.json from any one launcher, which comes back in
answer.json on all. Since they talk twice a second meanwhile, a node that is lost is noticed. It is gloo's own
rendezvous and connections that are used: a name that does not resolve, a firewall or the wrong network interface shows
here, before any model is loaded.
"""

import ctypes
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed

from record import read_json, write_json

_PR_SET_PDEATHSIG = 1
LOST_SECONDS = 30


def main() -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    folder = Path(sys.argv[1])
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=LOST_SECONDS))
    write_json(folder / "heard.json", _gather(read_json(folder / "said.json")))
    decision = folder / "decision.json"
    while not (decided := [word for word in _gather(read_json(decision) if decision.exists() else None) if word]):
        time.sleep(0.5)
    write_json(folder / "answer.json", decided[0])
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # the teardown of a group whose peers leave first has nothing to say


def _gather(value) -> list:
    heard = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(heard, value)
    return heard


if __name__ == "__main__":
    sys.exit(main())
