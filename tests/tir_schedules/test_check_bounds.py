"""Kernels stay in their buffers: which accesses are changed, and which sizes are refused."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from tvm_ext.tir_schedules.analysis.access_bounds import access_bounds
from tvm_ext.tir_schedules.check_bounds import checked_bounds
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels

TARGET = tvm.target.Target("llvm")
N, M = (tirx.Var(name, "int64") for name in "nm")
FOUR = tirx.const(4, "int64")
X = te.placeholder((N, FOUR), "float32", "x")
AT = te.placeholder((M,), "int64", "at")
EMPTY = te.placeholder((N, tirx.const(0, "int64")), "float32", "empty")


def kernel(inputs: Sequence[te.Tensor], shape: Sequence[Any], compute: Callable[..., Any]) -> Any:
    return te.create_prim_func([*inputs, te.compute(shape, compute, "y")])


def run(func: Any, shape: Sequence[int], *inputs: np.ndarray) -> np.ndarray:
    built = compile_kernels(checked_bounds(func).with_attr("global_symbol", "main"), TARGET)
    result = tvm.runtime.tensor(np.full(shape, -1, np.float32))
    built["main"](*map(tvm.runtime.tensor, inputs), result)
    return result.numpy()


def rows(count: int) -> np.ndarray:
    return np.arange(count * 4, dtype=np.float32).reshape(count, 4)


def conditions(func: Any) -> list[str]:
    return [str(condition) for condition in access_bounds(func).conditions]


def where(condition: Any, value: Any, other: float = 0) -> Any:
    return tirx.if_then_else(condition, value, tirx.const(other, "float32"))


@pytest.mark.parametrize(
    ("shape", "compute"),
    [
        ((N, FOUR), lambda i, j: X[i, j]),
        ((N, FOUR), lambda i, j: X[N - 1 - i, 3 - j]),
        ((N * 4,), lambda i: X[i // 4, i % 4]),
        ((N + 2, FOUR), lambda i, j: where(tirx.all(i >= 1, i < N + 1), X[i - 1, j])),
        ((N + M, FOUR), lambda i, j: where(i < N, X[i, j])),
        ((M, FOUR), lambda i, j: where(tirx.all(AT[i] >= 0, AT[i] < N), X[AT[i], j])),
        # The second part of a concatenation has no elements, so that none of it is read.
        ((N, FOUR), lambda i, j: where(j >= 4, EMPTY[i, j - 4])),
    ],
)
def test_what_is_known_to_be_inside_stays(shape: Any, compute: Any) -> None:
    func = kernel([X, AT, EMPTY], shape, compute)
    assert checked_bounds(func).same_as(func)


def test_known_sizes_are_not_looked_at() -> None:
    func = kernel([te.placeholder((3, FOUR), "float32", "z")], (3, FOUR), lambda i, j: 1.0)
    assert checked_bounds(func).same_as(func)


@pytest.mark.parametrize(
    ("shape", "compute", "wanted"),
    [
        # Broadcast: which side is one is known in the run.
        ((M, FOUR), lambda i, j: X[tirx.Select(N == 1, tirx.const(0, "int64"), i), j], (2, 1)),
        ((M, FOUR), lambda i, j: X[i, j], (2, 3)),
        ((M * 2, FOUR), lambda i, j: X[i // 2, j], (2, 3)),
        ((M, FOUR), lambda i, j: X[2 * i + 1, j], (5, 6)),
        ((M, FOUR), lambda i, j: X[M - 1 - i, j], (2, 3)),
        ((M, FOUR), lambda i, j: X[i % N, j], (0, 1)),
    ],
)
def test_sizes_are_refused_that_lead_outside(
    shape: Any, compute: Any, wanted: tuple[int, int]
) -> None:
    """``wanted``: how many rows of ``x`` are too few for three of ``at``, and how many enough."""
    func = kernel([X, AT], shape, compute)
    too_few, enough = wanted
    at = np.zeros(3, np.int64)
    size = [3 if shape[0].same_as(M) else 6, 4]
    with pytest.raises(ValueError, match="contradict each other"):
        run(func, size, rows(too_few), at)
    assert np.all(run(func, size, rows(enough), at) >= 0)


def test_nothing_is_refused_that_is_not_computed() -> None:
    func = kernel([X, AT], (M, FOUR), lambda i, j: X[i, j])
    assert run(func, (0, 4), rows(0), np.zeros(0, np.int64)).shape == (0, 4)


def test_indices_of_a_tensor_are_held_inside() -> None:
    func = kernel([X, AT], (M, FOUR), lambda i, j: X[AT[i], j])
    at = np.array([0, 2, -1, 99, -(2**62)], np.int64)
    np.testing.assert_array_equal(run(func, (5, 4), rows(3), at), rows(3)[[0, 2, 0, 2, 0]])


def test_an_index_whose_index_is_from_a_tensor() -> None:
    func = kernel([X, AT], (M, FOUR), lambda i, j: X[AT[AT[i]], j])
    at = np.array([1, 7, -3], np.int64)
    wanted = rows(3)[np.clip(at[np.clip(at, 0, 2)], 0, 2)]
    np.testing.assert_array_equal(run(func, (3, 4), rows(3), at), wanted)


def test_under_a_condition_a_tensor_may_be_empty() -> None:
    func = kernel([X, AT], (M, FOUR), lambda i, j: where(AT[i] < 5, X[AT[i], j], 7))
    at = np.array([9, 4, 0], np.int64)
    np.testing.assert_array_equal(run(func, (3, 4), rows(0), at)[:, 0], [7, 0, 0])
    np.testing.assert_array_equal(run(func, (3, 4), rows(3), at)[:, 0], [7, 8, 0])


def test_what_a_kernel_writes_itself_is_known() -> None:
    """Positions that an earlier block limits are not limited again."""
    place = te.compute((M,), lambda i: tirx.max(tirx.min(AT[i], N - 1), tirx.const(0, "int64")))
    func = te.create_prim_func([X, AT, te.compute((M, FOUR), lambda i, j: X[place[i], j], "y")])
    assert not access_bounds(func).stray
    assert conditions(func) == ["not T.int64(0) < m or n > T.int64(0)"]


def test_a_condition_holds_where_it_stands_and_not_beside() -> None:
    def compute(i: Any, j: Any) -> Any:
        below, beyond = (
            where(AT[i] >= least, X[AT[i], j], other) for least, other in ((0, 7), (5, 8))
        )
        return tirx.if_then_else(AT[i] < N, below, beyond)

    func = kernel([X, AT], (M, FOUR), compute)
    at = np.array([1, -4, 3, 90], np.int64)
    np.testing.assert_array_equal(run(func, (4, 4), rows(3), at)[:, 0], [4, 7, 8, 8])


def test_what_is_written_again_is_not_what_was_compared() -> None:
    """A position is compared, moved, and read at."""

    @T.prim_func(s_tir=True)
    def walk(x: T.handle, y: T.Buffer((1,), "float32")):
        n = T.int64()
        values = T.match_buffer(x, (n,), "float32")
        with T.sblock("root"):
            place = T.sblock_alloc_buffer((1,), "int64")
            place[0] = T.int64(0)
            if place[0] < n:
                place[0] = place[0] + T.int64(7)
                y[0] = values[place[0]]

    assert len(access_bounds(walk).stray) == 1


def constant(*numbers: int) -> Callable[[int], list[np.ndarray] | None]:
    """``AT``, the second parameter, is the same table in each of two calls."""
    return lambda place: [np.array(numbers, np.int64)] * 2 if place == 1 else None


FIVE_ROWS = te.placeholder((tirx.const(5, "int64"), FOUR), "float32", "x")
NUMBERS = te.placeholder((tirx.const(3, "int64"),), "int64", "at")


@pytest.mark.parametrize(
    ("index", "numbers", "is_inside"),
    [
        (lambda at: at, (0, 4, 2), True),
        (lambda at: at, (0, 5, 2), False),
        (lambda at: at, (-1, 4, 2), False),
        # A negative index counts from the end: each number is looked at alone.
        (lambda at: tirx.Select(at < 0, at + 5, at), (-5, 4, 0), True),
        (lambda at: tirx.Select(at < 0, at + 5, at), (-6, 4, 0), False),
        (
            lambda at: (at >> 4) + ((at & 1) << tirx.Cast("int64", FIVE_ROWS[0, 0] < 0)),
            (33, 64),
            True,
        ),
        (
            lambda at: (at >> 4) + ((at & 1) << tirx.Cast("int64", FIVE_ROWS[0, 0] < 0)),
            (65, 0),
            False,
        ),
    ],
)
def test_a_table_of_constants_says_where_it_leads(
    index: Callable[[Any], Any], numbers: Sequence[int], is_inside: bool
) -> None:
    func = kernel([FIVE_ROWS, NUMBERS], (3, FOUR), lambda i, j: FIVE_ROWS[index(NUMBERS[i]), j])
    assert checked_bounds(func, constant(*numbers)).same_as(func) == is_inside
    assert not checked_bounds(func, lambda _: None).same_as(func)


def test_a_walk_through_a_table_is_followed_to_its_end() -> None:
    """Each step leads to where the table says, and the table leads nowhere else."""

    @T.prim_func(s_tir=True)
    def walk(x: T.Buffer((5,), "float32"), at: T.Buffer((5,), "int64"), y: T.Buffer((1,))):
        with T.sblock("root"):
            place = T.sblock_alloc_buffer((1,), "int64")
            place[0] = T.int64(2)
            while x[place[0]] > T.float32(0):
                place[0] = at[place[0]]
            y[0] = x[place[0]]

    assert not access_bounds(walk, constant(1, 2, 3, 4, 0)).stray
    assert len(access_bounds(walk, constant(1, 2, 3, 4, 5)).stray) == 2
    assert len(access_bounds(walk).stray) == 2
