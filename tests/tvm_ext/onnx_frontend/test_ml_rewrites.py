"""What trees compare is rounded as ONNX Runtime rounds it."""

import numpy as np
import onnx
import onnxruntime
import pytest
from one_model import in_one_model, run_model
from onnx import TensorProto, helper, numpy_helper

from tvm_ext.onnx_frontend.ml_rewrites import ROUNDED
from tvm_ext.onnx_frontend.prepare import prepare


def scaled(split: float, kind: str) -> onnx.ModelProto:
    """A tree behind the scaling of a column, ``x * a + b``, and its comparison with ``split``."""
    tree = helper.make_node(
        "TreeEnsembleRegressor", ["s"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0],
        nodes_modes=["BRANCH_LT", "LEAF", "LEAF"], nodes_values=[split, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0], target_treeids=[0, 0],
        target_nodeids=[1, 2], target_ids=[0, 0], target_weights=[-1.0, 1.0],
    )  # fmt: skip
    nodes = [helper.make_node("Mul", ["x", "a"], ["m"]), helper.make_node(kind, ["m", "b"], ["s"])]
    stored = {"a": np.array([0.04347826], np.float32), "b": np.array([0.47826087], np.float32)}
    graph = helper.make_graph(
        [*nodes, tree],
        "scaled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@in_one_model
@pytest.mark.parametrize("kind", ["Add", "Sub"])
def test_splits_at_values_of_the_data(kind: str) -> None:
    x = np.arange(-10, 11, dtype=np.float32).reshape(-1, 1)
    step, start = np.float32(0.04347826), np.float32(0.47826087)
    start = start if kind == "Add" else -start
    columns = x * step + start
    once = (x.astype(np.float64) * np.float64(step) + np.float64(start)).astype(np.float32)
    splits = columns[columns != once]
    assert splits.size
    for split in splits[:2]:
        proto = scaled(float(split), kind)
        wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0]
        # With LLVM's optimisations: without them it contracts nothing.
        found = run_model(proto, {"x": x})["y"]
        np.testing.assert_array_equal(found, wanted)


def test_only_products_that_are_added_and_compared() -> None:
    proto = scaled(0.5, "Add")
    domains = {node.op_type: node.domain for node in prepare(proto, "scaled").graph.node}
    assert domains["Mul"] == ROUNDED
    del proto.graph.node[2]
    proto.graph.output[0].name = "s"
    domains = {node.op_type: node.domain for node in prepare(proto, "scaled").graph.node}
    assert domains["Mul"] == ""
    proto = scaled(0.5, "Max")
    domains = {node.op_type: node.domain for node in prepare(proto, "scaled").graph.node}
    assert domains["Mul"] == ""
