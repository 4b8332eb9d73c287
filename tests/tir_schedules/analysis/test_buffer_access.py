"""Strides that a block's loops make in its buffers."""

import pytest
from kernel_cases import nhwc
from lowering import Spec, f32, kernel_of
from tvm import relax, s_tir, te, tirx
from tvm.relax.op import nn

from tvm_ext.tir_schedules.analysis.buffer_access import (
    BlockAccess,
    LoopAxis,
    access_of,
    linear_form,
    linear_numbers,
    slope,
    static_extent,
)


def access(func: tirx.PrimFunc, block: str) -> BlockAccess | None:
    sch = s_tir.Schedule(func)
    return access_of(sch, sch.get_sblock(block))


def conv(x: Spec, w: Spec, **kwargs: object) -> tirx.PrimFunc:
    return kernel_of(lambda a, b: nn.conv2d(a, b, **kwargs), x, w)


def test_matmul() -> None:
    found = access(kernel_of(relax.op.matmul, f32(5, 7), f32(7, 13)), "matmul")
    assert found is not None
    assert found.extents == [5, 13, 7]
    assert found.is_reduction == [False, False, True]
    assert found.spatial == [0, 1]
    assert found.reduction == [2]
    assert found.write_strides == [13, 1, 0]
    assert found.read_strides == [[7, 0, 1], [0, 1, 13]]
    assert found.trip_count() == 5 * 13 * 7


def test_batched_matmul_with_a_shared_operand() -> None:
    found = access(kernel_of(relax.op.matmul, f32(3, 5, 7), f32(7, 13)), "matmul")
    assert found is not None
    assert found.write_strides == [65, 13, 1, 0]
    assert found.read_strides == [[35, 7, 0, 1], [0, 0, 1, 13]]


def test_conv_nchw() -> None:
    found = access(conv(f32(1, 3, 9, 11), f32(5, 3, 3, 3), strides=(2, 1)), "conv2d_nchw")
    assert found is not None
    # Loops: batch, channel, row, column, then the reduction over channel, kernel row and column.
    assert found.extents == [1, 5, 4, 9, 3, 3, 3]
    assert found.write_strides == [180, 36, 9, 1, 0, 0, 0]
    assert found.read_strides[0] == [297, 0, 22, 1, 99, 11, 1]
    assert found.read_strides[1] == [0, 27, 0, 0, 9, 3, 1]


def test_conv_nhwc_dilated() -> None:
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    func = conv(f32(1, 9, 11, 3), f32(3, 3, 3, 5), dilation=(2, 3), **layouts)
    found = access(func, "conv2d_nhwc")
    assert found is not None
    assert found.write_strides == [125, 25, 5, 1, 0, 0, 0]
    assert found.read_strides[0] == [297, 33, 3, 0, 66, 9, 1]
    assert found.read_strides[1] == [0, 0, 0, 1, 45, 15, 5]


def test_depthwise() -> None:
    found = access(conv(f32(1, 5, 7, 7), f32(5, 1, 3, 3), groups=5), "group_conv2d_nchw")
    assert found is not None
    assert found.write_strides == [125, 25, 5, 1, 0, 0, 0]
    assert found.read_strides == [[245, 49, 7, 1, 49, 7, 1], [0, 9, 0, 0, 9, 3, 1]]


def test_depthwise_nhwc() -> None:
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    func = conv(f32(1, 7, 7, 5), f32(3, 3, 1, 5), groups=5, **layouts)
    found = access(func, "group_conv2d_nhwc")
    assert found is not None
    channel = found.extents.index(5, 3)
    assert found.write_strides[channel] == 1
    assert [strides[channel] for strides in found.read_strides] == [1, 1]


def test_loops_of_32_bits() -> None:
    a = te.placeholder((3, 5), name="a")
    func = te.create_prim_func([a, te.compute((5, 3), lambda i, j: a[j, i], "transposed")])
    found = access(func, "transposed")
    assert found is not None
    assert found.read_strides == [[1, 5]]


def test_grouped_channel_has_no_one_stride() -> None:
    found = access(conv(f32(1, 4, 5, 7), f32(6, 2, 3, 3), groups=2), "group_conv2d_nchw")
    assert found is not None
    channel = found.extents.index(6)
    assert found.read_strides[0][channel] is None
    assert found.read_strides[1][channel] == 18


def test_scalar() -> None:
    found = access(kernel_of(relax.op.exp, f32()), "compute")
    assert found is not None
    assert found.extents == []
    assert found.trip_count() == 1


def test_symbolic_extent() -> None:
    batch = tirx.Var("n", "int64")
    func = kernel_of(relax.op.exp, ((batch, 5), "float32"))
    assert access(func, "compute") is None


def test_symbolic_stride() -> None:
    width = tirx.Var("n", "int64")
    func = kernel_of(lambda x: relax.op.sum(x, axis=[1]), ((5, width), "float32"))
    assert access(func, "x0_red") is None


def test_several_results() -> None:
    func = kernel_of(lambda x: relax.op.argmax(x, axis=1), f32(5, 7))
    assert access(func, "x0_red_temp") is None
    assert access(func, "x0_red") is not None


def test_nonlinear_read() -> None:
    func = kernel_of(lambda x, i: relax.op.take(x, i, 0), f32(7, 5), ((3,), "int64"))
    found = access(func, "T_take")
    assert found is not None
    assert found.write_strides == [5, 1]
    assert [None, 1] in found.read_strides


def test_blocks_after_fusion() -> None:
    func = kernel_of(nhwc, f32(1, 5, 5, 3), f32(1, 1, 3, 7), f32(7))
    found = access(func, "T_add")
    assert found is not None
    assert found.read_strides[1] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(7, 7), (tirx.IntImm("int64", 9), 9), (tirx.Var("n", "int64"), None)],
)
def test_static_extent(value: object, wanted: int | None) -> None:
    assert static_extent(value) == wanted


def test_linear_forms_are_numbers_or_none():
    i, j, n = (tirx.Var(name, "int64") for name in "ijn")
    assert linear_numbers(i * 12 + j * 3 + 5, [i, j]) == ([12, 3], 5)
    assert linear_numbers(i * n + j, [i, j]) is None
    assert linear_form(i * n + j, [i, j]) is not None
    assert linear_form(i // 2, [i]) is None
    assert linear_numbers(tirx.const(7, "int64"), []) == ([], 7)
    assert (slope(i * 12 + n, i), slope(i * n, i), slope(i // 2, i)) == (12, None, None)


def test_axes_of_known_and_unknown_extent():
    i, n = (tirx.Var(name, "int64") for name in "in")
    assert LoopAxis(i, tirx.const(4, "int64")).length == LoopAxis(i, 4).length == 4
    assert LoopAxis(i, n).is_symbolic
    assert LoopAxis(i, 1).runs_once
    assert not LoopAxis(i, n).runs_once
