"""Put on PYTHONPATH, Python runs this in every rank: rank 0 signals the launcher at a moment that SIGNAL_AT names, such as

training 3 SIGTERM    in the middle of step 3: after it, the launcher's request is there for certain
sealing 4 SIGKILL     when checkpoint-4 is written, and not yet sealed
training 3 SIGSTOP    stops itself: it hangs, and answers to no signal but SIGKILL
leaving 0 SIGTERM     hangs on its way out, when the run has finished
"""

import os
import signal
import sys
import time
from pathlib import Path

MOMENT, STEP, SIGNAL = (os.environ.get("SIGNAL_AT") or "never 0 SIGTERM").split()


def _signal() -> None:
    if SIGNAL == "SIGSTOP":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    torchrun = os.getppid()
    launcher = int(Path(f"/proc/{torchrun}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(launcher, signal.Signals[SIGNAL])
    stop = Path(sys.argv[-1]) / "stop.json"
    end = time.monotonic() + 60
    while not stop.exists() and time.monotonic() < end:  # a killed launcher takes this rank along
        time.sleep(0.02)


class _Signal:
    def find_spec(self, name, path=None, target=None):
        if name == "training.trainer":  # TRL is imported by then
            sys.meta_path.remove(self)
            {"training": in_training, "sealing": in_sealing, "leaving": in_leaving}[MOMENT]()


def in_training():
    from trl import GRPOTrainer

    original = GRPOTrainer.training_step

    def step(self, *args, **kwargs):
        if self.state.global_step + 1 == int(STEP):
            _signal()
        return original(self, *args, **kwargs)

    GRPOTrainer.training_step = step


def in_sealing():
    import training.checkpoints as module

    original = module.seal

    def seal(checkpoint, *args):
        if checkpoint.name == f"checkpoint-{STEP}":
            _signal()
        original(checkpoint, *args)

    module.seal = seal


def in_leaving():
    def never(code):
        for number in (signal.SIGALRM, signal.SIGTERM):  # not even its own alarm ends it
            signal.signal(number, signal.SIG_IGN)
        while True:
            time.sleep(60)

    os._exit = never


if MOMENT != "never" and os.environ.get("RANK") == "0" and "training" in sys.orig_argv:
    sys.meta_path.insert(0, _Signal())
