"""ONNX Runtime's own domain, and its operators that models have in the default one."""

from collections.abc import Iterator

import onnx

from tvm_ext.onnx_frontend.node_order import subgraphs_of
from tvm_ext.onnx_frontend.operator_key import DEFAULT_DOMAINS

MICROSOFT = "com.microsoft"

# ONNX Runtime registers it in the default domain, and its optimiser writes it so.
_IN_DEFAULT_DOMAIN = frozenset({"SimplifiedLayerNormalization"})


def name_own_operators(model: onnx.ModelProto) -> None:
    """Gives such operators their own domain, in place: ONNX's checker knows none of them."""
    found = [
        node
        for node in _nodes(model.graph)
        if node.domain in DEFAULT_DOMAINS and node.op_type in _IN_DEFAULT_DOMAIN
    ]
    for node in found:
        node.domain = MICROSOFT
    if found and all(opset.domain != MICROSOFT for opset in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for subgraph in subgraphs_of(node):
            yield from _nodes(subgraph)
