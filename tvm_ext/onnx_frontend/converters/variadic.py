"""Max, Min, Sum and Mean of any number of inputs as a chain of two-operand operators.

TVM's converters broadcast every input to the result's shape, stack the copies and reduce them: for
two inputs that moves five times the bytes, and nothing can be fused around it.
"""

import functools
from collections.abc import Callable
from typing import Any

from tvm import relax

from tvm_ext.hardware.tvm_compat import OnnxOpConverter

_Binary = Callable[[relax.Expr, relax.Expr], relax.Expr]


def _folded(bb: relax.BlockBuilder, inputs: Any, combine: _Binary) -> relax.Expr:
    """``combine(combine(a, b), c)``; one input is passed on as it is."""
    return functools.reduce(lambda a, b: bb.normalize(combine(a, b)), list(inputs))


class Max(OnnxOpConverter):
    """Elementwise largest value."""

    @classmethod
    def _impl_v6(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _folded(bb, inputs, relax.op.maximum)


class Min(OnnxOpConverter):
    """Elementwise smallest value."""

    @classmethod
    def _impl_v6(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _folded(bb, inputs, relax.op.minimum)


class Sum(OnnxOpConverter):
    """Elementwise sum."""

    @classmethod
    def _impl_v6(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _folded(bb, inputs, relax.op.add)


class Mean(OnnxOpConverter):
    """Elementwise mean."""

    @classmethod
    def _impl_v6(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        count = len(inputs)
        total = _folded(bb, inputs, relax.op.add)
        return relax.op.divide(total, relax.const(count, str(total.ty.dtype)))
