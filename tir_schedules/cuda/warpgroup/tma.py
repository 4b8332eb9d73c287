"""Tensor maps: an operand as a tensor of which TMA brings boxes to shared memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.buffer import buffer_data

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import element_bytes, linear_numbers

# The steps of a convolution's reduction: channels of one tap of the window after the other.


@dataclass(frozen=True)
class TapSteps:
    """Steps that are counted with the channels of each tap rounded up to whole ``depth``.

    Attributes
    ----------
    taps : tuple[int, ...]
        Positions of the window along each of its dimensions, slowest first.
    channels : int
        Of the image.
    depth : int
        Steps whose operands are brought at a time.
    """

    taps: tuple[int, ...]
    channels: int
    depth: int

    @property
    def of_tap(self) -> int:
        """Steps of one tap."""
        return math.ceil(self.channels / self.depth) * self.depth

    @property
    def count(self) -> int:
        """Steps of all taps."""
        return math.prod(self.taps) * self.of_tap

    def split(self, step: tvm.ir.Expr) -> tuple[list[Any], Any]:
        """The position along each dimension of the window, and the channel."""
        tap, channel = step // self.of_tap, step % self.of_tap
        found = []
        for extent in reversed(self.taps):
            found.append(tap % extent)
            tap = tap // extent
        return found[::-1], channel


ALIGNMENT = 16
"""Bytes that an address and a stride are multiples of: CUDA driver API, cuTensorMapEncodeTiled."""

MAX_RANK = 5
MAX_EXTENT = 1 << 32
SWIZZLED_ROW_BYTES = 128
"""Bytes of a box along its fastest dimension when it is swizzled by 128 bytes."""

# Values of CUtensorMapSwizzle by the bytes of a box along its fastest dimension, and of
# CUtensorMapL2promotion for 128 bytes.
_SWIZZLES = {32: 1, 64: 2, 128: 3}
_PROMOTION_128_BYTES = 2

# CU_TENSOR_MAP_DATA_TYPE_TFLOAT32. Copies of this type round float32 to it, as those of NVIDIA's
# CUTLASS do (sm90_mma_tma_gmma_ss_warpspecialized.hpp); copies of float32 would leave the bits that
# the tensor cores do not look at.
_TFLOAT32 = 11


@dataclass(frozen=True)
class TensorMapDimension:
    """One dimension of a tensor in memory: ``extent`` places, ``stride`` elements apart."""

    extent: int
    stride: int


@dataclass(frozen=True)
class OperandTensor:
    """An operand in memory.

    Attributes
    ----------
    buffer : tirx.Buffer
        Its parameter of the kernel.
    selecting, steps : TensorMapDimension
        Rows of A or columns of B, and the reduction's steps. One of the strides is 1.
    batch : tuple[TensorMapDimension, ...]
        The products of a batch, slowest first; their extents multiply to how many there are.
    taps : tuple[TensorMapDimension, ...]
        Outer loops over the steps, slowest first, each of which begins with whole boxes: the window
        of a convolution, whose channels ``steps`` are then.
    depth : int
        Steps of a box, where there are taps.
    """

    buffer: tirx.Buffer
    selecting: TensorMapDimension
    steps: TensorMapDimension
    batch: tuple[TensorMapDimension, ...]
    taps: tuple[TensorMapDimension, ...] = ()
    depth: int = 0

    @property
    def across(self) -> bool:
        """Whether rows (A) or columns (B) are neighbours in memory, instead of steps."""
        return self.steps.stride != 1

    @property
    def is_aligned(self) -> bool:
        """Whether TMA copies can bring it: its rows begin at multiples of ``ALIGNMENT``."""
        width = element_bytes(self.buffer)
        return all(dim.stride * width % ALIGNMENT == 0 for dim in self.dimensions[1:])

    @property
    def dimensions(self) -> list[TensorMapDimension]:
        """Fastest first."""
        order = [self.selecting, self.steps] if self.across else [self.steps, self.selecting]
        return [*order, *reversed(self.taps), *reversed(self.batch)]

    def encoded(self, tensor_map: tirx.Var, box: tuple[int, int]) -> tirx.Stmt:
        """What the host does before the launch; ``box``: its extents, fastest dimension first.

        float32 is rounded to tf32 on its way.
        """
        dims = self.dimensions
        sizes = (*box, *[1] * (len(dims) - len(box)))
        return encoded_map(tensor_map, self.buffer, dims, sizes, [1] * len(dims))

    @property
    def tap_steps(self) -> TapSteps:
        """How the steps are counted: what ``at`` is given."""
        return TapSteps(tuple(tap.extent for tap in self.taps), self.steps.extent, self.depth)

    def lines(self, extent: int) -> int:
        """Rows or columns that one copy brings of the ``extent`` of a tile."""
        return SWIZZLED_ROW_BYTES // element_bytes(self.buffer) if self.across else extent

    def at(
        self, batch: tvm.ir.Expr, selecting: tvm.ir.Expr, step: tvm.ir.Expr
    ) -> list[tvm.ir.Expr]:
        """The coordinates of an element, fastest dimension first."""
        taps: list[Any] = []
        if self.taps:
            taps, step = self.tap_steps.split(step)
        places = [selecting, step] if self.across else [step, selecting]
        places += reversed(taps)
        for dim in reversed(self.batch):
            places.append(batch % dim.extent)
            batch = batch // dim.extent
        return [place.astype("int32") for place in places]


def operand_tensor(
    load: tvm.ir.TensorLoad,
    index: tvm.ir.Expr,
    variables: Sequence[tirx.Var],
    extents: Sequence[int],
    axes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    taps: Sequence[int] = (),
    depth: int = 0,
) -> OperandTensor:
    """The tensor that ``load`` reads, if TMA copies can bring it, or would from aligned rows.

    Parameters
    ----------
    load : tvm.ir.TensorLoad
        The load.
    index : tvm.ir.Expr
        Its address in elements, in ``variables``, the loops of the matmul with their ``extents``.
    axes : (sequence, sequence, sequence) of int
        Which of the loops are products of a batch, rows (or columns), and steps.
    taps : sequence of int
        Which of the loops are outer ones of the steps, slowest first.
    depth : int
        Steps of a box, where there are taps.
    """
    linear = linear_numbers(index, variables)
    if linear is None:
        raise NotApplicable(f"{load.source.name} is not read at regular distances")
    strides, start = linear
    if start != 0:
        raise NotApplicable(f"{load.source.name} is read from another place than its start")
    walked = [_joined(group, extents, strides) for group in axes]
    batch, selecting, steps = walked
    if len(selecting) != 1 or len(steps) != 1:
        raise NotApplicable(f"the rows or steps of {load.source.name} are not evenly spaced")
    outer = tuple(TensorMapDimension(extents[at], strides[at]) for at in taps)
    tensor = OperandTensor(load.source, selecting[0], steps[0], tuple(batch), outer, depth)
    return _accepted(tensor)


def _joined(
    positions: Sequence[int], extents: Sequence[int], strides: Sequence[int]
) -> list[TensorMapDimension]:
    """The dimensions of some loops, slowest first; those that are walked as one are one."""
    found: list[TensorMapDimension] = []
    for position in positions:
        dim = TensorMapDimension(extents[position], strides[position])
        if found and found[-1].stride == dim.stride * dim.extent:
            dim = TensorMapDimension(found.pop().extent * dim.extent, dim.stride)
        found.append(dim)
    return found


def _accepted(tensor: OperandTensor) -> OperandTensor:
    name, dims = tensor.buffer.name, tensor.dimensions
    if dims[0].stride != 1:
        raise NotApplicable(f"no neighbours in {name} are neighbouring rows, columns or steps")
    if len(dims) > MAX_RANK or max(dim.extent for dim in dims) > MAX_EXTENT:
        raise NotApplicable(f"{name} has more dimensions, or longer ones, than a TMA copy takes")
    if any(dim.stride < 1 for dim in dims):
        raise NotApplicable(f"{name} is read backwards")
    return tensor


def encoded_map(
    tensor_map: tirx.Var,
    buffer: tirx.Buffer,
    dims: Sequence[TensorMapDimension],
    box: Sequence[int],
    steps: Sequence[int],
) -> tirx.Stmt:
    """What the host does to fill ``tensor_map``.

    Parameters
    ----------
    dims : sequence of TensorMapDimension
        Of the tensor in ``buffer``, fastest first.
    box : sequence of int
        Places along each dimension that a copy goes through: 32, 64 or 128 bytes of the fastest,
        which are swizzled as rows of so many bytes.
    steps : sequence of int
        Every how many of them it takes one.
    """
    width, dtype = element_bytes(buffer), str(buffer.dtype)
    call = tirx.tensormap_encode_tiled(
        tensor_map,
        buffer_data(buffer),
        *[tirx.const(dim.extent, "int64") for dim in dims],
        *[tirx.const(dim.stride * width, "int64") for dim in dims[1:]],
        *[tirx.const(size, "int32") for size in box],
        *[tirx.const(step, "int32") for step in steps],
        descriptor_dtype=dtype,
        rank=len(dims),
        swizzle=_SWIZZLES[box[0] * width],
        l2_promotion=_PROMOTION_128_BYTES,
        force_cu_dtype=_TFLOAT32 if dtype == "float32" else -1,
    )
    return tirx.Evaluate(call)


def new_tensor_map(name: str) -> tuple[tirx.Var, tirx.Stmt]:
    """A tensor map on the host's stack: what names it, and the statement that makes it."""
    value = tirx.tvm_stack_alloca("tensormap", 1)
    var = tirx.Var(name, tvm.ir.PointerType(tirx.TensorMapType()))
    return var, tirx.Bind(var, value)
