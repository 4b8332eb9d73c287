"""Linear models of ai.onnx.ml against ONNX Runtime."""

import numpy as np
import pytest
from ml_models import check, ml_model
from onnx import TensorProto


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


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC"])
def test_linear_classifier_of_one_score(post: str) -> None:
    x = np.random.default_rng(2).normal(size=(6, 3)).astype(np.float32)
    outputs = [TensorProto.INT64, TensorProto.FLOAT]
    proto = ml_model(
        "LinearClassifier", [x], outputs, classlabels_ints=[7, 3], post_transform=post,
        coefficients=[1.0, -2.0, 0.5], intercepts=[0.25],
    )  # fmt: skip
    check(proto, x)
