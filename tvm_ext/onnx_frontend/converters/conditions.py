"""Comparisons and Not of constants, which TVM's converters leave to the run.

An If behind one would keep both branches.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.hardware.tvm_compat import OnnxOpConverter


class _Comparison(OnnxOpConverter):
    """A constant where both operands are."""

    numbers: Callable[[Any, Any], Any]
    tensors: Callable[[Any, Any], Any]

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        first, second = inputs[0], inputs[1]
        if _is_constant(first) and _is_constant(second):
            return relax.const(cls.numbers(first.value.numpy(), second.value.numpy()), "bool")
        return cls.tensors(first, second)


class Equal(_Comparison):
    """Elementwise ``a == b``."""

    numbers = np.equal

    @staticmethod
    def tensors(first: relax.Expr, second: relax.Expr) -> relax.Expr:
        """TVM compares booleans as floats, which LLVM refuses where they were just computed."""
        if str(first.ty.dtype) == "bool":
            first, second = (relax.op.astype(operand, "int8") for operand in (first, second))
        return relax.op.equal(first, second)


class Greater(_Comparison):
    """Elementwise ``a > b``."""

    numbers, tensors = np.greater, relax.op.greater


class GreaterOrEqual(_Comparison):
    """Elementwise ``a >= b``."""

    numbers, tensors = np.greater_equal, relax.op.greater_equal


class Less(_Comparison):
    """Elementwise ``a < b``."""

    numbers, tensors = np.less, relax.op.less


class LessOrEqual(_Comparison):
    """Elementwise ``a <= b``."""

    numbers, tensors = np.less_equal, relax.op.less_equal


class Not(OnnxOpConverter):
    """Of a constant a constant, else TVM's operator."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        if _is_constant(inputs[0]):
            return relax.const(np.logical_not(inputs[0].value.numpy()), "bool")
        return relax.op.logical_not(inputs[0])


def _is_constant(value: Any) -> bool:
    return isinstance(value, tvm.ir.GenericConst)


CONDITIONS: dict[str, Any] = {
    "Equal": Equal,
    "Greater": Greater,
    "GreaterOrEqual": GreaterOrEqual,
    "Less": Less,
    "LessOrEqual": LessOrEqual,
    "Not": Not,
}
