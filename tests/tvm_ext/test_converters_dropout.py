"""Dropout in inference, and in training."""

import numpy as np
import pytest
from operator_models import array_info, run_at_levels
from small_models import model, node

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend import import_model


@pytest.mark.parametrize("opset", [9, 11, 12, 17])
def test_dropout_is_its_input(opset: int) -> None:
    nodes = [node("Dropout", ["x"], ["a"]), node("Relu", ["a"], ["y"])]
    proto = model(nodes, [array_info("x", [3])], [array_info("y", [3])], opset)
    assert "dropout" not in import_model(proto).mod.script()
    for outputs in run_at_levels(proto, x=np.array([-1, 0, 2], np.float32)):
        np.testing.assert_array_equal(outputs["y"], [0, 0, 2])


def test_dropout_that_returns_its_input_and_a_mask() -> None:
    outputs = [array_info("y", [2, 3]), array_info("mask", [2, 3], np.bool_)]
    proto = model([node("Dropout", ["x"], ["y", "mask"])], [array_info("x", [2, 3])], outputs)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for found in run_at_levels(proto, x=x):
        np.testing.assert_array_equal(found["y"], x)
        np.testing.assert_array_equal(found["mask"], np.ones((2, 3), np.bool_))


@pytest.mark.parametrize("stored", [True, False])
def test_dropout_in_training_is_refused(stored: bool) -> None:
    inputs = [array_info("x", [3])] + ([] if stored else [array_info("training", [], np.bool_)])
    weights = {"ratio": np.float32(0.5)} | ({"training": np.array(True)} if stored else {})
    proto = model(
        [node("Dropout", ["x", "ratio", "training"], ["y"], name="drop")],
        inputs,
        [array_info("y", [3])],
        **weights,
    )
    with pytest.raises(ModelError, match=r"Dropout node 'drop' .*training mode"):
        tvm_ext.compile(proto)
