"""Optimisers of ai.onnx.preview.training and n-gram counts, against onnx.reference."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from one_model import in_one_model, run_model
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tvm_ext
from tvm_ext.errors import ModelError, UnsupportedOperatorError

TRAINING = "ai.onnx.preview.training"


def optimizer(operator: str, groups: int, step: int, **attributes: Any) -> tuple:
    """A model that optimises tensors of two shapes, and random inputs for it."""
    random = np.random.default_rng(step)
    feed = {"rate": np.array(0.1, np.float32), "step": np.array(step)}
    for group in range(groups):
        for shape in ((3,), (2, 4)):
            feed[f"t{group}_{len(shape)}"] = random.uniform(0.1, 1, shape).astype(np.float32)
    outputs = [f"y{place}" for place in range(2 * (groups - 1))]
    node = helper.make_node(operator, list(feed), outputs, domain=TRAINING, **attributes)
    graph = helper.make_graph(
        [node],
        "small",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in feed.items()
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(TRAINING, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), feed


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize(
    ("operator", "groups", "step", "attributes"),
    [
        ("Adam", 4, 0, {}),
        ("Adam", 4, 3, {"alpha": 0.8, "norm_coefficient": 0.1, "norm_coefficient_post": 0.2,
                        "epsilon": 0.01}),
        ("Adagrad", 3, 2, {"norm_coefficient": 0.1, "decay_factor": 0.5, "epsilon": 0.01}),
        ("Momentum", 3, 0, {"mode": "standard", "alpha": 0.9, "beta": 0.3,
                            "norm_coefficient": 0.1}),
        ("Momentum", 3, 5, {"mode": "nesterov", "alpha": 0.9, "beta": 0.3,
                            "norm_coefficient": 0.1}),
    ],
)  # fmt: skip
def test_optimizers(operator: str, groups: int, step: int, attributes: dict) -> None:
    proto, feed = optimizer(operator, groups, step, **attributes)
    found = run_model(proto, feed)
    for name, wanted in zip(found, ReferenceEvaluator(proto).run(None, feed), strict=True):
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-6)


def test_gradients_are_refused() -> None:
    node = helper.make_node("Gradient", ["x"], ["d"], domain=TRAINING, xs=["x"], y="y")
    square = helper.make_node("Mul", ["x", "x"], ["y"])
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    result = helper.make_tensor_value_info("d", TensorProto.FLOAT, [2])
    graph = helper.make_graph([square, node], "small", [value], [result])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(TRAINING, 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    with pytest.raises(UnsupportedOperatorError, match="Gradient"):
        tvm_ext.compile(proto)


def vectorizer(shape: list[int], **changes: Any) -> onnx.ModelProto:
    attributes = {
        "mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 2,
        "ngram_counts": [0, 3], "ngram_indexes": [2, 0, 1, 4, 3], "pool_int64s":
        [1, 2, 3, 1, 2, 3, 3],
    } | changes  # fmt: skip
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], name="node", **attributes)
    value = helper.make_tensor_value_info("x", TensorProto.INT64, shape)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "small", [value], [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@in_one_model
@pytest.mark.parametrize("shape", [[12], [3, 7]])
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_ngrams_of_integers(shape: list[int], mode: str) -> None:
    x = np.random.default_rng(4).integers(1, 5, shape)
    proto = vectorizer(shape, mode=mode, weights=[0.5, 2.0, 3.0, 5.0, 7.0])
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(run_model(proto, {"x": x})["y"], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"ngram_counts": [0, 4]}, "do not fit its pool"),
        ({"ngram_indexes": [0, 1]}, "5 n-grams and 2 ngram_indexes"),
        ({"mode": "TFIDF", "weights": [1.0]}, "1 weights and 5 n-grams"),
    ],
)
def test_ngrams_that_are_refused(changes: dict, line: str) -> None:
    with pytest.raises(ModelError, match=line):
        tvm_ext.compile(vectorizer([6], **changes))
