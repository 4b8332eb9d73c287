"""Sizes behind strides, paddings and windows: equal ones are found to be, and no others."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx
from tvm.sym import Analyzer

from tvm_ext.onnx_frontend.sizes.quasi_affine import (
    always,
    equal_products,
    inferred_size,
    shortened,
)

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")
UP_TO_FOUR = tirx.floordiv(N, 2) + tirx.floormod(tirx.floordiv(tirx.floormod(N, 8), 2) * 3, 4)


@pytest.mark.parametrize(
    ("size", "short"),
    [
        (UP_TO_FOUR, "(n + 6) // 8 * 4"),
        (tirx.floordiv(N - 3, 4) + 1, "(n + 1) // 4"),
        (tirx.floordiv(tirx.floordiv(N - 1, 2), 2) + 1, "(n + 3) // 4"),
        (tirx.floordiv(N, 2) * 2, "n // 2 * 2"),
        (tirx.floormod(N, 7), "n % 7"),
        (N * 3 + 2, "n * 3 + 2"),
        (tirx.min(N, 512), "T.min(n, 512)"),
    ],
)
def test_short_forms(size: tirx.Expr, short: str) -> None:
    assert str(shortened(size)).replace("T.int64(", "").replace(")", "") == short.replace(")", "")


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ([M, UP_TO_FOUR, 16], [M, tirx.floordiv(UP_TO_FOUR, 4), 64], True),
        ([UP_TO_FOUR * M], [M, UP_TO_FOUR], True),
        ([N * 2, M], [N, M * 2], True),
        ([N, N], [N * N], True),
        ([], [1], True),
        ([N, 0], [M, 0], False),
        ([N], [M], False),
        ([tirx.floordiv(N, 2)], [tirx.floordiv(N + 1, 2)], False),
        ([N * 2], [N], False),
        ([N, N], [N, 4], False),
        ([tirx.min(N, 4)], [tirx.min(N, 4)], True),
        ([tirx.min(N, 4)], [tirx.min(N, 5)], False),
        # A length without its first element, with one put in front.
        ([tirx.max(tirx.min(N, 1) + N - 1, 0)], [N], True),
        ([tirx.max(N - 1, 0)], [N - 1], False),
        # The frames of a window that an input fills up to a multiple of.
        (
            [
                tirx.min(
                    tirx.max(tirx.floordiv(N, 256), 1), tirx.floordiv(tirx.max(N, 256) + 512, 256)
                )
            ],
            [tirx.max(tirx.floordiv(N, 256), 1)],
            True,
        ),
        # It is decided too late.
        ([tirx.min(N, 1 << 20)], [tirx.min(N, 1 << 20)], False),
        # The period of the first is above the limit.
        ([tirx.floordiv(N, 1 << 13)], [tirx.floordiv(N, 1 << 13)], False),
    ],
)
def test_products(first: list, second: list, equal: bool) -> None:
    assert equal_products(first, second) == equal
    assert equal_products(second, first) == equal


@pytest.mark.parametrize(
    ("sizes", "others", "left"),
    [
        ([M, tirx.floordiv(N - 5, 8) * 16 + 16, 2], [16, tirx.floordiv(N - 5, 8) + 1], "m * 2"),
        ([M, 2, N + M, 16], [16, M + N], "m * 2"),
        ([M * N, 8], [N, 8], "m"),
        ([N, 8], [N, 4], "2"),
        ([N, 8], [N, 3], "None"),
        ([N, 8], [M], "None"),
        ([N, 8], [0], "None"),
        ([N * 2], [4], "None"),
    ],
)
def test_what_is_left_beside_known_sizes(sizes: list, others: list, left: str) -> None:
    found = inferred_size(sizes, others)
    plain = str(Analyzer().simplify(found) if isinstance(found, tirx.Mul) else found)
    assert plain.replace("T.int64(", "").replace(")", "") == left


def sizes() -> st.SearchStrategy[Any]:
    """Pairs of an expression of ``n`` and its values for the first sizes."""
    some = np.arange(1500)

    def more(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        number = st.integers(1, 5)
        return st.one_of(
            st.tuples(inner, inner).map(lambda p: (p[0][0] + p[1][0], p[0][1] + p[1][1])),
            st.tuples(inner, number).map(lambda p: (p[0][0] * p[1], p[0][1] * p[1])),
            st.tuples(inner, number).map(lambda p: (p[0][0] - p[1], p[0][1] - p[1])),
            st.tuples(inner, number).map(lambda p: (tirx.floordiv(p[0][0], p[1]), p[0][1] // p[1])),
            st.tuples(inner, number).map(lambda p: (tirx.floormod(p[0][0], p[1]), p[0][1] % p[1])),
        )

    return st.recursive(st.just((N, some)), more, max_leaves=5)


def values_of(size: tirx.Expr) -> np.ndarray:
    function = {
        tirx.Add: np.add,
        tirx.Sub: np.subtract,
        tirx.Mul: np.multiply,
        tirx.FloorDiv: np.floor_divide,
        tirx.FloorMod: np.mod,
        tirx.Min: np.minimum,
        tirx.Max: np.maximum,
    }
    if isinstance(size, tirx.Var):
        return np.arange(1500)
    if isinstance(size, tirx.IntImm):
        return np.full(1500, int(size))
    return function[type(size)](values_of(size.a), values_of(size.b))


@given(sizes(), sizes())
def test_what_is_said_to_be_equal_is(first: Any, second: Any) -> None:
    (a, values), (b, others) = first, second
    assert np.array_equal(values_of(shortened(a)), values)
    if equal_products([a], [b]):
        assert np.array_equal(values, others)
    assert equal_products([a, b], [b, a])
    assert equal_products([a], [a + 1]) is False


def clipped_sizes() -> st.SearchStrategy[Any]:
    """Pairs as ``sizes`` gives them, with minima and maxima."""

    def more(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        number = st.integers(0, 9)
        pairs, numbered = st.tuples(inner, inner), st.tuples(inner, number)
        return st.one_of(
            pairs.map(lambda p: (p[0][0] + p[1][0], p[0][1] + p[1][1])),
            pairs.map(lambda p: (tirx.min(p[0][0], p[1][0]), np.minimum(p[0][1], p[1][1]))),
            pairs.map(lambda p: (tirx.max(p[0][0], p[1][0]), np.maximum(p[0][1], p[1][1]))),
            numbered.map(lambda p: (tirx.max(p[0][0] - p[1], 0), np.maximum(p[0][1] - p[1], 0))),
            numbered.map(lambda p: (tirx.min(p[0][0], p[1]), np.minimum(p[0][1], p[1]))),
        )

    return st.recursive(sizes(), more, max_leaves=4)


@given(clipped_sizes(), clipped_sizes())
def test_what_is_said_of_clipped_sizes_is_so(first: Any, second: Any) -> None:
    (a, values), (b, others) = first, second
    assert np.array_equal(values_of(shortened(a)), values)
    if equal_products([a], [b]):
        assert np.array_equal(values, others)
    if always(tirx.LE(a, b)):
        assert (values <= others).all()
    if always(tirx.NE(a, tirx.const(1, "int64"))):
        assert (values != 1).all()
    if always(tirx.Or(tirx.GT(a, b), tirx.Not(tirx.EQ(b, a)))):
        assert ((values > others) | (values != others)).all()


@pytest.mark.parametrize(
    ("condition", "known"),
    [
        (tirx.LE(tirx.floordiv(N, 256), tirx.floordiv(N + 512, 256) - 1), True),
        (tirx.LE(tirx.floordiv(N, 256), tirx.floordiv(N + 255, 256) - 1), False),
        (tirx.NE(N * 2, tirx.const(1, "int64")), True),
        (tirx.GE(tirx.max(N - 4, 1) * 3, N - 4), True),
        (tirx.GE(N, M), False),
        # Above ten in the end, and below it here and there.
        (tirx.GE(tirx.floormod(N, 8) + tirx.floordiv(N, 8), tirx.const(2, "int64")), False),
    ],
)
def test_conditions(condition: tirx.Expr, known: bool) -> None:
    assert always(condition) == known


def test_conditions_hold_within_given_ends() -> None:
    condition = tirx.GE(tirx.min(N, 4), tirx.const(1, "int64"))
    assert not always(condition)
    assert always(condition, lambda _: (1, 1 << 30))
    assert always(tirx.LE(N, tirx.const(7, "int64")), lambda _: (0, 7))
