"""What masks are not for: loops and loads that are left as they are, or masked by more."""

from collections.abc import Callable
from typing import Any

import pytest
from masked_kernels import Index, assert_numbers, masks, vectorised
from tvm import s_tir, te, tirx

from tvm_ext.tir_schedules.cpu.masked_tails import with_masked_tails

LEFT_ALONE: dict[str, Callable[[te.Tensor, te.Tensor], Index]] = {
    "squared lane": lambda x, y: lambda i: tirx.if_then_else(i * i < 50, x[i], 0.0),
    "remainder of the lane": lambda x, y: lambda i: tirx.if_then_else(i % 3 < 1, x[i], 0.0),
    "condition on a value": lambda x, y: lambda i: tirx.if_then_else(y[i] > 0.5, x[i], 0.0),
    "every other element": lambda x, y: lambda i: tirx.if_then_else(i < 9, x[2 * i], 0.0),
    "backwards": lambda x, y: lambda i: tirx.if_then_else(i < 9, x[23 - i], 0.0),
    "one element for all": lambda x, y: lambda i: tirx.if_then_else(i < 9, x[0], 0.0),
    "divided lane": lambda x, y: lambda i: tirx.if_then_else(i < 9, x[i // 2], 0.0),
    "no condition": lambda x, y: lambda i: x[i] + y[i],
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(name: str) -> None:
    x, y = te.placeholder((24,), name="x"), te.placeholder((24,), name="y")
    before = vectorised(x, y, te.compute((24,), LEFT_ALONE[name](x, y), "z"))
    assert with_masked_tails(before).same_as(before)


def test_index_that_is_looked_up_is_left_alone() -> None:
    x, at = te.placeholder((24,), name="x"), te.placeholder((19,), "int32", "at")
    before = vectorised(x, at, te.compute((19,), lambda i: x[at[i]], "y"))
    assert "T.where" in before.script()
    assert with_masked_tails(before).same_as(before)


@pytest.mark.parametrize("column", [lambda i: 2, lambda i: i], ids=["column", "diagonal"])
def test_one_element_of_each_row_is_left_alone(column: Index) -> None:
    x = te.placeholder((19, 19), name="x")
    before = vectorised(x, te.compute((19,), lambda i: x[i, column(i)], "y"))
    assert "T.where" in before.script()
    assert with_masked_tails(before).same_as(before)


def own_array(size: int, length: int) -> tirx.PrimFunc:
    """``length`` of ``size`` elements of an array of the kernel, read in vectors of 8."""
    x = te.placeholder((size,), name="x")
    own = te.compute((size,), lambda i: x[i] + 1.0, "own")
    return vectorised(x, te.compute((length,), lambda i: own[i] * 2.0, "y"))


def test_array_of_the_kernel_is_read_if_vectors_fill_it() -> None:
    odd, whole = own_array(19, 19), own_array(24, 19)
    assert with_masked_tails(odd).same_as(odd)
    masked = with_masked_tails(whole)
    assert masks(masked) == (0, 1)
    assert_numbers(whole, masked)


def test_store_to_an_array_of_the_kernel_is_left_alone() -> None:
    x = te.placeholder((19,), name="x")
    own = te.compute((19,), lambda i: x[i] + 1.0, "own")
    sch = s_tir.Schedule(te.create_prim_func([x, te.compute((19,), lambda i: own[i] * 2.0, "y")]))
    _, vector = sch.split(sch.get_loops(sch.get_sblock("own"))[-1], factors=[None, 8])
    sch.vectorize(vector)
    before = sch.mod["main"]
    assert "T.where" in before.script()
    assert with_masked_tails(before).same_as(before)


@pytest.mark.parametrize("kind", ["serial", "unroll", "parallel"])
def test_other_loops_are_left_alone(kind: str) -> None:
    x = te.placeholder((19,), name="x")
    sch = s_tir.Schedule(te.create_prim_func([x, te.compute((19,), lambda i: x[i] + 1.0, "y")]))
    _, inner = sch.split(sch.get_loops(sch.get_sblock("y"))[-1], factors=[None, 8])
    if kind != "serial":
        getattr(sch, kind)(inner)
    before = sch.mod["main"]
    assert with_masked_tails(before).same_as(before)


def test_block_with_a_first_value_is_left_alone() -> None:
    x, k = te.placeholder((5, 19), name="x"), te.reduce_axis((0, 5), "k")
    total = te.compute((19,), lambda i: te.sum(x[k, i], axis=k), "y")
    sch = s_tir.Schedule(te.create_prim_func([x, total]))
    column, row = sch.get_loops(sch.get_sblock("y"))
    outer, vector = sch.split(column, factors=[None, 8])
    sch.reorder(outer, row, vector)
    sch.vectorize(vector)
    before = sch.mod["main"]
    assert "T.where" in before.script()
    assert with_masked_tails(before).same_as(before)


def test_division_of_integers_is_left_alone() -> None:
    """A lane beyond the border has no divisor, and would stop the program."""
    x, d = te.placeholder((19,), "int32", "x"), te.placeholder((19,), "int32", "d")
    func = vectorised(x, d, te.compute((19,), lambda i: tirx.floordiv(x[i], d[i]), "out"))
    assert with_masked_tails(func).same_as(func)
    zero = tirx.const(0, "int32")
    guarded = te.compute(
        (19,), lambda i: x[i] + tirx.if_then_else(i < 5, tirx.floordiv(9, 5 - i), zero), "out"
    )
    func = vectorised(x, guarded)
    assert with_masked_tails(func).same_as(func)


def test_load_behind_a_condition_of_the_row_is_masked_by_it_as_well() -> None:
    x, y, z = (te.placeholder((5, 19), name=name) for name in "xyz")
    out = te.compute(
        (5, 19), lambda i, j: x[i, j] + tirx.if_then_else(i >= 1, y[i - 1, j], z[i, j]), "out"
    )
    func = vectorised(x, y, z, out)
    masked = with_masked_tails(func)
    lines = [line for line in masked.script().splitlines() if "masked_load" in line]
    assert any(", y, " in line and "T.Broadcast(1 <= i" in line for line in lines), lines
    assert_numbers(func, masked)


def test_index_that_is_looked_up_in_a_branch_is_left_alone() -> None:
    x, y = te.placeholder((5, 19), name="x"), te.placeholder((9, 19), name="y")
    at = te.placeholder((5,), "int32", "at")
    zero = tirx.const(0.0, "float32")

    def element(i: tirx.Var, j: tirx.Var) -> Any:
        return x[i, j] + tirx.if_then_else(tirx.all(i >= 1, j < 11), y[at[i - 1], j], zero)

    func = vectorised(x, y, at, te.compute((5, 19), element, "out"))
    assert with_masked_tails(func).same_as(func)


def test_condition_that_reads_memory_is_left_alone() -> None:
    x, y = te.placeholder((19,), name="x"), te.placeholder((19,), name="y")
    one, two = tirx.const(1.0, "float32"), tirx.const(2.0, "float32")
    out = te.compute((19,), lambda i: x[i] * tirx.if_then_else(y[i] > 0.5, one, two), "out")
    func = vectorised(x, y, out)
    assert with_masked_tails(func).same_as(func)


def test_vector_of_one_element_is_left_alone() -> None:
    x = te.placeholder((7,), name="x")
    zero = tirx.const(0.0, "float32")
    out = te.compute((9,), lambda i: tirx.if_then_else(i < 7, x[i], zero), "out")
    func = vectorised(x, out, lanes=1)
    assert with_masked_tails(func).same_as(func)
