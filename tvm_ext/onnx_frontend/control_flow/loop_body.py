"""The body of a Loop as the function of one iteration."""

import onnx
import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.control_flow.body_converter import BodyConverter
from tvm_ext.onnx_frontend.control_flow.functions import function, function_name
from tvm_ext.onnx_frontend.control_flow.loop_calls import Loop
from tvm_ext.onnx_frontend.control_flow.parameters import Captured, Signature, capture
from tvm_ext.onnx_frontend.control_flow.symbolic_types import (
    is_one_element,
    renewed,
    unknown_symbols,
)
from tvm_ext.onnx_frontend.control_flow.values import as_tensor, integer, scalar, truth
from tvm_ext.onnx_frontend.converters.random import ITERATIONS
from tvm_ext.onnx_frontend.iterations import draws_inside
from tvm_ext.onnx_frontend.scopes import names_read

_SCALAR = relax.TensorType((), "int64")


def typed_loop(
    importer: BodyConverter,
    name: str,
    body: onnx.GraphProto,
    limit: relax.Expr | None,
    carried: list[relax.Expr],
    begins: bool,
) -> Loop:
    """Converts the body until the types of the loop-carried values hold after an iteration.

    Only iterations of a loop that surely ``begins`` can be counted beforehand.
    """
    bb = importer.bb
    captured = capture(bb, [body], importer._nodes)
    around = captured.arguments()
    if limit is not None and integer(limit) is None:
        around = [limit, *around]
    types = [value.ty for value in carried]
    fixed = list(captured.symbols())
    # What a loop leaves in a variable that it does not read may begin as anything.
    unread = set(_carried(body)) - _read(body) if begins else set()
    for ty in types:
        fixed += unknown_symbols(ty, fixed)
    while True:
        signature = Signature(tuple(fixed), (_SCALAR, *types, *(value.ty for value in around)))
        func, results, always = _iteration(
            importer, body, captured, signature, limit, len(types), begins
        )
        after = results[1 : 1 + len(types)]
        widened = [
            renewed(b, {v: v for v in fixed})
            if name in unread and not _alike(a, b)
            else _widened(name, fixed, a, b)
            for name, a, b in zip(_carried(body), types, after, strict=True)
        ]
        if all(a is b for a, b in zip(types, widened, strict=True)):
            break
        types = widened
    return Loop(
        bb=bb,
        name=name,
        signature=signature,
        around=around,
        state=1 + len(types),
        elements=results[1 + len(types) :],
        counted=always and integer(limit) is not None,
        body=bb.add_func(func, function_name(name, "iteration")),
    )


def _iteration(
    importer: BodyConverter,
    body: onnx.GraphProto,
    captured: Captured,
    signature: Signature,
    limit: relax.Expr | None,
    carried: int,
    begins: bool,
) -> tuple[relax.Function, list[relax.TensorType], bool]:
    """The function of an iteration, types of its state and elements, and if it asks for nothing."""
    bb = importer.bb
    parameters, values, symbols = signature.parameters()
    always = False

    def build() -> relax.Expr:
        nonlocal always
        number, state = values[0], values[1 : 1 + carried]
        around, stop = values[1 + carried :], limit
        if limit is not None and integer(limit) is None:
            stop, around = around[0], around[1:]
        nodes = captured.inside(around, symbols) | _arguments(bb, body, number, state)
        if draws_inside(body):
            nodes[ITERATIONS] = _iterations(bb, nodes.get(ITERATIONS), number)
        condition, *outputs = importer.convert_body(body, nodes)
        always = begins and truth(condition) is True
        outputs = [as_tensor(bb, value) for value in outputs]
        stacked = [bb.emit(relax.op.expand_dims(value, 0)) for value in outputs[carried:]]
        following = bb.emit(relax.op.add(number, relax.const(1, "int64")))
        more = [] if always else [scalar(bb, as_tensor(bb, condition))]
        if stop is not None and not (always and integer(limit) is not None):
            inside = bb.emit(relax.op.less(following, stop))
            more = [bb.emit(relax.op.logical_and(inside, more[0])) if more else inside]
        elif not more and limit is None:
            more = [relax.const(True, "bool")]
        return relax.Tuple([*more, following, *outputs[:carried], *stacked])

    func = function(bb, parameters, build)
    results = list(func.body.body.ty.fields)[-1 - len(body.output) + 1 :]
    return func, [signature.outside(ty, symbols) for ty in results], always


def _arguments(
    bb: relax.BlockBuilder, body: onnx.GraphProto, number: relax.Expr, state: list[relax.Expr]
) -> dict[str, relax.Expr]:
    """The inputs of the body, by name."""
    numbered, going, *carried = body.input
    return {
        numbered.name: _as_declared(bb, number, numbered),
        going.name: _as_declared(bb, relax.const(True, "bool"), going),
        **dict(zip([value.name for value in carried], state, strict=True)),
    }


def _iterations(
    bb: relax.BlockBuilder, around: relax.Expr | None, number: relax.Expr
) -> relax.Expr:
    """The iteration numbers of the loops around the body and of this one: int64[n]."""
    listed = bb.emit(relax.op.reshape(number, (1,)))
    return listed if around is None else bb.emit(relax.op.concat([around, listed], axis=0))


def _widened(
    name: str, fixed: list[tirx.Var], before: relax.TensorType, after: relax.TensorType
) -> relax.TensorType:
    """``before``, or a type that covers both, with a symbol for each size that changes.

    A single element may get axes in an iteration: it has them from the beginning then.
    """
    grows = str(before.dtype) == str(after.dtype) and before.ndim < after.ndim
    if grows and is_one_element(before) and is_one_element(after):
        return after
    if not _alike(before, after):
        raise FormError(
            f"loop-carried value '{name}' begins as {before.ndim}-dimensional {before.dtype} and "
            f"becomes {after.ndim}-dimensional {after.dtype}; a compiled model needs them alike"
        )
    sizes, old, new = list(before.shape.values), before.shape.values, after.shape.values
    changed = False
    for axis, (a, b) in enumerate(zip(old, new, strict=True)):
        own = isinstance(a, tirx.Var) and not any(a.same_as(var) for var in fixed)
        if not own and not tvm_ffi.structural_equal(a, b):
            sizes[axis], changed = tirx.Var(f"d{axis}", "int64"), True
    return relax.TensorType(sizes, str(before.dtype)) if changed else before


def _alike(a: relax.TensorType, b: relax.TensorType) -> bool:
    return str(a.dtype) == str(b.dtype) and a.ndim == b.ndim


def _read(body: onnx.GraphProto) -> set[str]:
    """Names that nodes of the body read, or that it gives back."""
    return {name for node in body.node for name in names_read(node)} | {
        value.name for value in body.output
    }


def _carried(body: onnx.GraphProto) -> list[str]:
    return [value.name for value in body.input][2:]


def _as_declared(
    bb: relax.BlockBuilder, given: relax.Expr, value: onnx.ValueInfoProto
) -> relax.Expr:
    """With as many axes as the body declares for its iteration number or condition."""
    axes = len(value.type.tensor_type.shape.dim)
    if not axes:
        return given
    if isinstance(given, tvm.ir.GenericConst):
        return relax.const(given.value.numpy().reshape([1] * axes))
    return bb.emit(relax.op.reshape(given, [1] * axes))
