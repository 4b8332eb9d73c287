"""Modelled time of a convolution with channels first and with channels last.

The two layouts do the same arithmetic on the same bytes; what differs is how much of a vector
register holds useful values, because the innermost axis of the output is the one that is
vectorised: output channels when channels come last, output columns when they come first. On CPUs
channels last also are what Winograd's algorithm asks for, where that is faster. Pass
another function with the signature of ``convolution_seconds`` to ``LayoutPlanning`` to replace the
model.
"""

import math
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Protocol

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_ext.hardware.cost_model import CostModel, Work
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.matrix_instructions import LEAST_TILE_DEPTH
from tvm_ext.relay_passes.expressions import (
    known_extents,
    nominal_shape,
    operator_name,
    tensor_bytes,
)
from tvm_ext.relay_passes.winograd_cost import LEAST_GAIN, WinogradWork, forms_of_taps

# With channels first a kernel wider than one column reads its input from unaligned addresses, so
# that every other load of a full register crosses a cache line.
UNALIGNED_FACTOR = 0.75

# Pixels of an image of any size as the columns of tiles end at any place, and lie as far apart as
# the image has pixels. Measured on pointwise convolutions: 170 to 370 of 460 GFLOP/s.
SYMBOLIC_COLUMNS_FACTOR = 0.5


class ChannelLayout(IntEnum):
    """Where the channels of a feature map are."""

    CHANNELS_FIRST = 0
    CHANNELS_LAST = 1


# Names of data and weight layouts by rank of the feature map, channels first and channels last.
LAYOUT_NAMES: dict[int, tuple[tuple[str, str], tuple[str, str]]] = {
    3: (("NCW", "OIW"), ("NWC", "WIO")),
    4: (("NCHW", "OIHW"), ("NHWC", "HWIO")),
    5: (("NCDHW", "OIDHW"), ("NDHWC", "DHWIO")),
}


class LayoutMachine(Protocol):
    """What the pass asks about a machine; times are modelled, in seconds."""

    def seconds(self, work: Work) -> float:
        """Time of one kernel that does ``work``."""
        ...

    def conversion_seconds(self, nbytes: float) -> float:
        """Time to rewrite a tensor of ``nbytes`` bytes in another layout."""
        ...

    def vector_lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` in one vector register."""
        ...


@dataclass(frozen=True)
class DescribedMachine:
    """The machine of a hardware description, with a cost model for it."""

    description: MachineDescription
    costs: CostModel

    def seconds(self, work: Work) -> float:
        """Time of one kernel that does ``work``."""
        return self.costs.seconds(work)

    def conversion_seconds(self, nbytes: float) -> float:
        """Time to rewrite a tensor of ``nbytes`` bytes in another layout."""
        return self.costs.conversion_seconds(nbytes)

    def vector_lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` in one vector register."""
        return self.description.vector_lanes(dtype)


@dataclass(frozen=True)
class ShapeOfConvolution:
    """Extents of one convolution; tuples are over the spatial axes, columns last.

    ``fixed_sides``: whether all sides of the results are numbers, not taken for some.
    """

    batch: int
    out_channels: int
    group_inputs: int
    groups: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padded: bool
    out_sides: tuple[int, ...]
    nbytes: float
    dtype: str
    fixed_sides: bool = True

    @property
    def flops(self) -> float:
        """Arithmetic operations."""
        outputs = self.batch * self.out_channels * prod(self.out_sides)
        return 2.0 * outputs * self.group_inputs * prod(self.kernel)

    @property
    def vectorised_channels(self) -> int:
        """Neighbouring output channels that read the same input, or one input each.

        In groups, those of one group: ``GroupedConvolution`` gives them an axis of their own.
        """
        return self.out_channels if self.is_depthwise else self.out_channels // self.groups

    @property
    def is_depthwise(self) -> bool:
        """Whether each output channel reads an input channel of its own."""
        return self.groups == self.out_channels and self.group_inputs == 1

    @property
    def fits_dot_products(self) -> bool:
        """Whether ``ZeroPointCompensation`` finds products of bytes to add to one result at once.

        Few output channels leave most lanes empty, which costs more than such products save.
        """
        has_neighbours = self.group_inputs > 1 or self.kernel[-1] > 1
        return self.groups == 1 and has_neighbours and self.out_channels >= 4

    @property
    def sums_many_channels(self) -> bool:
        """Whether it is for instructions that add several steps of a sum at once."""
        return self.groups == 1 and self.group_inputs >= LEAST_TILE_DEPTH

    @property
    def vectorised_columns(self) -> int:
        """Output positions in a row; without kernel, stride and padding rows join to one."""
        plain = prod(self.kernel) == 1 and prod(self.strides) == 1 and not self.padded
        return prod(self.out_sides) if plain else self.out_sides[-1]


def convolution_seconds(call: relax.Call, layout: ChannelLayout, machine: LayoutMachine) -> float:
    """Modelled time in seconds of the convolution ``call``, had it the layout ``layout``.

    ``call`` calls relax.nn.conv1d, conv2d or conv3d in any of the layouts of ``LAYOUT_NAMES``;
    its tensors have known ranks and constant channels.
    """
    convolution = shape_of_convolution(call)
    fraction = _vector_fraction(convolution, layout, machine.vector_lanes(str(call.ty.dtype)))
    dtype = convolution.dtype
    is_last = layout is ChannelLayout.CHANNELS_LAST
    # What is quantised is int16 until then.
    if dtype == "int16" and is_last and convolution.fits_dot_products:
        steps = convolution.group_inputs if convolution.group_inputs > 1 else convolution.kernel[-1]
        dtype, fraction = _bytes(machine), fraction * _filled(steps, 4)
    # MixedPrecision comes when layouts are known, and takes neighbouring channels.
    if dtype == "float32" and convolution.sums_many_channels:
        dtype = _products(machine)
    # Of others bfloat16 is widened.
    if dtype == "bfloat16":
        dtype, fraction = ("bfloat16", 1.0) if is_last else ("float32", fraction)
    direct = machine.seconds(Work(convolution.flops, convolution.nbytes, dtype, fraction))
    if dtype == "float32" and is_last and _cpu(machine) is not None:
        return _with_winograd(call, convolution, direct, machine)
    return direct


def _with_winograd(
    call: relax.Call, shape: ShapeOfConvolution, direct: float, machine: LayoutMachine
) -> float:
    """The time of what ``WinogradConvolution`` will make of it, or that of the direct form."""
    plain = shape.groups == 1 and set(shape.strides) == {1} and len(shape.kernel) == 2
    forms = forms_of_taps(*shape.kernel) if plain else ()
    if not forms or not isinstance(call.args[1], GenericConst):
        return direct
    taps = zip(call.attrs.dilation, shape.kernel, strict=True)
    if any(int(dilation) > 1 and size > 1 for dilation, size in taps):
        return direct
    lanes = machine.vector_lanes("float32")
    outputs = -(-shape.out_channels // lanes) * lanes
    height, width = shape.out_sides
    sizes = shape.batch, (height, width), shape.group_inputs, outputs
    seconds = min(WinogradWork.of(form, *sizes).seconds(machine) for form in forms)
    return seconds if seconds * LEAST_GAIN <= direct else direct


def _cpu(machine: LayoutMachine) -> CpuDescription | None:
    description = machine.description if isinstance(machine, DescribedMachine) else None
    return description if isinstance(description, CpuDescription) else None


def _products(machine: LayoutMachine) -> str:
    """What products of float32 are computed in."""
    cpu = _cpu(machine)
    return cpu.products if cpu is not None else "float32"


def _bytes(machine: LayoutMachine) -> str:
    """The type of quantised data whose products with int8 are summed at the machine's best rate."""
    cpu = _cpu(machine)
    types = cpu.dot_product_types if cpu is not None else ()
    return next(iter(types), "uint8")


def _vector_fraction(convolution: ShapeOfConvolution, layout: ChannelLayout, lanes: int) -> float:
    """Share of vector lanes with useful values; the extent of the vector axis is padded up."""
    if layout is ChannelLayout.CHANNELS_LAST:
        return _filled(convolution.vectorised_channels, lanes)
    fraction = _filled(convolution.vectorised_columns, lanes)
    if convolution.kernel[-1] > 1:
        fraction *= UNALIGNED_FACTOR
    strided = convolution.strides[-1] > 1 and not convolution.is_depthwise
    if strided or (convolution.is_depthwise and not convolution.fixed_sides):
        # Neighbouring results are not neighbours in the input, or rows are of any length: no
        # template has vectors for that.
        return 1 / lanes
    return fraction if convolution.fixed_sides else fraction * SYMBOLIC_COLUMNS_FACTOR


def _filled(extent: int, lanes: int) -> float:
    if extent <= 0:
        return 1.0
    return extent / (-(-extent // lanes) * lanes)


def fits_dot_products(call: relax.Call) -> bool:
    """Whether ``ZeroPointCompensation`` takes a matmul or convolution of integers by its shape.

    Matmuls with a matrix of weights, and ``ShapeOfConvolution.fits_dot_products``; False where the
    shape is not known.
    """
    if operator_name(call) == "relax.matmul":
        data, weight = (arg.ty for arg in call.args)
        return weight.ndim == 2 and data.ndim >= 2
    return nominal_shape(call.ty) is not None and shape_of_convolution(call).fits_dot_products


def shape_of_convolution(call: relax.Call) -> ShapeOfConvolution:
    """The extents of a convolution as ``convolution_seconds`` takes them."""
    attrs = call.attrs
    data, weight = call.args[0].ty, call.args[1].ty
    weights = dict(zip(attrs.kernel_layout, known_extents(weight), strict=True))
    out = dict(zip(attrs.out_layout, known_extents(call.ty), strict=True))
    sizes = dict(zip(attrs.out_layout, call.ty.shape.values, strict=True))
    spatial = [axis for axis in "DHW" if axis in out]
    return ShapeOfConvolution(
        batch=out["N"],
        out_channels=out["C"],
        group_inputs=weights["I"],
        groups=int(attrs.groups),
        kernel=tuple(weights[axis] for axis in spatial),
        strides=tuple(int(stride) for stride in attrs.strides),
        padded=any(int(pad) for pad in attrs.padding),
        out_sides=tuple(out[axis] for axis in spatial),
        nbytes=tensor_bytes(data) + tensor_bytes(weight) + tensor_bytes(call.ty),
        dtype=str(data.dtype),
        fixed_sides=all(isinstance(sizes[axis], tvm.tirx.IntImm) for axis in spatial),
    )


# Modelled time of a convolution on an NVIDIA GPU with channels first and with channels last.
#
# A convolution is a matmul whose operands are copied to shared memory tile by tile. What
# the layouts differ in is how many neighbours one copy moves: input channels when these come
# last, up to 16 bytes; columns when they come first, where only a window of one tap leaves them
# aligned. Each copy takes instructions of the threads that also start the products.


# Results along a side of a block's tile: an element of the input is copied once for so many.
TILE = 64

# Results of a block of threads of a depthwise convolution.
DEPTHWISE_RESULTS = 2048

# Address, test whether it is inside of the input, copy, and half of a loop's step.
INSTRUCTIONS_PER_COPY = 3.5


def planned_convolution_seconds(
    call: relax.Call, layout: ChannelLayout, machine: LayoutMachine
) -> float:
    """Modelled time in seconds of ``call`` in ``layout``, by the model for the kind of machine."""
    if isinstance(machine, DescribedMachine) and isinstance(machine.description, CudaDescription):
        return cuda_convolution_seconds(call, layout, machine, machine.description)
    return convolution_seconds(call, layout, machine)


def cuda_convolution_seconds(
    call: relax.Call, layout: ChannelLayout, machine: LayoutMachine, gpu: CudaDescription
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


def _neighbours(shape: ShapeOfConvolution, layout: ChannelLayout, lanes: int) -> int:
    """Elements that one copy moves."""
    if layout is ChannelLayout.CHANNELS_LAST:
        channels = shape.out_channels if shape.is_depthwise else shape.group_inputs
        return math.gcd(channels, lanes)
    plain = math.prod(shape.kernel) == 1 and math.prod(shape.strides) == 1 and not shape.padded
    return math.gcd(math.prod(shape.out_sides), lanes) if plain else 1
