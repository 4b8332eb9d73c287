"""Writes out the iterations of short loops, so that folding and fusion see one straight graph."""

import numpy as np
import onnx_ir as ir

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.ir_edits import Inserter, constant_of, opset_of, replace_outputs

# Nodes that unrolling may make of one loop: a few times what one block of a large model has.
NODE_LIMIT = 400
# Sequences exist only while a model is compiled, so that loops over them must be written out.
SEQUENCE_NODE_LIMIT = 4000
# The smallest body takes some microseconds: these are half a minute.
MOST_TRIPS = 1 << 22
_ENDLESS = (1 << 63) - 1


def unroll_loops(model: ir.Model) -> bool:
    """Unrolls in place every Loop of few iterations; whether there was one.

    The trip count must be constant, and the condition always true: absent or constant at first, and
    passed on or constant in the body. An outer loop is unrolled before those in its body.

    Raises
    ------
    ModelError
        Such a loop has so many iterations that it would not end.
    """
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Loop" or node.domain not in ("", "ai.onnx"):
            continue
        body = node.attributes["body"].as_graph()
        trips = _trips(node, body)
        if trips is not None and trips > MOST_TRIPS:
            raise ModelError(
                f"Loop node '{node.name}' has {trips} iterations and no condition that ends it "
                f"earlier; expected at most {MOST_TRIPS}: export it with a trip count that is meant"
            )
        size = sum(1 for _ in body.all_nodes()) + 2
        limit = SEQUENCE_NODE_LIMIT if _carries_sequences(node, body) else NODE_LIMIT
        if trips is not None and 0 < trips * size <= limit:
            _unroll(node, body, trips, opset_of(model))
            return True
    return False


def _trips(node: ir.Node, body: ir.Graph) -> int | None:
    """The trip count when nothing else ends the loop."""
    # Without loop-carried values, a condition that is left out need not even have an empty name.
    limit, first = [*node.inputs, None, None][:2]
    count = np.array(_ENDLESS) if limit is None else constant_of(limit)
    going: ir.Value | None = body.outputs[0]
    while going is not None and (producer := going.producer()) is not None:
        if producer.op_type != "Identity":
            break
        going = producer.inputs[0]
    known = constant_of(going)
    passed_on = going is body.inputs[1] or (known is not None and bool(known.all()))
    begun = np.True_ if first is None else constant_of(first)
    if count is None or begun is None or not passed_on:
        return None
    return int(count.item()) if begun.all() else 0


def _carries_sequences(node: ir.Node, body: ir.Graph) -> bool:
    values = [*node.inputs[2:], *node.outputs, *body.inputs, *body.outputs]
    kinds = (ir.SequenceType, ir.OptionalType)
    return any(value is not None and isinstance(value.type, kinds) for value in values)


def _unroll(node: ir.Node, body: ir.Graph, trips: int, opset: int) -> None:
    carried = list(node.inputs[2:])
    scans: list[list[ir.Value]] = [[] for _ in body.outputs[1 + len(carried) :]]
    for step in range(trips):
        inserter = Inserter(node, f"{node.name}/{step}")
        number = inserter.constant(_declared(np.array(step, np.int64), body.inputs[0]))
        going = inserter.constant(_declared(np.array(True), body.inputs[1]))
        _, *outputs = inserter.body(body, [number, going, *carried], step)
        carried = outputs[: len(carried)]
        for parts, value in zip(scans, outputs[len(carried) :], strict=True):
            parts.append(unsqueezed(inserter, value, 0, opset))
    inserter = Inserter(node, f"{node.name}/stacked")
    stacked = [inserter.node("Concat", parts, axis=0) for parts in scans]
    for made, output in zip(stacked, node.outputs[len(carried) :], strict=False):
        made.dtype = output.dtype
    # Outputs of a graph must not be its inputs or each other.
    copies = [inserter.node("Identity", [value]) for value in carried]
    for copy, value in zip(copies, carried, strict=True):
        copy.type = value.type
    replace_outputs(node, [*copies, *stacked])


def unsqueezed(inserter: Inserter, value: ir.Value, axis: int, opset: int) -> ir.Value:
    """The value with one axis more; it is given as an input since opset 13, before as attribute."""
    if opset < 13:
        added = inserter.node("Unsqueeze", [value], axes=[axis])
    else:
        axes = inserter.constant(np.array([axis], np.int64))
        added = inserter.node("Unsqueeze", [value, axes])
    added.dtype = value.dtype
    return added


def _declared(scalar: np.ndarray, formal: ir.Value) -> np.ndarray:
    """With as many axes as the body declares for its iteration number or condition."""
    axes = len(formal.shape) if formal.shape is not None else 0
    return scalar.reshape([1] * axes)
