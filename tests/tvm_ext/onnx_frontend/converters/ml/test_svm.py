"""SVMClassifier and SVMRegressor beside ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import pytest
from ml_models import check, ml_model, refused
from one_model import in_one_model
from onnx import TensorProto
from small_models import rand

OUTPUTS = [TensorProto.INT64, TensorProto.FLOAT]
KERNELS = {"LINEAR": (0, 0, 0), "RBF": (0.7, 0, 0), "POLY": (0.5, 0.3, 3), "SIGMOID": (0.4, 0.1, 0)}
X = rand(9, 5)


def classifier(classes: int, kernel: str = "RBF", **changes: Any) -> dict[str, Any]:
    counts = [3, 1, 4, 2][:classes]
    pairs = classes * (classes - 1) // 2
    return {
        "kernel_type": kernel,
        "kernel_params": [float(value) for value in KERNELS[kernel]],
        "vectors_per_class": counts,
        "support_vectors": rand(sum(counts) * 5, seed=1).tolist(),
        "coefficients": rand((classes - 1) * sum(counts), seed=2).tolist(),
        "rho": (rand(pairs, seed=3) / 8).tolist(),
        "classlabels_ints": [7, 3, 5, 11][:classes],
        **changes,
    }


def platt(classes: int) -> dict[str, Any]:
    pairs = classes * (classes - 1) // 2
    return {
        "prob_a": (rand(pairs, seed=4) - 2).tolist(),
        "prob_b": (rand(pairs, seed=5) / 4).tolist(),
    }


def model(attributes: dict[str, Any], x: np.ndarray = X) -> onnx.ModelProto:
    return ml_model("SVMClassifier", [x], OUTPUTS, **attributes)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("classes", [2, 4])
def test_classifier(kernel: str, classes: int) -> None:
    check(model(classifier(classes, kernel)), X, rtol=1e-4)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_probabilities(classes: int) -> None:
    check(model(classifier(classes, **platt(classes))), X, rtol=1e-4)


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize("post", ["LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("classes", [2, 3])
def test_transforms(post: str, classes: int) -> None:
    check(model(classifier(classes, post_transform=post)), X, rtol=1e-4)


@in_one_model
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_without_support_vectors(classes: int, positive: bool) -> None:
    coefficients = rand(classes * 5, seed=6)
    attributes = classifier(
        classes,
        "LINEAR",
        vectors_per_class=None,
        support_vectors=None,
        coefficients=(abs(coefficients) if positive else coefficients).tolist(),
    )
    check(model(attributes), X, rtol=1e-4)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_other_types(dtype: str) -> None:
    x = (X * 4).astype(dtype)
    check(model(classifier(3), x), x, rtol=1e-4)


def test_coefficients_that_are_missing() -> None:
    refused(model(classifier(3, coefficients=[1.0])), "coefficients")


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_regressor(kernel: str, one_class: int) -> None:
    attributes = {
        "kernel_type": kernel,
        "kernel_params": [float(value) for value in KERNELS[kernel]],
        "n_supports": 4,
        "support_vectors": rand(20, seed=1).tolist(),
        "coefficients": rand(4, seed=2).tolist(),
        "rho": [0.05],
        "one_class": one_class,
    }
    check(ml_model("SVMRegressor", [X], [TensorProto.FLOAT], **attributes), X, rtol=1e-4)


def test_linear_regressor() -> None:
    attributes = {"coefficients": rand(5).tolist(), "rho": [0.25], "kernel_params": [0.0, 0.0, 0.0]}
    check(ml_model("SVMRegressor", [X], [TensorProto.FLOAT], **attributes), X)
