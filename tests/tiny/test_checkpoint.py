"""The committed checkpoint: it loads, it is small, its tokenizer covers any text, and it answers as the README says."""

import random
import unicodedata

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiny.demonstrations import SYSTEM_PROMPT, boxed, step_by_step
from tiny.make_data import SPLIT_PROBLEMS
from tiny.warm_up import CHECKPOINT, answer, build_tokenizer, load, make_batch, messages

LONGEST_PROMPT_TOKENS = 50  # stated in tiny/README.md, as is the next
LONGEST_DEMONSTRATION_TOKENS = 37


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)


def test_the_checkpoint_takes_at_most_5_mb():
    files = {path.name: path.stat().st_size for path in CHECKPOINT.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    assert sum(files.values()) <= 5_000_000


def test_model_and_tokenizer_agree(model, tokenizer):
    assert model.config.model_type == "qwen2"
    assert model.config.vocab_size == len(tokenizer)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    for config in (model.config, model.generation_config):
        assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_the_chat_template_writes_chatml_and_supplies_the_system_prompt(tokenizer):
    chat = messages("1 + 2 =")
    opening = f"<|im_start|>system\n{SYSTEM_PROMPT}<|im_end|>\n<|im_start|>user\n1 + 2 =<|im_end|>\n"
    prompt = opening + "<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == prompt
    assert tokenizer.apply_chat_template(chat[1:], tokenize=False, add_generation_prompt=True) == prompt
    answered = [*chat, {"role": "assistant", "content": "\\boxed{3}"}]
    assert tokenizer.apply_chat_template(answered, tokenize=False) == prompt + "\\boxed{3}<|im_end|>\n"
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert tokenizer.decode(ids) == prompt
    assert ids.count(tokenizer.eos_token_id) == 2  # a special token is one token, not its letters


def test_the_recipes_ask_with_the_system_prompt_of_the_warm_up():
    prompts = yaml.safe_load((CHECKPOINT.parent.parent / "launch" / "system_prompts.yaml").read_text())
    assert prompts["tiny_boxed"] == SYSTEM_PROMPT


def test_the_vocabulary_covers_arbitrary_text(tokenizer):
    """In its composed form (NFC), to which Qwen2's tokenizers bring all text."""
    rng = random.Random(0)
    planes = [(0x20, 0x7F), (0xA0, 0x2FF), (0x370, 0x1FFF), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF), (0, 0x1F)]
    for _ in range(300):
        text = "".join(chr(rng.randint(*rng.choice(planes))) for _ in range(rng.randint(1, 40)))
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == unicodedata.normalize("NFC", text)


def test_the_tokenizer_is_what_the_script_builds_from_the_train_problems(tokenizer):
    assert build_tokenizer(load("train")).backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_prompts_and_demonstrations_are_as_short_as_stated(tokenizer):
    prompt_tokens, demonstration_tokens = [], []
    for row in (row for split in SPLIT_PROBLEMS for row in load(split)):
        prompt = tokenizer.apply_chat_template(messages(row["problem"]), add_generation_prompt=True)["input_ids"]
        prompt_tokens.append(len(prompt))
        demonstration_tokens.append(len(tokenizer(step_by_step(**row))["input_ids"]) + 1)  # and the end of the turn
    assert max(prompt_tokens) == LONGEST_PROMPT_TOKENS
    assert max(demonstration_tokens) == LONGEST_DEMONSTRATION_TOKENS


def test_warm_up_trains_on_the_completion_alone(tokenizer):
    batch = make_batch([("1 + 2 =", "\\boxed{3}"), ("1 + 2 + 3 + 4 =", "1+2=3 \\boxed{10}")], tokenizer)
    learnt = [tokenizer.decode(row[row != -100]) for row in batch["labels"]]
    assert learnt == ["\\boxed{3}<|im_end|>", "1+2=3 \\boxed{10}<|im_end|>"]
    at_labels = batch["labels"] != -100
    assert torch.equal(batch["labels"][at_labels], batch["input_ids"][at_labels])
    assert batch["attention_mask"].sum(dim=1).tolist() == [
        (row != tokenizer.pad_token_id).sum() for row in batch["input_ids"]
    ]


def test_it_starts_between_0_2_and_0_6_and_working_step_by_step_is_what_pays(model, tokenizer):
    rows = load("test")
    torch.manual_seed(0)
    completions = answer(model, tokenizer, [row["problem"] for row in rows], sampled=True)
    right = [completion.endswith(boxed(row["answer"])) for completion, row in zip(completions, rows, strict=True)]
    worked = ["=" in completion for completion in completions]
    assert 0.2 <= sum(right) / len(rows) <= 0.6
    assert 0.2 <= sum(worked) / len(rows) <= 0.6

    def accuracy(way: bool) -> float:
        return sum(r for r, w in zip(right, worked, strict=True) if w == way) / worked.count(way)

    assert accuracy(True) > 0.8
    assert accuracy(False) < 0.2
