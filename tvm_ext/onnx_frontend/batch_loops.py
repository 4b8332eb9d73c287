"""Loops whose iterations do not depend on each other, computed at once along a new first axis.

Exporters write pairwise distances so, as a Scan over the rows of one matrix: one iteration is
a few kernels of a microsecond each, and a thousand rows are a thousand of them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from tvm_ext.onnx_frontend.ir_edits import Inserter, constant_of, opset_of, replace_outputs
from tvm_ext.onnx_frontend.loop_rewrites import goes_on, unsqueezed

# One element from one of each operand, which are broadcast.
_ELEMENTWISE = frozenset(
    {
        *("Abs", "Add", "And", "Cast", "Ceil", "Cos", "Div", "Equal", "Erf", "Exp", "Floor"),
        *("Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Log", "Max", "Min"),
        *("Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign"),
        *("Sin", "Sqrt", "Sub", "Sum", "Tanh", "Where", "Xor"),
    }
)

_REDUCTIONS = frozenset(
    {
        *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
        *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
    }
)


class _Batched(NamedTuple):
    """A value of the body for all iterations: ``rank`` axes after that of the iterations."""

    value: ir.Value
    rank: int


class _NotBatched(Exception):
    """An iteration computes what is not known to be computed for all of them at once."""


def batch_loops(model: ir.Model) -> bool:
    """Replaces every such Loop in place; whether there was one.

    Before: ``ys = Loop(rows of x)``, whose body gives ``ReduceSumSquare(Sub(x[i], y))``
    After:  ``ys = ReduceSumSquare(Sub(Unsqueeze(x), y))``

    Nothing is carried from one iteration to the next, nothing ends the loop early, and the body has
    elementwise operators and reductions, each of whose results one node reads: then they become one
    kernel, in which no result for all iterations is stored.
    """
    found = [n for n in model.graph.all_nodes() if n.op_type == "Loop" and n.domain == ""]
    return any([_is_batched(node, opset_of(model)) for node in found])


def _is_batched(node: ir.Node, opset: int) -> bool:
    body = node.attributes["body"].as_graph()
    trips = node.inputs[0] if node.inputs else None
    if trips is None or len(body.inputs) != 2 or not goes_on(node, body):
        return False
    batching = _Batching(node, body, trips, opset)
    try:
        steps = [batching.step(inner) for inner in body if inner is not _condition(body)]
    except _NotBatched:
        return False
    results = body.outputs[1:]
    if not all(value in batching.mapped for value in results):
        return False
    outputs = batching.write(steps)
    for made, old in zip(outputs, node.outputs, strict=True):
        made.type, made.shape = old.type, old.shape
    replace_outputs(node, outputs)
    return True


def _condition(body: ir.Graph) -> ir.Node | None:
    """What passes the condition on."""
    return body.outputs[0].producer()


class _Batching:
    """First asks of each node whether it can be computed at once, and then writes it.

    Attributes
    ----------
    mapped : dict[Value, int]
        Values of the body that differ between iterations, with their ranks in one iteration.
    built : dict[Value, _Batched]
        The same for all iterations, as far as they are written.
    """

    def __init__(self, node: ir.Node, body: ir.Graph, trips: ir.Value, opset: int) -> None:
        self.inserter = Inserter(node, f"{node.name}/batched")
        self.body = body
        self.trips = trips
        self.opset = opset
        self.number = body.inputs[0]
        self.mapped: dict[ir.Value, int] = {}
        self.built: dict[ir.Value, _Batched] = {}
        if self.number.shape is not None and len(self.number.shape) == 0:
            self.mapped[self.number] = 0

    def write(self, steps: Sequence[Callable[[], None]]) -> list[ir.Value]:
        """All nodes for all iterations, and the values of the body's outputs."""
        results = self.body.outputs[1:]
        if any(self.number in node.inputs for node in self.body) or self.number in results:
            self.built[self.number] = _Batched(self._numbers(), 0)
        for step in steps:
            step()
        # Outputs of a graph must not be its inputs or each other.
        return [self.inserter.node("Identity", [self.built[value].value]) for value in results]

    def _numbers(self) -> ir.Value:
        """Those of the iterations."""
        zero, one = (self.inserter.constant(np.array(n, np.int64)) for n in (0, 1))
        count = self.inserter.node("Reshape", [self.trips, self.inserter.constant(_NO_AXES)])
        return self.inserter.node("Range", [zero, count, one])

    def step(self, node: ir.Node) -> Callable[[], None]:
        """What writes the node for all iterations; raises _NotBatched."""
        if node.domain != "" or len(node.outputs) != 1 or None in node.inputs:
            raise _NotBatched
        if not any(value in self.mapped for value in node.inputs):
            raise _NotBatched
        (output,) = node.outputs
        if not output.is_graph_output() and len({user for user, _ in output.uses()}) != 1:
            raise _NotBatched
        if node.op_type == "Gather":
            return self._element(node)
        if node.op_type in _ELEMENTWISE:
            return self._elementwise(node)
        if node.op_type in _REDUCTIONS:
            return self._reduction(node)
        raise _NotBatched

    def _element(self, node: ir.Node) -> Callable[[], None]:
        """The element of a value from outside that has the iteration's number."""
        value, index = node.inputs
        rank = _rank(value)
        if value in self.mapped or index is not self.number or not rank:
            raise _NotBatched
        axis = node.attributes["axis"].as_int() % rank if "axis" in node.attributes else 0
        self.mapped[node.outputs[0]] = rank - 1

        def write() -> None:
            whole = self._elements(value, axis)
            if axis:
                order = [axis, *(other for other in range(rank) if other != axis)]
                whole = self.inserter.node("Transpose", [whole], perm=order)
            self.built[node.outputs[0]] = _Batched(whole, rank - 1)

        return write

    def _elements(self, value: ir.Value, axis: int) -> ir.Value:
        """All of ``value`` where there are as many iterations, else its first elements."""
        if _is_size(self.trips, value, axis):
            return value
        return self.inserter.node("Gather", [value, self.built[self.number].value], axis=axis)

    def _elementwise(self, node: ir.Node) -> Callable[[], None]:
        ranks = [self._rank_inside(value) for value in node.inputs]
        rank = max(ranks)
        self.mapped[node.outputs[0]] = rank

        def write() -> None:
            operands = [self._operand(value, rank) for value in node.inputs]
            self._copy(node, operands, rank)

        return write

    def _rank_inside(self, value: ir.Value | None) -> int:
        """The rank of a value in one iteration."""
        found = _rank(value) if value is None else self.mapped.get(value, _rank(value))
        if found is None:
            raise _NotBatched
        return found

    def _operand(self, value: ir.Value, rank: int) -> ir.Value:
        """A value with axes for those that broadcasting adds in an iteration."""
        if value not in self.mapped:
            return value
        found = self.built[value]
        whole = found.value
        for _ in range(rank - found.rank):
            whole = unsqueezed(self.inserter, whole, 1, self.opset)
        return whole

    def _reduction(self, node: ir.Node) -> Callable[[], None]:
        value, *others = node.inputs
        rank = self.mapped.get(value)
        axes = _axes(node)
        if not rank or axes is None:
            raise _NotBatched
        reduced = {axis % rank for axis in axes or range(rank)}
        kept = node.attributes["keepdims"].as_int() if "keepdims" in node.attributes else 1
        result = rank if kept else rank - len(reduced)
        self.mapped[node.outputs[0]] = result

        def write() -> None:
            places = [axis + 1 for axis in sorted(reduced)]
            attributes = {"keepdims": kept}
            operands = [self.built[value].value]
            if others or self._takes_axes(node):
                operands.append(self.inserter.constant(np.array(places, np.int64)))
                made = self.inserter.node(node.op_type, operands, **attributes)
            else:
                made = self.inserter.node(node.op_type, operands, axes=places, **attributes)
            made.type = node.outputs[0].type
            self.built[node.outputs[0]] = _Batched(made, result)

        return write

    def _takes_axes(self, node: ir.Node) -> bool:
        """Whether the axes are an input in this opset."""
        return self.opset >= (13 if node.op_type == "ReduceSum" else 18)

    def _copy(self, node: ir.Node, operands: Sequence[ir.Value], rank: int) -> None:
        made = self.inserter.node(node.op_type, operands)
        made.type = node.outputs[0].type
        producer = made.producer()
        if producer is not None:
            producer.attributes.update(node.attributes)
        self.built[node.outputs[0]] = _Batched(made, rank)


_NO_AXES = np.zeros(0, np.int64)


def _rank(value: ir.Value | None) -> int | None:
    known = constant_of(value)
    if known is not None:
        return known.ndim
    return None if value is None or value.shape is None else len(value.shape)


def _axes(node: ir.Node) -> list[int] | None:
    """The axes of a reduction, none for all; None where they are not known, or nothing is done."""
    noop = node.attributes.get("noop_with_empty_axes")
    if noop is not None and noop.as_int():
        return None
    if "axes" in node.attributes:
        return [int(axis) for axis in node.attributes["axes"].as_ints()]
    if len(node.inputs) < 2:
        return []
    known = constant_of(node.inputs[1])
    return None if known is None else [int(axis) for axis in known.reshape(-1)]


def _is_size(trips: ir.Value, value: ir.Value, axis: int) -> bool:
    """Whether ``trips`` is ``Shape(value)[axis]``."""
    taken = trips.producer()
    if taken is None or taken.op_type != "Gather":
        return False
    shape, place = taken.inputs[0].producer(), constant_of(taken.inputs[1])
    is_shape = shape is not None and shape.op_type == "Shape" and not shape.attributes
    return bool(is_shape and shape.inputs[0] is value and place is not None and int(place) == axis)
