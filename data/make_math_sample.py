r"""The committed sample of problems: `python -m data.make_math_sample` writes data/math_sample/{train,test}.jsonl.

Problems of our own making in the columns of MATH-lighteval (`problem`, `level`, `type`, `solution`, the answer in the
solution's last \boxed{}), so that every recipe's data path runs without a network. They are easy: what varies is the kind of
LaTeX answer that the rewards have to read. Each answer is right by construction, and tests/test_math_sample.py computes it
again from the problem's text with sympy.
"""

import json
import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "math_sample"
SEED = 20250603
TRAIN_EACH, TEST_EACH = 10, 4

Made = tuple[str, str, str]  # problem, working, answer
KINDS: dict[str, tuple[str, int, Callable[[random.Random], Made]]] = {}


def kind(type_: str, level: int):
    """Registers a maker of one kind of problem, with MATH's subject and level."""

    def register(maker):
        KINDS[maker.__name__] = (type_, level, maker)
        return maker

    return register


def tex(value: Fraction | int) -> str:
    value = Fraction(value)
    sign = "-" if value < 0 else ""
    return str(value) if value.denominator == 1 else rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def term(coefficient: int, symbol: str, first: bool = False) -> str:
    """A term of a polynomial with its sign: `+ 3x`, `- x`, or nothing where the coefficient is 0."""
    if coefficient == 0:
        return ""
    size = abs(coefficient)
    shown = symbol if symbol and size == 1 else f"{size}{symbol}"
    sign = "-" if coefficient < 0 else "" if first else "+"
    return f"{sign}{shown}" if first else f" {sign} {shown}"


def root(radicand: int) -> str:
    """sqrt(radicand) with the square part in front."""
    outside = max(size for size in range(1, math.isqrt(radicand) + 1) if radicand % (size * size) == 0)
    inside = radicand // (outside * outside)
    if inside == 1:
        return str(outside)
    return rf"{outside if outside > 1 else ''}\sqrt{{{inside}}}"


def nonzero(rng: random.Random, most: int) -> int:
    return rng.choice([-1, 1]) * rng.randint(1, most)


@kind("Prealgebra", 1)
def integer(rng) -> Made:
    a, b, c = rng.randint(12, 99), rng.randint(2, 12), rng.randint(10, 80)
    return f"Compute ${a} \\cdot {b} - {c}$.", f"${a} \\cdot {b} = {a * b}$, and less {c} that is", str(a * b - c)


@kind("Prealgebra", 2)
def thousands(rng) -> Made:
    a, b = rng.randint(120, 990), rng.randint(110, 400)
    return f"A hall has {a} rows of {b} seats. How many seats is that?", "Multiply:", f"{a * b:,}".replace(",", "{,}")


@kind("Prealgebra", 2)
def fraction(rng) -> Made:
    a, b, c, d = rng.randint(1, 9), rng.randint(2, 12), rng.randint(1, 9), rng.randint(2, 12)
    answer = Fraction(a, b) + Fraction(c, d)
    return (
        f"Compute $\\frac{{{a}}}{{{b}}} + \\frac{{{c}}}{{{d}}}$ in lowest terms.",
        f"Over {b * d} the numerators add:",
        tex(answer),
    )


@kind("Prealgebra", 2)
def decimal(rng) -> Made:
    a, b = rng.randint(11, 99), rng.randint(11, 99)
    return f"Write $\\frac{{{a * 4 + 1}}}{{4}} + {b}$ as a decimal.", "A quarter is 0.25:", f"{a + b}.25"


@kind("Prealgebra", 2)
def percent(rng) -> Made:
    part, whole = rng.randint(1, 19) * 5, 100 * rng.randint(1, 6)
    return f"What percent of {whole} is {whole * part // 100}?", "Divide and take hundredths:", rf"{part}\%"


@kind("Prealgebra", 2)
def money(rng) -> Made:
    count, price = rng.randint(3, 12), rng.randint(2, 30)
    return f"{count} tickets cost {price} dollars each. What do they cost together?", "Multiply:", rf"\${count * price}"


@kind("Prealgebra", 2)
def unit(rng) -> Made:
    speed, hours = rng.randint(40, 110), rng.randint(2, 9)
    return (
        f"A train keeps {speed} kilometres an hour for {hours} hours. How far does it go?",
        "Speed times time:",
        rf"{speed * hours}\text{{ km}}",
    )


@kind("Number Theory", 3)
def base(rng) -> Made:
    number = rng.randint(30, 250)
    digits, rest = "", number
    while rest:
        digits, rest = str(rest % 5) + digits, rest // 5
    return f"Write {number} in base 5.", "Divide by 5 again and again and read the remainders upwards:", f"{digits}_5"


@kind("Number Theory", 2)
def power(rng) -> Made:
    a, b, c = rng.choice([2, 3, 5, 7]), rng.randint(20, 60), rng.randint(3, 15)
    return f"Write ${a}^{{{b}}} \\cdot {a}^{{{c}}}$ as a power of {a}.", "Exponents add:", f"{a}^{{{b + c}}}"


@kind("Algebra", 2)
def equation(rng) -> Made:
    m, x, y = nonzero(rng, 6), nonzero(rng, 8), nonzero(rng, 8)
    intercept = y - m * x
    answer = f"y = {term(m, 'x', first=True)}{term(intercept, '')}"
    return (
        f"Find the line of slope ${m}$ through $({x}, {y})$, in the form $y = mx + b$.",
        f"$b = {y} - ({m})({x}) = {intercept}$, so",
        answer,
    )


@kind("Algebra", 2)
def linear(rng) -> Made:
    a, b, c = rng.randint(2, 9), nonzero(rng, 20), nonzero(rng, 20)
    return (
        f"Solve ${term(a, 'x', first=True)}{term(b, '')} = {c}$ for $x$.",
        f"${a}x = {c - b}$, so $x$ is",
        tex(Fraction(c - b, a)),
    )


@kind("Algebra", 3)
def solutions(rng) -> Made:
    p, q = rng.sample([n for n in range(-9, 10) if n], 2)
    p, q = sorted((p, q))
    shown = f"x^2{term(-(p + q), 'x')}{term(p * q, '')}"
    return f"Find all solutions of ${shown} = 0$, separated by commas.", f"It is $(x - ({p}))(x - ({q}))$:", f"{p}, {q}"


@kind("Algebra", 3)
def plus_minus(rng) -> Made:
    a, b = rng.randint(1, 9), rng.choice([2, 3, 5, 6, 7, 10, 11])
    return f"Solve $(x - {a})^2 = {b}$.", "Take roots:", rf"{a} \pm \sqrt{{{b}}}"


@kind("Algebra", 3)
def pair(rng) -> Made:
    x, y = nonzero(rng, 9), nonzero(rng, 9)
    return (
        f"Find the point $(x, y)$ with $x + y = {x + y}$ and $x - y = {x - y}$.",
        "Add and halve, subtract and halve:",
        f"({x}, {y})",
    )


@kind("Intermediate Algebra", 4)
def triple(rng) -> Made:
    x, y, z = (nonzero(rng, 7) for _ in range(3))
    return (
        f"Find $(x, y, z)$ with $x + y = {x + y}$, $y + z = {y + z}$ and $z + x = {z + x}$.",
        f"All three sum to ${x + y + z}$, and each unknown is that less one sum:",
        f"({x}, {y}, {z})",
    )


@kind("Algebra", 3)
def interval(rng) -> Made:
    low, high = sorted(rng.sample(range(-12, 13), 2))
    return (
        f"For which $x$ is $(x - ({low}))(x - ({high})) \\le 0$? Answer in interval notation.",
        "The product is not positive between its roots, ends included:",
        f"[{low}, {high}]",
    )


@kind("Intermediate Algebra", 4)
def union(rng) -> Made:
    low, high = sorted(rng.sample(range(-12, 13), 2))
    return (
        f"For which $x$ is $(x - ({low}))(x - ({high})) > 0$? Answer in interval notation.",
        "The product is positive outside its roots:",
        rf"(-\infty, {low}) \cup ({high}, \infty)",
    )


@kind("Algebra", 3)
def half_line(rng) -> Made:
    a, b = rng.randint(2, 9), rng.randint(-30, 30)
    return (
        f"Solve ${a}x < {b}$ in interval notation.",
        f"Divide by {a}:",
        rf"\left(-\infty, {tex(Fraction(b, a))}\right)",
    )


@kind("Algebra", 2)
def inequality(rng) -> Made:
    a, b = nonzero(rng, 12), nonzero(rng, 12)
    return f"Solve $x{term(a, '')} \\ge {b}$ for $x$. Answer as an inequality.", "Move the constant:", rf"x \ge {b - a}"


@kind("Number Theory", 2)
def finite_set(rng) -> Made:
    number = rng.randint(12, 99)
    found = [divisor for divisor in range(1, number + 1) if number % divisor == 0]
    return (
        f"Give the set of positive divisors of {number}.",
        "Try each number up to it:",
        rf"\{{{', '.join(map(str, found))}\}}",
    )


@kind("Geometry", 3)
def surd(rng) -> Made:
    a, b = rng.randint(1, 12), rng.randint(1, 12)
    return (
        f"A right triangle has legs {a} and {b}. How long is its hypotenuse?",
        f"$\\sqrt{{{a * a + b * b}}}$, simplified:",
        root(a * a + b * b),
    )


@kind("Geometry", 2)
def pi(rng) -> Made:
    r = rng.randint(2, 30)
    return f"What is the area of a circle of radius {r}?", "$\\pi r^2$:", rf"{r * r}\pi"


@kind("Geometry", 2)
def degrees(rng) -> Made:
    a, b = rng.randint(20, 85), rng.randint(20, 85)
    return (
        f"Two angles of a triangle have {a} and {b} degrees. How large is the third?",
        "They sum to 180 degrees:",
        rf"{180 - a - b}^\circ",
    )


@kind("Precalculus", 4)
def matrix(rng) -> Made:
    a, b, c, d = (rng.randint(-6, 6) for _ in range(4))
    e, f = rng.randint(-4, 4), rng.randint(2, 5)
    rows = rf"\begin{{pmatrix}} {a} & {b} \\ {c} & {d} \end{{pmatrix}}"
    answer = rf"\begin{{pmatrix}} {a * f + e} & {b * f} \\ {c * f} & {d * f + e} \end{{pmatrix}}"
    return f"Compute ${f} {rows} + {e} I$, with $I$ the identity matrix.", "Entry by entry:", answer


@kind("Precalculus", 4)
def complex_number(rng) -> Made:
    a, b, c, d = (nonzero(rng, 6) for _ in range(4))
    re, im = a * c - b * d, a * d + b * c
    answer = f"{re}{term(im, 'i')}" if re or not im else term(im, "i", first=True)
    return f"Compute $({a}{term(b, 'i')})({c}{term(d, 'i')})$, where $i^2 = -1$.", "Multiply out:", answer


@kind("Algebra", 3)
def polynomial(rng) -> Made:
    a, b, c, d = rng.randint(1, 5), nonzero(rng, 9), rng.randint(1, 5), nonzero(rng, 9)
    answer = f"{term(a * c, 'x^2', first=True)}{term(a * d + b * c, 'x')}{term(b * d, '')}"
    return (
        f"Expand $({term(a, 'x', first=True)}{term(b, '')})({term(c, 'x', first=True)}{term(d, '')})$.",
        "Term by term:",
        answer,
    )


@kind("Algebra", 3)
def rational_expression(rng) -> Made:
    a, b = rng.sample(range(1, 12), 2)
    top = term(a + b, "", first=True)
    return (
        f"Write $\\frac{{{a}}}{{x}} + \\frac{{{b}}}{{x}}$ as one fraction.",
        "The denominators agree:",
        rf"\frac{{{top}}}{{x}}",
    )


@kind("Counting & Probability", 3)
def probability(rng) -> Made:
    red, blue = rng.randint(2, 9), rng.randint(2, 9)
    return (
        f"An urn holds {red} red and {blue} blue balls. What is the probability that a ball drawn at random is red?",
        "Favourable over all:",
        tex(Fraction(red, red + blue)),
    )


@kind("Counting & Probability", 4)
def binomial(rng) -> Made:
    n, k = rng.randint(6, 14), rng.randint(2, 4)
    return f"In how many ways can {k} of {n} people be chosen?", f"$\\binom{{{n}}}{{{k}}}$:", str(math.comb(n, k))


@kind("Prealgebra", 3)
def mixed_number(rng) -> Made:
    whole, part, of = rng.randint(1, 9), 1, rng.randint(2, 9)
    return (
        f"Write $\\frac{{{whole * of + part}}}{{{of}}}$ as a mixed number.",
        f"{of} goes {whole} times, and {part} is left:",
        rf"{whole}\frac{{{part}}}{{{of}}}",
    )


@kind("Prealgebra", 1)
def word(rng) -> Made:
    a, b = rng.randint(3, 40), rng.randint(2, 20)
    return (
        f"Is ${a} \\cdot {b}$ even or odd?",
        "A product is odd when both factors are:",
        rf"\text{{{'odd' if a % 2 and b % 2 else 'even'}}}",
    )


@kind("Intermediate Algebra", 3)
def logarithm(rng) -> Made:
    a, b = rng.choice([2, 3, 5, 6]), rng.randint(2, 50)
    return f"Solve ${a}^x = {b + 1}$ for $x$.", "Take logarithms:", rf"\log_{{{a}}} {b + 1}"


def rows() -> Iterator[tuple[str, str, dict]]:
    """(split, kind, row) of the whole sample; the same on every machine. No problem is in it twice."""
    for name, (type_, level, maker) in KINDS.items():
        rng = random.Random(f"{SEED} {name}")
        seen: set[str] = set()
        while len(seen) < TRAIN_EACH + TEST_EACH:
            problem, working, answer = maker(rng)
            if problem in seen:
                continue
            split = "train" if len(seen) < TRAIN_EACH else "test"
            seen.add(problem)
            solution = rf"{working} $\boxed{{{answer}}}$."
            yield split, name, {"problem": problem, "level": f"Level {level}", "type": type_, "solution": solution}


def lines() -> dict[str, list[str]]:
    """The files' lines by split, the kinds mixed by a seeded shuffle."""
    by_split: dict[str, list[str]] = {"train": [], "test": []}
    for split, _, row in rows():
        by_split[split].append(json.dumps(row))
    for split in by_split.values():
        random.Random(SEED).shuffle(split)
    return by_split


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for split, content in lines().items():
        (FOLDER / f"{split}.jsonl").write_text("\n".join(content) + "\n", encoding="utf-8")
        print(f"{FOLDER.name}/{split}.jsonl: {len(content)} problems of {len(KINDS)} kinds")


if __name__ == "__main__":
    main()
