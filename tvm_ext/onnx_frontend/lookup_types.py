"""Types for what LabelEncoders read: ONNX's shape inference crashes where it does not know them."""

import onnx
from onnx import TensorProto

from tvm_ext.onnx_frontend.scopes import graphs_within

_KEYS = {
    "keys_floats": TensorProto.FLOAT,
    "keys_int64s": TensorProto.INT64,
    "keys_strings": TensorProto.STRING,
    # Of the first version, which looks up either way.
    "default_string": TensorProto.INT64,
    "default_int64": TensorProto.STRING,
}


def type_lookups(model: onnx.ModelProto) -> None:
    """Writes them down in place: a value is of the type of the keys, or the model is not valid."""
    graphs = list(graphs_within(model.graph))
    known = {
        value.name
        for graph in graphs
        for value in (*graph.input, *graph.output, *graph.value_info)
        if value.type.WhichOneof("value")
    }
    known |= {tensor.name for graph in graphs for tensor in graph.initializer}
    for graph in graphs:
        for node in graph.node:
            if node.op_type != "LabelEncoder" or not node.input or node.input[0] in known:
                continue
            made = graph.value_info.add(name=node.input[0])
            made.type.tensor_type.elem_type = _type_of_keys(node)
            known.add(node.input[0])


def _type_of_keys(node: onnx.NodeProto) -> int:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if "keys_tensor" in attributes:
        return attributes["keys_tensor"].t.data_type
    return next((kind for name, kind in _KEYS.items() if name in attributes), TensorProto.STRING)
