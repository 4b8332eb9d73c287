"""Which operators of a model can be compiled, subgraphs included, before any work is done."""

from collections.abc import Callable

import onnx

from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.hardware.tvm_compat import onnx_converter_names
from tvm_ext.onnx_frontend.converters import CONVERTERS
from tvm_ext.onnx_frontend.operator_key import DEFAULT_DOMAINS, operator_key
from tvm_ext.onnx_frontend.scopes import graphs_within

# TVM's table of converters knows no domains; these are the names that it implements for
# com.microsoft, the rest of it is for the default domain.
_MICROSOFT_NAMES = frozenset(
    {
        "Attention",
        "BiasGelu",
        "EmbedLayerNormalization",
        "FastGelu",
        "Gelu",
        "SkipLayerNormalization",
    }
)
_ONLY_MICROSOFT = _MICROSOFT_NAMES - {"Gelu"}


# Cases that TVM 0.27's converter accepts and computes wrongly; a wrong number is worse than a
# refusal.
_WRONG_IN_TVM: dict[str, Callable[[onnx.NodeProto], bool]] = {
    "LayerNormalization": lambda node: any(node.output[1:]),
}


def is_supported(node: onnx.NodeProto) -> bool:
    """Whether the importer has a converter for this node that computes the right thing."""
    name = node.op_type
    if operator_key(node) in CONVERTERS:
        return True
    if node.domain == "com.microsoft":
        return name in _MICROSOFT_NAMES and name in onnx_converter_names()
    if node.domain not in DEFAULT_DOMAINS or name in _ONLY_MICROSOFT:
        return False
    if name in _WRONG_IN_TVM and _WRONG_IN_TVM[name](node):
        return False
    return name in onnx_converter_names() or name in ("Constant", "If", "Loop")


def unsupported_operators(graph: onnx.GraphProto) -> dict[str, list[str]]:
    """Unsupported operators (``domain::Name`` outside the default domain) and their node names.

    Bodies of If, Loop and Scan are looked into, also where the outer operator is unsupported.
    """
    found: dict[str, list[str]] = {}
    for inner in graphs_within(graph):
        for index, node in enumerate(inner.node):
            if not is_supported(node):
                name = node.name or f"{node.op_type}_{index}"
                found.setdefault(operator_key(node), []).append(name)
    return found


def require_supported(graph: onnx.GraphProto) -> None:
    """Raises UnsupportedOperatorError, which lists every unsupported operator of the graph."""
    found = unsupported_operators(graph)
    if found:
        raise UnsupportedOperatorError(found)
