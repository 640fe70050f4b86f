"""LoRA (Hu et al., arXiv 2106.09685): the trainer's adapters, and the whole weights that an engine samples from.

peft is imported where it is used: runs without the section `lora` do not need it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

import torch

ADAPTER = "default"  # peft's name for the adapter that get_peft_model makes


def adapter_config(lora: dict):
    """peft's LoraConfig of a recipe's section `lora`. No dropout: what samples and what is scored must be one policy."""
    from peft import LoraConfig

    return LoraConfig(**lora, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM")


def merged_parameters(
    model: torch.nn.Module, gather: Callable[[Iterable[torch.nn.Parameter]], AbstractContextManager]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of each parameter of the base model with the adapters in it: W + lora_alpha / r * B A (2106.09685,
    equation 3), in float32 and rounded once to W's type.

    TRL 1.16.0 merges in place and takes the adapters out again. Where ZeRO-3 shards the model that needs all of it on each GPU;
    elsewhere it leaves the frozen weights a rounding away from what they were, every step. Here one matrix at a time is whole,
    and the model is only read.

    Args:
        model: a peft.PeftModel.
        gather: makes sharded parameters whole inside a context; a tensor is valid until the next one is asked for.
    """
    from peft.tuners.lora import Linear

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
