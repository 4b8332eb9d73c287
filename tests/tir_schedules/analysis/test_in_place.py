"""A kernel may write into the memory of an operand where it reads no element too late."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi
from tvm.script import tirx as T
from unoptimised import HOST, built

from tvm_ext.hardware.targets import compiling_for
from tvm_ext.tir_schedules.analysis.in_place import in_place_operands, written_in_place
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

SHAPE = (6, 40)


def kernel(build: Callable[..., Any], *shapes: tuple[Any, ...]) -> tirx.PrimFunc:
    given = [te.placeholder(shape, "float32", f"x{i}") for i, shape in enumerate(shapes)]
    func = te.create_prim_func([*given, build(*given)])
    return func.with_attr("tirx.noalias", True)


def scheduled(func: tirx.PrimFunc) -> tirx.PrimFunc:
    with compiling_for(HOST):
        return schedule_kernel(func, HOST)[0]


def residual(x: te.Tensor, w: te.Tensor, b: te.Tensor) -> te.Tensor:
    return topi.nn.relu(topi.add(topi.matmul(x, w), b))


ALLOWED = [
    (topi.negative, [SHAPE], [0]),
    (topi.add, [SHAPE, SHAPE], [0, 1]),
    # A row is read for each row of the result.
    (topi.add, [SHAPE, (1, 40)], [0]),
    (lambda x: topi.add(x, topi.exp(x)), [SHAPE], [0]),
    (residual, [(6, 8), (8, 40), SHAPE], [2]),
    # Its first operand is as large as the result and read for all of a row.
    (residual, [SHAPE, (40, 40), SHAPE], [2]),
]
REFUSED = [
    (topi.nn.softmax, [SHAPE]),
    (lambda x: topi.flip(x, 0), [SHAPE]),
    (lambda x: topi.add(x, topi.flip(x, 1)), [SHAPE]),
    (lambda x: topi.transpose(x), [(40, 40)]),
    (lambda x: topi.cumsum(x, 1), [SHAPE]),
    (lambda x: topi.cast(x, "int32"), [SHAPE]),
    (lambda x: topi.reshape(x, (40, 6)), [SHAPE]),
    (lambda x: topi.subtract(x, topi.max(x, 1, keepdims=True)), [SHAPE]),
]


@pytest.mark.parametrize(("build", "shapes", "operands"), ALLOWED)
def test_elements_that_are_read_where_they_are_written(
    build: Callable[..., Any], shapes: list[tuple[int, ...]], operands: list[int]
) -> None:
    func = scheduled(kernel(build, *shapes))
    assert in_place_operands(func, len(shapes)) == tuple(operands)
    rng = np.random.default_rng(0)
    for operand in operands:
        changed = written_in_place(func, len(shapes), operand)
        library = built({"plain": func, "changed": changed})
        given = [rng.uniform(-1, 1, shape).astype("float32") for shape in shapes]
        plain = [tvm.runtime.tensor(one) for one in (*given, given[operand])]
        library["plain"](*plain)
        same = [tvm.runtime.tensor(one) for one in given]
        library["changed"](*same, same[operand])
        np.testing.assert_array_equal(same[operand].numpy(), plain[-1].numpy())


@pytest.mark.parametrize("schedule", [False, True])
@pytest.mark.parametrize(("build", "shapes"), REFUSED)
def test_elements_that_are_read_elsewhere(
    build: Callable[..., Any], shapes: list[tuple[int, ...]], schedule: bool
) -> None:
    func = kernel(build, *shapes)
    assert in_place_operands(scheduled(func) if schedule else func, len(shapes)) == ()


@T.prim_func
def overlapping(x: T.Buffer((20,), "float32"), y: T.Buffer((20,), "float32")):
    # The second tile begins before the first one ends, and computes four elements again.
    for tile in range(2):
        for lane in T.vectorized(12):
            y[tile * 8 + lane] = x[tile * 8 + lane] * T.float32(2)


@T.prim_func
def staged(x: T.Buffer((20,), "float32"), y: T.Buffer((20,), "float32")):
    copy = T.alloc_buffer((20,), "float32")
    for i in range(20):
        copy[i] = x[i]
    for i in range(20):
        y[i] = copy[19 - i] + x[i]


@T.prim_func
def twice(x: T.Buffer((20,), "float32"), y: T.Buffer((20,), "float32")):
    for i in range(20):
        y[i] = x[i]
    for i in range(20):
        y[i] = y[i] + x[i]


@pytest.mark.parametrize("func", [overlapping, staged, twice])
def test_what_is_written_twice_or_read_twice(func: tirx.PrimFunc) -> None:
    assert in_place_operands(func, 1) == ()


def test_sizes_of_the_run() -> None:
    rows = tirx.Var("n", "int64")
    func = kernel(topi.add, (rows, 8), (rows, 8))
    assert in_place_operands(func, 2) == (0, 1)


def test_a_schedule_of_an_open_batch() -> None:
    batch = tirx.Var("n", "int64")
    func = kernel(topi.add, (batch, 64), (batch, 1))
    assert in_place_operands(scheduled(func), 2) == (0,)
