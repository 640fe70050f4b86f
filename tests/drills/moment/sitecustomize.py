"""Put on PYTHONPATH, Python runs this in every rank: at the moment that a drill asks for, one rank says so in a file and
stays there for a second, so that the fault falls into it.

DRILL_FILE    the file
DRILL_PHASE   the phase (training/phases.py); in "save" the moment is when a part of the checkpoint is written
DRILL_STEP    the step
DRILL_RANK    the rank that says so
"""

import os
import sys
import time
from pathlib import Path

HOLD_SECONDS = 1.0


class _Moment:
    def __init__(self):
        self.phase, self.step = os.environ["DRILL_PHASE"], int(os.environ["DRILL_STEP"])
        self.said = False

    def find_spec(self, name, path=None, target=None):
        if name == "training.trainer":  # whatever is replaced here is imported by then
            sys.meta_path.remove(self)
            self.save() if self.phase == "save" else self.border()

    def reached(self):
        if not self.said:
            self.said = True
            Path(os.environ["DRILL_FILE"]).touch()
            time.sleep(HOLD_SECONDS)

    def border(self):
        from training.phases import PhaseClock

        original = PhaseClock.start

        def start(clock, phase):
            original(clock, phase)
            if phase == self.phase and clock.step == self.step and clock.split == "train":
                self.reached()

        PhaseClock.start = start

    def save(self):
        from transformers import Trainer

        original = Trainer._save_optimizer_and_scheduler  # the model's files are written before it, the rest after

        def saving(trainer, *args, **kwargs):
            if trainer.state.global_step == self.step:
                self.reached()
            return original(trainer, *args, **kwargs)

        Trainer._save_optimizer_and_scheduler = saving


if os.environ.get("DRILL_FILE") and os.environ.get("RANK") == os.environ["DRILL_RANK"] and "training" in sys.orig_argv:
    sys.meta_path.insert(0, _Moment())
