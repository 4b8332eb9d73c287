"""Weights in the order in which a kernel reads them, rearranged while compiling.

A tile of a matrix product reads a few columns of each row of the weights: from memory in rows, a
piece here and a piece there, each in a page of its own. Packed, what a tile reads is one stretch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.tir_schedules.block_access import (
    constant_parameter,
    operands_of,
    read_position,
    static_extent,
)

_PACKED_ANNOTATION = "tvm_ext.packed_operand"


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

    def packed(*indices: Any) -> tuple[Any, ...]:
        others = [index for i, index in enumerate(indices) if i != axis]
        return (indices[axis] // size, *others, indices[axis] % size)

    sch.transform_layout(block, ("read", position), packed)
    if parameter is not None:
        sch.annotate(block, _PACKED_ANNOTATION, [parameter, axis, size])
    return True


def packed_operand(sch: s_tir.Schedule) -> PackedOperand | None:
    """What was packed in a scheduled kernel, None if nothing."""
    root = sch.get_sblock("root")
    for block in (root, *sch.get_child_blocks(root)):
        annotations = sch.get(block).annotations
        if _PACKED_ANNOTATION in annotations:
            return PackedOperand(*(int(value) for value in annotations[_PACKED_ANNOTATION]))
    return None


def packed_annotations(packed: PackedOperand | None) -> dict[str, Any]:
    """Annotations of the outermost block of a kernel that is written anew."""
    if packed is None:
        return {}
    return {_PACKED_ANNOTATION: [packed.parameter, packed.axis, packed.block]}


def _axis_of(region: Any, variable: tirx.Var) -> int | None:
    """The only axis whose index is the variable itself; None when it appears anywhere else."""
    axes = [
        axis
        for axis, dim in enumerate(region.region)
        if any(v.same_as(variable) for v in tirx.analysis.undefined_vars(dim.min))
    ]
    if len(axes) != 1 or not region.region[axes[0]].min.same_as(variable):
        return None
    return axes[0]
