"""Integer divisions by symbolic sizes: how they round, and where they are done."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from symbolic_extents import call, close, random, size
from tvm import relax, s_tir, te, tirx
from tvm.relax.op import nn
from unoptimised import HOST, built

import tvm_ext
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.cpu.integer_divisions import HoistDivisions, TruncateDivisions

ROUNDED = (tirx.FloorDiv, tirx.FloorMod)
DIVISIONS = (tirx.Div, tirx.Mod, *ROUNDED)


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
    function = built({"main": func})["main"]
    for shape in ((3, 5), (1, 1), (0, 4), (4, 0)):
        x = random(*shape)
        close(call(function, [x], shape[::-1]), x.T * 2)


def test_what_may_be_negative_rounds_down() -> None:
    columns = size("columns")
    func = joined(lambda x, i, j: x[j, i] + ((i - 5) // columns).astype("float32"))
    after = TruncateDivisions()(lowered(func))
    assert len(nodes(after["main"].body, *ROUNDED)) == 1
    function = built({"main": func})["main"]
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
    function = built({"main": func})["main"]
    x = random(3, 20)
    close(call(function, [x], (20, 3)), x.T + np.array(wrapped, "float32")[:, None])


@pytest.mark.extended
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
    function = built({"main": padded_images()})["main"]
    wanted = np.pad(x, ((0, 0), *((1 + length % 2, 2) for length in shape[1:])))
    np.testing.assert_array_equal(call(function, [x], wanted.shape), wanted)


def test_a_division_by_a_size_of_zero_ahead_of_a_loop_without_turns() -> None:
    rows, columns = size("rows"), size("columns")
    x = te.placeholder((rows, columns), "float32", "x")
    y = te.compute((rows, columns), lambda i, j: x[(i - 9) // columns + i - (i - 9) // columns, j])
    function = built({"main": te.create_prim_func([x, y])})["main"]
    for shape in ((4, 0), (5, 3)):
        given = random(*shape)
        np.testing.assert_array_equal(call(function, [given], shape), given)
