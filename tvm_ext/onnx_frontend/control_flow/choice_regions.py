"""If together with the nodes behind it that must know which branch was chosen.

Where the branches give values of different rank (``x.squeeze(0)`` of a size that the run knows), a
node that reads such a value can be converted for one rank at a time only. These nodes move into
both branches, up to where all that is read behind them has one rank again:

    Before: ``y = If(c) {Squeeze(x)} {x}``, ``z = Exp(y)``, ``w = ReduceSum(z)``
    After:  ``w = If(c) {ReduceSum(Exp(Squeeze(x)))} {ReduceSum(Exp(x))}``
"""

from collections.abc import Iterable, Sequence
from typing import Any

import onnx
from onnx import helper
from tvm import relax

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.control_flow.body_converter import BodyConverter
from tvm_ext.onnx_frontend.control_flow.functions import function
from tvm_ext.onnx_frontend.control_flow.parameters import Signature, capture
from tvm_ext.onnx_frontend.node_failure import NodeFailed
from tvm_ext.onnx_frontend.scopes import names_read
from tvm_ext.onnx_frontend.sizes import SizeValues

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
    return {name: _rank(value) for name, value in nodes.items() if name not in around}


def _rank(value: Any) -> int | None:
    if isinstance(value, SizeValues):
        return value.elements.ndim
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
    readers = [
        place for place, node in enumerate(dependent) if not unequal.isdisjoint(names_read(node))
    ]
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
