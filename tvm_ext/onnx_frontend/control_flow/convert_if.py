"""If as a function for each branch and one that chooses between them.

TVM's importer writes the branches into ``main``, which then is no dataflow any more: no pass
fuses operators inside or outside of them. With functions, passes work on branches as on
everything else.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
import tvm
from onnx import helper
from tvm import relax, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.control_flow.functions import (
    BodyConverter,
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
    scalar,
    truth,
    with_symbols,
)
from tvm_ext.onnx_frontend.converters.shape_constraints import equal_sizes
from tvm_ext.onnx_frontend.diagnostics import NodeFailed
from tvm_ext.onnx_frontend.onnx_graph import free_names, names_read
from tvm_ext.onnx_frontend.sizes import GeneratedTensor, SizeValues
from tvm_ext.run_errors import FAILED_BRANCH

# If together with the nodes behind it that must know which branch was chosen.
#
# Where the branches give values of different rank (``x.squeeze(0)`` of a size that the run
# knows), a node that reads such a value can be converted for one rank at a time only. These nodes
# move into both branches, up to where all that is read behind them has one rank again:
#
#     Before: ``y = If(c) {Squeeze(x)} {x}``, ``z = Exp(y)``, ``w = ReduceSum(z)``
#     After:  ``w = If(c) {ReduceSum(Exp(Squeeze(x)))} {ReduceSum(Exp(x))}``


# On an If that holds such nodes: their names.
MOVED = "tvm_ext_moved_nodes"
_BRANCHES = ("then_branch", "else_branch")


class UnequalRanks(FormError):
    """The branches of an If differ in the rank of an output that other nodes read."""


def divided(
    nodes: Sequence[onnx.NodeProto], choices: Sequence[onnx.NodeProto]
) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
    """``nodes`` that are one of ``choices`` or read what these give, if only through each other.

    The second list is the rest; both stay in the order of ``nodes``, which is topological.
    """
    made = {name for choice in choices for name in choice.output}
    dependent, others = [], []
    for node in nodes:
        if node in choices or not made.isdisjoint(names_read(node)):
            dependent.append(node)
            made.update(node.output)
        else:
            others.append(node)
    return dependent, others


def with_readers(
    importer: BodyConverter,
    node: onnx.NodeProto,
    dependent: Sequence[onnx.NodeProto],
    results: Iterable[str],
) -> list[onnx.NodeProto]:
    """The If with those of ``dependent`` in it that need to be there, and the rest of them.

    ``results`` are the names of the values that the graph gives. What ``dependent`` reads besides
    must have been converted. Nothing changes where no node needs to move.
    """
    made = [name for other in (node, *dependent) for name in other.output if name]
    sides = [
        _ranks(importer, _extended(node, side, dependent, made), node.output) for side in _BRANCHES
    ]
    moved = _moved(dependent, *sides)
    if not moved:
        return [node, *dependent]
    inside = [other for place, other in enumerate(dependent) if place in moved]
    rest = [other for place, other in enumerate(dependent) if place not in moved]
    read = {name for other in rest for name in names_read(other)} | set(results)
    made = [name for other in (node, *inside) for name in other.output if name in read]
    return [_if_of(node, inside, made), *rest] if made else rest


def _if_of(
    node: onnx.NodeProto, inside: Sequence[onnx.NodeProto], made: Sequence[str]
) -> onnx.NodeProto:
    """The If with these nodes at the end of each branch, and the outputs ``made``."""
    branches = {side: _extended(node, side, inside, made) for side in _BRANCHES}
    before = [name for a in node.attribute if a.name == MOVED for name in a.strings]
    names = [*before, *(other.name.encode() for other in inside)]
    found = helper.make_node("If", node.input, made, name=node.name, **branches)
    found.attribute.append(helper.make_attribute(MOVED, names))
    return found


def _extended(
    node: onnx.NodeProto, side: str, added: Sequence[onnx.NodeProto], made: Iterable[str]
) -> onnx.GraphProto:
    """A branch with more nodes, which gives ``made``; its own outputs are named like the If's."""
    (given,) = (attribute.g for attribute in node.attribute if attribute.name == side)
    branch = onnx.GraphProto(name=given.name)
    branch.initializer.extend(given.initializer)
    branch.node.extend(given.node)
    for name, value in zip(node.output, given.output, strict=False):
        if name:
            branch.node.append(helper.make_node("Identity", [value.name], [name], name=node.name))
    branch.node.extend(added)
    branch.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    return branch


def _ranks(
    importer: BodyConverter, branch: onnx.GraphProto, first: Iterable[str]
) -> dict[str, int | None]:
    """The rank of each value of a branch as far as it can be converted; None for no tensor.

    What is left out is said by the If, once it holds the node that cannot be converted; unless that
    stands ahead of the values ``first``.
    """
    bb = importer.bb
    captured = capture(bb, [branch], importer._nodes)
    types = tuple(value.ty for value in captured.arguments())
    parameters, values, symbols = Signature(tuple(captured.symbols()), types).parameters()
    nodes = captured.inside(values, symbols)
    around = set(nodes)

    def build() -> relax.Expr:
        try:
            importer.convert_body(branch, nodes)
        except NodeFailed:
            if any(name and name not in nodes for name in first):
                raise
        return relax.Tuple([])

    function(bb, parameters, build)
    return {name: _value_rank(value) for name, value in nodes.items() if name not in around}


def _value_rank(value: Any) -> int | None:
    if isinstance(value, SizeValues):
        return value.elements.ndim
    if isinstance(value, GeneratedTensor):
        return len(value.sizes)
    if not isinstance(value, relax.Expr):
        return None
    return int(value.ty.ndim) if isinstance(value.ty, relax.TensorType) else None


def _moved(
    dependent: Sequence[onnx.NodeProto], then: dict[str, int | None], other: dict[str, int | None]
) -> set[int]:
    """Places of the nodes that read a value whose rank is not one, and of those ahead of them.

    In a branch that ends in an error only the node that cannot be converted decides.
    """
    unequal = {
        name for name in then if name in other and (then[name] != other[name] or then[name] == -1)
    }
    readers = [i for i, node in enumerate(dependent) if not unequal.isdisjoint(names_read(node))]
    failing = [
        place
        for place in readers
        if any(name and (name not in then or name not in other) for name in dependent[place].output)
    ]
    producer = {name: place for place, node in enumerate(dependent) for name in node.output}
    moved: set[int] = set()
    waiting = failing[:1] or readers
    while waiting:
        place = waiting.pop()
        if place not in moved:
            moved.add(place)
            read = names_read(dependent[place])
            waiting += [producer[name] for name in read if name in producer]
    return moved


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
            same = _same_sizes(importer.sizes_of_branch(side), graph, captured)
            made.append(_branch(importer, function_of, graph, captured, known, signature, same))
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


def _same_sizes(
    same: Mapping[tirx.Var, tirx.Var], graph: onnx.GraphProto, captured: Captured
) -> dict[tirx.Var, tirx.Var]:
    """Those of ``same`` of which the branch reads both sizes, each of a tensor of its own."""
    read = {name: captured.values[name] for name in free_names(graph) if name in captured.values}
    sizes = Captured(read).symbols()

    def is_read(size: tirx.Var) -> bool:
        return any(size.same_as(other) for other in sizes)

    return {new: old for new, old in same.items() if is_read(new) and is_read(old)}


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
    same: Mapping[tirx.Var, tirx.Var],
) -> _Made:
    """The function of a branch, and the types of its outputs in the symbols of the signature.

    ``known`` are captured values that are constants here: the condition. Sizes that are keys of
    ``same`` are equal to others here.
    """
    bb = importer.bb
    parameters, values, symbols = signature.parameters(same)

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
    is_symbolic = isinstance(value, relax.Var) and _value_rank(value) == -1
    return value if is_symbolic else as_tensor(bb, value)


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
    shapes = (with_symbols(ty).shape.values for ty in (first, second))
    sizes = [
        min(a, b, key=lambda size: len(str(size))) if equal_sizes(a, b) else _size_of_the_run(axis)
        for axis, (a, b) in enumerate(zip(*shapes, strict=True))
    ]
    return relax.TensorType(sizes, dtype)


def _size_of_the_run(axis: int) -> tirx.Var:
    return tirx.Var(f"d{axis}", "int64")
