"""Loop as calls of a private function that computes one iteration."""

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from tvm_ext.onnx_frontend.control_flow.body_converter import BodyConverter
from tvm_ext.onnx_frontend.control_flow.loop_body import typed_loop
from tvm_ext.onnx_frontend.control_flow.loop_levels import conditional, counted
from tvm_ext.onnx_frontend.control_flow.symbolic_types import is_one_element, unknown_symbols
from tvm_ext.onnx_frontend.control_flow.values import as_tensor, integer, scalar, truth


def convert_loop(importer: BodyConverter, name: str, inputs: Any, attrs: dict) -> relax.Tuple:
    """The last loop-carried values and the scan outputs, stacked along a new first axis.

    A loop-carried size that an iteration changes is unknown along its axis. Without an iteration,
    sizes of scan outputs that only an iteration could tell are 0, as in ONNX Runtime.

    Raises
    ------
    ValueError
        A loop-carried value changes its type, or its rank with several elements, or is a sequence.
    """
    bb, body = importer.bb, attrs["body"]
    limit = None if inputs[0] is None else scalar(bb, as_tensor(bb, inputs[0]))
    condition = None if inputs[1] is None else scalar(bb, as_tensor(bb, inputs[1]))
    carried = [as_tensor(bb, value) for value in inputs[2:]]
    first = _first_condition(bb, limit, condition)
    loop = typed_loop(importer, name, body, limit, carried, begins=truth(first) is True)
    types = loop.signature.types[1 : 1 + len(carried)]
    carried = [
        _of_type(bb, value, ty, loop.signature.fixed)
        for value, ty in zip(carried, types, strict=True)
    ]
    start = [relax.const(0, "int64"), *carried]
    trips = integer(limit)
    if truth(first) is False:
        return relax.Tuple([*carried, *loop.nothing({v: v for v in loop.signature.fixed})])
    if loop.counted and trips is not None and truth(first):
        return relax.Tuple(counted(loop, start, trips))
    return relax.Tuple(conditional(loop, start, first))


def _of_type(
    bb: relax.BlockBuilder, value: relax.Expr, ty: relax.TensorType, known: Sequence[tirx.Var]
) -> relax.Expr:
    """What the first iteration gets: one element with more axes, zeros for what it never reads."""
    dtype = str(ty.dtype)
    if value.ty.ndim == ty.ndim and str(value.ty.dtype) == dtype:
        return value
    if str(value.ty.dtype) == dtype and is_one_element(ty):
        return bb.emit(relax.op.reshape(value, [1] * ty.ndim))
    sizes = [
        0 if unknown_symbols(relax.ShapeType([size]), known) else size for size in ty.shape.values
    ]
    return bb.emit(relax.op.zeros(relax.ShapeExpr(sizes), dtype))


def _first_condition(
    bb: relax.BlockBuilder, limit: relax.Expr | None, condition: relax.Expr | None
) -> relax.Expr:
    """Whether there is a first iteration."""
    trips = integer(limit)
    given = True if condition is None else truth(condition)
    if given is False or (trips is not None and trips <= 0):
        return relax.const(False, "bool")
    asked = [] if given or condition is None else [condition]
    if limit is not None and trips is None:
        asked.append(bb.emit(relax.op.less(relax.const(0, "int64"), limit)))
    if not asked:
        return relax.const(True, "bool")
    return asked[0] if len(asked) == 1 else bb.emit(relax.op.logical_and(*asked))
