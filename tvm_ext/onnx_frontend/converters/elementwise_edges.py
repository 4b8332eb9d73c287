"""Elementwise operators at the edges of their types: Mod and IsInf.

TVM's Mod has no sign of zero, NaN where a number is taken modulo infinity, and ends the process
when an integer is taken modulo zero; its IsInf ignores the flags that choose a sign.
"""

from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter


class Mod(OnnxOpConverter):
    """The remainder with the divisor's sign, or the dividend's (``fmod``).

    An integer modulo zero is zero; ONNX does not define it.
    """

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        dtype, like_dividend = str(inputs[0].ty.dtype), bool(attr.get("fmod", 0))
        whole = not dtype.startswith(("float", "bfloat"))
        if not whole and not like_dividend:
            remainder = _floored
        elif whole:
            remainder = _whole_like_dividend if like_dividend else _whole_floored
        else:
            remainder = _like_dividend

        def kernel(a: te.Tensor, b: te.Tensor) -> te.Tensor:
            return _broadcast(a, b, remainder)

        return bb.emit_te(kernel, inputs[0], inputs[1], primfunc_name_hint="mod")


def _broadcast(a: te.Tensor, b: te.Tensor, combine: Any) -> te.Tensor:
    """``combine`` of each pair, with the broadcasting of topi's addition."""
    shape = topi.add(a, b).shape

    def element(tensor: te.Tensor, index: tuple) -> tirx.Expr:
        inner = index[len(index) - len(tensor.shape) :]
        return tensor(
            *(
                tirx.const(0, "int64") if _is_one(size) else place
                for size, place in zip(tensor.shape, inner, strict=True)
            )
        )

    return te.compute(shape, lambda *i: combine(element(a, i), element(b, i)), name="mod")


def _is_one(size: Any) -> bool:
    return isinstance(size, tirx.IntImm) and int(size) == 1


def _single(a: tirx.Expr) -> tuple[str, str]:
    dtype = str(a.ty.dtype)
    return dtype, dtype if dtype == "float64" else "float32"


def _remainder(x: tirx.Expr, y: tirx.Expr) -> tirx.Expr:
    """C's fmod, which is exact; LLVM's code generator has none."""
    dtype = str(x.ty.dtype)
    return tirx.call_pure_extern(dtype, "fmod" if dtype == "float64" else "fmodf", x, y)


def _like_dividend(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    dtype, computed = _single(a)
    return _remainder(a.astype(computed), b.astype(computed)).astype(dtype)


def _floored(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    """As in Python and NumPy: a remainder of zero has the sign of the divisor."""
    dtype, computed = _single(a)
    x, y = a.astype(computed), b.astype(computed)
    zero, rest = tirx.const(0.0, computed), _remainder(x, y)
    turned = tirx.Select(
        tirx.any(tirx.all(rest < zero, y > zero), tirx.all(rest > zero, y < zero)), rest + y, rest
    )
    return tirx.Select(turned == zero, tirx.copysign(zero, y), turned).astype(dtype)


def _safe(b: tirx.Expr) -> tirx.Expr:
    """A divisor that the processor can divide every number by, with the same remainders."""
    dtype = str(b.ty.dtype)
    one = tirx.const(1, dtype)
    harmful = b == tirx.const(0, dtype)
    if not dtype.startswith("u"):
        # The least number divided by -1 is out of range.
        harmful = tirx.any(harmful, b == tirx.const(-1, dtype))
    return tirx.Select(harmful, one, b)


def _whole_like_dividend(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    return tirx.truncmod(a, _safe(b))


def _whole_floored(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    return tirx.floormod(a, _safe(b))


class IsInf(OnnxOpConverter):
    """Whether a number is infinite, of either sign or of the chosen ones."""

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, dtype = inputs[0], str(inputs[0].ty.dtype)
        if dtype.startswith("float8"):
            raise FormError(f"its elements are {dtype}")
        signs = [("detect_positive", np.inf), ("detect_negative", -np.inf)]
        chosen = [sign for flag, sign in signs if attr.get(flag, 1)]
        if not chosen:
            return relax.op.full(data.ty.shape, relax.const(False, "bool"), "bool")
        found = [bb.emit(relax.op.equal(data, relax.const(sign, dtype))) for sign in chosen]
        return found[0] if len(found) == 1 else relax.op.logical_or(*found)
