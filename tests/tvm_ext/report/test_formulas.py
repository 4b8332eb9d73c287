"""Formulas of sizes: worked out, summed, written for readers, and refused where they are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thoroughness import one_in

from tvm_ext.report.formulas import (
    FormulaError,
    evaluate,
    formula_of_tvm,
    identifier,
    in_words,
    is_so,
    negated,
    polynomial,
    total,
)

SIZES = st.fixed_dictionaries({name: st.integers(0, 400) for name in ("N", "L")})
FORMULAS = (
    "7",
    "2*N + 3*L",
    "(N + 1)*(L - 2)*N",
    "((N - 1)//2 + 1)*L",
    "min(N*L, 300)*4 - max(N, L)",
    "(8*N + 16)//8",
    "(N if N > L else 3*L) + N % 4",
    "N**3 - L**2",
)


@pytest.mark.extended
@pytest.mark.parametrize("formula", one_in(3, FORMULAS))
@given(sizes=SIZES)
def test_a_sum_of_products_is_the_same_number(formula, sizes):
    expected = eval(formula, {}, dict(sizes))
    assert evaluate(formula, sizes) == expected
    assert evaluate(str(polynomial(formula)), sizes) == expected
    assert evaluate(total([formula, formula, "N"]), sizes) == 2 * expected + sizes["N"]


def test_sums_have_each_product_once():
    assert str(polynomial("N*L*4 + L*N*6 - 2 + N - N")) == "10*L*N - 2"
    assert str(polynomial("N - N")) == "0"
    assert str(polynomial("(16*N + 8)//8")) == "2*N + 1"
    assert total(()) == "0"


@pytest.mark.parametrize(
    ("formula", "sizes", "expected"),
    [
        ("2100000*N + 300*N*L**2", {"N": 1, "L": 50}, "2.1 M * N + 300 * N * L^2"),
        ("16384*N*L + 516*N*L**2", {"N": 1, "L": 224}, "516 * N * L^2 + 16.4 k * N * L"),
        ("1000*N*L + N", {"N": 1, "L": 224}, "1 k * N * L"),
        ("N - 3*L", {"N": 9, "L": 1}, "N - 3 * L"),
        (
            "880*N*((H - 1)//2 + 1)*((W - 1)//2 + 1)",
            {"N": 1, "H": 2**9, "W": 2**9},
            "220 * N * H * W",
        ),
        ("a + 2*b + 3*c + 4*d + 5*e", {}, "5 * e + 4 * d + 3 * c + 2 * b + ..."),
        ("999999*N", {"N": 1}, "1 M * N"),
        ("", {}, ""),
    ],
)
def test_words_are_short(formula, sizes, expected):
    assert in_words(formula, sizes) == expected


def test_a_small_term_that_outgrows_others_stays():
    assert in_words("1000000*N + L", {"N": 1, "L": 1}) == "1 M * N + L"
    assert in_words("1000000*N + 3*N*L", {"N": 1, "L": 1}) == "1 M * N + 3 * N * L"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("T.min(N * T.int64(4), L)", "min(N * 4, L)"),
        ("T.Div(N + T.int64(7), T.int64(8)) > T.int64(3)", "(N + 7) // 8 > 3"),
        ('T.Cast("int64", T.Select(N > L, N, L))', "N if N > L else L"),
        ("N % T.int64(4) == T.int64(0) and not N >= 32", "N % 4 == 0 and (not N >= 32)"),
    ],
)
def test_what_tvm_writes_is_read(text, expected):
    assert formula_of_tvm(text) == expected


@pytest.mark.extended
@pytest.mark.parametrize("condition", ["N >= 8", "N % 4 == 0 and L > 2", "not N < 3", "N != L"])
@given(sizes=SIZES)
def test_negated_conditions_hold_where_they_do_not(condition, sizes):
    assert is_so(negated(condition), sizes) is not is_so(condition, sizes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "N +",
        "open('x')",
        "N.real",
        "[N]",
        "N(1)",
        "'a'",
        "min(N, key=L)",
        "1 < N < 3",
        "min()",
        "N**17",
        "N**L",
        "N**-1",
        "1)+(2",
        "+".join(["N"] * 3000),
    ],
)
def test_what_is_no_formula_is_refused(text):
    with pytest.raises(FormulaError):
        evaluate(text, {"N": 1, "L": 2})


def test_sizes_that_are_missing_or_divide_by_zero_are_named():
    with pytest.raises(FormulaError, match=r"N \+ L"):
        evaluate("N + L", {"N": 1})
    with pytest.raises(FormulaError, match="zero"):
        evaluate("7 // N", {"N": 0})
    assert not is_so("N > L", {"N": 1})


def test_names_of_sizes_are_names_in_formulas():
    assert [identifier(name) for name in ("N", "past len + 1", "3d", "if", "min", "")] == [
        *("N", "past_len___1", "_3d", "_if", "_min", "_"),
    ]
    assert evaluate("2*past_len", {"past len": 4}) == 8
