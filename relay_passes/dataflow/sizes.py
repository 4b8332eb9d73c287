"""The least and the largest value of sizes that a run decides."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.sym import Analyzer

# The largest size that there is.
MOST = (1 << 63) - 1


def extent_bounds(extent: Any, sizes: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """The least and the largest value of a size, of which it is known that it is not negative.

    ``sizes`` has those of variables by name.
    """
    if isinstance(extent, int):
        return extent, extent
    if isinstance(extent, tirx.IntImm):
        return int(extent.value), int(extent.value)
    if isinstance(extent, tirx.Var):
        low, high = sizes.get(str(extent.name), (0, MOST))
        return low, high
    analyzer = Analyzer()
    for variable in tirx.analysis.undefined_vars(extent):
        low, high = sizes.get(str(variable.name), (0, MOST - 1))
        analyzer.bind(variable, tvm.ir.Range(low, high + 1))
    found = analyzer.const_int_bound(extent)
    return max(int(found.min_value), 0), min(int(found.max_value), MOST)


def count_of(
    ty: tvm.ir.Type, axes: Sequence[int] | None, sizes: Mapping[str, tuple[int, int]]
) -> tuple[int, int]:
    """The fewest and the most elements along axes of a tensor; of all of it for None."""
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr):
        return 0, MOST
    extents = shape.values[:]
    chosen = extents if axes is None else [extents[axis] for axis in axes]
    bounds = [extent_bounds(one, sizes) for one in chosen]
    lows, highs = zip(*bounds, strict=True) if bounds else ((), ())
    return math.prod(lows), min(math.prod(highs), MOST)


@functools.cache
def element_bytes(dtype: str) -> int:
    """Bytes of one element of a type."""
    return (tvm.DataType(dtype).bits + 7) // 8


def bytes_of(ty: tvm.ir.Type) -> int | None:
    """Bytes of a tensor of known sizes; None of any other value."""
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr) or ty.dtype is None:
        return None
    extents = shape.values[:]
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    return math.prod(map(int, extents), start=element_bytes(str(ty.dtype)))


def same_bytes(one: tvm.ir.Type, other: tvm.ir.Type) -> bool:
    """Whether tensors of these types take as many bytes as each other, in every run."""
    known = bytes_of(one)
    if known is not None:
        return known == bytes_of(other)
    if not all(isinstance(ty, relax.TensorType) for ty in (one, other)):
        return False
    return str(one.dtype) == str(other.dtype) and tvm_ffi.structural_equal(one.shape, other.shape)
