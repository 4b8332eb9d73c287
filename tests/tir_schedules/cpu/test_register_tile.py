"""Register tiles: their shape, the loops around them, and what stays out."""

from functools import partial

import pytest
from cpu_kernels import refusal_of, scheduled
from kernel_cases import CONVOLUTIONS, MATMULS, REDUCTIONS, nhwc
from lowering import assert_same, f32, kernel_of, loops_of, run, scalar_stores
from machines import MACHINE, NARROW
from tvm import relax, s_tir, te, tirx, topi
from tvm.relax.op import nn

from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.analysis.buffer_access import access_of
from tvm_ext.tir_schedules.cpu.register_blocking import (
    RegisterTileDecision,
    decide_tile,
    rows_in_l1,
    rows_with_tail,
    vector_registers,
)
from tvm_ext.tir_schedules.cpu.register_tile import RegisterTile

op = relax.op
applied = partial(scheduled, RegisterTile())


def decided(
    func: tirx.PrimFunc, block: str, machine: MachineDescription = MACHINE
) -> RegisterTileDecision:
    sch = s_tir.Schedule(func)
    access = access_of(sch, sch.get_sblock(block))
    assert access is not None
    decision = decide_tile(access, machine, "float32")
    assert isinstance(decision, RegisterTileDecision), decision
    return decision


def test_registers() -> None:
    assert vector_registers(MACHINE) == 32
    assert vector_registers(NARROW) == 16
    assert vector_registers(resolve_target("aarch64-neon")) == 32


def test_rows_of_one_output_channel_share_its_weights() -> None:
    """A vector serves no other result; an element of the weights serves each line."""
    func = kernel_of(nn.conv2d, f32(1, 8, 14, 18), f32(1, 8, 3, 3))
    decision = decided(func, "conv2d_nchw", NARROW)
    assert (decision.columns, decision.rows) == (16, {2: 6})
    many = kernel_of(nn.conv2d, f32(1, 8, 14, 18), f32(8, 8, 3, 3))
    assert decided(many, "conv2d_nchw", NARROW).rows == {1: 4}


@pytest.mark.parametrize(("extent", "count"), [(1, 1), (17, 9), (19, 10), (38, 10), (101, 12)])
def test_rows_with_a_rest_are_even_and_below_the_limit(extent: int, count: int) -> None:
    assert rows_with_tail(extent, 14) == count


@pytest.mark.parametrize("machine", [MACHINE, NARROW], ids=lambda m: m.name)
@pytest.mark.parametrize(("rows", "columns"), [(56, 64), (14, 96), (17, 24), (149, 40), (1, 80)])
def test_tile_fits(machine: MachineDescription, rows: int, columns: int) -> None:
    func = kernel_of(op.matmul, f32(rows, 13), f32(13, columns))
    decision = decided(func, "matmul", machine)
    lanes = machine.vector_lanes("float32")
    assert decision.vector_axis == 1
    assert columns % decision.columns == 0
    vectors = -(-decision.columns // lanes)
    height = decision.rows.get(0, 1)
    tiles = -(-rows // height)
    assert tiles * height - rows < tiles
    assert vectors <= 2
    assert height * vectors + vectors + 1 <= vector_registers(machine)


def test_whole_registers_are_preferred() -> None:
    func = kernel_of(op.matmul, f32(14, 13), f32(13, 96))
    assert decided(func, "matmul") == RegisterTileDecision(1, 32, {0: 14})


def test_conv_nhwc_rows_are_positions() -> None:
    func = kernel_of(nhwc, f32(1, 30, 30, 16), f32(3, 3, 16, 64), f32(64))
    decision = decided(func, "conv2d_nhwc")
    assert (decision.vector_axis, decision.columns) == (3, 32)
    assert decision.rows == {2: 14}


def test_conv_nchw_rows_are_channels() -> None:
    func = kernel_of(lambda x, w: nn.conv2d(x, w), f32(1, 3, 16, 34), f32(14, 3, 3, 3))
    decision = decided(func, "conv2d_nchw")
    assert (decision.vector_axis, decision.columns) == (3, 32)
    assert decision.rows == {1: 14}


def test_pooling_has_no_rows() -> None:
    func = kernel_of(lambda x: nn.max_pool2d(x, (2, 2), (2, 2), layout="NHWC"), f32(1, 8, 8, 32))
    decision = decided(func, "pool_max")
    assert (decision.vector_axis, decision.columns, decision.rows) == (3, 32, {})


def test_structure_of_a_large_conv() -> None:
    func = kernel_of(nhwc, f32(1, 58, 58, 64), f32(3, 3, 64, 64), f32(64))
    before = func.script()
    loops = loops_of(applied(func))
    assert func.script() == before
    copy, *tiles = [loop for loop in loops if not loop.path]
    assert (copy.kind, copy.extent) == ("serial", 3)
    # One loop over tiles, on threads; the epilogue runs inside it.
    assert [(loop.kind, loop.extent) for loop in tiles] == [("parallel", 2 * 56 * 4)]
    loops = loops[loops.index(tiles[0]) :]
    vectors = [loop for loop in loops if loop.kind == "vectorized"]
    assert [loop.extent for loop in vectors] == [32, 32, 32]
    assert all(loop.path[0] == "parallel" for loop in vectors)
    unrolled = [loop.extent for loop in loops if loop.kind == "unrolled" and loop.extent != 1]
    assert unrolled == [14, 14, 14]
    reduction = [loop.extent for loop in loops if loop.kind == "serial"]
    assert reduction == [3, 3, 64]


def test_tiny_kernel_stays_on_one_thread() -> None:
    func = kernel_of(op.matmul, f32(4, 8), f32(8, 32))
    assert "parallel" not in [loop.kind for loop in loops_of(applied(func))]


def test_broadcast_epilogue_is_not_unrolled() -> None:
    case = CONVOLUTIONS["squeeze and excite"]
    func = kernel_of(case.expression, f32(1, 1, 1, 24), f32(1, 1, 24, 96), f32(1, 80, 80, 96))
    loops = loops_of(applied(func))
    unrolled = [loop.extent or 0 for loop in loops if loop.kind == "unrolled"]
    assert max(unrolled) <= vector_registers(MACHINE)
    # The multiplication over the map has a nest of its own, on threads.
    assert [loop.kind for loop in loops if not loop.path] == ["serial", "parallel"]


def test_matmul_with_two_users_of_its_result_is_copied_out() -> None:
    def expression(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        product = op.matmul(a, b)
        return op.add(nn.relu(product), op.exp(product))

    func = kernel_of(expression, f32(6, 8), f32(8, 32))
    assert scalar_stores(applied(func), MACHINE) == 0


@pytest.mark.parametrize("name", ["conv nhwc", "conv nhwc 1x1", "conv3d ndhwc", "conv int8"])
def test_no_scalar_code_in_convolutions(name: str) -> None:
    case = CONVOLUTIONS[name]
    func = kernel_of(case.expression, *case.inputs)
    assert scalar_stores(applied(func), MACHINE) == 0


@pytest.mark.parametrize("name", ["matmul", "matmul batched", "matmul row", "dense relu"])
def test_no_scalar_code_in_products(name: str) -> None:
    case = MATMULS[name]
    func = kernel_of(case.expression, *case.inputs)
    assert scalar_stores(applied(func), MACHINE) == 0


reason = partial(refusal_of, RegisterTile())


def test_not_applicable() -> None:
    batch = tirx.Var("n", "int64")
    assert reason(kernel_of(op.exp, f32(5))) == "the kernel has 0 reductions, not one"
    softmax = kernel_of(*[REDUCTIONS["softmax last"].expression], f32(5, 80))
    assert reason(softmax) == "the kernel has 2 reductions, not one"
    symbolic = kernel_of(op.matmul, ((batch, 5), "float32"), f32(5, 7))
    assert "symbolic" in reason(symbolic)
    column = kernel_of(op.matmul, f32(5, 7), f32(7, 1))
    assert "without a stride" in reason(column)
    grouped = CONVOLUTIONS["conv nhwc grouped"]
    assert "without a stride" in reason(kernel_of(grouped.expression, *grouped.inputs))
    assert "iterations" in reason(kernel_of(lambda x: op.sum(x, axis=[0]), f32(5, 0)))


def test_rows_that_share_a_set_of_l1() -> None:
    assert [rows_in_l1(nbytes) for nbytes in (4096, 8192, 2048, 64)] == [8, 8, 16, 512]
    assert decided(kernel_of(op.matmul, f32(14, 1024), f32(1024, 96)), "matmul").rows == {0: 7}
    assert decided(kernel_of(op.matmul, f32(14, 1000), f32(1000, 96)), "matmul").rows == {0: 14}


def test_an_operand_in_the_wrong_order_is_transposed_once() -> None:
    x, y = (
        te.placeholder(shape, "float32", name) for name, shape in (("x", (17, 19)), ("y", (33, 19)))
    )
    k = te.reduce_axis((0, 19), "k")
    product = te.compute((17, 33), lambda i, j: te.sum(x[i, k] * y[j, k], axis=k), "product")
    func = te.create_prim_func([x, y, product])
    scheduled = applied(func)
    assert {"vectorized"} <= {loop.kind for loop in loops_of(scheduled)}
    results = run({"plain": func, "scheduled": scheduled})
    assert_same(results["plain"], results["scheduled"], "transposed")
    once = te.compute((2, 33), lambda i, j: te.sum(x[i, k] * y[j, k], axis=k), "product")
    assert refusal_of(RegisterTile(), te.create_prim_func([x, y, once]))


def _gradient_of_weights() -> tirx.PrimFunc:
    """Of a convolution of 3 x 3 with stride 2: sums over 16 images, whose borders are zeros."""
    data = te.placeholder((16, 32, 32, 32), "float32", "data")
    given = te.placeholder((16, 16, 16, 64), "float32", "given")
    padded = topi.nn.pad(data, [0, 1, 1, 0], [0, 1, 1, 0])
    n, h, w = (te.reduce_axis((0, 16), name) for name in "nhw")
    shape = (3, 3, 32, 64)
    result = te.compute(
        shape,
        lambda y, x, i, o: te.sum(
            given[n, h, w, o] * padded[n, 2 * h + y, 2 * w + x, i], axis=[n, h, w]
        ),
        "gradient",
    )
    return te.create_prim_func([data, given, result])


def test_copies_for_one_thread_are_made_by_blocks_of_the_reduction() -> None:
    func = _gradient_of_weights()
    one, two = (applied(func, NARROW.with_cores(cores)) for cores in (1, 2))
    # Two copies, zeros and the sums; with one thread the copies lie within the sums.
    nests = [[loop for loop in loops_of(func) if not loop.path] for func in (two, one)]
    assert [len(found) for found in nests] == [4, 2]
    assert nests[1][-1].extent == 16
    results = run({"plain": func, "one": one, "two": two})
    assert_same(results["plain"], results["one"], "one thread")
    assert_same(results["plain"], results["two"], "two threads")
