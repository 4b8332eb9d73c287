"""If as a function for each branch and one that chooses between them.

TVM's importer writes the branches into ``main``, which then is no dataflow any more: no pass fuses
operators inside or outside of them. With functions, passes work on branches as on everything else.
"""

from typing import Any

import onnx
import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.errors import reason_of
from tvm_ext.failed_branch import FAILED_BRANCH
from tvm_ext.onnx_frontend.control_flow.body_converter import BodyConverter
from tvm_ext.onnx_frontend.control_flow.functions import branches, function, function_name
from tvm_ext.onnx_frontend.control_flow.parameters import Captured, Signature, capture
from tvm_ext.onnx_frontend.control_flow.symbolic_types import definite, renewed
from tvm_ext.onnx_frontend.control_flow.values import as_tensor, fields, scalar, truth
from tvm_ext.onnx_frontend.node_failure import NodeFailed


def convert_if(importer: BodyConverter, name: str, inputs: Any, attrs: dict) -> relax.Tuple:
    """The outputs of the If.

    A constant condition leaves one branch, in place. An output of which the branches differ in a
    size has an unknown size along that axis. A branch that ONNX's rules forbid for the shapes that
    the model gets becomes an error of the run that chooses it, as in ONNX Runtime: models that
    choose by the sampling rate hold a branch for each, and the sizes fit one of them. So does a
    branch that passes on what the other one squeezes, where only the run can tell the condition.

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
    bb = importer.bb
    captured = capture(bb, graphs, importer._nodes)
    fixed = tuple(captured.symbols())
    signature = Signature(fixed, tuple(value.ty for value in captured.arguments()))
    made = _both(importer, name, graphs, captured, signature)
    squeezing = _squeezing_branch(graphs)
    if squeezing is not None:
        made = _only_squeezed(bb, name, made, squeezing, signature)
    types = [_joined(a, b) for a, b in zip(made[0][1], made[1][1], strict=True)]
    condition = scalar(bb, as_tensor(bb, inputs[0]))
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
        _failure(
            importer.bb, function_name(name, side), _impossible(name, side, found), types, signature
        )
        if isinstance(found, NodeFailed)
        else found
        for side, found in zip(("then", "else"), made, strict=True)
    ]


def _impossible(name: str, side: str, failed: NodeFailed) -> str:
    """What the run says when it chooses a branch that ONNX's rules forbid."""
    return (
        f"If node '{name}' chose its {side} branch, where {failed.place} cannot be run with the "
        f"shapes that the model was compiled for ({reason_of(failed.reason)})"
    )


def _failure(
    bb: relax.BlockBuilder,
    name: str,
    reason: str,
    types: list[relax.TensorType],
    signature: Signature,
) -> _Made:
    """A function that raises with this reason, of the other branch's ``types``."""
    parameters, _, symbols = signature.parameters()
    known = {var: symbols[var] for var in signature.fixed}

    def build() -> relax.Expr:
        given = relax.TupleType([definite(renewed(ty, known), known.values()) for ty in types])
        call = relax.op.call_pure_packed(FAILED_BRANCH, tvm.ir.StringImm(reason), ty_args=given)
        value = bb.emit(call)
        fields_of = [bb.emit(relax.TupleGetItem(value, i)) for i in range(len(types))]
        return relax.Tuple([as_tensor(bb, field) for field in fields_of])

    return bb.add_func(function(bb, parameters, build), name), types


def _squeezing_branch(graphs: tuple[onnx.GraphProto, ...]) -> int | None:
    """Which branch squeezes the value that the other one passes on; None when it is not so.

    Exporters write ``x.squeeze(axis)`` like that for a size that they do not know. The ranks
    differ, and what follows needs one: that of the squeezed value, for which the If was written.
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


def _only_squeezed(
    bb: relax.BlockBuilder, name: str, made: list[_Made], place: int, signature: Signature
) -> list[_Made]:
    """The branches with an error for the one that passes the value on, if the ranks differ."""
    (_, types), (_, others) = made[place], made[1 - place]
    if types[0].ndim == others[0].ndim:
        return made
    chosen, side = ("else", "then") if place == 0 else ("then", "else")
    reason = (
        f"If node '{name}' chose its {chosen} branch, which gives a value of rank "
        f"{others[0].ndim}; the model is compiled for the {side} branch, which squeezes it to rank "
        f"{types[0].ndim}: give input shapes that decide the condition, or export without this If"
    )
    failure = _failure(bb, function_name(name, chosen), reason, types, signature)
    return [made[0], failure] if place == 0 else [failure, made[1]]


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
