"""Scales and zero points, per tensor, per axis or per block, in a form that broadcasts."""

from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_ext.errors import FormError


def numbers_of(value: Any) -> np.ndarray | None:
    """The numbers of a constant, float8 as float32; None for what is computed in the run."""
    if not isinstance(value, tvm.ir.GenericConst):
        return None
    array = value.value.numpy()
    return array if array.dtype.kind in "biuf" else array.astype(np.float32)


def spread(bb: relax.BlockBuilder, value: relax.Expr, x: relax.Expr, attr: dict) -> relax.Expr:
    """A scale or zero point that broadcasts against ``x``, whose ``axis`` is 1 if not given.

    Raises
    ------
    FormError
        Its rank is neither 0 nor 1 nor, with ``block_size``, that of ``x``; or the axis is none
        of ``x``.
    """
    shape = value.ty.shape
    if value.ty.ndim == 0:
        return value
    rank, block = x.ty.ndim, attr.get("block_size", 0)
    if value.ty.ndim == 1 and isinstance(shape, relax.ShapeExpr) and _is(shape[0], 1) and not block:
        return _reshaped(bb, value, [])
    axis = attr.get("axis", 1)
    if rank == 1:
        axis = 0
    if not -rank <= axis < rank:
        raise FormError(f"axis {axis} is out of range for an input of rank {rank}")
    axis %= rank
    if block:
        return _blocks(bb, value, x, axis, block)
    if value.ty.ndim != 1:
        raise FormError(f"a scale of rank {value.ty.ndim} without block_size")
    return _reshaped(bb, value, [-1] + [1] * (rank - axis - 1))


def _is(size: Any, number: int) -> bool:
    return isinstance(size, tirx.IntImm) and int(size) == number


def _reshaped(bb: relax.BlockBuilder, value: relax.Expr, shape: list[int]) -> relax.Expr:
    if isinstance(value, tvm.ir.GenericConst):
        array = value.value.numpy().reshape(shape)
        return relax.const(tvm.runtime.tensor(array), str(value.ty.dtype))
    return bb.normalize(relax.op.reshape(value, shape))


def _blocks(
    bb: relax.BlockBuilder, value: relax.Expr, x: relax.Expr, axis: int, block: int
) -> relax.Expr:
    """Each element ``block`` times along the axis, the last one as often as is left of ``x``."""
    if block < 0 or value.ty.ndim != x.ty.ndim:
        raise FormError(
            f"block_size {block} with a scale of rank {value.ty.ndim} for rank {x.ty.ndim}"
        )
    size = x.ty.shape[axis] if isinstance(x.ty.shape, relax.ShapeExpr) else None
    if not isinstance(size, tirx.IntImm):
        raise FormError("block_size along a size that is not known")
    if isinstance(value, tvm.ir.GenericConst):
        array = np.repeat(value.value.numpy(), block, axis)
        array = array[(slice(None),) * axis + (slice(0, int(size)),)]
        return relax.const(tvm.runtime.tensor(np.ascontiguousarray(array)), str(value.ty.dtype))
    repeated = bb.normalize(relax.op.repeat(value, block, axis))
    return bb.normalize(relax.op.strided_slice(repeated, [axis], [0], [int(size)]))
