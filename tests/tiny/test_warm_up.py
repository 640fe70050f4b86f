"""The larger model of the warm-up, without training it: that takes a GPU."""

import torch

from tiny.warm_up import SIZES, build_model, build_tokenizer, load


def test_the_sizes_have_the_parameters_that_are_stated():
    tokenizer = build_tokenizer(load("train"))

    def parameters(size: str) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in build_model(tokenizer, SIZES[size]).parameters())

    assert parameters("tiny") == 634_112
    assert parameters("71m") == 71_018_752
    assert SIZES["71m"].hidden // SIZES["71m"].heads == 64  # vLLM's attention kernels refuse some head sizes
