"""How the operators of the rule language are read from calls of Relax, and built as calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.relay_passes.expressions import numpy_dtype, same_extents
from tvm_ext.relay_passes.layout_roles import permutation_of
from tvm_ext.relay_passes.rewrite_rules.rule import TensorKind


@dataclass(frozen=True)
class Operation:
    """A call of Relax as the rule language has it: operator, operands, attributes."""

    operator: str
    operands: tuple[relax.Expr, ...]
    attributes: dict[str, Any]


def kind_of(ty: Any) -> TensorKind:
    """The type of a tensor; raises NotApplicable for what is no tensor of a known type."""
    if not isinstance(ty, relax.TensorType) or ty.dtype is None:
        raise NotApplicable("an operand is no tensor of a known type")
    shape = ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        return TensorKind(None, str(ty.dtype))
    return TensorKind(tuple(map(_plain, shape.values[:])), str(ty.dtype))


def _plain(extent: Any) -> Any:
    return int(extent) if isinstance(extent, tirx.IntImm) else extent


def scalar_of(expr: relax.Expr, dtype: str) -> np.ndarray | None:
    """The value of a scalar argument, such as the bounds of clip, in the type ``dtype``."""
    if not isinstance(expr, tirx.IntImm | tirx.FloatImm):
        return None
    return np.asarray(expr.value, numpy_dtype(dtype))


# Relax's names for operators that have the same name in the language, by number of tensors.
_SAME_NAME = (
    *("negative", "abs", "square", "floor", "ceil", "round", "trunc", "sign", "sqrt", "exp"),
    *("log", "cos", "sigmoid", "tanh", "logical_not"),
    *("add", "subtract", "multiply", "divide", "power", "maximum", "minimum"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("logical_and", "logical_or", "logical_xor", "where", "clip"),
)
_VIEWS = ("reshape", "squeeze", "expand_dims", "flatten", "nn.batch_flatten")
_REDUCTIONS = ("sum", "mean", "max", "min")

# By the name of an operator of Relax: that of the language.
NAMES: dict[str, str] = {
    **{f"relax.{name}": name for name in _SAME_NAME},
    **{f"relax.{name}": "reshape" for name in _VIEWS},
    **{f"relax.{name}": name for name in _REDUCTIONS},
    "relax.nn.relu": "relu",
    "relax.astype": "cast",
    "relax.full": "full",
    "relax.permute_dims": "transpose",
    "relax.broadcast_to": "broadcast_to",
    "relax.strided_slice": "strided_slice",
    "relax.take": "take",
    "relax.concat": "concat",
    "relax.split": "split",
    "relax.nn.pad": "pad",
    "relax.tile": "tile",
    "relax.repeat": "repeat",
}


def read_call(call: relax.Call, ty: Any) -> Operation | None:
    """What ``call``, of a result of this type, is in the language; None where it has no such form.

    A part of a split into several is read with ``read_part``.
    """
    name = NAMES.get(str(call.op.name)) if isinstance(call.op, tvm.ir.Op) else None
    if name is None:
        return None
    read = _READERS.get(name)
    try:
        return Operation(name, tuple(call.args[:]), {}) if read is None else read(name, call, ty)
    except NotApplicable:
        return None


def read_part(item: relax.TupleGetItem, call: relax.Call) -> Operation | None:
    """A part of the result of relax.split, as an operator of its own."""
    return Operation("split", (call.args[0],), {**_split_of(call), "index": int(item.index)})


def _split_of(call: relax.Call) -> dict[str, Any]:
    parts = call.attrs.indices_or_sections
    own = int(parts) if isinstance(parts, int | tirx.IntImm) else tuple(map(int, parts))
    return {"parts": own, "axis": int(call.attrs.axis) % _rank(call.args[0])}


def _read_split(name: str, call: relax.Call, ty: Any) -> Operation:
    kind_of(ty)  # That of a tensor: of a split into one, Relax makes no tuple.
    return Operation(name, (call.args[0],), {**_split_of(call), "index": 0})


def _rank(expr: relax.Expr) -> int:
    rank = int(expr.ty.ndim)
    if rank < 0:
        raise NotApplicable("the rank of an operand is not known")
    return rank


def _integers(values: Any) -> tuple[int, ...]:
    fields = values.fields if isinstance(values, relax.Tuple) else values
    if not all(isinstance(one, int | tirx.IntImm) for one in fields):
        raise NotApplicable("an attribute is decided by a run")
    return tuple(int(one) for one in fields)


def _read_view(name: str, call: relax.Call, ty: Any) -> Operation:
    return Operation(name, (call.args[0],), {"shape": kind_of(ty).shape})


def _read_cast(name: str, call: relax.Call, ty: Any) -> Operation:
    return Operation(name, (call.args[0],), {"dtype": kind_of(ty).dtype})


def _read_transpose(name: str, call: relax.Call, _ty: Any) -> Operation:
    _rank(call.args[0])
    return Operation(name, (call.args[0],), {"axes": permutation_of(call)})


def _read_slice(name: str, call: relax.Call, _ty: Any) -> Operation:
    if call.attrs.assume_inbound:
        raise NotApplicable("a slice is promised to be within bounds")
    rank = _rank(call.args[0])
    axes, begin, end = (_integers(one) for one in call.args[1:4])
    strides = _integers(call.args[4]) if len(call.args) > 4 else (1,) * len(axes)
    own = tuple(axis % rank for axis in axes)
    given = {"axes": own, "begin": begin, "end": end, "strides": strides}
    return Operation(name, (call.args[0],), given)


def _read_take(name: str, call: relax.Call, _ty: Any) -> Operation:
    if call.attrs.axis is None:
        raise NotApplicable("elements are taken from all axes at once")
    return Operation(
        name, tuple(call.args[:]), {"axis": int(call.attrs.axis) % _rank(call.args[0])}
    )


def _read_concat(name: str, call: relax.Call, ty: Any) -> Operation:
    if not isinstance(call.args[0], relax.Tuple):
        raise NotApplicable("a tuple is joined that another operator made")
    axis = call.attrs.axis
    axis = int(axis) % len(kind_of(ty).shape) if axis is not None else 0
    return Operation(name, tuple(call.args[0].fields), {"axis": axis})


def _read_pad(name: str, call: relax.Call, _ty: Any) -> Operation:
    attrs = call.attrs
    given = {"mode": str(attrs.pad_mode), "value": float(attrs.pad_value)}
    return Operation(name, (call.args[0],), {"widths": _integers(attrs.pad_width), **given})


def _read_tile(name: str, call: relax.Call, _ty: Any) -> Operation:
    return Operation(name, (call.args[0],), {"repeats": _integers(call.attrs.repeats)})


def _read_repeat(name: str, call: relax.Call, _ty: Any) -> Operation:
    axis = call.attrs.axis
    given = {"repeats": int(call.attrs.repeats), "axis": None if axis is None else int(axis)}
    return Operation(name, (call.args[0],), given)


def _read_reduction(name: str, call: relax.Call, _ty: Any) -> Operation:
    rank, axis = _rank(call.args[0]), call.attrs.axis
    axes = range(rank) if axis is None else [int(one) % rank for one in axis]
    given = {"axes": tuple(axes), "keepdims": bool(call.attrs.keepdims)}
    return Operation(name, (call.args[0],), given)


_READERS: dict[str, Callable[[str, relax.Call, Any], Operation]] = {
    "reshape": _read_view,
    "broadcast_to": _read_view,
    "cast": _read_cast,
    "transpose": _read_transpose,
    "strided_slice": _read_slice,
    "take": _read_take,
    "concat": _read_concat,
    "split": _read_split,
    "pad": _read_pad,
    "tile": _read_tile,
    "repeat": _read_repeat,
    **dict.fromkeys(_REDUCTIONS, _read_reduction),
}

_op = relax.op


def build_call(name: str, operands: Sequence[Any], attributes: dict[str, Any]) -> relax.Expr:
    """The operator ``name`` of the language as an expression of Relax, without its type."""
    build = _BUILDERS.get(name)
    if build is not None:
        return build(*operands, **attributes)
    return getattr(_op, name)(*operands, **attributes)


def _clip(x: relax.Expr, low: Any, high: Any) -> relax.Expr:
    bounds = [one.value.numpy().item() for one in (low, high)]
    return _op.clip(x, *bounds)


def _view(x: relax.Expr, shape: Sequence[Any]) -> relax.Expr:
    """A reshape, or an expand_dims where that is one: operators are fused across it."""
    own = kind_of(x.ty).extents if isinstance(x, relax.Var) else None
    added = None if own is None else _added_axes(own, shape)
    if added:
        return _op.expand_dims(x, added)
    return _op.reshape(x, relax.ShapeExpr(list(shape)))


def _added_axes(own: Sequence[Any], wanted: Sequence[Any]) -> list[int] | None:
    """Where ``wanted`` has a 1 that ``own`` has not; None where they differ in something else."""
    left, added = list(own), []
    for axis, extent in enumerate(wanted):
        if left and same_extents(left[:1], [extent]):
            left.pop(0)
        elif isinstance(extent, int) and extent == 1:
            added.append(axis)
        else:
            return None
    return None if left else added


def _slice(x: relax.Expr, axes: Any, begin: Any, end: Any, strides: Any) -> relax.Expr:
    return _op.strided_slice(x, list(axes), list(begin), list(end), list(strides))


def _split(x: relax.Expr, parts: Any, axis: int, index: int) -> relax.Expr:
    own = parts if isinstance(parts, int) else list(parts)
    call = _op.split(x, own, axis)
    return call if own in (1, []) else relax.TupleGetItem(call, index)


def _reduction(name: str) -> Callable[..., relax.Expr]:
    def build(x: relax.Expr, axes: Sequence[int], keepdims: bool) -> relax.Expr:
        return getattr(_op, name)(x, list(axes), keepdims)

    return build


_BUILDERS: dict[str, Callable[..., relax.Expr]] = {
    "relu": _op.nn.relu,
    "clip": _clip,
    "cast": lambda x, dtype: _op.astype(x, dtype),
    "full": lambda value, shape: _op.full(relax.ShapeExpr(list(shape)), value),
    "transpose": lambda x, axes: _op.permute_dims(x, list(axes)),
    "reshape": _view,
    "broadcast_to": lambda x, shape: _op.broadcast_to(x, relax.ShapeExpr(list(shape))),
    "strided_slice": _slice,
    "take": lambda x, places, axis: _op.take(x, places, axis),
    "concat": lambda *xs, axis: _op.concat(list(xs), axis),
    "split": _split,
    "pad": lambda x, widths, mode, value: _op.nn.pad(x, list(widths), mode, value),
    "tile": lambda x, repeats: _op.tile(x, list(repeats)),
    "repeat": lambda x, repeats, axis: _op.repeat(x, repeats, axis),
    **{name: _reduction(name) for name in _REDUCTIONS},
}
