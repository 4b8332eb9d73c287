"""Elementwise arithmetic and comparisons: Pow, Mod, Max, Clip, Equal, IsInf, BitCast and the like.

PRelu and LpNormalization are here as well: both are formulas of a few such operators.

TVM's Pow takes no integers; its PRelu fails on a slope for each element
(test_PReLU_1d_multiparam); BitCast and LpNormalization it has not.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import constant_array, sizes_of
from tvm_ext.onnx_frontend.ml_rewrites import ROUNDED
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter, onnx_converter_map, onnx_type_name
from tvm_ext.relay_passes.graph_pass import OPAQUE

_TvmMatMul = onnx_converter_map()["MatMul"]
_StockDiv = onnx_converter_map()["Div"]
_StockPow = onnx_converter_map()["Pow"]


def _is_integer(x: relax.Expr) -> bool:
    return str(x.ty.dtype).startswith(("int", "uint"))


class BitCast(OnnxOpConverter):
    """The same bits read as another type of the same width, which ONNX asks for."""

    @classmethod
    def _impl_v26(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x, wanted = inputs[0], str(onnx_type_name(attr["to"]))
        if "bool" in (str(x.ty.dtype), wanted):
            return relax.op.astype(x, wanted)

        def kernel(x: te.Tensor) -> te.Tensor:
            return te.compute(x.shape, lambda *index: tirx.reinterpret(wanted, x(*index)))

        return bb.emit_te(kernel, x, primfunc_name_hint="bit_cast")


class Pow(OnnxOpConverter):
    """TVM's converter; integers by squaring, or in float64 where only the exponent is a float.

    The product wraps around as NumPy's does, and a negative exponent gives 1, -1 or 0 as the
    quotient that is cut off.
    """

    @classmethod
    def _impl_v7(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
        base, exponent = inputs[0], inputs[1]
        if not _is_integer(base):
            return _StockPow._impl_v7(bb, inputs, attr, params)
        dtype = str(base.ty.dtype)
        if _is_integer(exponent):
            return bb.emit_te(_integer_power, base, exponent, primfunc_name_hint="power")
        wide = [bb.emit(relax.op.astype(x, "float64")) for x in (base, exponent)]
        return relax.op.astype(bb.emit(relax.op.power(*wide)), dtype)


# Beyond it every power of a base that is not 0, 1 or -1 is out of range.
_EXPONENT_BITS = 6


def _integer_power(base: te.Tensor, exponent: te.Tensor) -> te.Tensor:
    """One stage for each bit of the exponent: as one expression it would double with each."""
    base, exponent = _same_shape(base, exponent)
    shape, dtype = base.shape, str(base.dtype)
    one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
    result, square = te.compute(shape, lambda *_: one, name="one"), base
    for bit in range(_EXPONENT_BITS):
        result = _times_where_set(result, square, exponent, bit)
        square = topi.multiply(square, square)

    def value(*index: tirx.Var) -> tirx.Expr:
        power = exponent(*index).astype("int64")
        is_large = tirx.all(power >= 1 << _EXPONENT_BITS, base(*index) == zero)
        found = tirx.Select(is_large, zero, result(*index))
        return tirx.Select(power < 0, _reciprocal_power(base(*index), power, dtype), found)

    return te.compute(shape, value, name="power")


def _times_where_set(
    result: te.Tensor, square: te.Tensor, exponent: te.Tensor, bit: int
) -> te.Tensor:
    def value(*index: tirx.Var) -> tirx.Expr:
        power = exponent(*index).astype("int64")
        odd = (power >> tirx.const(bit, "int64")) & tirx.const(1, "int64")
        product = result(*index) * square(*index)
        return tirx.Select(odd != 0, product, result(*index))

    return te.compute(result.shape, value, name="bit")


def _reciprocal_power(base: tirx.Expr, power: tirx.Expr, dtype: str) -> tirx.Expr:
    """``base ** power`` for a negative power, cut off: 0 unless the base is 1 or -1."""
    one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
    even = (power & tirx.const(1, "int64")) == 0
    sign = tirx.Select(even, one, zero - one)
    of_minus_one = tirx.Select(base + one == zero, sign, zero)
    return tirx.Select(base == one, one, of_minus_one)


def _same_shape(first: te.Tensor, second: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    """Both in the shape that they have together, each in its own type."""
    none = topi.multiply(second, tirx.const(0, second.dtype)).astype(first.dtype)
    other = topi.multiply(first, tirx.const(0, first.dtype)).astype(second.dtype)
    return topi.add(first, none), topi.add(second, other)


class PRelu(OnnxOpConverter):
    """``x`` where it is not below zero, ``slope * x`` elsewhere; the slope is broadcast."""

    @classmethod
    def _impl_v7(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x, slope = inputs[0], _by_channel(bb, inputs[0], inputs[1])
        is_negative = relax.op.less(x, relax.const(0, str(x.ty.dtype)))
        return relax.op.where(is_negative, relax.op.multiply(slope, x), x)


def _by_channel(bb: relax.BlockBuilder, x: relax.Expr, slope: relax.Expr) -> relax.Expr:
    """Opsets before 7: a list of slopes is one for each channel, where it fits no last axis."""
    sizes: list[Any] = sizes_of(x)
    slopes: list[Any] = sizes_of(slope)
    if len(slopes) != 1 or len(sizes) < 3 or slopes[0] in (1, sizes[-1]) or slopes[0] != sizes[1]:
        return slope
    return bb.emit(relax.op.reshape(slope, [slopes[0]] + [1] * (len(sizes) - 2)))


class LpNormalization(OnnxOpConverter):
    """``x / norm`` along one axis, with the sum of magnitudes or the Euclidean norm; 0 where it is.

    ONNX operator LpNormalization-22, whose ``p`` is 1 or 2.
    """

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x, axis = inputs[0], attr.get("axis", -1)
        if attr.get("p", 2) == 1:
            norm = bb.emit(relax.op.sum(relax.op.abs(x), axis, keepdims=True))
        else:
            square = bb.emit(relax.op.multiply(x, x))
            norm = bb.emit(relax.op.sqrt(relax.op.sum(square, axis, keepdims=True)))
        zero, one = (relax.const(number, str(x.ty.dtype)) for number in (0, 1))
        is_zero = relax.op.equal(norm, zero)
        return relax.op.divide(x, relax.op.where(is_zero, one, norm))


ELEMENTARY = {"BitCast": BitCast, "LpNormalization": LpNormalization, "PRelu": PRelu, "Pow": Pow}


# Elementwise operators at the edges of their types: Mod and IsInf.
#
# TVM's Mod has no sign of zero, NaN where a number is taken modulo infinity, and ends the process
# when an integer is taken modulo zero; its IsInf ignores the flags that choose a sign.


class Div(OnnxOpConverter):
    """TVM's converter; a quotient of integers that the run divides by zero is zero.

    ONNX does not define it, and the processor would end the process.
    """

    @classmethod
    def _impl_v7(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
        a, b = inputs[0], inputs[1]
        stored = constant_array(b, params)
        if not _is_integer(b) or (stored is not None and not np.isin(stored, (0, -1)).any()):
            return _StockDiv._impl_v7(bb, inputs, attr, params)

        def kernel(a: te.Tensor, b: te.Tensor) -> te.Tensor:
            return _broadcast(a, b, _whole_quotient)

        return bb.emit_te(kernel, a, b, primfunc_name_hint="divide")


class Mod(OnnxOpConverter):
    """The remainder with the divisor's sign, or the dividend's (``fmod``).

    An integer modulo zero is zero; ONNX does not define it.
    """

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        like_dividend = bool(attr.get("fmod", 0))
        of_floats = _like_dividend if like_dividend else _floored
        of_integers = tirx.truncmod if like_dividend else tirx.floormod
        whole = not str(inputs[0].ty.dtype).startswith(("float", "bfloat"))

        def kernel(a: te.Tensor, b: te.Tensor) -> te.Tensor:
            if whole:
                return _broadcast(a, b, lambda x, y: of_integers(x, _safe(y)))
            return _broadcast(a, b, of_floats)

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


def _whole_quotient(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    dtype = str(b.ty.dtype)
    zero = tirx.const(0, dtype)
    found = tirx.Select(b == zero, zero, tirx.truncdiv(a, _safe(b)))
    return (
        found if dtype.startswith("u") else tirx.Select(b == tirx.const(-1, dtype), zero - a, found)
    )


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


# Comparisons and Not of constants, which TVM's converters leave to the run.
#
# An If behind one would keep both branches.


class _Comparison(OnnxOpConverter):
    """A constant where all operands are."""

    numbers: Callable[..., Any]
    tensors: Callable[..., Any]

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        operands = list(inputs)
        if all(isinstance(operand, tvm.ir.GenericConst) for operand in operands):
            return relax.const(cls.numbers(*(one.value.numpy() for one in operands)), "bool")
        return cls.tensors(*operands)


class Equal(_Comparison):
    """Elementwise ``a == b``."""

    numbers = np.equal

    @staticmethod
    def tensors(first: relax.Expr, second: relax.Expr) -> relax.Expr:
        """TVM compares booleans as floats, which LLVM refuses where they were just computed."""
        if str(first.ty.dtype) == "bool":
            first, second = (relax.op.astype(operand, "int8") for operand in (first, second))
        return relax.op.equal(first, second)


def _comparison(name: str, numbers: Callable[..., Any], tensors: Callable[..., Any]) -> type:
    what = f"ONNX's ``{name}``, element by element."
    members = {"numbers": numbers, "tensors": staticmethod(tensors), "__doc__": what}
    return type(name, (_Comparison,), members)


CONDITIONS: dict[str, Any] = {
    "Equal": Equal,
    "Greater": _comparison("Greater", np.greater, relax.op.greater),
    "GreaterOrEqual": _comparison("GreaterOrEqual", np.greater_equal, relax.op.greater_equal),
    "Less": _comparison("Less", np.less, relax.op.less),
    "LessOrEqual": _comparison("LessOrEqual", np.less_equal, relax.op.less_equal),
    "Not": _comparison("Not", np.logical_not, relax.op.logical_not),
}


# Max, Min, Sum and Mean of any number of inputs as a chain of two-operand operators.
#
# TVM's converters broadcast every input to the result's shape, stack the copies and reduce them:
# for two inputs that moves five times the bytes, and nothing can be fused around it.


_Binary = Callable[[relax.Expr, relax.Expr], relax.Expr]


def _folded(bb: relax.BlockBuilder, inputs: Any, combine: _Binary) -> relax.Expr:
    """``combine(combine(a, b), c)``; one input is passed on as it is."""
    return functools.reduce(lambda a, b: bb.normalize(combine(a, b)), list(inputs))


class Max(OnnxOpConverter):
    """Elementwise largest value."""

    combine: _Binary = relax.op.maximum

    @classmethod
    def _impl_v6(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _folded(bb, inputs, cls.combine)


class Min(Max):
    """Elementwise smallest value."""

    combine = relax.op.minimum


class Sum(Max):
    """Elementwise sum."""

    combine = relax.op.add


class Mean(OnnxOpConverter):
    """Elementwise mean."""

    @classmethod
    def _impl_v6(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        count = len(inputs)
        total = _folded(bb, inputs, relax.op.add)
        return relax.op.divide(total, relax.const(count, str(total.ty.dtype)))


# Clip as two Relax operators.
#
# TVM's converter calls TensorIR functions right away, which no graph pass can look into: layout
# planning would convert back and forth around every ReLU6 and hard-swish.


class Clip(OnnxOpConverter):
    """``minimum(high, maximum(low, x))``; a bound that is absent or NaN is no bound."""

    @classmethod
    def _impl_v6(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = inputs[0]
        dtype = str(x.ty.dtype)
        low, high = (
            relax.const(attr[key], dtype) if key in attr else None for key in ("min", "max")
        )
        return _clipped(bb, x, low, high)

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _clipped(bb, inputs[0], inputs[1], inputs[2])


def _clipped(
    bb: relax.BlockBuilder, x: relax.Expr, low: relax.Expr | None, high: relax.Expr | None
) -> relax.Expr:
    # A comparison with NaN picks the second operand: with x there, NaN goes through as it should.
    low = None if low is None else _usable_bound(bb, low, -np.inf)
    high = None if high is None else _usable_bound(bb, high, np.inf)
    if low is not None:
        x = bb.emit(relax.op.maximum(low, x))
    if high is not None:
        x = bb.emit(relax.op.minimum(high, x))
    return x


def _usable_bound(
    bb: relax.BlockBuilder, bound: relax.Expr, instead_of_nan: float
) -> relax.Expr | None:
    dtype = str(bound.ty.dtype)
    if not dtype.startswith(("float", "bfloat")):
        return bound
    if isinstance(bound, tvm.ir.GenericConst):
        return None if np.isnan(bound.value.numpy().astype("float32")).any() else bound
    endless = relax.const(instead_of_nan, dtype)
    return bb.emit(relax.op.where(relax.op.isnan(bound), endless, bound))


# A matmul that sums one term.


class MatMul(OnnxOpConverter):
    """A column by a row, such as frequencies by positions, is a product by element.

    It is fused with what is around it, and nothing is broadcast for it. As in a sum, -0 gives 0. A
    stored right factor is a layer's weights, and stays a matmul.
    """

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        a, b = inputs[0], inputs[1]
        is_layer = constant_array(b, params) is not None
        if is_layer or _is_integer(a) or not (_has_single(a, -1) and _has_single(b, -2)):
            return _TvmMatMul.get_converter(13)(bb, inputs, attr, params)
        product = bb.emit(relax.op.multiply(a, b))
        zero = relax.const(0, str(product.ty.dtype))
        # TVM leaves out the sum with zero.
        is_zero = bb.emit(relax.op.equal(product, zero))
        return relax.op.where(is_zero, zero, product)


def _has_single(x: relax.Expr, axis: int) -> bool:
    """Whether a matrix, or a stack of them, has one element along an axis."""
    sizes = sizes_of(x)
    return len(sizes) > 1 and isinstance(sizes[axis], int) and sizes[axis] == 1


# Operators whose results are rounded to their type, whatever reads them.


class Mul(OnnxOpConverter):
    """A kernel of its own: in one with a sum, LLVM would multiply and add in one instruction."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return bb.emit_te(
            topi.multiply,
            inputs[0],
            inputs[1],
            primfunc_name_hint="multiply",
            primfunc_attrs={"op_pattern": OPAQUE},
        )


ROUNDED_CONVERTERS: dict[str, Any] = {f"{ROUNDED}::Mul": Mul}
