"""Divisions by symbolic sizes: cut off where nothing is negative, as they are elsewhere."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from symbolic_extents import call, close, random, size
from tvm import relax, s_tir, te, tirx
from tvm.relax.op import nn
from unoptimised import HOST

import tvm_ext
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.cpu.truncate_divisions import TruncateDivisions
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels

ROUNDED = (tirx.FloorDiv, tirx.FloorMod)


def lowered(func: tirx.PrimFunc) -> tvm.IRModule:
    """What the pass is given: after TVM's own lowering."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    passes, _, _ = tirx.get_tir_pipeline("s_tir")
    target = HOST.tvm_target()
    return passes(tirx.transform.BindTarget(tvm.target.Target(target, host=target))(mod))


def joined(read: Callable[[te.Tensor, tirx.Expr, tirx.Expr], tirx.Expr]) -> tirx.PrimFunc:
    """``y[i, j]`` of two symbolic extents in one loop."""
    rows, columns = size("rows"), size("columns")
    x = te.placeholder((columns, rows), "float32", "x")
    y = te.compute((rows, columns), lambda i, j: read(x, i, j), "y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    sch.fuse(*sch.get_loops(sch.get_sblock("y")))
    return sch.mod["main"]


def test_places_in_a_joined_loop_are_cut_off() -> None:
    func = joined(lambda x, i, j: x[j, i] * 2.0)
    before = lowered(func)
    assert nodes(before["main"].body, *ROUNDED)
    after = TruncateDivisions()(before)
    assert not nodes(after["main"].body, *ROUNDED)
    function = compile_kernels(func.with_attr("global_symbol", "main"), HOST.tvm_target())["main"]
    for shape in ((3, 5), (1, 1), (0, 4), (4, 0)):
        x = random(*shape)
        close(call(function, [x], shape[::-1]), x.T * 2)


def test_what_may_be_negative_rounds_down() -> None:
    columns = size("columns")
    func = joined(lambda x, i, j: x[j, i] + ((i - 5) // columns).astype("float32"))
    after = TruncateDivisions()(lowered(func))
    assert len(nodes(after["main"].body, *ROUNDED)) == 1
    function = compile_kernels(func.with_attr("global_symbol", "main"), HOST.tvm_target())["main"]
    x = random(3, 7)
    quotients = ((np.arange(7) - 5) // 3).astype("float32")
    close(call(function, [x], (7, 3)), x.T + quotients[:, None])


def test_what_a_narrow_integer_holds_may_be_negative() -> None:
    columns = size("columns")
    wrapped = [((13 * i + 128) % 256 - 128) // 3 for i in range(20)]
    func = joined(
        lambda x, i, j: (
            x[j, i] + ((i * 13).astype("int8").astype("int64") // columns).astype("float32")
        )
    )
    function = compile_kernels(func.with_attr("global_symbol", "main"), HOST.tvm_target())["main"]
    x = random(3, 20)
    close(call(function, [x], (20, 3)), x.T + np.array(wrapped, "float32")[:, None])


@pytest.mark.parametrize("axis", [2, 4])
def test_a_softmax_of_five_symbolic_sizes(axis: int) -> None:
    """Without the pass TVM takes minutes for it."""
    x = relax.Var("x", relax.TensorType([size(name) for name in "abcde"], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(nn.softmax(x, axis)))
    compiled = tvm_ext.compile(builder.get(), HOST)
    given = random(2, 3, 4, 2, 5) * 3
    powers = np.exp(given - given.max(axis, keepdims=True))
    found = next(iter(compiled.run({"x": given}).values()))
    close(found, powers / powers.sum(axis, keepdims=True))
