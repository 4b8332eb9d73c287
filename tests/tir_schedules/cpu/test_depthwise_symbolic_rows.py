"""Depthwise convolutions of images of any size: numbers beside guarded memory, and refusals."""

import pytest
from lowering import f32, kernel_of, loops_of
from machines import MACHINE
from symbolic_extents import built, call, close, random, size
from thoroughness import one_in, some_of
from tvm import relax, tirx
from tvm.relax.op import nn

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.cpu.blockwise import Blockwise
from tvm_ext.tir_schedules.cpu.depthwise_convolution import CpuDepthwiseConvolution
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

LAST = {"data_layout": "NHWC", "kernel_layout": "HWOI"}
# Around one and two tiles of the middle, and images smaller than the window.
IMAGES = ((1, 1), (1, 2), (2, 3), (5, 4), (3, 7), (7, 9), (4, 12), (6, 17), (2, 21))

CASES = {
    "3x3": ((3, 3), {"padding": (1, 1)}, 19),
    "3x3, strided": ((3, 3), {"padding": (1, 1), "strides": (2, 2)}, 48),
    "5x5, strided": ((5, 5), {"padding": (2, 2), "strides": (2, 2)}, 16),
    "dilated": ((3, 3), {"padding": (2, 2), "dilation": (2, 2)}, 20),
    "uneven padding": ((2, 4), {"padding": (1, 0, 0, 3)}, 33),
}


def _kernel(taps: tuple[int, int], options: dict, channels: int) -> tirx.PrimFunc:
    image = (size("batch"), size("height"), size("width"), channels)
    return kernel_of(
        lambda x, w: nn.relu(nn.conv2d(x, w, groups=channels, **LAST, **options)),
        (image, "float32"),
        f32(*taps, channels, 1),
    )


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "cores"),
    one_in(3, [*((name, 2) for name in CASES), *((name, 1) for name in some_of(CASES))]),
)
def test_against_the_fallback(name: str, cores: int) -> None:
    taps, options, channels = CASES[name]
    func = _kernel(taps, options, channels)
    machine = host_description().with_cores(cores)
    scheduled = apply_template(CpuDepthwiseConvolution(), func, machine)
    assert isinstance(scheduled, ScheduledKernel), scheduled
    plain = apply_template(Blockwise(), func, machine)
    own, last = built(scheduled.func), built(plain.func)
    weights = random(*taps, channels, 1)
    strides, dilation = options.get("strides", (1, 1)), options.get("dilation", (1, 1))
    pads = options["padding"] if len(options["padding"]) == 4 else options["padding"] * 2
    for batch in (1, 3):
        for image in IMAGES:
            sides = [
                (image[i] + pads[i] + pads[2 + i] - dilation[i] * (taps[i] - 1) - 1) // strides[i]
                + 1
                for i in (0, 1)
            ]
            if min(sides) < 1:
                continue
            arrays = [random(batch, *image, channels), weights]
            shape = (batch, *sides, channels)
            close(call(own, arrays, shape), call(last, arrays, shape))


def test_tiles_of_the_middle_are_vectors() -> None:
    func = _kernel(*CASES["3x3"][:2], 64)
    scheduled, choice = schedule_kernel(func, MACHINE)
    assert choice.schedule == "depthwise convolution"
    assert {loop.kind for loop in loops_of(scheduled) if not loop.path} == {"parallel"}
    assert "T.Broadcast(T.float32(0.0), 16)" in scheduled.script()


def test_channels_first_are_left_alone() -> None:
    shape = (size("batch"), 8, size("height"), size("width"))
    func = kernel_of(
        lambda x, w: nn.conv2d(x, w, padding=(1, 1), groups=8), (shape, "float32"), f32(8, 1, 3, 3)
    )
    refused = apply_template(CpuDepthwiseConvolution(), func, MACHINE)
    assert "channels are not next to each other" in refused.reason


def test_whole_convolution_is_left_alone() -> None:
    func = kernel_of(
        lambda x, w: nn.conv2d(x, w, padding=(1, 1), data_layout="NHWC", kernel_layout="HWIO"),
        ((size("batch"), size("height"), size("width"), 4), "float32"),
        f32(3, 3, 4, 16),
    )
    assert not isinstance(apply_template(CpuDepthwiseConvolution(), func, MACHINE), ScheduledKernel)


def test_channels_of_any_number_are_left_alone() -> None:
    channels = size("channels")

    def summed(x: relax.Expr) -> relax.Expr:
        return nn.avg_pool2d(x, (3, 3), padding=(1, 1), layout="NHWC")

    func = kernel_of(summed, ((size("batch"), size("height"), 5, channels), "float32"))
    assert not isinstance(apply_template(CpuDepthwiseConvolution(), func, MACHINE), ScheduledKernel)
