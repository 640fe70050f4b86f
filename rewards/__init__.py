"""Rewards for math: accuracy, format, length, repetition. No torch, no network; importing it loads no sympy.

The names below are functions (`trl grpo --reward_funcs rewards.accuracy`); `from rewards.accuracy import ...` works too.
"""

from rewards.accuracy import accuracy, accuracy_boxed
from rewards.format import format_boxed, format_think, format_think_answer
from rewards.length import length_cosine
from rewards.repetition import repetition

__all__ = [
    "accuracy",
    "accuracy_boxed",
    "format_boxed",
    "format_think",
    "format_think_answer",
    "length_cosine",
    "repetition",
]
