"""LoRA (Hu et al., arXiv 2106.09685): the trainer's adapters, and the whole weights that an engine samples from."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

import torch
from peft import LoraConfig, PeftModel
from peft.tuners.lora import Linear

ADAPTER = "default"  # peft's name for the adapter that get_peft_model makes


def adapter_config(lora: dict) -> LoraConfig:
    """peft's configuration of a recipe's section `lora`. No dropout: what samples and what is scored must be one policy."""
    return LoraConfig(**lora, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM")


def merged_parameters(
    model: PeftModel, gather: Callable[[Iterable[torch.nn.Parameter]], AbstractContextManager]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of each parameter of the base model with the adapters in it: W + lora_alpha / r * B A (2106.09685,
    equation 3), in float32 and rounded once to W's type.

    TRL 1.16.0 merges in place and takes the adapters out again. That needs the whole model on each GPU where ZeRO-3 shards
    it, and leaves the frozen weights a rounding away from what they were, every step. Here one matrix at a time is whole, and
    the model is only read.

    Args:
        gather: makes sharded parameters whole inside a context; a tensor is valid until the next one is asked for.
    """
    base = model.get_base_model()
    layers = {name: module for name, module in base.named_modules() if isinstance(module, Linear)}
    for name, parameter in base.named_parameters():
        if ".lora_" in name:
            continue
        owner, _, own = name.partition(".base_layer.")
        if own != "weight":
            with gather([parameter]):
                yield name.replace(".base_layer.", "."), parameter.data
            continue
        layer = layers[owner]
        a, b = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
        with gather([parameter, a, b]), torch.no_grad():
            merged = (b.float() @ a.float()).mul_(layer.scaling[ADAPTER]).add_(parameter)
            yield f"{owner}.weight", merged.to(parameter.dtype)
