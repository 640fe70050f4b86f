"""What the tiny model is shown before GRPO: problems answered in two ways, with a guess or step by step."""

import random
import re

from tiny.make_data import expression

SYSTEM_PROMPT = "Solve the problem. Put the final answer in \\boxed{}."


def boxed(answer: str) -> str:
    """`answer` as the final answer of a completion."""
    return f"\\boxed{{{answer}}}"


def step_by_step(problem: str, answer: str) -> str:
    """The running totals, then the answer: "7-4=3 3+0=3 3-2=1 \\boxed{1}"."""
    first, *rest = re.findall(r"[+-]?\d+", expression(problem))
    total, steps = int(first), []
    for term in rest:
        steps.append(f"{total}{term}={total + int(term)}")
        total += int(term)
    return " ".join(steps) + " " + boxed(answer)


def draw(rows: list[dict[str, str]], step_by_step_share: float, rng: random.Random) -> tuple[str, str]:
    """A problem drawn from `rows` and one demonstration of it, step by step with probability `step_by_step_share`.

    The others are guesses: the answer of some problem, drawn at random. Were they right, the model would learn to sum a
    chain in its head (it did, 0.8 of the time after 1,500 steps), and working step by step would have nothing to add.
    """
    row = rng.choice(rows)
    if rng.random() < step_by_step_share:
        return row["problem"], step_by_step(**row)
    return row["problem"], boxed(rng.choice(rows)["answer"])
