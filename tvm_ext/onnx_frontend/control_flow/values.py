"""Values of the graph as functions take and give them: tensors, shapes, sizes, conditions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.control_flow.symbolic_types import with_symbols
from tvm_ext.onnx_frontend.sizes import SizeValues


def as_tensor(bb: relax.BlockBuilder, value: Any) -> relax.Expr:
    """Sizes as a tensor of numbers, and every tensor with a size for each axis.

    Raises
    ------
    FormError
        The value is a sequence, an optional or of unknown rank.
    """
    if isinstance(value, SizeValues):
        return value.as_tensor(bb)
    if not isinstance(value, relax.Expr):
        raise FormError("it passes an empty optional, where a tensor is expected")
    if isinstance(value, relax.Tuple) or isinstance(value.ty, relax.TupleType):
        raise FormError("it passes a sequence whose length is not known, where a tensor can be")
    if isinstance(value.ty, relax.ShapeType):
        value = bb.emit(relax.op.shape_to_tensor(value))
    if value.ty.ndim < 0:
        raise FormError("it passes a tensor whose rank is not known")
    value = bound(bb, value)
    if isinstance(value.ty.shape, relax.ShapeExpr):
        return value
    return bb.match_cast(value, with_symbols(value.ty))


def fields(bb: relax.BlockBuilder, value: relax.Expr, types: Sequence[Any]) -> list[relax.Expr]:
    """The fields of an emitted tuple, each cast to its type unless that is None."""
    found = []
    for index, ty in enumerate(types):
        field = bb.emit(relax.TupleGetItem(value, index))
        if ty is not None and not tvm_ffi.structural_equal(field.ty, ty):
            field = bb.match_cast(field, ty)
        found.append(field)
    return found


def truth(value: Any) -> bool | None:
    """The value of a condition that is constant, else None."""
    if isinstance(value, tvm.ir.GenericConst):
        return bool(np.all(value.value.numpy()))
    return None


def is_value(value: Any) -> bool:
    """Whether it is a variable of the graph."""
    return isinstance(value, relax.Var)


def bound(bb: relax.BlockBuilder, value: Any) -> Any:
    """Calls and the like as variables; a body can only name those."""
    if isinstance(value, relax.Tuple):
        return relax.Tuple([bound(bb, field) for field in value.fields])
    if isinstance(value, relax.Call | relax.TupleGetItem):
        return bb.emit(value)
    return value


def scalar(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """The only element of a tensor, without axes."""
    if value.ty.ndim == 0:
        return value
    if isinstance(value, tvm.ir.GenericConst):
        return relax.const(value.value.numpy().reshape(()), str(value.ty.dtype))
    return bb.emit(relax.op.reshape(value, ()))


def integer(value: relax.Expr | None) -> int | None:
    """The value of a constant of one element; None for a missing one or what the run computes."""
    return int(value.value.numpy()) if isinstance(value, tvm.ir.GenericConst) else None
