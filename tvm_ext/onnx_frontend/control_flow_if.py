"""If as a function for each branch and one that chooses between them.

TVM's importer writes the branches into ``main``, which then is no dataflow any more: no pass fuses
operators inside or outside of them. With functions, passes work on branches as on everything else.
"""

from typing import Any, Protocol

import onnx
import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.errors import reason_of
from tvm_ext.failed_branch import FAILED_BRANCH
from tvm_ext.onnx_frontend.control_flow_functions import (
    Captured,
    Signature,
    as_tensor,
    branches,
    capture,
    definite,
    fields,
    function,
    function_name,
    renewed,
    truth,
)
from tvm_ext.onnx_frontend.converters.agreement import checked_copy
from tvm_ext.onnx_frontend.node_failure import NodeFailed


class BodyConverter(Protocol):
    """The importer, as far as control flow needs it."""

    bb: relax.BlockBuilder
    _nodes: dict[str, Any]

    def convert_body(self, graph: onnx.GraphProto, nodes: dict[str, Any]) -> list[Any]:
        """The outputs of a body whose surroundings are ``nodes``, emitted where ``bb`` is."""


def convert_if(importer: BodyConverter, name: str, inputs: Any, attrs: dict) -> relax.Tuple:
    """The outputs of the If.

    A constant condition leaves one branch, in place. An output of which the branches differ in a
    size has an unknown size along that axis. A branch that ONNX's rules forbid for the shapes that
    the model gets becomes an error of the run that chooses it, as in ONNX Runtime: models that
    choose by the sampling rate hold a branch for each, and the sizes fit one of them.

    Raises
    ------
    ValueError
        The branches differ in the type or the rank of an output, or one is a sequence.
    """
    graphs = (attrs["then_branch"], attrs["else_branch"])
    constant = truth(inputs[0])
    if constant is not None:
        chosen = graphs[0] if constant else graphs[1]
        return relax.Tuple(importer.convert_body(chosen, importer._nodes))
    squeezing = _squeezing_branch(graphs)
    if squeezing is not None:
        return _squeezed(importer, inputs[0], graphs, squeezing)
    bb = importer.bb
    captured = capture(bb, graphs, importer._nodes)
    fixed = tuple(captured.symbols())
    signature = Signature(fixed, tuple(value.ty for value in captured.arguments()))
    made = _both(importer, name, graphs, captured, signature)
    types = [_joined(a, b) for a, b in zip(made[0][1], made[1][1], strict=True)]
    condition = as_tensor(bb, inputs[0])
    chooser = _chooser(
        bb, function_name(name, "if"), signature, condition.ty, [gv for gv, _ in made]
    )
    here = {var: var for var in fixed}
    call = relax.Call(chooser, [condition, *signature.arguments(captured.arguments(), here)])
    return relax.Tuple(fields(bb, bb.emit(call), [renewed(ty, here) for ty in types]))


_Made = tuple[tvm.ir.GlobalVar, list[relax.TensorType]]


def _both(
    importer: BodyConverter,
    name: str,
    graphs: tuple[onnx.GraphProto, onnx.GraphProto],
    captured: Captured,
    signature: Signature,
) -> list[_Made]:
    """The functions of the branches, one of which may be an error; if both are, so is the If."""
    made: list[_Made | NodeFailed] = []
    for side, graph in zip(("then", "else"), graphs, strict=True):
        try:
            function_of = function_name(name, side)
            made.append(_branch(importer, function_of, graph, captured, signature))
        except NodeFailed as failed:
            if not failed.impossible or any(isinstance(other, NodeFailed) for other in made):
                raise
            made.append(failed)
    types = next(other[1] for other in made if not isinstance(other, NodeFailed))
    return [
        _failure(importer.bb, name, side, found, types, signature)
        if isinstance(found, NodeFailed)
        else found
        for side, found in zip(("then", "else"), made, strict=True)
    ]


def _failure(
    bb: relax.BlockBuilder,
    name: str,
    side: str,
    failed: NodeFailed,
    types: list[relax.TensorType],
    signature: Signature,
) -> _Made:
    """A function that raises, of the other branch's ``types``."""
    parameters, _, symbols = signature.parameters()
    known = {var: symbols[var] for var in signature.fixed}
    reason = (
        f"If node '{name}' chose its {side} branch, where {failed.place} cannot be run with the "
        f"shapes that the model was compiled for ({reason_of(failed.reason)})"
    )

    def build() -> relax.Expr:
        given = relax.TupleType([definite(renewed(ty, known), known.values()) for ty in types])
        call = relax.op.call_pure_packed(FAILED_BRANCH, tvm.ir.StringImm(reason), ty_args=given)
        value = bb.emit(call)
        fields_of = [bb.emit(relax.TupleGetItem(value, i)) for i in range(len(types))]
        return relax.Tuple([as_tensor(bb, field) for field in fields_of])

    return bb.add_func(function(bb, parameters, build), function_name(name, side)), types


def _squeezing_branch(graphs: tuple[onnx.GraphProto, ...]) -> int | None:
    """Which branch squeezes the value that the other one passes on; None when it is not so.

    Exporters write ``x.squeeze(axis)`` like that. The ranks differ, and what follows needs one.
    """
    for place, (graph, other) in enumerate((graphs, graphs[::-1])):
        if [node.op_type for node in graph.node] != ["Squeeze"]:
            continue
        passed = {
            node.output[0]: node.input[0] for node in other.node if node.op_type == "Identity"
        }
        name = other.output[0].name
        if len(passed) == len(other.node) and passed.get(name, name) == graph.node[0].input[0]:
            return place
    return None


def _squeezed(
    importer: BodyConverter, condition: Any, graphs: tuple[onnx.GraphProto, ...], place: int
) -> relax.Tuple:
    """The squeezing branch, in place; the run checks that the condition chooses it."""
    bb, graph = importer.bb, graphs[place]
    name = graph.node[0].input[0]
    data = as_tensor(bb, importer._nodes[name])
    flag = bb.emit(relax.op.astype(as_tensor(bb, condition), "int64"))
    flag = bb.emit(relax.op.reshape(flag, (1,)))
    if place:
        flag = bb.emit(relax.op.subtract(relax.const(1, "int64"), flag))
    squeezed = checked_copy(bb, data, list(data.ty.shape.values), flag)
    return relax.Tuple(importer.convert_body(graph, {**importer._nodes, name: squeezed}))


def _branch(
    importer: BodyConverter,
    name: str,
    graph: onnx.GraphProto,
    captured: Captured,
    signature: Signature,
) -> _Made:
    """The function of a branch, and the types of its outputs in the symbols of the signature."""
    bb = importer.bb
    parameters, values, symbols = signature.parameters()

    def build() -> relax.Expr:
        outputs = importer.convert_body(graph, captured.inside(values, symbols))
        return relax.Tuple([as_tensor(bb, value) for value in outputs])

    func = function(bb, parameters, build)
    types = [signature.outside(field, symbols) for field in func.body.body.ty.fields]
    return bb.add_func(func, name), types


def _chooser(
    bb: relax.BlockBuilder,
    name: str,
    signature: Signature,
    condition: relax.Type,
    made: list[tvm.ir.GlobalVar],
) -> tvm.ir.GlobalVar:
    parameters, values, symbols = signature.parameters()
    flag = relax.Var("condition", condition)
    arguments = signature.arguments(values, symbols)

    def build() -> relax.Expr:
        chosen, otherwise = ((lambda gv=gv: relax.Call(gv, arguments)) for gv in made)
        return branches(bb, [flag, *parameters], flag, chosen, otherwise)

    return bb.add_func(function(bb, [flag, *parameters], build, straight=False), name)


def _joined(first: relax.TensorType, second: relax.TensorType) -> relax.TensorType:
    """A type of which both are; an axis on which they differ gets a symbol of its own."""
    for what, a, b in (
        ("type", str(first.dtype), str(second.dtype)),
        ("rank", first.ndim, second.ndim),
    ):
        if a != b:
            raise ValueError(
                f"one branch gives a value of {what} {a} and the other of {what} {b}; a compiled "
                "model needs them alike"
            )
    sizes = [
        a if tvm_ffi.structural_equal(a, b) else tirx.Var(f"d{axis}", "int64")
        for axis, (a, b) in enumerate(zip(_sizes(first), _sizes(second), strict=True))
    ]
    return relax.TensorType(sizes, str(first.dtype))


def _sizes(ty: relax.TensorType) -> list[Any]:
    if isinstance(ty.shape, relax.ShapeExpr):
        return list(ty.shape.values)
    return [tirx.Var(f"d{axis}", "int64") for axis in range(ty.ndim)]
