"""Finds values whose NaN and infinities lead to results that two right programs need not share.

ONNX does not say what the larger one of a number and NaN is, or which integer an infinity becomes.
TVM's simplifier takes ``x - x`` for 0, and a transposed convolution is one over its input with
gaps, where a weight of 0 times NaN is NaN. ONNX Runtime has such weights where it resizes. A result
counts if such values are finite.
"""

from collections.abc import Iterable, Sequence

import onnx
from onnx import TensorProto

from tvm_ext.onnx_frontend.onnx_graph import nodes_within

_OPEN = frozenset(
    (
        *("ArgMax", "ArgMin", "Max", "Min", "TopK", "ReduceMax", "ReduceMin"),
        *("MaxPool", "GlobalMaxPool", "ConvTranspose", "Resize"),
    )
)
_DIFFERENCES = frozenset(("Sub",))
_INTEGERS = frozenset((TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8))


def _is_open(node: onnx.NodeProto) -> bool:
    """Whether a node's result is open where an input is not finite."""
    if node.op_type in _OPEN:
        return True
    if node.op_type == "Cast":
        return any(one.name == "to" and one.i in _INTEGERS for one in node.attribute)
    if node.op_type == "Clip":
        # A limit that is left away is the largest number of the type, to which ONNX Runtime clips
        # infinities: an open side of ours is no limit.
        return sum(bool(name) for name in node.input) < 3
    return node.op_type in _DIFFERENCES


def watched_values(graph: onnx.GraphProto) -> list[tuple[str, ...]]:
    """The values that nodes of the graph with such results read, by name.

    Values stand together of which one has to be finite: of what is equal by another road TVM finds
    out as well that its difference is 0.
    """
    stored = {tensor.name for tensor in graph.initializer}
    found: set[tuple[str, ...]] = set()
    for node in filter(_is_open, graph.node):
        computed = tuple(name for name in node.input if name and name not in stored)
        if node.op_type not in _DIFFERENCES:
            found |= {(name,) for name in computed}
        elif len(computed) == len(node.input):
            found.add(computed)
    return sorted(found)


def has_open_node_in_a_body(graph: onnx.GraphProto) -> bool:
    """Whether a branch or the body of a loop has such a node, whose inputs nobody can look at."""
    # Those of the graph itself come first.
    inside = list(nodes_within(graph))[len(graph.node) :]
    return any(map(_is_open, inside))


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """The model with further values as outputs, of types that ONNX Runtime infers."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    present: Sequence[str] = [value.name for value in model.graph.output]
    inputs = {value.name for value in model.graph.input}
    found.graph.output.extend(
        onnx.ValueInfoProto(name=name)
        for name in names
        if name not in present and name not in inputs
    )
    return found
