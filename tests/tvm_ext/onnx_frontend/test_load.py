"""What a LabelEncoder reads has a type before ONNX's shape inference, which crashes without."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from unoptimised import HOST

import tvm_ext
from tvm_ext.onnx_frontend.load import type_lookups

CASES = [
    ({"keys_floats": [1.0], "values_strings": ["a"], "default_string": "0"}, TensorProto.FLOAT),
    ({"keys_strings": ["a"], "values_int64s": [1], "default_int64": 3}, TensorProto.STRING),
    ({"keys_int64s": [1], "values_floats": [1.0]}, TensorProto.INT64),
    (
        {
            "keys_tensor": numpy_helper.from_array(np.zeros(1)),
            "values_tensor": numpy_helper.from_array(np.zeros(1)),
        },
        TensorProto.DOUBLE,
    ),
    ({"classes_strings": ["a"], "default_int64": -1}, TensorProto.STRING),
    ({"classes_strings": ["a"], "default_string": "?"}, TensorProto.INT64),
]


@pytest.mark.parametrize(("attributes", "kind"), CASES)
def test_the_type_is_that_of_the_keys(attributes: dict[str, object], kind: int) -> None:
    nodes = [
        helper.make_node("Unknown", ["x"], ["q"], domain="somebody"),
        helper.make_node("LabelEncoder", ["q"], ["y"], domain="ai.onnx.ml", **attributes),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    y = helper.make_tensor_value_info("y", TensorProto.STRING, None)
    proto = helper.make_model(helper.make_graph(nodes, "lookup", [x], [y]))
    type_lookups(proto)
    (value,) = proto.graph.value_info
    assert (value.name, value.type.tensor_type.elem_type) == ("q", kind)
    type_lookups(proto)
    assert len(proto.graph.value_info) == 1


def test_old_trees_whose_leaves_are_looked_up() -> None:
    """Before version 3 ONNX infers nothing about a tree."""
    table = {"keys_floats": [2.0, 5.0], "values_strings": ["left", "right"]}
    nodes = [
        helper.make_node(
            "TreeEnsembleRegressor", ["x"], ["leaf"], domain="ai.onnx.ml", n_targets=1,
            nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0],
            nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_values=[0.0, 0.0, 0.0],
            nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0], target_treeids=[0, 0],
            target_nodeids=[1, 2], target_ids=[0, 0], target_weights=[2.0, 5.0],
        ),
        helper.make_node("LabelEncoder", ["leaf"], ["y"], domain="ai.onnx.ml", **table),
    ]  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])
    y = helper.make_tensor_value_info("y", TensorProto.STRING, ["n", 1])
    opsets = [helper.make_opsetid("", 9), helper.make_opsetid("ai.onnx.ml", 2)]
    graph = helper.make_graph(nodes, "lookup", [x], [y])
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    found = tvm_ext.compile(proto, HOST).run({"x": np.array([[-1], [1]], np.float32)})["y"]
    assert found.tolist() == [["left"], ["right"]]
