"""Kernels that only move their operands are told from all others by their addresses."""

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import te, tirx, topi
from unoptimised import HOST

from tvm_ext.hardware.targets import compiling_for
from tvm_ext.tir_schedules.analysis.copies import Copies, copies
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel


def kernel(
    build: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float32"
) -> tirx.PrimFunc:
    given = [te.placeholder(shape, dtype, f"x{i}") for i, shape in enumerate(shapes)]
    func = te.create_prim_func([*given, build(*given)])
    return func.with_attr("tirx.noalias", True)


def scheduled(func: tirx.PrimFunc) -> tirx.PrimFunc:
    with compiling_for(HOST):
        return schedule_kernel(func, HOST)[0]


def joined(axis: int) -> Callable[..., Any]:
    return lambda *parts: topi.concatenate(parts, axis)


@pytest.mark.parametrize("schedule", [False, True])
@pytest.mark.parametrize(
    ("build", "shapes", "wanted"),
    [
        (joined(0), [(3, 8), (5, 8)], Copies(2, {0: 0, 1: 24})),
        # The outermost axis that has more than one entry.
        (joined(1), [(1, 3, 8), (1, 5, 8), (1, 1, 8)], Copies(3, {0: 0, 1: 24, 2: 64})),
        (joined(1), [(2, 3, 8), (2, 5, 8)], None),
        (joined(2), [(1, 3, 8), (1, 3, 8)], None),
        (lambda x: topi.strided_slice(x, [2, 0], [5, 8]), [(6, 8)], Copies(1, {0: -16})),
        (lambda x: topi.strided_slice(x, [0, 2], [6, 5]), [(6, 8)], None),
        (lambda x: topi.strided_slice(x, [0, 0], [6, 8], [2, 1]), [(6, 8)], None),
        (lambda x: topi.flip(x, 0), [(6, 8)], None),
        (lambda x: topi.negative(x), [(6, 8)], None),
        (lambda x: topi.transpose(x), [(6, 8)], None),
        (lambda x: topi.transpose(x, [0, 2, 1]), [(6, 1, 8)], Copies(1, {0: 0})),
        (lambda x: topi.broadcast_to(x, (4, 8)), [(1, 8)], None),
        (lambda x: topi.nn.pad(x, [1, 0]), [(6, 8)], None),
    ],
)
def test_what_a_kernel_moves(
    build: Callable[..., Any], shapes: list[tuple[int, ...]], wanted: Copies | None, schedule: bool
) -> None:
    func = kernel(build, *shapes)
    assert copies(scheduled(func) if schedule else func) == wanted


def test_sizes_of_the_run_are_not_known() -> None:
    rows = tvm.tirx.Var("n", "int64")
    x = te.placeholder((rows, 8), "float32", "x")
    func = te.create_prim_func([x, topi.concatenate([x, x], 0)])
    assert copies(func) is None
