"""Make the tiny experiment's checkpoint: a small Qwen2 and its tokenizer, warmed up by supervised training.

    python -m tiny.warm_up      # writes tiny/checkpoint/
    python -m tiny.warm_up --size 71m --device cuda --output FOLDER     # the same task for a GPU's worth of model

The model sees the train problems alone, demonstrated in two ways (tiny/demonstrations.py), and comes to sample both:
guesses, mostly wrong, and worked answers, mostly right. GRPO has to find out that working step by step pays.

Seeded, on one thread, with torch's deterministic algorithms: the same machine and versions give the same weights. Other
processors round differently, so elsewhere the weights differ in their last digits, and accuracy by a little. On a GPU the
run is seeded and no more: its matrix products are in TF32, and some kernels add in whatever order they finish.
"""

import argparse
import json
import random
import time
from functools import cache
from pathlib import Path
from statistics import fmean as mean
from typing import NamedTuple

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from tiny.demonstrations import SYSTEM_PROMPT, boxed, draw, step_by_step
from tiny.make_data import DATA

CHECKPOINT = Path(__file__).parent / "checkpoint"
SEED = 0
STEPS = 1000
BATCH_DEMONSTRATIONS = 64
# In the last third of the steps. Before, all demonstrations are worked: that is what takes long to learn.
STEP_BY_STEP_SHARE = 0.4
VOCABULARY_TOKENS = 384  # at most: 256 bytes, 3 special tokens, and merges for what the prompts and demonstrations hold
CONTEXT_TOKENS = 512


class Size(NamedTuple):
    """A model's shape, and the peak learning rate that it is warmed up with."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    mlp: int
    peak_learning_rate: float


# Head sizes of 32 and 64: vLLM's CPU attention refuses some others. 0.63 and 71.0 million parameters.
SIZES = {"tiny": Size(128, 3, 4, 2, 384, 3e-3), "71m": Size(640, 12, 10, 2, 2560, 6e-4)}
CHAT_TEMPLATE = (
    "{%- if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\n" + SYSTEM_PROMPT.replace("\\", "\\\\")
    + "<|im_end|>\\n' }}{% endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"
)  # fmt: skip


def load(split: str) -> list[dict[str, str]]:
    """The rows of tiny/data/SPLIT.jsonl, each with `problem` and `answer`."""
    return [json.loads(line) for line in (DATA / f"{split}.jsonl").read_text().splitlines()]


def messages(problem: str) -> list[dict[str, str]]:
    """The chat the model is asked to continue."""
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": problem}]


def build_tokenizer(rows: list[dict[str, str]]) -> Qwen2Tokenizer:
    """Qwen2's byte-level BPE, so that it covers any text, with a vocabulary made for the prompts and demonstrations."""
    text = [f"{SYSTEM_PROMPT}system\nuser\nassistant\n"]
    text += [part for row in rows for part in (row["problem"], step_by_step(**row))]
    tokenizer = Qwen2Tokenizer(padding_side="left", model_max_length=CONTEXT_TOKENS).train_new_from_iterator(
        text, VOCABULARY_TOKENS, new_special_tokens=["<|im_start|>", "<|im_end|>"], show_progress=False
    )
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: Qwen2Tokenizer, size: Size = SIZES["tiny"]) -> Qwen2ForCausalLM:
    """A Qwen2 with random weights from torch's current seed."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=size.mlp,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model


@cache  # every problem comes a dozen times, and a GPU would wait for the tokenizer
def prompt_ids(tokenizer: Qwen2Tokenizer, problem: str) -> list[int]:
    return tokenizer.apply_chat_template(messages(problem), add_generation_prompt=True)["input_ids"]


@cache
def completion_ids(tokenizer: Qwen2Tokenizer, completion: str) -> list[int]:
    return tokenizer(completion)["input_ids"] + [tokenizer.eos_token_id]


def make_batch(pairs: list[tuple[str, str]], tokenizer: Qwen2Tokenizer) -> dict[str, torch.Tensor]:
    """Right-padded `input_ids`, `attention_mask` and `labels` (-100 on prompt and padding), each (batch, tokens)."""
    prompts = [prompt_ids(tokenizer, problem) for problem, _ in pairs]
    completions = [completion_ids(tokenizer, completion) for _, completion in pairs]
    width = max(len(p) + len(c) for p, c in zip(prompts, completions, strict=True))
    input_ids = torch.full((len(pairs), width), tokenizer.pad_token_id)
    attention_mask = torch.zeros_like(input_ids)
    labels = torch.full_like(input_ids, -100)
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        end = len(prompt) + len(completion)
        input_ids[i, :end] = torch.tensor(prompt + completion)
        attention_mask[i, :end] = 1
        labels[i, len(prompt) : end] = torch.tensor(completion)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def warm_up(
    model: Qwen2ForCausalLM,
    tokenizer: Qwen2Tokenizer,
    rows: list[dict[str, str]],
    steps: int = STEPS,
    peak_learning_rate: float = SIZES["tiny"].peak_learning_rate,
    step_by_step_share: float = STEP_BY_STEP_SHARE,
) -> None:
    """Supervised training in place: AdamW, linear warm-up over a tenth of the steps, then linear decay to zero."""
    rng = random.Random(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_learning_rate, betas=(0.9, 0.98), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.1 * steps), (steps - step) / (0.9 * steps))
    )
    model.train()
    for step in range(1, steps + 1):
        share = step_by_step_share if 3 * step > 2 * steps else 1.0
        batch = make_batch([draw(rows, share, rng) for _ in range(BATCH_DEMONSTRATIONS)], tokenizer)
        loss = model(**{name: tensor.to(model.device) for name, tensor in batch.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}/{steps}: loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def answer(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, problems: list[str], sampled: bool) -> list[str]:
    """One completion a problem: greedy, or sampled at temperature 1 from the whole distribution."""
    model.eval()
    chats = [messages(problem) for problem in problems]
    prompts = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
    ).to(model.device)
    how = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0} if sampled else {"do_sample": False}
    output = model.generate(**prompts, max_new_tokens=64, **how)
    return tokenizer.batch_decode(output[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)


def measure(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, rows: list[dict[str, str]]) -> str:
    """Accuracy on `rows`, sampled (four completions a problem) and greedy, and what each way of answering is worth."""
    sampled = answer(model, tokenizer, [row["problem"] for row in rows] * 4, sampled=True)
    greedy = answer(model, tokenizer, [row["problem"] for row in rows], sampled=False)
    right = [completion.endswith(boxed(row["answer"])) for completion, row in zip(sampled, rows * 4, strict=True)]
    guesses = [r for r, completion in zip(right, sampled, strict=True) if completion.startswith("\\boxed")]
    worked = [r for r, completion in zip(right, sampled, strict=True) if not completion.startswith("\\boxed")]
    greedy_right = [completion.endswith(boxed(row["answer"])) for completion, row in zip(greedy, rows, strict=True)]
    return (
        f"sampled {mean(right):.3f}, greedy {mean(greedy_right):.3f}; {len(guesses) / len(right):.2f} of the sampled "
        f"completions guess, and {mean(guesses or [0]):.3f} of these are right, {mean(worked or [0]):.3f} of the others"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the tiny experiment's checkpoint.")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--output", type=Path, help="folder to write (default for the size tiny: tiny/checkpoint)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--share", type=float, default=STEP_BY_STEP_SHARE, help="of worked ones in the last third")
    parser.add_argument("--learning-rate", type=float, help="at its peak (default: the size's own)")
    arguments = parser.parse_args()
    output = arguments.output or (CHECKPOINT if arguments.size == "tiny" else parser.error("--output must be given"))
    size = SIZES[arguments.size]
    start = time.monotonic()
    torch.manual_seed(SEED)
    if arguments.device == "cpu":
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
    else:
        torch.set_float32_matmul_precision("high")
    train = load("train")
    tokenizer = build_tokenizer(train)
    model = build_model(tokenizer, size).to(arguments.device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens in the vocabulary")
    peak = arguments.learning_rate or size.peak_learning_rate
    warm_up(model, tokenizer, train, arguments.steps, peak, arguments.share)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    print(f"{output} written after {time.monotonic() - start:.0f} seconds", flush=True)
    print(f"held-out accuracy: {measure(model, tokenizer, load('test'))}")


if __name__ == "__main__":
    main()
