"""Weights in the order in which a kernel reads them, rearranged while compiling.

A tile of a matmul reads a few columns of each row of the weights: from memory in rows, a
piece here and a piece there, each in a page of its own. Packed, what a tile reads is one stretch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.tir_schedules.analysis.buffer_access import (
    constant_parameter,
    depends,
    operands_of,
    read_position,
    static_extent,
)

_PACKED_ANNOTATION = "tvm_ext.packed_operand"
_PADDED_ATTRIBUTE = "tvm_ext.padded_operand"


@dataclass(frozen=True)
class PackedOperand:
    """A parameter of a kernel whose array is cut into pieces along one axis.

    Attributes
    ----------
    parameter : int
        Position among the kernel's parameters.
    axis : int
        Axis of the original array that is cut; its size is a multiple of ``block``.
    block : int
        Elements of a piece along it: they become the innermost axis, and the number of the piece
        the outermost.
    """

    parameter: int
    axis: int
    block: int

    def pack(self, array: np.ndarray) -> np.ndarray:
        """The array as the kernel reads it: ``[size / block, other axes..., block]``."""
        shape = array.shape
        pieces = shape[self.axis] // self.block
        cut = array.reshape(*shape[: self.axis], pieces, self.block, *shape[self.axis + 1 :])
        moved = np.moveaxis(cut, (self.axis, self.axis + 1), (0, -1))
        return np.ascontiguousarray(moved)


@dataclass(frozen=True)
class PaddedOperand:
    """A parameter of a kernel that reads it with other axes, zeros at their ends, and in pieces.

    Attributes
    ----------
    parameter : int
        Position among the kernel's parameters.
    order : tuple[int, ...]
        The array's axes in the order in which they are fused.
    shape : tuple[int, ...]
        After axes are fused.
    padded : tuple[int, ...]
        With the zeros; no size is below that of ``shape``.
    blocks : tuple[int, ...]
        Elements of a piece along each of these axes: what is within pieces becomes one axis, the
        innermost. Empty: none is cut.
    """

    parameter: int
    order: tuple[int, ...]
    shape: tuple[int, ...]
    padded: tuple[int, ...]
    blocks: tuple[int, ...] = ()

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """Of the array as the kernel reads it."""
        if not self.blocks:
            return self.padded
        pieces = (size // block for size, block in zip(self.padded, self.blocks, strict=True))
        return (*pieces, prod(self.blocks))

    def pack(self, array: np.ndarray) -> np.ndarray:
        """The array as the kernel reads it: of shape ``packed_shape``."""
        result = np.zeros(self.padded, array.dtype)
        inside = tuple(slice(size) for size in self.shape)
        result[inside] = array.transpose(self.order).reshape(self.shape)
        if not self.blocks:
            return result
        cut = [
            n
            for size, block in zip(self.padded, self.blocks, strict=True)
            for n in (size // block, block)
        ]
        rank = len(self.padded)
        moved = result.reshape(cut).transpose(*range(0, 2 * rank, 2), *range(1, 2 * rank, 2))
        return np.ascontiguousarray(moved).reshape(self.packed_shape)

    def noted_on(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """The kernel with a note of what it expects, which ``packed_operand`` reads."""
        cut = self.blocks or (1,) * len(self.padded)
        numbers = [self.parameter, len(self.order), *self.order, *self.shape, *self.padded, *cut]
        return func.with_attr(_PADDED_ATTRIBUTE, numbers)

    @staticmethod
    def noted(numbers: Sequence[int]) -> "PaddedOperand":
        """What ``noted_on`` has noted."""
        parameter, rank, *rest = (int(number) for number in numbers)
        sizes = rest[rank:]
        third = len(sizes) // 3
        shape, padded, cut = (tuple(sizes[n * third : (n + 1) * third]) for n in range(3))
        blocks = cut if max(cut, default=1) > 1 else ()
        return PaddedOperand(parameter, tuple(rest[:rank]), shape, padded, blocks)


Packed = PackedOperand | PaddedOperand


def pack_operand(
    sch: s_tir.Schedule, block: SBlockRV, read_index: int, variable: int, size: int
) -> bool:
    """Packs what ``block`` reads by pieces of ``size`` iterations of one iteration variable.

    A buffer of the kernel's own is packed where it is written. False, and nothing is changed, when
    the buffer is a parameter that is no constant, or when the variable is not the plain index of
    one of its axes.
    """
    return size >= 2 and _pack(sch, block, read_index, variable, size)


def move_outermost(sch: s_tir.Schedule, block: SBlockRV, read_index: int, variable: int) -> bool:
    """Packs by pieces of one: the axis that a variable goes along becomes the slowest one.

    False, and nothing is changed, as in ``pack_operand``.
    """
    return _pack(sch, block, read_index, variable, 1)


def _pack(sch: s_tir.Schedule, block: SBlockRV, read_index: int, variable: int, size: int) -> bool:
    stmt = sch.get(block)
    func = sch.mod["main"]
    region = operands_of(stmt)[read_index]
    parameter = constant_parameter(func, region.source)
    own = not any(param.same_as(region.source) for param in func.params)
    axis = _axis_of(region, stmt.iter_vars[variable].var)
    if (parameter is None and not own) or axis is None:
        return False
    extent = static_extent(region.source.shape[axis])
    if extent is None or extent % size or extent == size:
        return False
    position = read_position(stmt, region.source)

    def packed(*indices: Any) -> tuple[tvm.ir.Expr, ...]:
        others = [index for i, index in enumerate(indices) if i != axis]
        return (indices[axis] // size, *others, indices[axis] % size)

    sch.transform_layout(block, ("read", position), packed)
    if parameter is not None:
        sch.annotate(block, _PACKED_ANNOTATION, [parameter, axis, size])
    return True


def packed_operand(sch: s_tir.Schedule) -> Packed | None:
    """What was packed in a scheduled kernel, None if nothing."""
    attributes = sch.mod["main"].attrs
    if attributes is not None and _PADDED_ATTRIBUTE in attributes:
        return PaddedOperand.noted(attributes[_PADDED_ATTRIBUTE])
    root = sch.get_sblock("root")
    for block in (root, *sch.get_child_blocks(root)):
        annotations = sch.get(block).annotations
        if _PACKED_ANNOTATION in annotations:
            return PackedOperand(*(int(value) for value in annotations[_PACKED_ANNOTATION]))
    return None


def packed_annotations(packed: Packed | None) -> dict[str, Any]:
    """Annotations of the outermost block of a kernel that is written anew.

    What is padded is noted on the kernel itself.
    """
    if not isinstance(packed, PackedOperand):
        return {}
    return {_PACKED_ANNOTATION: [packed.parameter, packed.axis, packed.block]}


def _axis_of(region: tvm.ir.TensorRegion, variable: tirx.Var) -> int | None:
    """The only axis whose index is the variable itself; None when it appears anywhere else."""
    axes = [axis for axis, dim in enumerate(region.region) if depends(dim.min, variable)]
    if len(axes) != 1 or not region.region[axes[0]].min.same_as(variable):
        return None
    return axes[0]


def without_notes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel without what ``packed_operand`` reads of its attributes."""
    noted = func.attrs is not None and _PADDED_ATTRIBUTE in func.attrs
    return func.without_attr(_PADDED_ATTRIBUTE) if noted else func
