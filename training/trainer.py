"""TRL's GRPOTrainer with a phase clock and a weight-sync sentinel on it, and a digest of its prompts. It changes nothing
that it computes."""

import functools
import hashlib
import json

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from training import checkpoints
from training.phases import PhaseClock
from training.sentinel import Sentinel, watched


class RecordedGRPOTrainer(GRPOTrainer):
    """GRPOTrainer whose phases are timed by `clock` (training/phases.py) and whose engine `sentinel` watches, if there is one.

    The barrier after generation costs nothing: TRL gathers the completions' lengths right there. It makes the wait for
    the slowest rank visible instead of booking it on whatever comes next.
    """

    def __init__(self, *args, clock: PhaseClock, sentinel: Sentinel | None = None, **kwargs):
        self._clock = clock
        self.sentinel = sentinel
        self.prompts_sha256: str | None = None
        self.epochs_done = 0  # in earlier attempts
        super().__init__(*args, **kwargs)
        self.reward_funcs = [
            _timed(function, name, clock)
            for function, name in zip(self.reward_funcs, self.reward_func_names, strict=True)
        ]

    def training_step(self, *args, **kwargs):
        self._clock.step = self.state.global_step + 1
        with self._clock("forward_backward"):
            return super().training_step(*args, **kwargs)

    def evaluate(self, *args, **kwargs):
        self._clock.split = "eval"
        try:
            with self._clock("other"):
                return super().evaluate(*args, **kwargs)
        finally:
            self._clock.split = "train"

    def _generate_and_score_completions(self, inputs):
        mode = "train" if self.model.training else "eval"
        # one digest a prompt, so that the digest of the whole does not depend on how many ranks share the prompts
        digests = [hashlib.sha256(json.dumps(row["prompt"]).encode()).hexdigest() for row in inputs]
        if mode == "train":
            self.prompts_sha256 = hashlib.sha256("".join(gather_object(digests)).encode()).hexdigest()
        with self._clock("other"):
            output = super()._generate_and_score_completions(inputs)
            if self.sentinel and mode == "train":
                watched(self, self.sentinel, output)
            return output

    def _generate_single_turn(self, *args, **kwargs):
        training = self.model.training
        with self._clock("generate"):
            generated = super()._generate_single_turn(*args, **kwargs)
        self.model.train(training)  # TRL 1.16.0 leaves an evaluation in training mode after continuous batching
        with self._clock("wait"):
            self.accelerator.wait_for_everyone()
        return generated

    def _calculate_rewards(self, *args, **kwargs):
        with self._clock("wait"):  # the rewards interrupt it; what is left is the gathering
            return super()._calculate_rewards(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        if torch.is_grad_enabled():
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)
        with self._clock("score"):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def _save_checkpoint(self, *args, **kwargs):
        with self._clock("save"):
            checkpoints.save(self, functools.partial(super()._save_checkpoint, *args, **kwargs))

    def _get_train_sampler(self, *args, **kwargs):
        sampler = super()._get_train_sampler(*args, **kwargs)
        for _ in range(self.epochs_done):
            next(iter(sampler))  # draws an epoch's order
        return sampler


def _timed(function, name: str, clock: PhaseClock):
    @functools.wraps(function)
    def timed(*args, **kwargs):
        with clock("grade"):
            return function(*args, **kwargs)

    timed.__name__ = name  # TRL logs a reward under its function's name
    return timed
