"""data/math_sample: the committed files are the generator's, and each answer is computed again from the problem's text."""

import json
import re
from collections import Counter

import pytest
import sympy
from sympy import I, Rational, oo, pi, sqrt, symbols

from data.make_math_sample import FOLDER, KINDS, TEST_EACH, TRAIN_EACH, lines, rows
from rewards.accuracy import accuracy

x = symbols("x")
ROWS = list(rows())


def boxed(solution: str) -> str:
    start = solution.index(r"\boxed{") + len(r"\boxed{")
    depth, end = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(solution[end], 0)
        end += 1
    return solution[start : end - 1]


def numbers(problem: str) -> list[int]:
    """The integers of a problem's text, signs included where they are signs (`(-3`, `= -3`, `$-3`), in order."""
    return [int(found) for found in re.findall(r"(?<=[($=,\s])-?\d+|\d+", problem)]


def expression(text: str):
    """A problem's polynomial text as sympy reads it: `3x^2 - x + 2i`."""
    text = re.sub(r"(\d)([xi])", r"\1*\2", text.replace("^", "**").replace(")(", ")*("))
    return sympy.sympify(text, locals={"i": I})


def between(problem: str, start: str, end: str) -> str:
    return problem.split(start, 1)[1].split(end, 1)[0]


def matrix(problem: str):
    a, b, c, d = numbers(between(problem, r"\begin{pmatrix}", r"\end{pmatrix}").replace("&", " ").replace(r"\\", " "))
    factor, shift = (
        numbers(problem.split("$")[1].split(r"\begin", maxsplit=1)[0])[0],
        numbers(problem.split(r"\end{pmatrix} +")[1])[0],
    )
    return factor * sympy.Matrix([[a, b], [c, d]]) + shift * sympy.eye(2)


def roots(problem: str) -> list:
    low, high = (
        expression(f"({between(problem, '(x - (', '))')})"),
        expression(f"({problem.split('(x - (')[2].split('))', maxsplit=1)[0]})"),
    )
    return sorted([low, high])


def sides(problem: str, relation: str):
    left, right = between(problem, "$", "$").split(relation)
    return expression(left), expression(right)


# kind -> the answer's LaTeX, from the problem's text alone
AGAIN = {
    "integer": lambda p, n: n[0] * n[1] - abs(n[2]),
    "thousands": lambda p, n: n[0] * n[1],
    "fraction": lambda p, n: Rational(n[0], n[1]) + Rational(n[2], n[3]),
    "decimal": lambda p, n: sympy.Float(float(Rational(n[0], n[1]) + n[2]), 12),
    "percent": lambda p, n: rf"{Rational(100 * n[1], n[0])}\%",
    "money": lambda p, n: rf"\${n[0] * n[1]}",
    "unit": lambda p, n: rf"{n[0] * n[1]}\text{{ km}}",
    "base": lambda p, n: "".join(map(str, sympy.ntheory.digits(n[0], 5)[1:])) + "_5",
    "power": lambda p, n: f"{n[0]}^{{{n[1] + n[3]}}}",
    "equation": lambda p, n: f"y = {sympy.latex(sympy.expand(n[0] * (x - n[1]) + n[2]))}",
    "linear": lambda p, n: sympy.solve(sympy.Eq(*sides(p, "=")), x)[0],
    "solutions": lambda p, n: ", ".join(map(str, sorted(sympy.solve(sympy.Eq(*sides(p, "=")), x)))),
    "plus_minus": lambda p, n: rf"{n[0]} \pm {sympy.latex(sqrt(n[2]))}",
    "pair": lambda p, n: tuple(sympy.solve([x + symbols("y") - n[0], x - symbols("y") - n[1]]).values()),
    "triple": lambda p, n: solved_triple(*n),
    "interval": lambda p, n: sympy.Interval(*roots(p)),
    "union": lambda p, n: sympy.Union(sympy.Interval.open(-oo, roots(p)[0]), sympy.Interval.open(roots(p)[1], oo)),
    "half_line": lambda p, n: sympy.Interval.open(-oo, Rational(n[1], n[0])),
    "inequality": lambda p, n: rf"x \ge {-(sides(p, chr(92) + 'ge')[0] - x) + sides(p, chr(92) + 'ge')[1]}",
    "finite_set": lambda p, n: rf"\{{{', '.join(map(str, sympy.divisors(n[0])))}\}}",
    "surd": lambda p, n: sqrt(n[0] ** 2 + n[1] ** 2),
    "pi": lambda p, n: pi * n[0] ** 2,
    "degrees": lambda p, n: rf"{180 - n[0] - n[1]}^\circ",
    "matrix": lambda p, n: matrix(p),
    "complex_number": lambda p, n: sympy.expand(expression(between(p, "$", "$"))),
    "polynomial": lambda p, n: sympy.expand(expression(between(p, "$", "$"))),
    "rational_expression": lambda p, n: (n[0] + n[1]) / x,
    "probability": lambda p, n: Rational(n[0], n[0] + n[1]),
    "binomial": lambda p, n: sympy.binomial(n[1], n[0]),
    "mixed_number": lambda p, n: Rational(n[0], n[1]),
    "word": lambda p, n: rf"\text{{{'odd' if n[0] * n[1] % 2 else 'even'}}}",
    "logarithm": lambda p, n: rf"\log_{{{n[0]}}} {n[1]}",
}


def solved_triple(a: int, b: int, c: int) -> tuple:
    y, z = symbols("y z")
    found = sympy.solve([x + y - a, y + z - b, z + x - c])
    return tuple(found[symbol] for symbol in (x, y, z))


def as_latex(answer) -> str:
    if isinstance(answer, str):
        return answer
    if isinstance(answer, tuple):
        return f"({', '.join(map(str, answer))})"
    return sympy.latex(answer, mat_str="pmatrix", mat_delim="")


def test_the_files_are_what_the_generator_makes():
    for split, content in lines().items():
        assert (FOLDER / f"{split}.jsonl").read_text().splitlines() == content, "python -m data.make_math_sample"


def test_the_sample_is_of_the_promised_size_and_has_the_columns_of_math_lighteval():
    kinds = Counter((split, kind) for split, kind, _ in ROWS)
    assert set(kinds) == {(split, kind) for split in ("train", "test") for kind in KINDS}
    assert set(kinds.values()) == {TRAIN_EACH, TEST_EACH}
    assert len(ROWS) >= 200
    assert len(KINDS) >= 20
    assert len({row["problem"] for _, _, row in ROWS}) == len(ROWS), (
        "a problem of the test split is in the training split"
    )
    for _, _, row in ROWS:
        assert set(row) == {"problem", "level", "type", "solution"}
        assert row["solution"].count(r"\boxed{") == 1
    json.dumps(ROWS)


@pytest.mark.parametrize("kind", KINDS)
def test_each_answer_is_found_again_from_the_problem(kind):
    golds, again = [], []
    for _, name, row in ROWS:
        if name == kind:
            golds.append(row["solution"])
            again.append(rf"So it is $\boxed{{{as_latex(AGAIN[kind](row['problem'], numbers(row['problem'])))}}}$.")
    rewards = accuracy(None, again, gold=golds)
    wrong = [(boxed(gold), answer) for gold, answer, reward in zip(golds, again, rewards, strict=True) if reward != 1.0]
    assert wrong == []


def test_another_problems_answer_is_wrong():
    """The check above could not fail if the grader said yes to everything."""
    by_kind: dict[str, list[str]] = {}
    for _, kind, row in ROWS:
        by_kind.setdefault(kind, []).append(row["solution"])
    golds, others = [], []
    for solutions in by_kind.values():
        other = next((other for other in solutions if boxed(other) != boxed(solutions[0])), None)
        if other:
            golds.append(solutions[0])
            others.append(rf"$\boxed{{{boxed(other)}}}$")
    assert len(golds) == len(KINDS)
    assert accuracy(None, others, gold=golds) == [0.0] * len(golds)
