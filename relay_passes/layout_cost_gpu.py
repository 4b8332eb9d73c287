"""Modelled time of a convolution on an NVIDIA GPU with channels first and with channels last.

A convolution is a matrix product whose operands are copied to shared memory tile by tile. What the
layouts differ in is how many neighbours one copy moves: input channels when these come last, up to
16 bytes; columns when they come first, where only a window of one tap leaves them aligned. Each
copy takes instructions of the threads that also start the products.
"""

import math

from tvm import relax

from tvm_ext.hardware.cost import Work
from tvm_ext.hardware.description import GpuDescription
from tvm_ext.relay_passes.layout_cost import (
    DescribedMachine,
    Layout,
    LayoutMachine,
    ShapeOfConvolution,
    convolution_seconds,
    shape_of_convolution,
)

# Results along a side of a block's tile: an element of the input is copied once for so many.
TILE = 64

# Results of a block of threads of a depthwise convolution.
DEPTHWISE_RESULTS = 2048

# Address, test whether it is inside of the input, copy, and half of a loop's step.
INSTRUCTIONS_PER_COPY = 3.5


def planned_convolution_seconds(call: relax.Call, layout: Layout, machine: LayoutMachine) -> float:
    """Modelled time in seconds of ``call`` in ``layout``, by the model for the kind of machine."""
    if isinstance(machine, DescribedMachine) and isinstance(machine.description, GpuDescription):
        return gpu_convolution_seconds(call, layout, machine, machine.description)
    return convolution_seconds(call, layout, machine)


def gpu_convolution_seconds(
    call: relax.Call, layout: Layout, machine: LayoutMachine, gpu: GpuDescription
) -> float:
    """The same on ``gpu``: the roofline's time, and that of the instructions that copy."""
    shape = shape_of_convolution(call)
    work = Work(shape.flops, shape.nbytes, shape.dtype)
    neighbours = _neighbours(shape, layout, machine.vector_lanes(shape.dtype))
    instructions = _elements_copied(shape) / neighbours * INSTRUCTIONS_PER_COPY
    busy = min(gpu.sms, _blocks(shape))
    rate = busy * gpu.fp32_lanes_per_sm * gpu.clock_ghz * 1e9
    return machine.seconds(work) + instructions / rate


def _blocks(shape: ShapeOfConvolution) -> int:
    """Blocks of threads: a small convolution does not keep all multiprocessors busy."""
    positions = shape.batch * math.prod(shape.out_sides)
    if shape.is_depthwise:
        return math.ceil(positions * shape.out_channels / DEPTHWISE_RESULTS)
    columns = shape.groups * math.ceil(shape.out_channels / shape.groups / TILE)
    return math.ceil(positions / TILE) * columns


def _elements_copied(shape: ShapeOfConvolution) -> float:
    """Elements of the input that are brought to registers or shared memory."""
    positions = shape.batch * math.prod(shape.out_sides)
    taps = math.prod(shape.kernel)
    if shape.is_depthwise:
        return positions * shape.out_channels * taps
    columns = math.ceil(shape.out_channels / shape.groups / TILE)
    return positions * taps * shape.group_inputs * shape.groups * columns


def _neighbours(shape: ShapeOfConvolution, layout: Layout, lanes: int) -> int:
    """Elements that one copy moves."""
    if layout is Layout.CHANNELS_LAST:
        channels = shape.out_channels if shape.is_depthwise else shape.group_inputs
        return math.gcd(channels, lanes)
    plain = math.prod(shape.kernel) == 1 and math.prod(shape.strides) == 1 and not shape.padded
    return math.gcd(math.prod(shape.out_sides), lanes) if plain else 1
