"""Random models whose completions end at random: the mean length is the one asked for, as transformers samples."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from launch.recipe import ROOT
from training.random_model import end_at_random, make

MEAN = 12


@pytest.mark.parametrize("tied", [True, False])
def test_completions_end_at_random_at_the_mean_length_that_was_asked_for(tmp_path, tied):
    shape = {
        "model_type": "qwen2", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 512, "vocab_size": 2000, "tie_word_embeddings": tied, "bos_token_id": None, "eos_token_id": 2,
        "pad_token_id": 0, "dtype": "bfloat16",
    }  # fmt: skip
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # many small products: threads only wait for each other
    try:
        make(tmp_path / "model", str(ROOT / "tiny/checkpoint"), shape, mean_tokens=MEAN)
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="bfloat16")
        assert model.generation_config.eos_token_id == 2
        torch.manual_seed(0)
        prompts = torch.randint(3, 2000, (256, 8))
        sampled = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0, max_new_tokens=6 * MEAN
        )[:, 8:]
    finally:
        torch.set_num_threads(threads)
    ends = sampled == 2
    lengths = torch.where(ends.any(dim=1), ends.int().argmax(dim=1) + 1, 6 * MEAN).double()
    # of 256 geometric lengths: the mean's standard error is 0.75 tokens, and the standard deviation is close to the mean
    assert lengths.mean() == pytest.approx(MEAN, rel=0.25)
    assert lengths.std() == pytest.approx(MEAN, rel=0.35)


def test_a_model_whose_values_have_no_bias_is_refused():
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    with pytest.raises(ValueError, match="without a bias"):
        end_at_random(LlamaForCausalLM(LlamaConfig(vocab_size=50, eos_token_id=2, **sizes)), MEAN)
