"""Linear models of ai.onnx.ml against ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest
from ml_models import check, ml_model
from one_model import in_one_model, run_model
from onnx import TensorProto, helper


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"])
def test_linear_regressor_and_classifier(post: str) -> None:
    random = np.random.default_rng(2)
    x = random.uniform(0.1, 0.3, size=(6, 3)).astype(np.float32)
    weights = random.uniform(0, 1, size=6).tolist()
    shared = {"coefficients": weights, "intercepts": [0.1, 0.2], "post_transform": post}
    check(ml_model("LinearRegressor", [x], [TensorProto.FLOAT], targets=2, **shared), x, rtol=1e-4)
    outputs = [TensorProto.INT64, TensorProto.FLOAT]
    check(
        ml_model("LinearClassifier", [x], outputs, classlabels_ints=[7, 3], **shared), x, rtol=1e-4
    )


@in_one_model
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC"])
def test_linear_classifier_of_one_score(post: str) -> None:
    x = np.random.default_rng(2).normal(size=(6, 3)).astype(np.float32)
    outputs = [TensorProto.INT64, TensorProto.FLOAT]
    proto = ml_model(
        "LinearClassifier", [x], outputs, classlabels_ints=[7, 3], post_transform=post,
        coefficients=[1.0, -2.0, 0.5], intercepts=[0.25],
    )  # fmt: skip
    check(proto, x)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("classes", [2, 3])
def test_columns_that_only_the_run_knows(classes: int) -> None:
    given = 1 if classes == 2 else classes
    random = np.random.default_rng(4)
    graph = helper.make_graph(
        [
            helper.make_node("Compress", ["x", "kept"], ["few"], axis=1),
            helper.make_node(
                "LinearClassifier", ["few"], ["label", "scores"], domain="ai.onnx.ml",
                coefficients=random.normal(size=2 * given).tolist(), intercepts=[0.1] * given,
                classlabels_ints=list(range(classes)), post_transform="LOGISTIC",
            ),
        ],
        "columns",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
            helper.make_tensor_value_info("kept", TensorProto.BOOL, [3]),
        ],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, None),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, None),
        ],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    feed = {"x": random.normal(size=(5, 3)).astype("float32"), "kept": np.array([1, 0, 1], bool)}
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feed)
    found = run_model(proto, feed, "O0")
    np.testing.assert_array_equal(found["label"], wanted[0])
    np.testing.assert_allclose(found["scores"], wanted[1], rtol=1e-5)
