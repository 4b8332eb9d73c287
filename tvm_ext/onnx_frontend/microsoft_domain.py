"""ONNX Runtime's own domain, and its operators that models have in the default one."""

import onnx

from tvm_ext.onnx_frontend.operator_key import DEFAULT_DOMAINS, opset_of
from tvm_ext.onnx_frontend.scopes import nodes_within

MICROSOFT = "com.microsoft"

# An attribute of the LSTM that a DynamicQuantizeLSTM becomes: its state is rounded to 8 bits,
# sequence by sequence, before it is multiplied.
QUANTIZED_STATE = "tvm_ext_quantized_state"

# The opset in which ONNX took over an operator that ONNX Runtime registers in the default domain
# for every one; None for one that it never took over. Its optimiser writes them so.
_TAKEN_OVER: dict[str, int | None] = {
    "Gelu": 20,
    "LayerNormalization": 17,
    "SimplifiedLayerNormalization": None,
}


def name_own_operators(model: onnx.ModelProto) -> None:
    """Gives such operators their own domain, in place: ONNX's checker knows none of them.

    A model that uses the domain imports it then, which ONNX Runtime does not ask for.
    """
    opset = opset_of(model, "")
    nodes = list(nodes_within(model.graph))
    for node in nodes:
        if _is_own(node, opset):
            node.domain = MICROSOFT
    used = any(node.domain == MICROSOFT for node in nodes)
    if used and all(opset.domain != MICROSOFT for opset in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))


def _is_own(node: onnx.NodeProto, opset: int) -> bool:
    if node.domain not in DEFAULT_DOMAINS or node.op_type not in _TAKEN_OVER:
        return False
    since = _TAKEN_OVER[node.op_type]
    return since is None or opset < since
