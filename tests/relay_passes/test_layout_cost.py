"""The model of a convolution's time in either layout."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_ext.hardware.cost_model import Work, cost_model
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.relay_passes.expressions import tensor_bytes
from tvm_ext.relay_passes.layout_cost import (
    UNALIGNED_FACTOR,
    ChannelLayout,
    DescribedMachine,
    convolution_seconds,
    planned_convolution_seconds,
)


class Recorder:
    """Keeps the work it is asked about."""

    def __init__(self) -> None:
        self.work: list[Work] = []

    def seconds(self, work: Work) -> float:
        self.work.append(work)
        return work.flops / work.vector_fraction

    def conversion_seconds(self, nbytes: float) -> float:
        return nbytes

    def vector_lanes(self, dtype: str) -> int:
        return 512 // tvm.DataType(dtype).bits


def work_of(
    data: tuple, weight: tuple, layout: ChannelLayout, dtype: str = "float32", **attrs: object
) -> Work:
    x = relax.Var("x", relax.TensorType(data, dtype))
    convolve = (relax.op.nn.conv1d, relax.op.nn.conv2d, relax.op.nn.conv3d)[len(data) - 3]
    call = convolve(x, relax.const(np.zeros(weight, dtype)), **attrs)
    recorder = Recorder()
    convolution_seconds(relax.BlockBuilder().normalize(call), layout, recorder)
    return recorder.work[0]


FIRST, LAST = ChannelLayout.CHANNELS_FIRST, ChannelLayout.CHANNELS_LAST


@pytest.mark.parametrize(
    ("weight", "attrs", "layout", "fraction"),
    [
        ((24, 8, 1, 1), {}, LAST, 24 / 32),
        ((24, 8, 1, 1), {}, FIRST, 169 / 176),  # rows of 13 join to one of 169
        ((24, 8, 3, 3), {"padding": 1}, FIRST, 13 / 16 * UNALIGNED_FACTOR),
        ((24, 8, 1, 1), {"strides": 2}, FIRST, 1 / 16),
        ((8, 1, 3, 3), {"padding": 1, "groups": 8}, LAST, 8 / 16),
        ((64, 2, 3, 3), {"padding": 1, "groups": 4}, LAST, 16 / 16),
        ((16, 1, 3, 3), {"padding": 1, "groups": 8}, LAST, 2 / 16),
    ],
)
def test_vector_fraction(
    weight: tuple, attrs: dict, layout: ChannelLayout, fraction: float
) -> None:
    work = work_of((1, 8, 13, 13), weight, layout, **attrs)
    assert work.vector_fraction == pytest.approx(fraction)


@pytest.mark.parametrize(
    ("weight", "layout", "groups", "expected"),
    [
        ((16, 8, 3, 3), LAST, 1, ("uint8", 1.0)),
        ((16, 6, 3, 3), LAST, 1, ("uint8", 6 / 8)),  # six channels are filled up to eight
        ((24, 8, 1, 1), LAST, 1, ("uint8", 24 / 32)),
        ((16, 8, 3, 3), FIRST, 1, ("int16", 13 / 16 * UNALIGNED_FACTOR)),
        ((16, 1, 3, 3), LAST, 1, ("uint8", 3 / 4)),  # three columns of windows on one channel
        ((16, 1, 1, 1), LAST, 1, ("int16", 1.0)),
        ((3, 8, 3, 3), LAST, 1, ("int16", 3 / 16)),
        ((16, 4, 3, 3), LAST, 2, ("int16", 8 / 16)),
    ],
)
def test_integers_have_dot_products_with_channels_last(
    weight: tuple, layout: ChannelLayout, groups: int, expected: tuple
) -> None:
    shape = (1, weight[1] * groups, 13, 13)
    options = {"padding": 1 if weight[2] == 3 else 0, "groups": groups, "out_dtype": "int32"}
    work = work_of(shape, weight, layout, "int16", **options)
    assert (work.dtype, work.vector_fraction) == (expected[0], pytest.approx(expected[1]))


def test_layouts_do_the_same_work() -> None:
    first, last = (work_of((2, 8, 5, 6), (4, 8, 3, 3), layout) for layout in ChannelLayout)
    assert first.flops == last.flops == 2 * (2 * 4 * 3 * 4) * (8 * 9)
    assert first.bytes == last.bytes == 4 * (2 * 8 * 30 + 4 * 72 + 2 * 4 * 12)


def test_extents_are_read_by_the_names_of_the_axes() -> None:
    names = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}
    assert work_of((2, 5, 6, 8), (3, 3, 8, 4), LAST, **names) == work_of(
        (2, 8, 5, 6), (4, 8, 3, 3), LAST
    )


@pytest.mark.parametrize(
    ("data", "weight"), [((1, 8, 9), (4, 8, 3)), ((1, 8, 9, 9, 9), (4, 8, 3, 3, 3))]
)
def test_other_ranks(data: tuple, weight: tuple) -> None:
    assert work_of(data, weight, LAST).vector_fraction == 4 / 16


def test_symbolic_extents_have_nominal_ones() -> None:
    batch, side = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("w", "int64")
    assert tensor_bytes(relax.TensorType((batch, 8, 7, side), "float16")) == 2 * 8 * 7 * 64
    # Computed from the side of an image.
    assert tensor_bytes(relax.TensorType((1, 1, 1, (side - 1) // 32 + 1), "int8")) == 7
    assert work_of((batch, 8, 7, side), (4, 8, 1, 1), LAST).flops > 0
    # Not possible at the common size, or not worked out.
    half = tvm.tirx.Cast("int64", tvm.tirx.floor(tvm.tirx.Cast("float32", side)))
    assert tensor_bytes(relax.TensorType((1, side - 500, half), "int8")) == 64 * 64


def test_columns_of_any_number_are_worth_less() -> None:
    side = tvm.tirx.Var("w", "int64")
    known, any_number = (work_of((1, 8, 7, n), (4, 8, 1, 1), FIRST) for n in (64, side))
    assert any_number.vector_fraction == known.vector_fraction / 2


GPU = resolve_target("nvidia-h100")


def cuda_seconds(data: tuple, weight: tuple, layout: ChannelLayout, **attrs: object) -> float:
    x = relax.Var("x", relax.TensorType(data, "float32"))
    call = relax.op.nn.conv2d(x, relax.const(np.zeros(weight, "float32")), **attrs)
    machine = DescribedMachine(GPU, cost_model(GPU))
    return planned_convolution_seconds(relax.BlockBuilder().normalize(call), layout, machine)


@pytest.mark.parametrize(
    ("data", "weight", "attrs", "prefers_last"),
    [
        ((8, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}, True),
        ((8, 64, 56, 56), (64, 64, 1, 1), {}, False),
        ((8, 64, 56, 56), (64, 1, 3, 3), {"padding": 1, "groups": 64}, True),
        ((8, 3, 56, 56), (64, 3, 3, 3), {"padding": 1}, False),
    ],
    ids=["window", "one tap is aligned in both", "depthwise", "three input channels"],
)
def test_a_gpu_copies_neighbours(
    data: tuple, weight: tuple, attrs: dict, prefers_last: bool
) -> None:
    first, last = (cuda_seconds(data, weight, layout, **attrs) for layout in (FIRST, LAST))
    assert (last < first) == prefers_last
    assert last <= first


def test_depthwise_of_images_of_any_size_has_no_vectors_with_channels_first() -> None:
    side = tvm.tirx.Var("side", "int64")
    attrs = {"padding": 1, "groups": 32}
    first = work_of((1, 32, side, side), (32, 1, 3, 3), FIRST, **attrs)
    assert first.vector_fraction == 1 / 16
    assert work_of((1, 32, side, side), (32, 1, 3, 3), LAST, **attrs).vector_fraction == 1


@pytest.mark.parametrize(
    ("kernel", "attrs", "constant", "gains"),
    [
        (3, {"padding": 1}, True, True),
        (3, {"padding": 1, "strides": 2}, True, False),
        (3, {"padding": 2, "dilation": 2}, True, False),
        (3, {"padding": 1}, False, False),
        (1, {}, True, False),
    ],
    ids=["3x3", "strided", "dilated", "variable weights", "1x1"],
)
def test_channels_last_have_winograd_on_cpus(
    kernel: int, attrs: dict, constant: bool, gains: bool
) -> None:
    cpu = resolve_target("avx512")
    machine = DescribedMachine(cpu, cost_model(cpu))
    x = relax.Var("x", relax.TensorType((1, 64, 56, 56), "float32"))
    shape = (64, 64, kernel, kernel)
    stored = relax.const(np.zeros(shape, "float32"))
    weight = stored if constant else relax.Var("w", relax.TensorType(shape, "float32"))
    call = relax.BlockBuilder().normalize(relax.op.nn.conv2d(x, weight, **attrs))
    planned, recorder = convolution_seconds(call, LAST, machine), Recorder()
    convolution_seconds(call, LAST, recorder)
    direct = machine.seconds(recorder.work[0])
    assert (planned < 0.8 * direct) == gains
    assert planned == direct or gains
