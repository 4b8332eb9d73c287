"""Models with strings, sequences and maps, which the host computes in part."""

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT, INT64, STRING, BOOL = (
    *(TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL),
)


ML = "ai.onnx.ml"


value, node = helper.make_tensor_value_info, helper.make_node


SCORES = helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, []))


FLOATS = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))


def model(nodes: list, inputs: list, outputs: list, opset: int = 18, **stored) -> onnx.ModelProto:
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "small", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(ML, 4)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def classifier(labels: list[str], rows: int | str = "N") -> onnx.ModelProto:
    """As skl2onnx writes one: strings for labels, a dictionary for each row."""
    count = len(labels)
    nodes = [
        node("LinearClassifier", ["x"], ["label", "p"], "linear", domain=ML,
             coefficients=np.linspace(-1, 1, 3 * count).tolist(), intercepts=[0.1] * count,
             classlabels_strings=labels, post_transform="SOFTMAX"),
        node("ZipMap", ["p"], ["scores"], "zip", domain=ML, classlabels_strings=labels),
    ]  # fmt: skip
    outputs = [
        value("label", STRING, [rows]),
        helper.make_value_info("scores", helper.make_sequence_type_proto(SCORES)),
    ]
    return model(nodes, [value("x", FLOAT, [rows, 3])], outputs)
