"""If as a function for each branch and one that chooses between them.

TVM's importer writes the branches into ``main``, which then is no dataflow any more: no pass fuses
operators inside or outside of them. With functions, passes work on branches as on everything else.
"""

from collections.abc import Mapping
from typing import Any

import onnx
import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.errors import FormError
from tvm_ext.failed_branch import FAILED_BRANCH
from tvm_ext.onnx_frontend.control_flow.body_converter import BodyConverter
from tvm_ext.onnx_frontend.control_flow.choice_regions import MOVED, UnequalRanks
from tvm_ext.onnx_frontend.control_flow.functions import branches, function, function_name
from tvm_ext.onnx_frontend.control_flow.parameters import Captured, Signature, capture
from tvm_ext.onnx_frontend.control_flow.symbolic_types import definite, renewed
from tvm_ext.onnx_frontend.control_flow.values import as_tensor, fields, is_value, scalar, truth
from tvm_ext.onnx_frontend.node_failure import NodeFailed


def convert_if(importer: BodyConverter, name: str, inputs: Any, attrs: dict) -> Any:
    """The outputs of the If.

    A constant condition leaves one branch, in place. An output of which the branches differ in a
    size has an unknown size along that axis; one that no node reads may have an unknown rank. A
    branch that ONNX's rules forbid for the shapes that the model gets becomes an error of the run
    that chooses it, as in ONNX Runtime: models that choose by the sampling rate hold a branch for
    each, and the sizes fit one of them. So does one in which a node that moved there from behind
    the If cannot be converted.

    Raises
    ------
    UnequalRanks
        The branches differ in the rank of an output that a node reads.
    FormError
        The branches differ in the type of an output, or one is a sequence.
    """
    graphs = (attrs["then_branch"], attrs["else_branch"])
    constant = truth(inputs[0])
    if constant is not None:
        chosen = graphs[0] if constant else graphs[1]
        return importer.convert_body(chosen, dict(importer._nodes))
    bb = importer.bb
    captured = capture(bb, graphs, importer._nodes)
    fixed = tuple(captured.symbols())
    signature = Signature(fixed, tuple(value.ty for value in captured.arguments()))
    made = _both(importer, name, inputs[0], attrs, captured, signature)
    read = attrs["tvm_custom"]["read"]
    types = [_joined(a, b, asked) for a, b, asked in zip(made[0][1], made[1][1], read, strict=True)]
    condition = scalar(bb, as_tensor(bb, inputs[0]))
    chooser = _chooser(
        bb, function_name(name, "if"), signature, condition.ty, [gv for gv, _ in made]
    )
    here = {var: var for var in fixed}
    call = relax.Call(chooser, [condition, *signature.arguments(captured.arguments(), here)])
    return relax.Tuple(
        fields(bb, bb.emit(call), [None if ty.ndim < 0 else renewed(ty, here) for ty in types])
    )


_Made = tuple[tvm.ir.GlobalVar, list[relax.TensorType]]


def _both(
    importer: BodyConverter,
    name: str,
    condition: relax.Expr,
    attrs: dict,
    captured: Captured,
    signature: Signature,
) -> list[_Made]:
    """The functions of the branches, one of which may be an error; if both are, so is the If."""
    made: list[_Made | NodeFailed] = []
    for side, chosen in (("then", True), ("else", False)):
        try:
            known = dict.fromkeys(captured.names_of(condition), relax.const(chosen, "bool"))
            graph, function_of = attrs[f"{side}_branch"], function_name(name, side)
            made.append(_branch(importer, function_of, graph, captured, known, signature))
        except NodeFailed as failed:
            moved = any(failed.is_of(other.decode()) for other in attrs.get(MOVED, ()))
            fails_in_the_run = failed.impossible or moved
            if not fails_in_the_run or any(isinstance(other, NodeFailed) for other in made):
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
        f"If node '{name}' chose its {side} branch, where {failed.where} cannot be run with the "
        f"shapes that the model was compiled for: {failed.words}; expected the other branch: give "
        "other inputs, or compile for other shapes"
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
        given = relax.TupleType(
            [ty if ty.ndim < 0 else definite(renewed(ty, known), known.values()) for ty in types]
        )
        call = relax.op.call_pure_packed(FAILED_BRANCH, tvm.ir.StringImm(reason), ty_args=given)
        value = bb.emit(call)
        fields_of = [bb.emit(relax.TupleGetItem(value, i)) for i in range(len(types))]
        return relax.Tuple([_as_result(bb, field) for field in fields_of])

    return bb.add_func(function(bb, parameters, build), name), types


def _branch(
    importer: BodyConverter,
    name: str,
    graph: onnx.GraphProto,
    captured: Captured,
    known: Mapping[str, relax.Expr],
    signature: Signature,
) -> _Made:
    """The function of a branch, and the types of its outputs in the symbols of the signature.

    ``known`` are captured values that are constants here: the condition.
    """
    bb = importer.bb
    parameters, values, symbols = signature.parameters()

    def build() -> relax.Expr:
        outputs = importer.convert_body(graph, {**captured.inside(values, symbols), **known})
        return relax.Tuple([_as_result(bb, value) for value in outputs])

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


def _as_result(bb: relax.BlockBuilder, value: Any) -> relax.Expr:
    """As a tensor; one whose rank only the run knows stays as it is."""
    is_open = isinstance(value, relax.Var) and is_value(value) and _rank(value.ty) == -1
    return value if is_open else as_tensor(bb, value)


def _rank(ty: relax.Type) -> int | None:
    return int(ty.ndim) if isinstance(ty, relax.TensorType) else None


def _joined(first: relax.TensorType, second: relax.TensorType, read: bool) -> relax.TensorType:
    """A type of which both are; an axis on which they differ gets a symbol of its own."""
    dtype, other = str(first.dtype), str(second.dtype)
    if dtype != other:
        raise FormError(
            f"one branch gives a value of type {dtype} and the other of type {other}; a compiled "
            "model needs them alike"
        )
    if first.ndim != second.ndim or first.ndim < 0:
        if read:
            ranks = [str(ty.ndim) if ty.ndim >= 0 else "unknown" for ty in (first, second)]
            raise UnequalRanks(
                f"one branch gives a value of rank {ranks[0]} and the other of rank {ranks[1]}; a "
                "compiled model needs them alike where they are read"
            )
        return relax.TensorType(dtype=dtype, ndim=-1)
    sizes = [
        a if tvm_ffi.structural_equal(a, b) else tirx.Var(f"d{axis}", "int64")
        for axis, (a, b) in enumerate(zip(_sizes(first), _sizes(second), strict=True))
    ]
    return relax.TensorType(sizes, dtype)


def _sizes(ty: relax.TensorType) -> list[Any]:
    if isinstance(ty.shape, relax.ShapeExpr):
        return list(ty.shape.values)
    return [tirx.Var(f"d{axis}", "int64") for axis in range(ty.ndim)]
