"""N-gram repetition penalty: Demystifying Long Chain-of-Thought Reasoning in LLMs (arXiv 2502.03373), appendix C.2."""

from __future__ import annotations

from collections.abc import Sequence

from rewards.text import texts


def repeated_tokens(tokens: Sequence, ngram_tokens: int) -> int:
    """How many tokens lie inside an n-gram that has occurred before (algorithm 1 of the paper). Linear for fixed n."""
    seen: set[int] = set()
    repeated, covered_to = 0, 0
    for start in range(len(tokens) - ngram_tokens + 1):
        # The hash alone is kept: n-grams of a long completion would take n times its memory. Python hashes tuples to
        # 64 bits, so that a false repetition in a million n-grams has a chance of about 3e-8.
        ngram = hash(tuple(tokens[start : start + ngram_tokens]))
        if ngram in seen:
            end = start + ngram_tokens
            repeated += end - max(start, covered_to)
            covered_to = end
        seen.add(ngram)
    return repeated


def repetition(
    prompts: list | None = None,
    completions: list = (),
    completion_ids: list[list[int]] | None = None,
    ngram_tokens: int = 40,
    max_penalty: float = -0.05,
    **kwargs,
) -> list[float]:
    """max_penalty times the share of tokens that lie in a repeated n-gram: 0.0 for none, near max_penalty for a loop.

    The paper gives each such token the penalty; a GRPO reward is one number per completion, and this is the mean of
    the paper's vector, so that the range does not grow with the length. Without completion_ids words stand for tokens.
    """
    sequences = completion_ids if completion_ids is not None else [text.split() for text in texts(completions)]
    if len(sequences) != len(completions):
        raise ValueError(f"repetition: {len(sequences)} token lists for {len(completions)} completions; give one each")
    return [
        max_penalty * repeated_tokens(tokens, ngram_tokens) / len(tokens) if len(tokens) else 0.0
        for tokens in sequences
    ]
