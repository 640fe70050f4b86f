"""Every shortcut against the slow path: what `rewards.quick` decides, sympy decides alike."""

from __future__ import annotations

from decimal import localcontext
from fractions import Fraction

import mpmath
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewards import arithmetic, quick
from rewards.compare import check_gold, grade
from rewards.latex import canonical
from rewards.rational import plain

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)

small = st.integers(-12, 12)
positive = st.integers(1, 12)


@st.composite
def numbers(draw) -> str:
    """A plain number in one of its notations."""
    a, b, c = draw(st.integers(0, 3000)), draw(positive), draw(st.integers(0, 99))
    sign = draw(st.sampled_from(["", "-"]))
    form = draw(st.integers(0, 8))
    body = [
        f"{a}", f"{a}.", f"{a}.{c:02d}", rf"\frac{{{a}}}{{{b}}}", f"{a}/{b}", rf"{a}\frac{{{min(b, 11)}}}{{12}}",
        f"{a} {min(b, 11)}/12", rf"{a} \times 10^{{{draw(small)}}}", f"{a:,}",
    ][form]  # fmt: skip
    return sign + body + draw(st.sampled_from(["", "", "", r"\%"]))


def expressions() -> st.SearchStrategy[str]:
    """Arithmetic LaTeX with roots, pi, e, logarithms and symbols, in the spellings that models use."""
    leaf = st.one_of(
        st.integers(0, 40).map(str), st.sampled_from(["x", "y", "a", "n", r"\pi", "e"]),
        positive.map(lambda n: rf"\sqrt{{{n}}}"), positive.map(lambda n: rf"\ln {n}"),
    )  # fmt: skip

    def extend(inner):
        two = st.tuples(inner, inner)
        return st.one_of(
            two.map(lambda p: f"{p[0]}+{p[1]}"), two.map(lambda p: f"{p[0]}-{p[1]}"),
            two.map(lambda p: rf"({p[0]})({p[1]})"), two.map(lambda p: rf"({p[0]})\cdot {p[1]}"),
            two.map(lambda p: rf"\frac{{{p[0]}}}{{{p[1]}}}"), two.map(lambda p: f"{p[0]}{p[1]}"),
            two.map(lambda p: f"({p[0]})/({p[1]})"), two.map(lambda p: f"{p[0]}/{p[1]}"),
            st.tuples(inner, st.integers(-3, 4)).map(lambda p: f"({p[0]})^{{{p[1]}}}"), inner.map(lambda e: f"-({e})"),
            st.tuples(inner, st.integers(0, 9)).map(lambda p: f"{p[0]}^{p[1]}"),
        )  # fmt: skip

    return st.recursive(leaf, extend, max_leaves=5)


@st.composite
def shapes(draw) -> str:
    """Lists, tuples, intervals, unions, relations, units, matrices, ratios and words over small numbers."""
    a, b, c = draw(small), draw(small), draw(small)
    left, right = draw(st.sampled_from("([")), draw(st.sampled_from(")]"))
    union = draw(st.sampled_from(["", rf"\cup({b},{c}]"]))
    op, other = draw(st.sampled_from(["<", r"\leq", ">"])), draw(st.sampled_from(["<", r"\le", ">"]))
    return draw(
        st.sampled_from([
            f"{a}, {b}", rf"{a} \text{{ or }} {b}", f"({a}, {b})", f"({a},{b},{c})", rf"\{{{a}, {b}\}}",
            f"{left}{a},{b}{right}",
            rf"{a} {op} x {other} {b}", f"x {op} {a}", rf"(-\infty,{a})" + union,
            f"x={a}", f"x = {a} or x = {b}", f"y={a}x+{b}", f"{a}x-y+{b}=0", rf"{a}\text{{ cm}}", rf"{a}\text{{ m}}",
            f"{a}:{b}",
            rf"\begin{{pmatrix}}{a}&{b}\\{c}&1\end{{pmatrix}}", rf"\pm {a}", r"\text{Tuesday}", "C", f"{a}_7",
            f"{a}+{b}={a + b}",
            rf"{a}^\circ", rf"[{a},{b}]\cup[{c},{c + 1}]", str(a),
        ])
    )  # fmt: skip


def assert_sound(gold: str, answer: str) -> None:
    """Where the shortcut takes a verdict on a gold it holds usable, sympy agrees with both."""
    gold, answer = canonical(gold), canonical(answer)
    usable = quick.usable(gold)
    if usable is not None:
        assert check_gold(gold)[0] is usable, gold
    if usable and answer:
        verdict = quick.verdict(gold, answer)
        if verdict is not None:
            assert grade(gold, answer, plain_shortcut=False)[0] is verdict, (gold, answer)


@FUZZ
@given(numbers(), numbers())
def test_plain_numbers(gold, answer):
    assert_sound(gold, answer)


@FUZZ
@given(numbers())
def test_one_number_in_two_notations(text):
    number = plain(canonical(text))
    if number is not None:
        fraction = rf"\frac{{{number.value.numerator}}}{{{number.value.denominator}}}" + (
            r"\%" if number.percent else ""
        )
        assert quick.verdict(canonical(text), canonical(fraction)) is True
        assert_sound(text, fraction)


@FUZZ
@given(expressions(), expressions())
def test_expressions(gold, answer):
    assert_sound(gold, answer)


@FUZZ
@given(
    expressions(), st.sampled_from(["{}+0", "0+{}", "1\\cdot ({})", "({})", "{}+1", "2({})-({})", "-({})", "({})^2"])
)
def test_expressions_and_their_variants(gold, form):
    assert_sound(gold, form.replace("{}", gold))


@FUZZ
@given(shapes(), shapes())
def test_shapes(gold, answer):
    assert_sound(gold, answer)


@pytest.mark.parametrize(
    "text",
    ["2x3", r"2\frac{1}{2}x", "1/2x", "f(x)", "x(x+1)", "x^{12}3", r"\ln 2x", "x^12", "3 4", "2^{x}", "dx", "ix"],
)
def test_ambiguous_notation_is_left_to_sympy(text):
    assert arithmetic.parse(text) is None


def test_constants_have_eighty_digits():
    with mpmath.workdps(90), localcontext(arithmetic._CONTEXT):
        assert abs(mpmath.mpf(str(arithmetic._PI)) - mpmath.pi) < mpmath.mpf("1e-85")
        assert abs(mpmath.mpf(str(arithmetic.value(("e",), {}))) - mpmath.e) < mpmath.mpf("1e-78")


def test_near_misses_are_told_apart():
    """Numbers that agree to a dozen digits: exp(pi sqrt(163)) is famous, these are within the grammar."""
    assert quick.verdict(r"\sqrt{2}+\sqrt{3}", r"\frac{31462643699419723}{10000000000000000}") is False
    assert quick.verdict(r"\pi", r"\frac{5419351}{1725033}") is False
    assert arithmetic.equal(r"\sqrt{5+2\sqrt{6}}", r"\sqrt{2}+\sqrt{3}", "seed") is True


def test_a_gold_is_checked_once_and_a_pair_graded_once(pool):
    """Eight generations of one answer cost one job for the gold and one for the pair."""
    from rewards.grading import grade_batch

    asked = []
    original = pool.run
    pool.run = lambda jobs: asked.extend(jobs) or original(jobs)
    try:
        graded = grade_batch([r"\sin^2(q)+3"] * 8, [r"So \boxed{4-\cos^2(q)}"] * 8, pool=pool)
    finally:
        del pool.run
    assert [verdict.reward for verdict in graded] == [1.0] * 8
    assert len(asked) == 2


def test_close_numbers_follow_one_rule():
    from rewards.rational import close

    assert close(Fraction(1, 3), Fraction(333333, 10**6), True)
    assert not close(Fraction(1, 3), Fraction(33333, 10**5), True)
    assert not close(Fraction(1, 10**7), Fraction(2, 10**7), True)
    assert not close(Fraction(1, 3), Fraction(333333, 10**6), False)
