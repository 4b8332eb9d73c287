"""Divisions by symbolic sizes that stay the same in a loop are computed ahead of it."""

import numpy as np
import pytest
import tvm
from symbolic_extents import call, random, size
from tvm import s_tir, te, tirx
from unoptimised import HOST

from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.cpu.hoist_divisions import HoistDivisions
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels

DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def padded_images() -> tirx.PrimFunc:
    """A border of zeros around images, one loop over the images and their rows."""
    count, rows, columns, high, wide = (size(name) for name in ("n", "h", "w", "high", "wide"))
    x = te.placeholder((count, rows, columns), "float32", "x")

    def read(n: tirx.Var, i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        top, left = (1 + length % 2 for length in (rows, columns))
        inside = tirx.all(i >= top, i < rows + top, j >= left, j < columns + left)
        return tirx.if_then_else(inside, x[n, i - top, j - left], tirx.const(0, "float32"))

    y = te.compute((count, high, wide), read, "y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    sch.fuse(*sch.get_loops(sch.get_sblock("y"))[:2])
    return sch.mod["main"].with_attr("global_symbol", "main")


def lowered(func: tirx.PrimFunc) -> tvm.IRModule:
    """What the pass is given: after TVM's own lowering."""
    passes, _, _ = tirx.get_tir_pipeline("s_tir")
    target = HOST.tvm_target()
    bound = tirx.transform.BindTarget(tvm.target.Target(target, host=target))
    return passes(bound(tvm.IRModule({"main": func})))


def test_no_division_stays_in_the_inner_loop() -> None:
    before = lowered(padded_images())
    after = HoistDivisions()(before)
    left = []
    for mod in (before, after):
        inner = [one for one in nodes(mod["main"].body, tirx.For) if not nodes(one.body, tirx.For)]
        divisions = nodes(inner, *DIVISIONS)
        left.append([one for one in divisions if not isinstance(one.b, tirx.IntImm)])
    assert left[0]
    assert not left[1]


@pytest.mark.parametrize("shape", [(5, 7, 6), (3, 7, 5), (2, 11, 9), (1, 1, 1), (0, 3, 4)])
def test_padded_images(shape: tuple[int, int, int]) -> None:
    x = random(*shape)
    function = compile_kernels(padded_images(), HOST.tvm_target())["main"]
    wanted = np.pad(x, ((0, 0), *((1 + length % 2, 2) for length in shape[1:])))
    np.testing.assert_array_equal(call(function, [x], wanted.shape), wanted)


def test_a_division_by_a_size_of_zero_ahead_of_a_loop_without_turns() -> None:
    rows, columns = size("rows"), size("columns")
    x = te.placeholder((rows, columns), "float32", "x")
    y = te.compute((rows, columns), lambda i, j: x[(i - 9) // columns + i - (i - 9) // columns, j])
    func = te.create_prim_func([x, y]).with_attr("global_symbol", "main")
    function = compile_kernels(func, HOST.tvm_target())["main"]
    for shape in ((4, 0), (5, 3)):
        given = random(*shape)
        np.testing.assert_array_equal(call(function, [given], shape), given)
