"""ONNX Runtime's own domain, and its operators that models have in the default one."""

import onnx

from tvm_ext.onnx_frontend.operator_key import DEFAULT_DOMAINS
from tvm_ext.onnx_frontend.scopes import nodes_within

MICROSOFT = "com.microsoft"

# ONNX Runtime registers it in the default domain, and its optimiser writes it so.
_IN_DEFAULT_DOMAIN = frozenset({"SimplifiedLayerNormalization"})


def name_own_operators(model: onnx.ModelProto) -> None:
    """Gives such operators their own domain, in place: ONNX's checker knows none of them."""
    found = [
        node
        for node in nodes_within(model.graph)
        if node.domain in DEFAULT_DOMAINS and node.op_type in _IN_DEFAULT_DOMAIN
    ]
    for node in found:
        node.domain = MICROSOFT
    if found and all(opset.domain != MICROSOFT for opset in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
