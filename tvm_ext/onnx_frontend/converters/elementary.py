"""BitCast, Pow, PRelu and LpNormalization.

TVM's Pow takes no integers; its PRelu fails on a slope for each element (test_PReLU_1d_multiparam);
BitCast and LpNormalization it has not.
"""

from typing import Any

from tvm import relax, te, tirx, topi

from tvm_ext.hardware.tvm_compat import OnnxOpConverter, onnx_converter_map, onnx_type_name
from tvm_ext.onnx_frontend.converters.arguments import sizes_of

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
