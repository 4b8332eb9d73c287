"""Operator names with their domain, by which converters are found."""

import onnx

from tvm_ext.onnx_frontend.node_order import subgraphs_of

DEFAULT_DOMAINS = ("", "ai.onnx")


def operator_key(node: onnx.NodeProto) -> str:
    """``Name`` in the default domain, ``domain::Name`` in every other."""
    return node.op_type if node.domain in DEFAULT_DOMAINS else f"{node.domain}::{node.op_type}"


def split_key(key: str) -> tuple[str, str]:
    """The domain ("" for the default one) and the operator's own name."""
    domain, _, name = key.rpartition("::")
    return domain, name


def with_operator_keys(graph: onnx.GraphProto) -> onnx.GraphProto:
    """A graph of the same nodes, bodies included, whose ``op_type`` is their key; nothing else.

    TVM's importer dispatches by ``op_type`` alone: without the domain in it, Attention of ONNX
    goes to the converter for the one of com.microsoft.
    """
    keyed = onnx.GraphProto()
    keyed.node.extend(graph.node)
    _rename(keyed)
    return keyed


def opset_of(model: onnx.ModelProto, domain: str) -> int:
    """The opset version that the model imports for a domain; 1 where it imports none."""
    same = DEFAULT_DOMAINS if domain in DEFAULT_DOMAINS else (domain,)
    return next((o.version for o in model.opset_import if o.domain in same), 1)


def _rename(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        node.op_type = operator_key(node)
        for subgraph in subgraphs_of(node):
            _rename(subgraph)
