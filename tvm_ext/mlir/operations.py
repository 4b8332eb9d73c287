"""TensorIR's operators and calls on numbers, and on vectors of them, as operations of the arith and
math dialects.

Each function writes at the current insertion point and returns the value. The semantics are those
of TVM's own code generation: ``max(a, b)`` is ``a`` where ``a > b`` and else ``b``, whatever is
NaN, and quotients of ``FloorDiv`` round down.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import arith, math
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.mlir.element_types import (
    bits_of,
    is_bool,
    is_float,
    is_signed,
    lanes_of,
    scalar_of,
    value_type,
    with_lanes,
)

Binary = Callable[[ir.Value, ir.Value], ir.Value]


def constant(value: float, dtype: str) -> ir.Value:
    """A number, or a vector of it."""
    kind = value_type(scalar_of(dtype))
    if is_float(dtype):
        return _splat(ir.FloatAttr.get(kind, float(value)), dtype)
    bits = bits_of(dtype)
    whole = int(value) % (1 << bits)
    # MLIR's Python interface takes signed numbers; the bits are those of the unsigned one.
    signed = whole - (1 << bits) if bits > 1 and whole >= 1 << (bits - 1) else whole
    return _splat(ir.IntegerAttr.get(kind, -signed if bits == 1 else signed), dtype)


def _splat(number: ir.Attribute, dtype: str) -> ir.Value:
    kind = value_type(dtype)
    if lanes_of(dtype) > 1:
        number = ir.DenseElementsAttr.get_splat(kind, number)
    return arith.constant(kind, number)


def index_constant(value: int) -> ir.Value:
    """A number of type ``index``."""
    return arith.constant(ir.IndexType.get(), value)


def binary(kind: type, left: ir.Value, right: ir.Value, dtype: str) -> ir.Value:
    """An operator of two numbers of the same type, by TensorIR's class for it."""
    if kind in _COMPARED:
        return compared(_COMPARED[kind], left, right, dtype)
    if kind in (tirx.Min, tirx.Max):
        name = "lt" if kind is tirx.Min else "gt"
        return arith.select(compared(name, left, right, dtype), left, right)
    if kind is tirx.FloorMod and is_signed(dtype):
        return _floor_mod(left, right, dtype)
    found = _BINARY[kind].get(_family(dtype))
    if found is None:
        raise NotApplicable(f"{kind.__name__} of {dtype} has no operation in MLIR here")
    return found(left, right)


def _family(dtype: str) -> str:
    if is_bool(dtype):
        return "bool"
    return "float" if is_float(dtype) else "signed" if is_signed(dtype) else "unsigned"


def _same(of_floats: Binary | None, signed: Binary, unsigned: Binary) -> dict[str, Binary]:
    found = {"signed": signed, "unsigned": unsigned}
    return found if of_floats is None else {"float": of_floats, **found}


def _of_bits(operation: Binary) -> dict[str, Binary]:
    return {"signed": operation, "unsigned": operation, "bool": operation}


_BINARY: Mapping[type, Mapping[str, Binary]] = {
    tirx.Add: _same(arith.addf, arith.addi, arith.addi),
    tirx.Sub: _same(arith.subf, arith.subi, arith.subi),
    tirx.Mul: {**_same(arith.mulf, arith.muli, arith.muli), "bool": arith.andi},
    tirx.Div: _same(arith.divf, arith.divsi, arith.divui),
    tirx.Mod: _same(arith.remf, arith.remsi, arith.remui),
    tirx.FloorDiv: _same(None, arith.floordivsi, arith.divui),
    tirx.FloorMod: {"unsigned": arith.remui},
    tirx.And: {"bool": arith.andi},
    tirx.Or: {"bool": arith.ori},
    tirx.BitwiseAnd: _of_bits(arith.andi),
    tirx.BitwiseOr: _of_bits(arith.ori),
    tirx.BitwiseXor: _of_bits(arith.xori),
    tirx.LShift: _same(None, arith.shli, arith.shli),
    tirx.RShift: _same(None, arith.shrsi, arith.shrui),
}

_COMPARED: Mapping[type, str] = {
    tirx.LT: "lt",
    tirx.LE: "le",
    tirx.GT: "gt",
    tirx.GE: "ge",
    tirx.EQ: "eq",
    tirx.NE: "ne",
}


def is_binary(kind: type) -> bool:
    """Whether ``binary`` knows the class."""
    return kind in _BINARY or kind in _COMPARED or kind in (tirx.Min, tirx.Max)


def compared(name: str, left: ir.Value, right: ir.Value, dtype: str) -> ir.Value:
    """A comparison, by the two letters of it; none of them holds for NaN."""
    if is_float(dtype):
        return arith.cmpf(getattr(arith.CmpFPredicate, f"O{name.upper()}"), left, right)
    sign = "" if name in ("eq", "ne") else "s" if is_signed(dtype) else "u"
    return arith.cmpi(getattr(arith.CmpIPredicate, sign + name), left, right)


def _floor_mod(left: ir.Value, right: ir.Value, dtype: str) -> ir.Value:
    rest, zero = arith.remsi(left, right), constant(0, dtype)
    other_sign = compared("lt", arith.xori(rest, right), zero, dtype)
    moved = arith.andi(other_sign, compared("ne", rest, zero, dtype))
    return arith.select(moved, arith.addi(rest, right), rest)


def negated(value: ir.Value, dtype: str = "bool") -> ir.Value:
    """The opposite of a truth value."""
    return arith.xori(value, constant(1, dtype))


def cast(value: ir.Value, source: str, target: str) -> ir.Value:
    """A number as one of another type, as C converts it."""
    if source == target:
        return value
    if is_bool(target):
        return _is_not_zero(value, source)
    if is_float(source):
        return _cast_of_float(value, source, target)
    if is_float(target):
        convert = arith.sitofp if is_signed(source) else arith.uitofp
        return convert(value_type(target), value)
    if bits_of(source) == bits_of(target):
        return value
    if bits_of(source) > bits_of(target):
        return arith.trunci(value_type(target), value)
    widen = arith.extsi if is_signed(source) else arith.extui
    return widen(value_type(target), value)


def _is_not_zero(value: ir.Value, dtype: str) -> ir.Value:
    """NaN is a number other than 0."""
    zero = constant(0, dtype)
    if is_float(dtype):
        return arith.cmpf(arith.CmpFPredicate.UNE, value, zero)
    return compared("ne", value, zero, dtype)


def _cast_of_float(value: ir.Value, source: str, target: str) -> ir.Value:
    kind = value_type(target)
    if not is_float(target):
        return (arith.fptosi if is_signed(target) else arith.fptoui)(kind, value)
    if _needs_float32(scalar_of(source), scalar_of(target)):
        middle = with_lanes("float32", target)
        return _cast_of_float(_cast_of_float(value, source, middle), middle, target)
    return (arith.extf if bits_of(source) < bits_of(target) else arith.truncf)(kind, value)


def _needs_float32(source: str, target: str) -> bool:
    """Two formats of 16 bits have no conversion, and MLIR makes bfloat16 only of float32."""
    return bits_of(source) == bits_of(target) or (source, target) == ("float64", "bfloat16")


def cast_to_memory(value: ir.Value, dtype: str) -> ir.Value:
    """A value as it lies in memory."""
    return cast(value, dtype, with_lanes("int8", dtype)) if is_bool(dtype) else value


def cast_from_memory(value: ir.Value, dtype: str) -> ir.Value:
    """A value that was loaded, in the type of expressions."""
    return cast(value, with_lanes("int8", dtype), dtype) if is_bool(dtype) else value


def reinterpreted(value: ir.Value, target: str) -> ir.Value:
    """The bits of a number as one of another type."""
    kind = value_type(target)
    return value if value.type == kind else arith.bitcast(kind, value)


def call(name: str, arguments: list[ir.Value], dtype: str) -> ir.Value:
    """A call of a function of numbers of type ``dtype``, by the last part of TVM's name for it.

    Raises NotApplicable for one that is not known.
    """
    if name in _BIT_CALLS and not is_float(dtype):
        return _BIT_CALLS[name](arguments, dtype)
    if name in _FLOAT_CALLS and is_float(dtype):
        return _FLOAT_CALLS[name](*arguments)
    if name in _COMPOSED and is_float(dtype):
        return _COMPOSED[name](arguments, dtype)
    raise NotApplicable(f"the call of {name} on {dtype} has no operation in MLIR here")


_FLOAT_CALLS: Mapping[str, Callable[..., ir.Value]] = {
    **{
        name: getattr(math, name)
        for name in (
            *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "erf"),
            *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
            *("asinh", "acosh", "atanh", "atan2", "floor", "ceil", "trunc"),
            *("copysign", "fma"),
        )
    },
    # TVM rounds ties to even by either name.
    **dict.fromkeys(("nearbyint", "round"), math.roundeven),
    "fabs": math.absf,
    "abs": math.absf,
    "pow": math.powf,
    "fmod": arith.remf,
}


def _sigmoid(arguments: list[ir.Value], dtype: str) -> ir.Value:
    one = constant(1, dtype)
    return arith.divf(one, arith.addf(one, math.exp(arith.negf(arguments[0]))))


def _exp10(arguments: list[ir.Value], dtype: str) -> ir.Value:
    return math.powf(constant(10, dtype), arguments[0])


def _is_nan(arguments: list[ir.Value], dtype: str) -> ir.Value:
    return arith.cmpf(arith.CmpFPredicate.UNO, arguments[0], arguments[0])


def _is_infinite(arguments: list[ir.Value], dtype: str) -> ir.Value:
    return compared("eq", math.absf(arguments[0]), constant(float("inf"), dtype), dtype)


def _is_finite(arguments: list[ir.Value], dtype: str) -> ir.Value:
    return compared("lt", math.absf(arguments[0]), constant(float("inf"), dtype), dtype)


def _hypot(arguments: list[ir.Value], dtype: str) -> ir.Value:
    left, right = (arith.mulf(one, one) for one in arguments)
    return math.sqrt(arith.addf(left, right))


_COMPOSED: Mapping[str, Callable[[list[ir.Value], str], ir.Value]] = {
    "sigmoid": _sigmoid,
    "exp10": _exp10,
    "isnan": _is_nan,
    "isinf": _is_infinite,
    "isfinite": _is_finite,
    "hypot": _hypot,
}


def _of_class(kind: type) -> Callable[[list[ir.Value], str], ir.Value]:
    return lambda arguments, dtype: binary(kind, arguments[0], arguments[1], dtype)


def _inverted(arguments: list[ir.Value], dtype: str) -> ir.Value:
    return arith.xori(arguments[0], constant(1 if is_bool(dtype) else -1, dtype))


def _leading_zeros(arguments: list[ir.Value], dtype: str) -> ir.Value:
    """TVM counts them in int32, whatever they are counted of."""
    return cast(math.ctlz(arguments[0]), dtype, with_lanes("int32", dtype))


_BIT_CALLS: Mapping[str, Callable[[list[ir.Value], str], Any]] = {
    "bitwise_and": _of_class(tirx.BitwiseAnd),
    "bitwise_or": _of_class(tirx.BitwiseOr),
    "bitwise_xor": _of_class(tirx.BitwiseXor),
    "bitwise_not": _inverted,
    "shift_left": _of_class(tirx.LShift),
    "shift_right": _of_class(tirx.RShift),
    "popcount": lambda arguments, dtype: math.ctpop(arguments[0]),
    "clz": _leading_zeros,
    "abs": lambda arguments, dtype: math.absi(arguments[0]),
}
