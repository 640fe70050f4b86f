"""Put on PYTHONPATH, Python runs this in every rank: rank 0 signals the launcher at a moment that SIGNAL_AT names, such as

training 3 SIGTERM    in the middle of step 3: after it, the launcher's request is there for certain
sealing 4 SIGKILL     when checkpoint-4 is written, and not yet sealed
"""

import os
import signal
import sys
import time
from pathlib import Path

MOMENT, STEP, SIGNAL = (os.environ.get("SIGNAL_AT") or "never 0 SIGTERM").split()


def _signal_the_launcher() -> None:
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
            {"training": in_training, "sealing": in_sealing}[MOMENT]()


def in_training():
    from trl import GRPOTrainer

    original = GRPOTrainer.training_step

    def step(self, *args, **kwargs):
        if self.state.global_step + 1 == int(STEP):
            _signal_the_launcher()
        return original(self, *args, **kwargs)

    GRPOTrainer.training_step = step


def in_sealing():
    import training.checkpoints as module

    original = module.seal

    def seal(checkpoint, *args):
        if checkpoint.name == f"checkpoint-{STEP}":
            _signal_the_launcher()
        original(checkpoint, *args)

    module.seal = seal


if MOMENT != "never" and os.environ.get("RANK") == "0" and "training" in sys.orig_argv:
    sys.meta_path.insert(0, _Signal())
