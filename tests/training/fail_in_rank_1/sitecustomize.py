"""Put on PYTHONPATH, Python runs this in every rank: rank 1 fails while it generates for the second step."""

import os
import sys


class _Fail:
    def find_spec(self, name, path=None, target=None):
        if name == "training.trainer":  # TRL is imported by then
            sys.meta_path.remove(self)
            from trl import GRPOTrainer

            original = GRPOTrainer._generate_single_turn

            def failing(self, *args, **kwargs):
                if self.model.training and self.state.global_step == 1:
                    raise RuntimeError("injected at step 2")
                return original(self, *args, **kwargs)

            GRPOTrainer._generate_single_turn = failing


if os.environ.get("RANK") == "1" and "training" in sys.orig_argv:
    sys.meta_path.insert(0, _Fail())
