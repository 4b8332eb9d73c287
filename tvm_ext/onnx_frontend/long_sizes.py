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
from tvm_ext.onnx_frontend.sizes.size_values import INTEGERS, SizeValues

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

    def shortened_values(self, bb: relax.BlockBuilder, values: SizeValues) -> SizeValues:
        """The values with short expressions in place of long integers.

        Converters make sizes of these, and give them to kernels as they are.
        """
        if values.dtype not in INTEGERS or not any(map(_is_long, values.expressions())):
            return values
        return values.with_symbols(lambda value: self._short_value(bb, value), values.tensor)

    def _short_value(self, bb: relax.BlockBuilder, value: tirx.Expr) -> tirx.Expr:
        """A dimension is never negative: one for the part above zero, one for the part below."""
        if not _is_long(value):
            return value
        analyzer = analyzer_of(value)
        value = analyzer.simplify(value)
        if tvm_ffi.StructuralKey(value) in self._dimensions or analyzer.can_prove(value >= 0):
            return self._short(bb, value)
        zero = tirx.const(0, "int64")
        above, below = (
            tirx.Select(value > zero, value, zero),
            tirx.Select(value < zero, -value, zero),
        )
        return self._short(bb, above) - self._short(bb, below)

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
    """A choice, which TVM writes for windows that are rounded up, and a cast count as long.

    TVM infers types anew in some passes, and knows none for a choice inside of a size. The range
    of a cast's type it takes for a limit, and plans storage for 2^31 rows.
    """
    if isinstance(size, int):
        return False
    parts: list[object] = []
    tvm_ffi.structural_walk(size, (tvm.ir.Expr, parts.append))
    return len(parts) > _MOST_PARTS or any(
        isinstance(part, tvm.ir.Call | tirx.Cast) for part in parts
    )
