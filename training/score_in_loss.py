"""The importance ratio from the loss's own forward pass. Part of the seam to TRL's internals (training/engine.py).

TRL corrects for the engine's rounding with a ratio p_trainer / p_engine of the sampled tokens (GRPOConfig's
vllm_importance_sampling_*), and runs the model once more over every completion to know p_trainer before the loss does. Where
the samples come from the very weights that are trained, which is so whenever a generation batch serves one optimizer step
alone, the loss's forward pass computes the same numbers. The pass before it, a quarter of the training's work without
checkpointing, is then not needed: old and current log-probabilities are equal, as TRL itself has it where there is no engine.
"""

import math

import torch


def aligned(args) -> bool:
    """Whether a generation batch is used for one optimizer step alone (TRL's own test, GRPOTrainer, 1.16.0)."""
    return args.gradient_accumulation_steps % (args.steps_per_generation * args.num_iterations) == 0


def importance_ratio(trainer, scored: torch.Tensor, sampled: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """TRL's importance-sampling ratio between trainer and engine (GRPOTrainer._generate_and_score_completions, 1.16.0).

    Args:
        scored, sampled: the trainer's and the engine's log-probabilities (B, T); NaN where the engine has none.
        mask: (B, T), 1 on the tokens that count.

    Returns:
        (B, 1) in the sequence_* modes, (B, T) in the token_* modes.
    """
    difference = torch.nan_to_num((scored - sampled) * mask, nan=0.0)
    mode = trainer.vllm_importance_sampling_mode
    least, most = trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max
    if mode.startswith("sequence"):
        difference = difference.sum(dim=-1, keepdim=True)
    ratio = torch.exp(difference)
    if mode.endswith("truncate"):
        return torch.clamp(ratio, min=least, max=most)
    outside = (ratio < (-math.inf if least is None else least)) | (ratio > (math.inf if most is None else most))
    return ratio.masked_fill(outside, 0.0)


def log_ratio(trainer, scored: torch.Tensor, sampled: torch.Tensor, mask: torch.Tensor, ratio: torch.Tensor) -> None:
    """TRL's metrics of the two, under TRL's names: of each micro-batch, where TRL has one of the generation batch."""
    metrics, counted = trainer._metrics["train"], mask.bool()
    distances = (scored - sampled).abs()[counted & ~torch.isnan(sampled)]
    ratios = ratio.flatten() if ratio.shape[1] == 1 else ratio[counted]
    empty = torch.zeros(1, device=scored.device)
    distances, ratios = (values if values.numel() else empty for values in (distances, ratios))
    own = torch.stack([distances.mean(), distances.max(), ratios.min(), ratios.mean(), ratios.max()])
    every = trainer.accelerator.gather(own.float()).view(-1, 5)
    over_ranks = [every[:, 0].mean(), every[:, 1].max(), every[:, 2].min(), every[:, 3].mean(), every[:, 4].max()]
    names = ("sampling_logp_difference/mean", "sampling_logp_difference/max", "importance_sampling_ratio/min",
             "importance_sampling_ratio/mean", "importance_sampling_ratio/max")  # fmt: skip
    for name, value in zip(names, torch.stack(over_ranks).tolist(), strict=True):  # one wait for the GPU
        metrics[f"sampling/{name}"].append(value)
