"""Operators of com.microsoft that the default domain has too, or nearly."""

import numpy as np
import onnx
import pytest
from microsoft_models import compared, microsoft_model
from one_model import in_one_model
from random_numbers import RANDOM
from small_models import rand

from tvm_ext import compile
from tvm_ext.errors import UnsupportedOperatorError

FLOAT, INT32, INT64 = (onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.INT64)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("operator", "inputs", "outputs", "opset", "attributes"),
    [
        ("Pad", {"x": rand(2, 3), "p": np.array([[0, 1, 2, 0]])}, {"y": FLOAT}, 13, {}),
        (
            "Pad",
            {"x": rand(2, 3), "p": np.array([1, 0, 0, 2]), "v": np.float32([3])},
            {"y": FLOAT},
            13,
            {"mode": "constant"},
        ),
        ("Pad", {"x": rand(2, 4), "p": np.array([0, 2, 0, 1])}, {"y": FLOAT}, 13, {"mode": "edge"}),
        ("ExpandDims", {"x": rand(2, 3), "a": np.int32(1)}, {"y": FLOAT}, 12, {}),
        ("ExpandDims", {"x": rand(2, 3), "a": np.int32(-1)}, {"y": FLOAT}, 13, {}),
        (
            "GatherND",
            {"x": rand(3, 4, 2), "xi": np.int32([[0, 1], [2, 3]])},
            {"y": FLOAT},
            13,
            {},
        ),
        (
            "TransposeMatMul",
            {"x": rand(2, 4, 3), "w": rand(2, 4, 5)},
            {"y": FLOAT},
            13,
            {"transA": 1, "alpha": 0.5},
        ),
        (
            "Unique",
            {"x": np.float32([2, 1, 1, 3, 4, 3])},
            {"y": FLOAT, "i": INT64, "c": INT64},
            13,
            {},
        ),
        (
            "MatMulInteger16",
            {
                "x": RANDOM.integers(-900, 900, (3, 4)).astype(np.int16),
                "w": RANDOM.integers(-900, 900, (4, 5)).astype(np.int16),
            },
            {"y": INT32},
            13,
            {},
        ),
        ("Inverse", {"x": rand(2, 4, 4)}, {"y": FLOAT}, 11, {}),
        # The first pivot is zero.
        ("Inverse", {"x": np.float32([[0, 2, 1], [1, 0, 0], [3, 0, 1]])}, {"y": FLOAT}, 13, {}),
    ],
)
def test_as_in_onnx_runtime(
    operator: str, inputs: dict, outputs: dict, opset: int, attributes: dict
) -> None:
    proto, fed = microsoft_model(operator, inputs, outputs, opset, **attributes)
    for found, wanted in compared(proto, fed):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("opset", [16, 20])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_sample(opset: int, mode: str) -> None:
    inputs = {"x": rand(1, 2, 5, 6), "xg": rand(1, 3, 4, 2)}
    proto, fed = microsoft_model("GridSample", inputs, {"y": FLOAT}, opset, mode=mode)
    for found, wanted in compared(proto, fed):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("step", [None, 2])
def test_range(step: int | None) -> None:
    inputs = {"x0": np.array(1), "x1": np.array(8)} | ({} if step is None else {"d": np.array(2)})
    proto, fed = microsoft_model("Range", inputs, {"y": INT64})
    for found, wanted in compared(proto, fed):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("state", "activation", "dilation"), [(True, "silu", 1), (False, "none", 1), (True, "none", 2)]
)
def test_causal_convolution(state: bool, activation: str, dilation: int) -> None:
    inputs = {"x": rand(2, 3, 5), "w": rand(3, 1, 4), "b": rand(3)}
    inputs |= {"xs": rand(2, 3, 3 * dilation)} if state else {}
    outputs = {"y": FLOAT, "z": FLOAT}
    attributes = {"activation": activation, "dilation": dilation}
    proto, fed = microsoft_model("CausalConvWithState", inputs, outputs, 14, **attributes)
    for found, wanted in compared(proto, fed):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_large_inverses_are_refused_with_the_reason() -> None:
    proto, _ = microsoft_model("Inverse", {"x": rand(9, 9)}, {"y": FLOAT})
    with pytest.raises(UnsupportedOperatorError, match="matrices of 9 rows, expected 8 or fewer"):
        compile(proto)
