"""Scales and zero points: which shapes they may have, and a form of them that broadcasts.

QuantizeLinear and DequantizeLinear have one number, one for each element along an axis, or one for
each block along an axis; the products of integers one number, or one for each row, column or
channel. TVM's operators broadcast whatever fits, which multiplies the wrong numbers where a list
is as long as another axis. What is known not to fit is refused, and the run compares sizes that
it decides.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_ext.errors import MisfitError
from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of
from tvm_ext.onnx_frontend.converters.shape_constraints import broadcast_to, of_sizes


def is_one_number(value: relax.Expr) -> bool:
    """Whether a tensor is known to have one element."""
    shape = value.ty.shape
    return isinstance(shape, relax.ShapeExpr) and all(_is(size, 1) for size in shape)


def _is(size: Any, number: int) -> bool:
    return isinstance(size, tirx.IntImm) and int(size) == number


def reshaped(bb: relax.BlockBuilder, value: relax.Expr, shape: Sequence[int]) -> relax.Expr:
    """``value`` in another shape; a constant stays one."""
    if isinstance(value, tvm.ir.GenericConst):
        array = value.value.numpy().reshape(shape)
        return relax.const(tvm.runtime.tensor(array), str(value.ty.dtype))
    if not shape and value.ty.ndim == 0:
        return value
    return bb.normalize(relax.op.reshape(value, list(shape)))


# Of QuantizeLinear and DequantizeLinear.


def fitting_parameters(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    scale: relax.Expr,
    zero_point: relax.Expr | None,
    attr: dict,
) -> tuple[relax.Expr, relax.Expr, relax.Expr | None]:
    """The three with sizes that agree, which the run checks where they are not known.

    Raises
    ------
    MisfitError
        A known size is another one; or an attribute is out of its range.
    """
    x, scale = _fitting(bb, x, scale, attr, "scale")
    if zero_point is not None:
        x, zero_point = _fitting(bb, x, zero_point, attr, "zero point")
    return x, scale, zero_point


def _fitting(
    bb: relax.BlockBuilder, x: relax.Expr, value: relax.Expr, attr: dict, name: str
) -> tuple[relax.Expr, relax.Expr]:
    block, rank = attr.get("block_size", 0), value.ty.ndim
    if block < 0:
        raise MisfitError(f"its block_size is {block}, expected 1 or more, or 0 for no blocks")
    if not rank or (not block and rank == 1 and is_one_number(value)):
        return x, value
    axis = _axis(x, attr)
    sizes = sizes_of(x)
    if block and rank != len(sizes):
        raise MisfitError(f"its {name} of blocks has {rank} axes, expected {len(sizes)} as in x")
    if not block and rank != 1:
        raise MisfitError(
            f"its {name} has {rank} axes and it has no block_size, expected one axis or none"
        )
    if block:
        wanted = [_blocks_of(n, block) if at == axis else n for at, n in enumerate(sizes)]
        _compare(name, value, wanted, f"one for each block of {block} along axis {axis}")
        return x, of_sizes(bb, value, wanted)
    _compare(name, value, [sizes[axis]], f"one for each element along axis {axis}")
    (length,) = sizes_of(value)
    if isinstance(length, int) and length and not isinstance(sizes[axis], int):
        return of_sizes(bb, x, [*sizes[:axis], length, *sizes[axis + 1 :]]), value
    return x, broadcast_to(bb, value, [sizes[axis]])


def _axis(x: relax.Expr, attr: dict) -> int:
    rank, axis = x.ty.ndim, attr.get("axis", 1)
    if rank == 1:
        return 0
    if not -rank <= axis < rank:
        raise MisfitError(f"its axis is {axis}, expected one of the {rank} axes of its input")
    return int(axis % rank)


def _blocks_of(size: Size, block: int) -> Size:
    if isinstance(size, int):
        return -(-size // block)
    return tirx.floordiv(size + (block - 1), tirx.const(block, "int64"))


def _compare(name: str, value: relax.Expr, wanted: Sequence[Size], words: str) -> None:
    """Refuses known sizes that differ."""
    found = sizes_of(value)
    pairs = zip(found, wanted, strict=True)
    if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
        raise MisfitError(
            f"its {name} has the sizes {_text(found)}, expected {_text(wanted)}, {words}"
        )


def _text(sizes: Sequence[Size]) -> str:
    return f"({', '.join(str(size) if isinstance(size, int) else '?' for size in sizes)})"


def spread(bb: relax.BlockBuilder, value: relax.Expr, x: relax.Expr, attr: dict) -> relax.Expr:
    """One of the ``fitting_parameters`` in a form that broadcasts against ``x``."""
    block = attr.get("block_size", 0)
    if value.ty.ndim == 0:
        return value
    if value.ty.ndim == 1 and is_one_number(value) and not block:
        return reshaped(bb, value, [])
    axis = _axis(x, attr)
    if block:
        return _repeated(bb, value, sizes_of(x), axis, block)
    return reshaped(bb, value, [-1] + [1] * (x.ty.ndim - axis - 1))


def _repeated(
    bb: relax.BlockBuilder, value: relax.Expr, sizes: Sequence[Size], axis: int, block: int
) -> relax.Expr:
    """Each element ``block`` times along the axis, the last one as often as is left."""
    size = sizes[axis]
    if isinstance(size, int) and isinstance(value, tvm.ir.GenericConst):
        array = np.repeat(value.value.numpy(), block, axis)
        array = array[(slice(None),) * axis + (slice(0, size),)]
        return relax.const(tvm.runtime.tensor(np.ascontiguousarray(array)), str(value.ty.dtype))

    def of_blocks(value: te.Tensor, size: Any) -> te.Tensor:
        def number(*at: tirx.Var) -> tvm.ir.Expr:
            return value(*at[:axis], tirx.floordiv(at[axis], block), *at[axis + 1 :])

        shape = [*value.shape[:axis], size, *value.shape[axis + 1 :]]
        return te.compute(shape, number, name="of_blocks")

    return bb.emit_te(of_blocks, value, size, primfunc_name_hint="of_blocks")


# Of products of integers.


def one_number(bb: relax.BlockBuilder, value: relax.Expr, name: str) -> relax.Expr:
    """A scale or zero point of a whole tensor, without axes."""
    if value.ty.ndim == 0:
        return value
    if value.ty.ndim != 1 or not (is_one_number(value) or not isinstance(sizes_of(value)[0], int)):
        raise MisfitError(f"its {name} has the sizes {_text(sizes_of(value))}, expected one number")
    return reshaped(bb, of_sizes(bb, value, [1]), [])


def for_channels(
    bb: relax.BlockBuilder, value: relax.Expr, channels: Size, axes: int, name: str
) -> relax.Expr:
    """One number, or one for each output channel, with ``axes`` axes of size 1 behind it."""
    if is_one_number(value):
        return reshaped(bb, value, [])
    if value.ty.ndim != 1:
        raise MisfitError(f"its {name} has {value.ty.ndim} axes, expected one axis or none")
    _compare(name, value, [channels], "one for each output channel")
    return reshaped(bb, broadcast_to(bb, value, [channels]), [-1] + [1] * axes)


def for_rows(
    bb: relax.BlockBuilder, value: relax.Expr, sizes: Sequence[Size], name: str
) -> relax.Expr:
    """One number, or one for each row of a matrix or of several, whose ``sizes`` are given."""
    return _for_lines(bb, value, [*sizes[:-1], 1] if len(sizes) > 1 else [], "row", name)


def for_columns(
    bb: relax.BlockBuilder, value: relax.Expr, sizes: Sequence[Size], name: str
) -> relax.Expr:
    """One number, or one for each column of a matrix or of several, whose ``sizes`` are given."""
    wanted = [*sizes[:-2], 1, sizes[-1]] if len(sizes) > 1 else []
    return _for_lines(bb, value, wanted, "column", name)


def _for_lines(
    bb: relax.BlockBuilder, value: relax.Expr, wanted: list[Size], line: str, name: str
) -> relax.Expr:
    """``wanted`` are the sizes of one for each line of all matrices; none of a vector's."""
    rank = value.ty.ndim
    if is_one_number(value):
        return reshaped(bb, value, [])
    if not wanted:
        raise MisfitError(f"its {name} has the sizes {_text(sizes_of(value))}, expected one number")
    if rank == 1:
        shape = [-1, 1] if line == "row" else [1, -1]
        _compare(name, value, [wanted[-2] if line == "row" else wanted[-1]], f"one for each {line}")
        return broadcast_to(bb, reshaped(bb, value, shape), wanted)
    if rank != len(wanted):
        raise MisfitError(f"its {name} has {rank} axes, expected one or {len(wanted)}")
    _compare(name, value, wanted, f"one for each {line}")
    return broadcast_to(bb, value, wanted)
