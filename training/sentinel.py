"""The weight-sync sentinel: stops a run whose engine is evidently sampling from other weights than the trainer's.

What it watches is the mean, over all tokens sampled in a step and over all ranks, of

    | log p_engine(token) - log p_trainer(token) |        (natural logarithm)

Both sides compute it anyway: the engine while it samples, the trainer for the importance-sampling correction. With equal
weights what is left is rounding and the order of summation, a level that belongs to a model, its type and its kernels and
hardly moves during a run. With other weights it is a distance between policies, which no rounding explains. Public cases:
TRL 0.28 to 1.9 with sleep mode sampled every rollout from the first checkpoint, and nothing but this number showed it
(TRL 5312).
"""

import math
from statistics import median

import torch
import trl.trainer.grpo_trainer as trl_trainer

# Without the importance-sampling correction the trainer does not score the samples. The sentinel then scores this many
# completions of each rank itself: a small part of a step, and enough tokens for a mean.
SCORED_COMPLETIONS = 4

# Steps from which the level is learnt. The first is worth most: before the first update even a sync that does nothing leaves
# equal weights, so a fault that is there from the start cannot hide in it.
LEARNING_STEPS = 10

# An alarm is a level this many times the learnt one, or more where the level itself scatters (see `Sentinel.limit`). Healthy
# means were 2.4e-7 to 4.2e-7 in float32 on CPUs (200 steps, never above 0.14 of the limit), and 1e-4 to 1e-3 in bfloat16 over
# several runs on an H200 with vLLM 0.25.1; weights that are one update old gave 2,000 times the level and more in float32
# (results/arms/). In bfloat16 at small learning rates one update hides in the rounding: a fault shows once it has added up.
LEAST_FACTOR, MOST_FACTOR = 10.0, 100.0
SCATTERS = 6.0

# A level below one rounding of a log-probability of 1 is no evidence, whatever it is relative to: the unit roundoff u of the
# type that both compute in. In float32 that never decides; in bfloat16 it is above ten times a very low level.
UNIT_ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8}

# At the first step there is no level yet. Beyond these the two sides do not even agree on the checkpoint (a parameter that was
# not loaded, another dtype): 1000 and 100 times what healthy runs start with. Not applied where sampling is cut (top_p < 1 and
# the like), since there the engine's log-probabilities are of another distribution by design.
FIRST_LIMIT = {"float32": 3e-4, "bfloat16": 1e-1}

# One step over the limit may be an outlier of a few tokens; two in a row are a state.
STEPS_IN_A_ROW = 2


class WeightsOutOfSync(RuntimeError):
    """The engine samples from other weights than the trainer trains."""


class Sentinel:
    """Watches one run. Deterministic in what it is told: ranks that are told the same decide the same.

    Args:
        dtype: what engine and trainer compute in, float32 or bfloat16.
        cut: whether sampling is cut (top_p, top_k, min_p, a repetition penalty), so that there is no absolute first limit.
    """

    def __init__(self, dtype: str, cut: bool = False):
        self._dtype, self._cut = dtype, cut
        self._learnt: list[float] = []  # logarithms of the levels of the first healthy steps
        self._over = 0

    def state(self) -> dict:
        """What it has learnt, as a checkpoint keeps it."""
        return {"learnt": self._learnt, "over": self._over}

    def restore(self, state: dict) -> None:
        self._learnt, self._over = list(state["learnt"]), state["over"]

    @property
    def limit(self) -> float:
        """What the next level must not exceed: the learnt level (median) times a factor. The factor is LEAST_FACTOR, or six
        robust standard deviations of the level's logarithm (1.4826 x the median absolute deviation) if those are more,
        MOST_FACTOR at most: a run that scatters by a decade must not end for it, and one that leaks must not be excused."""
        if not self._learnt:
            return math.inf if self._cut else FIRST_LIMIT[self._dtype]
        middle = median(self._learnt)
        scatter = 1.4826 * median(abs(value - middle) for value in self._learnt)
        factor = min(max(math.exp(min(SCATTERS * scatter, 10.0)), LEAST_FACTOR), MOST_FACTOR)
        return max(math.exp(middle) * factor, UNIT_ROUNDOFF[self._dtype])

    def observe(self, step: int, level: float | None) -> None:
        """Takes a step's level; None if no token counted.

        Raises:
            WeightsOutOfSync: the limit was exceeded for the second step in a row.
        """
        if level is None:
            return
        limit = self.limit
        if level <= limit:
            self._over = 0
            if len(self._learnt) < LEARNING_STEPS:
                self._learnt.append(math.log(max(level, 1e-12)))  # 0 has no logarithm
            return
        self._over += 1
        if self._over >= STEPS_IN_A_ROW:
            start = (
                f"{math.exp(median(self._learnt)):.2g}"
                if self._learnt
                else "unknown: it was over the limit from the start"
            )
            raise WeightsOutOfSync(
                f"step {step}: the engine's log-probabilities of the tokens it sampled are {level:.2g} from the trainer's "
                f"(mean over all tokens, {STEPS_IN_A_ROW} steps in a row over the limit of {limit:.2g}; this run's own level "
                f"is {start}). The engine is sampling from other weights than those under training: the weight sync is broken, "
                "and what is learnt from these samples is not GRPO. The record holds the level of every finished step as "
                "sentinel/level"
            )


def sampling_is_cut(grpo: dict) -> bool:
    """Whether the engine samples from another distribution than the model's own at that temperature."""
    plain = {"top_p": (1,), "top_k": (0,), "min_p": (None, 0), "repetition_penalty": (1,)}
    return any(grpo[name] not in values for name, values in plain.items()) or bool(grpo.get("generation_kwargs"))


def watched(trainer, sentinel: Sentinel, output: dict[str, torch.Tensor]) -> None:
    """Shows the sentinel what a trainer has just sampled, on every rank, and puts its level and limit into the step's metrics.

    Args:
        trainer: a GRPOTrainer in training mode.
        output: what its _generate_and_score_completions returned (TRL 1.16.0): `sampling_per_token_logps` (B, T), of the
            engine; `old_per_token_logps` (B, T), of the trainer, if it was computed; ids and masks.

    Raises:
        WeightsOutOfSync: on all ranks at the same step, since each decides by the same gathered sums.
    """
    sampled = output["sampling_per_token_logps"]
    scored = output.get("old_per_token_logps")
    if scored is None:
        scored = _score(trainer, output)
    sampled, mask = sampled[: len(scored)], output["completion_mask"][: len(scored)].bool()
    distances = (scored - sampled).abs()[mask]
    distances = distances[~torch.isnan(distances)].double()  # vLLM marks a token that it could not score as NaN
    sums = torch.stack(
        [distances.sum(), torch.tensor(float(distances.numel()), dtype=torch.double, device=distances.device)]
    )
    total, count = trainer.accelerator.gather(sums).view(-1, 2).sum(dim=0).tolist()
    level = total / count if count else None
    if level is not None:
        trainer._metrics["train"]["sentinel/level"].append(level)
        trainer._metrics["train"]["sentinel/limit"].append(sentinel.limit)
    sentinel.observe(trainer.state.global_step + 1, level)


def _score(trainer, output: dict[str, torch.Tensor]) -> torch.Tensor:
    """The trainer's log-probabilities (b, T) of the first completions of this rank, as TRL computes them."""
    part = slice(min(SCORED_COMPLETIONS, len(output["completion_ids"])))
    ids = torch.cat([output["prompt_ids"][part], output["completion_ids"][part]], dim=1)
    attended = torch.cat([output["prompt_mask"][part], output["completion_mask"][part]], dim=1)
    kept = output["completion_ids"].size(1)
    with (
        torch.no_grad(),
        trl_trainer.disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs),
    ):
        return trainer._get_per_token_logps_and_entropies(trainer.model, ids, attended, kept, batch_size=len(ids))[0]
