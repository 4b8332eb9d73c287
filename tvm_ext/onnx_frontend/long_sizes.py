"""Sizes whose expressions have become long, as symbolic dimensions that the run binds.

A layer that slices, pads and joins makes sizes that are expressions of those before it. Over a few
layers they grow until TVM, which compares and simplifies them at every operator, does not finish.
"""

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of
from tvm_ext.onnx_frontend.converters.runtime_sizes import dimensions_of
from tvm_ext.onnx_frontend.sizes.scalar_rules import analyzer_of

# Variables, numbers and operators of an expression that TVM compares without delay.
_MOST_PARTS = 24


class LongSizes:
    """Gives tensors new dimensions for long sizes: the same one for the same expression."""

    def __init__(self) -> None:
        self._dimensions: dict[tvm_ffi.StructuralKey, tirx.Var] = {}

    def shortened(self, bb: relax.BlockBuilder, data: relax.Expr) -> relax.Expr:
        """``data``, or a view of it whose sizes are short."""
        sizes = sizes_of(data)
        if not any(_is_long(size) for size in sizes):
            return data
        short = [self._short(bb, size) if _is_long(size) else size for size in sizes]
        # A cast would not do: TVM puts the expression back in place of the variable.
        return bb.emit(relax.op.reshape(data, relax.ShapeExpr(short)))

    def _short(self, bb: relax.BlockBuilder, size: tirx.Expr) -> tirx.Expr:
        size = analyzer_of(size).simplify(size)
        if not _is_long(size):
            return size
        key = tvm_ffi.StructuralKey(size)
        if key not in self._dimensions:
            computed = bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr([size])))
            (self._dimensions[key],) = dimensions_of(bb, computed, ["size"])
        return self._dimensions[key]


def _is_long(size: Size) -> bool:
    """A choice, which TVM writes for windows that are rounded up, counts as long.

    TVM infers types anew in some passes, and knows none for a choice inside of a size.
    """
    if isinstance(size, int):
        return False
    parts: list[object] = []
    tvm_ffi.structural_walk(size, (tvm.ir.Expr, parts.append))
    return len(parts) > _MOST_PARTS or any(isinstance(part, tvm.ir.Call) for part in parts)
