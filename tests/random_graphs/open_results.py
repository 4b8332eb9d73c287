"""Finds values whose NaN and infinities lead to results that two right programs need not share.

ONNX does not say what the larger one of a number and NaN is, or which integer an infinity becomes.
TVM takes ``x - x`` for 0 and ``x / x`` for 1, and writes a transposed convolution as one over its
input with gaps, where a weight of 0 times NaN is NaN. A result counts if such values are finite.
"""

from collections.abc import Iterable, Sequence

import onnx
from onnx import TensorProto

from tvm_ext.onnx_frontend.onnx_graph import nodes_within

_OPEN = frozenset(
    (
        *("ArgMax", "ArgMin", "Max", "Min", "TopK", "ReduceMax", "ReduceMin"),
        *("MaxPool", "GlobalMaxPool", "ConvTranspose"),
    )
)
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
    return node.op_type in ("Sub", "Div") and node.input[0] == node.input[1]


def watched_values(graph: onnx.GraphProto) -> list[str]:
    """The values that nodes of the graph with such results read, by name."""
    stored = {tensor.name for tensor in graph.initializer}
    read = (name for node in graph.node if _is_open(node) for name in node.input)
    return sorted({name for name in read if name and name not in stored})


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
