"""A random model of a given configuration: `python -m training.random_model FOLDER TOKENIZER CONFIG_JSON [DEVICE [MEAN]]`.

`launch run --shrink` calls it, and the benchmarks on a GPU (benchmarks/inputs.py), for large models. Seeded, so that a
shrunk recipe starts from the same weights wherever it runs. With MEAN, its completions end at random, at that mean length.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

OUTWEIGHS = 4.0  # the common part of the last hidden state over what differs between positions


def make(
    folder: Path, tokenizer_folder: str, config: dict, device: str = "cpu", mean_tokens: float | None = None
) -> None:
    """Writes weights, configuration and tokenizer to `folder`, in one step: it is whole or absent.

    Args:
        mean_tokens: the mean length of completions (see `end_at_random`). None: as good as never, at one in the vocabulary.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    settings = dict(config)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    model.to(getattr(torch, config["dtype"]))
    if mean_tokens is not None:
        end_at_random(model, float(mean_tokens))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        made = Path(temporary) / folder.name
        model.save_pretrained(made)
        AutoTokenizer.from_pretrained(tokenizer_folder).save_pretrained(made)
        try:
            os.rename(made, folder)
        except OSError:
            if not (folder / "model.safetensors").is_file():  # unless another process was first
                raise


def end_at_random(model, mean_tokens: float) -> None:
    """Makes a random model (Qwen2) sample its end token with probability 1 / `mean_tokens` at every position, so that lengths
    are geometrically distributed, with a long tail. Whatever generates, generates such lengths: no request says so.

    Attention's weights add up to 1, so that a bias of the values reaches every position alike. The last layer's gets one that
    outweighs what differs between positions; the final hidden state h then has one direction u in common, and the end token's
    output row becomes g u, with g such that the mean of p(end | h) over random tokens is the one wanted. All of it is computed
    with the weights as they are stored, rounded to their type. With a tied head the row is the end token's embedding too.

    Raises:
        ValueError: its values have no bias.
    """
    import torch

    decoder, last, end = model.model, model.model.layers[-1].self_attn, model.config.eos_token_id
    if last.v_proj.bias is None:
        raise ValueError(f"{model.config.model_type}: values without a bias, so nothing that all positions share")
    seen = {}
    hook = decoder.norm.register_forward_pre_hook(lambda module, inputs: seen.update(residual=inputs[0]))
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(end + 1, model.config.vocab_size, (8, 128), generator=draw).to(model.device)
    with torch.no_grad():
        decoder(tokens)
        bias = torch.randn(last.v_proj.bias.shape, generator=draw).to(last.v_proj.bias)
        per_head = bias.view(-1, last.head_dim).repeat_interleave(last.num_key_value_groups, dim=0)
        size = (
            last.o_proj(per_head.flatten()).float().square().mean().sqrt()
        )  # of what it adds to the residual, per element
        last.v_proj.bias.copy_(bias * OUTWEIGHS * seen["residual"].float().square().mean().sqrt() / size)
        hidden = decoder(tokens).last_hidden_state.flatten(0, 1)
        hook.remove()
        common = hidden.float().mean(dim=0)
        common /= common.norm()
        logits = model.lm_head(hidden).float()
        logits[:, end] = -torch.inf
        along, others = hidden.float() @ common, logits.logsumexp(dim=-1)
        low, high = 0.0, 100.0
        for _ in range(60):  # bisection: p rises with g
            g = (low + high) / 2
            rare = torch.sigmoid(g * along - others).mean() < 1 / mean_tokens
            low, high = (g, high) if rare else (low, g)
        model.lm_head.weight[end] = (g * common).to(model.lm_head.weight.dtype)


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), *sys.argv[4:])
