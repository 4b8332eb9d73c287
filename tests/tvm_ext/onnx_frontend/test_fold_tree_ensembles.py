"""Functions of single trees, and sums of trees, become one tree ensemble."""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from unoptimised import HOST

import tvm_ext
from tvm_ext.onnx_frontend.prepare import prepare

runtime = pytest.importorskip("onnxruntime")
X = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)


def stump(number: int, x: str = "x", **attributes: object) -> onnx.NodeProto:
    """One test and two leaves, 3 and 7 for the first of them."""
    return helper.make_node(
        "TreeEnsembleRegressor", [x], [f"leaf_{number}"], f"tree_{number}", domain="ai.onnx.ml",
        n_targets=1, nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2],
        nodes_featureids=[number % 3, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[0.1 * number, 0.0, 0.0], nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0], target_treeids=[0, 0], target_nodeids=[1, 2],
        target_ids=[0, 0], target_weights=[3.0 + number, 7.0 + number], **attributes,
    )  # fmt: skip


def encoded(number: int) -> list[onnx.NodeProto]:
    """The leaf as an integer, looked up, reshaped and computed with twice."""
    table = {"keys_int64s": [3 + number, 7 + number], "values_floats": [1.5, 2.5 * number + 1]}
    return [
        helper.make_node("Cast", [f"leaf_{number}"], [f"int_{number}"], to=TensorProto.INT64),
        helper.make_node(
            "LabelEncoder", [f"int_{number}"], [f"size_{number}"], domain="ai.onnx.ml", **table
        ),
        helper.make_node("Reshape", [f"size_{number}", "column"], [f"row_{number}"]),
        helper.make_node("Greater", [f"row_{number}", "two"], [f"more_{number}"]),
        helper.make_node("Log", [f"row_{number}"], [f"log_{number}"]),
        helper.make_node(
            "Where", [f"more_{number}", f"log_{number}", f"row_{number}"], [f"f_{number}"]
        ),
    ]


def model(nodes: list[onnx.NodeProto], outputs: dict[str, int]) -> onnx.ModelProto:
    stored = {"column": np.array([-1, 1]), "two": np.array([2], np.float32)}
    stored["three"] = np.arange(3, dtype=np.float32).reshape(3, 1)
    graph = helper.make_graph(
        nodes,
        "trees",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def agree(proto: onnx.ModelProto) -> Counter[str]:
    """Compares with ONNX Runtime; returns the operators that were left."""
    session = runtime.InferenceSession(proto.SerializeToString())
    compiled = tvm_ext.compile(proto, HOST, opt_level="O0")
    for rows in (1, len(X)):
        found = compiled.run({"x": X[:rows]})
        for one, wanted in zip(found.values(), session.run(None, {"x": X[:rows]}), strict=True):
            assert one.dtype == wanted.dtype
            np.testing.assert_allclose(one, wanted, rtol=1e-6)
    return Counter(node.op_type for node in prepare(proto, "trees").graph.node)


@pytest.mark.parametrize("how", ["Sum", "Concat"])
def test_looked_up_leaves_become_one_ensemble(how: str) -> None:
    nodes = [node for number in range(3) for node in (stump(number), *encoded(number))]
    axis = {"axis": 1} if how == "Concat" else {}
    nodes.append(helper.make_node(how, ["f_0", "f_1", "f_2"], ["y"], **axis))
    left = agree(model(nodes, {"y": TensorProto.FLOAT}))
    assert left == Counter({"TreeEnsembleRegressor": 1})


def test_a_chain_of_sums_is_one_ensemble() -> None:
    nodes = [stump(number) for number in range(4)]
    nodes += [
        helper.make_node("Add", ["leaf_0", "leaf_1"], ["s_1"]),
        helper.make_node("Add", ["s_1", "leaf_2"], ["s_2"]),
        helper.make_node("Add", ["leaf_3", "s_2"], ["y"]),
    ]
    assert agree(model(nodes, {"y": TensorProto.FLOAT})) == Counter({"TreeEnsembleRegressor": 1})


def test_integers_and_reshaped_rows_keep_type_and_shape() -> None:
    nodes = [stump(0), stump(1)]
    nodes += [
        helper.make_node("Cast", ["leaf_0"], ["i"], to=TensorProto.INT32),
        helper.make_node("Mul", ["i", "i"], ["a"]),
        helper.make_node("Constant", [], ["flat"], value_ints=[-1]),
        helper.make_node("Exp", ["leaf_1"], ["e"]),
        helper.make_node("Reshape", ["e", "flat"], ["b"]),
    ]
    left = agree(model(nodes, {"a": TensorProto.INT32, "b": TensorProto.FLOAT}))
    wanted = {"TreeEnsembleRegressor": 2, "Cast": 1, "Reshape": 1, "Constant": 1}
    assert left == Counter(wanted)


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        # A leaf, or a value on the way, that is read elsewhere.
        ([helper.make_node("Exp", ["leaf_0"], ["y"])], ("leaf_0", "y")),
        # A constant with as many rows as there may be.
        ([helper.make_node("Add", ["leaf_0", "three"], ["y"])], ("y",)),
        # Rows of other trees: what each leaf gives is not known beforehand.
        ([helper.make_node("Mul", ["leaf_0", "leaf_1"], ["y"])], ("y",)),
    ],
)
def test_left_alone(nodes: list[onnx.NodeProto], outputs: tuple[str, ...]) -> None:
    proto = model(
        [stump(0), stump(1), *nodes, helper.make_node("Neg", ["leaf_1"], ["other"])],
        dict.fromkeys((*outputs, "other"), TensorProto.FLOAT),
    )
    left = Counter(node.op_type for node in prepare(proto, "trees").graph.node)
    assert left[nodes[0].op_type] == 1
