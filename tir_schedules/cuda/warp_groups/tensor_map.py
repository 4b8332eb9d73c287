"""An operand of a product as a tensor of which bulk copies bring boxes to shared memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import detect_linear_equation
from tvm.tirx.buffer import buffer_data

from tvm_ext.tir_schedules.block_access import element_bytes, static_extent
from tvm_ext.tir_schedules.template import NotMine

ALIGNMENT = 16
"""Bytes that an address and a stride are multiples of: CUDA driver API, cuTensorMapEncodeTiled."""

MAX_RANK = 5
MAX_EXTENT = 1 << 32
SWIZZLED_ROW_BYTES = 128
"""Bytes of a box along its fastest dimension when it is swizzled by 128 bytes."""

# Values of CUtensorMapSwizzle and CUtensorMapL2promotion for 128 bytes.
_SWIZZLE_128_BYTES = 3
_PROMOTION_128_BYTES = 2


@dataclass(frozen=True)
class Dimension:
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
    selecting, steps : Dimension
        Rows of A or columns of B, and the reduction's steps. One of the strides is 1.
    batch : tuple[Dimension, ...]
        The products of a batch, slowest first; their extents multiply to how many there are.
    """

    buffer: Any
    selecting: Dimension
    steps: Dimension
    batch: tuple[Dimension, ...]

    @property
    def across(self) -> bool:
        """Whether rows (A) or columns (B) are neighbours in memory, instead of steps."""
        return self.steps.stride != 1

    @property
    def is_aligned(self) -> bool:
        """Whether bulk copies can bring it: its rows begin at multiples of ``ALIGNMENT``."""
        width = element_bytes(self.buffer)
        return all(dim.stride * width % ALIGNMENT == 0 for dim in self.dimensions[1:])

    @property
    def dimensions(self) -> list[Dimension]:
        """Fastest first."""
        order = [self.selecting, self.steps] if self.across else [self.steps, self.selecting]
        return [*order, *reversed(self.batch)]

    def encoded(self, tensor_map: tirx.Var, box: tuple[int, int]) -> tirx.Stmt:
        """What the host does before the launch; ``box``: its extents, fastest dimension first."""
        width = element_bytes(self.buffer)
        dims = self.dimensions
        extents = [tirx.const(dim.extent, "int64") for dim in dims]
        strides = [tirx.const(dim.stride * width, "int64") for dim in dims[1:]]
        boxes = [tirx.const(size, "int32") for size in (*box, *[1] * len(self.batch))]
        steps = [tirx.const(1, "int32")] * len(dims)
        call = tirx.tensormap_encode_tiled(
            tensor_map,
            buffer_data(self.buffer),
            *extents,
            *strides,
            *boxes,
            *steps,
            descriptor_dtype=str(self.buffer.dtype),
            rank=len(dims),
            swizzle=_SWIZZLE_128_BYTES,
            l2_promotion=_PROMOTION_128_BYTES,
        )
        return tirx.Evaluate(call)

    def at(self, batch: Any, selecting: Any, step: Any) -> list[Any]:
        """The coordinates of an element, fastest dimension first."""
        places = [selecting, step] if self.across else [step, selecting]
        for dim in reversed(self.batch):
            places.append(batch % dim.extent)
            batch = batch // dim.extent
        return [place.astype("int32") for place in places]


def operand_tensor(
    load: Any,
    index: Any,
    variables: Sequence[Any],
    extents: Sequence[int],
    axes: tuple[Sequence[int], Sequence[int], Sequence[int]],
) -> OperandTensor | NotMine:
    """The tensor that ``load`` reads, if bulk copies can bring it, or would from aligned rows.

    Parameters
    ----------
    load : tvm.ir.TensorLoad
        The load.
    index : tvm.ir.Expr
        Its address in elements, in ``variables``, the loops of the product with their ``extents``.
    axes : (sequence, sequence, sequence) of int
        Which of the loops are products of a batch, rows (or columns), and steps.
    """
    linear = detect_linear_equation(index, list(variables))
    strides = [static_extent(step) for step in linear]
    if not strides or None in strides:
        return NotMine(f"{load.source.name} is not read at regular distances")
    if strides[-1] != 0:
        return NotMine(f"{load.source.name} is read from another place than its start")
    walked = [_joined(group, extents, strides) for group in axes]  # type: ignore[arg-type]
    batch, selecting, steps = walked
    if len(selecting) != 1 or len(steps) != 1:
        return NotMine(f"the rows or steps of {load.source.name} are not evenly spaced")
    tensor = OperandTensor(load.source, selecting[0], steps[0], tuple(batch))
    return _accepted(tensor)


def _joined(
    positions: Sequence[int], extents: Sequence[int], strides: Sequence[int]
) -> list[Dimension]:
    """The dimensions of some loops, slowest first; those that are walked as one are one."""
    found: list[Dimension] = []
    for position in positions:
        dim = Dimension(extents[position], strides[position])
        if found and found[-1].stride == dim.stride * dim.extent:
            dim = Dimension(found.pop().extent * dim.extent, dim.stride)
        found.append(dim)
    return found


def _accepted(tensor: OperandTensor) -> OperandTensor | NotMine:
    name, dims = tensor.buffer.name, tensor.dimensions
    if dims[0].stride != 1:
        return NotMine(f"no neighbours in {name} are neighbouring rows, columns or steps")
    if len(dims) > MAX_RANK or max(dim.extent for dim in dims) > MAX_EXTENT:
        return NotMine(f"{name} has more dimensions, or longer ones, than a bulk copy takes")
    if any(dim.stride < 1 for dim in dims):
        return NotMine(f"{name} is read backwards")
    return tensor


def new_tensor_map(name: str) -> tuple[tirx.Var, tirx.Stmt]:
    """A tensor map on the host's stack: what names it, and the statement that makes it."""
    value = tirx.tvm_stack_alloca("tensormap", 1)
    var = tirx.Var(name, tvm.ir.PointerType(tirx.TensorMapType()))
    return var, tirx.Bind(var, value)
