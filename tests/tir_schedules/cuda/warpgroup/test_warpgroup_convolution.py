"""Convolutions by warpgroups: numbers in the emulator, boxes of pixels, padding, and refusals."""

import pytest
from cuda_kernels import needs_nvcc, resources, scheduled, whole_source
from lowering import kernel_of
from matmul_kernels import f16
from tvm import relax, s_tir, te, tirx
from tvm.sym import Analyzer
from warpgroup_cases import H200, SLOW, WINDOWS, Shape, check_numbers, convolved

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_contraction import WarpgroupContraction
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_operands import (
    PixelBoxes,
    padding_of,
    pixel_boxes,
)
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel


@pytest.mark.parametrize(
    ("image", "filters", "options", "decided"),
    [
        ((2, 15, 15, 64), (56, 3, 3, 64), {"padding": 1}, {}),
        ((1, 31, 31, 64), (64, 3, 3, 64), {"padding": 1, "strides": 2}, {"stages": 2}),
        ((16, 7, 7, 64), (64, 3, 3, 64), {"padding": 1}, {"tile_columns": 64}),
    ],
    ids=["odd sizes", "strided", "several images in a box"],
)
def test_numbers(image: Shape, filters: Shape, options: dict, decided: dict) -> None:
    check_numbers(convolved(image, filters, **options), 2, SLOW, **decided)


@pytest.mark.slow
@pytest.mark.parametrize(("image", "filters", "options"), WINDOWS, ids=str)
def test_numbers_of_every_kind_of_window(image: Shape, filters: Shape, options: dict) -> None:
    check_numbers(convolved(image, filters, **options), arithmetic=SLOW)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 3])
def test_numbers_of_other_ranks(rank: int) -> None:
    def line(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        layouts = {"data_layout": "NWC", "kernel_layout": "OWI", "out_layout": "NWC"}
        return relax.op.nn.conv1d(x, w, padding=1, out_dtype="float32", **layouts)

    def volume(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        layouts = {"data_layout": "NDHWC", "kernel_layout": "ODHWI", "out_layout": "NDHWC"}
        return relax.op.nn.conv3d(x, w, padding=1, out_dtype="float32", **layouts)

    if rank == 1:
        check_numbers(kernel_of(line, f16(2, 64, 64), f16(64, 3, 64)), arithmetic=SLOW)
    else:
        kernel = kernel_of(volume, f16(1, 4, 8, 8, 64), f16(64, 3, 3, 3, 64))
        check_numbers(kernel, arithmetic=SLOW)


def test_a_product_of_some_rows_of_an_array_begins_at_their_first() -> None:
    a, b = te.placeholder((136, 64), "float16", "a"), te.placeholder((64, 64), "float16", "b")
    k = te.reduce_axis((0, 64), "k")

    def element(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        return te.sum(a[i + 8, k].astype("float32") * b[k, j].astype("float32"), axis=k)

    check_numbers(te.create_prim_func([a, b, te.compute((128, 64), element)]))


@pytest.mark.parametrize(
    ("extents", "strides", "expected"),
    [
        ((32, 56, 56), (1, 1, 1), 32 * 56 * 56),
        ((14, 14), (1, 1), 4 * 64),
        ((64, 7, 7), (1, 1, 1), 64 * 49),
        ((1, 7, 7), (1, 1, 1), 64),
        ((1000,), (2,), 1024),
        ((3, 20, 100), (1, 8, 8), 3 * 20 * 112),
    ],
)
def test_boxes_waste_as_few_rows_as_powers_of_two_can(
    extents: Shape, strides: Shape, expected: int
) -> None:
    boxes = pixel_boxes(extents, strides, 64)
    assert isinstance(boxes, PixelBoxes)
    assert boxes.rows == expected
    assert all(side * stride <= 256 for side, stride in zip(boxes.sides, strides, strict=True))


def test_every_pixel_is_one_row() -> None:
    boxes = pixel_boxes((2, 5, 9), (1, 1, 1), 64)
    assert isinstance(boxes, PixelBoxes)
    simplify = Analyzer().simplify
    placed = [boxes.placed(tirx.const(row, "int64")) for row in range(boxes.rows + 64)]
    pixels = [int(simplify(number)) for number, inside in placed if bool(simplify(inside))]
    assert sorted(pixels) == list(range(2 * 5 * 9))


def test_the_template_takes_a_layer_of_a_network() -> None:
    kernel = convolved((32, 28, 28, 256), (64, 3, 3, 256), padding=1)
    assert schedule_kernel(kernel, H200)[1].schedule == "warpgroup contraction"
    source = whole_source(scheduled(WarpgroupContraction(), kernel, H200), machine=H200)
    assert "cp.async.bulk.tensor.4d" in source
    assert "wgmma.mma_async.sync.aligned.m64n" in source


@needs_nvcc
@pytest.mark.slow
def test_nothing_spills() -> None:
    kernel = convolved((32, 56, 56, 64), (256, 3, 3, 64), padding=1, strides=2)
    source = whole_source(scheduled(WarpgroupContraction(), kernel, H200), machine=H200)
    assert all(used.spilled == used.stack == 0 for used in resources(source, "sm_90a"))


def _padded(value: float, wide: int = 2) -> s_tir.SBlock:
    x = te.placeholder((6, 8), "float16", "x")
    inside = te.compute(
        (10, 10),
        lambda i, j: tirx.if_then_else(
            tirx.all(i >= wide, i < 8, j >= 1, j < 9), x[i - 2, j - 1], tirx.const(value, "float16")
        ),
    )
    sch = s_tir.Schedule(te.create_prim_func([x, inside]))
    return sch.get(sch.get_child_blocks(sch.get_sblock("root"))[0])


def test_padding_is_zeros_where_the_image_ends() -> None:
    found = padding_of(_padded(0.0))
    assert found is not None
    assert found.before == (2, 1)
    assert padding_of(_padded(1.0)) is None
    # A row of the image that is not read is no padding.
    assert padding_of(_padded(0.0, wide=3)) is None


@pytest.mark.parametrize(
    ("image", "filters", "options", "reason"),
    [
        ((8, 56, 56, 12), (64, 3, 3, 12), {}, "not whole pieces of 16 bytes"),
        ((8, 56, 56, 64), (64, 1, 1, 64), {"strides": 9}, "a stride of more than 8"),
        ((1, 9, 9, 16), (64, 3, 3, 16), {}, "single warps are as fast"),
    ],
)
def test_refusals_say_why(image: Shape, filters: Shape, options: dict, reason: str) -> None:
    refused = apply_template(WarpgroupContraction(), convolved(image, filters, **options), H200)
    assert isinstance(refused, NotApplicable)
    assert reason in refused.reason
