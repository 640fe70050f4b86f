"""TRL's GRPOTrainer with a phase clock and a weight-sync sentinel on it, and a digest of its prompts. It changes nothing
that it computes, and with `score_in_loss` leaves out one computing of what is computed twice."""

import functools
import hashlib
import json

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from training import checkpoints
from training.phases import PhaseClock
from training.score_in_loss import aligned, importance_ratio, log_ratio
from training.sentinel import Sentinel, watched


class RecordedGRPOTrainer(GRPOTrainer):
    """GRPOTrainer whose phases are timed by `clock` (training/phases.py) and whose engine `sentinel` watches, if there is one.

    The barrier after generation costs nothing: TRL gathers the completions' lengths right there. It makes the wait for
    the slowest rank visible instead of booking it on whatever comes next.

    Args:
        score_in_loss: take the importance ratio from the loss's forward pass (training/score_in_loss.py).

    Raises:
        ValueError: `score_in_loss` where a generation batch serves more than one optimizer step.
    """

    def __init__(
        self, *args, clock: PhaseClock, sentinel: Sentinel | None = None, score_in_loss: bool = False, **kwargs
    ):
        self._clock = clock
        self._score_in_loss = score_in_loss
        self._loss_inputs: dict | None = None  # of the micro-batch whose loss is being computed
        self.sentinel = sentinel
        self.prompts_sha256: str | None = None
        self.epochs_done = 0  # in earlier attempts
        super().__init__(*args, **kwargs)
        if score_in_loss and not aligned(self.args):
            raise ValueError("score_in_loss needs a generation batch for each optimizer step, and each used once")
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
        corrected = self.vllm_importance_sampling_correction
        with self._clock("other"):
            if mode == "train" and self._score_in_loss:
                self.vllm_importance_sampling_correction = False  # until the loss: TRL then leaves out the scoring pass
            try:
                output = super()._generate_and_score_completions(inputs)
            finally:
                self.vllm_importance_sampling_correction = corrected
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

    def _compute_loss(self, model, inputs):
        self._loss_inputs = inputs if self._score_in_loss and model.training else None
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._loss_inputs = None

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        if torch.is_grad_enabled():
            scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            if (inputs := self._loss_inputs) is not None:
                own, sampled, mask = scored[0].detach(), inputs["sampling_per_token_logps"], inputs["completion_mask"]
                ratio = importance_ratio(self, own, sampled, mask)
                inputs["importance_sampling_ratio"] = ratio  # where TRL's loss looks for it, after this pass
                log_ratio(self, own, sampled, mask, ratio)
            return scored
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
