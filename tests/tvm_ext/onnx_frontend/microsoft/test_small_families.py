"""Residual streams, windows, crops, and operators of before ONNX 1.0, as in ONNX Runtime."""

import numpy as np
import onnx
import pytest
from microsoft_models import compared, microsoft_model
from one_model import in_one_model
from random_numbers import RANDOM
from small_models import rand

from tvm_ext import compile
from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.onnx_frontend.microsoft import WITHOUT_FORM

FLOAT = onnx.TensorProto.FLOAT
BOXES = np.float32([[0, 0, 0.5, 0.5], [0.2, 0.1, 0.9, 1.0], [-0.2, 0.1, 0.9, 1.2]])
IMAGES = np.int32([0, 1, 1])


@in_one_model
@pytest.mark.parametrize(
    ("operator", "inputs", "outputs", "attributes"),
    [
        (
            "GatedAdd",
            {"x": rand(2, 3, 4), "xy": rand(2, 3, 4), "xg": rand(2, 3, 1)},
            {"y": FLOAT},
            {},
        ),
        ("ScaledSiLU", {"x": rand(2, 3)}, {"y": FLOAT}, {"alpha": 1.5}),
        ("ScaledSiLU", {"x": rand(2, 3), "s": np.float32(0.5)}, {"y": FLOAT}, {}),
        (
            "BranchwiseRMSNorm",
            {"x": rand(2, 3, 8), "s": rand(8)},
            {"y": FLOAT},
            {"num_branches": 2},
        ),
        ("BranchwiseRMSNorm", {"x": rand(2, 3, 8), "s": rand(3, 8)}, {"y": FLOAT}, {}),
        (
            "HyperConnectionPreMix",
            {"x": rand(2, 3, 4, 8), "xm": rand(2, 3, 4)},
            {"y": FLOAT},
            {"reduction_scale": 0.5},
        ),
        (
            "HyperConnectionPreMix",
            {"x": rand(2, 3, 32), "xm": rand(2, 3, 32)},
            {"y": FLOAT},
            {"num_branches": 4},
        ),
        (
            "HyperConnectionPostMix",
            {
                "x": rand(2, 3, 4, 8),
                "xb": rand(2, 3, 8),
                "xp": rand(2, 3, 4),
                "xs": rand(2, 3, 4, 4),
            },
            {"y": FLOAT},
            {},
        ),
        (
            "HyperConnectionPostMix",
            {"x": rand(2, 3, 32), "xb": rand(2, 3, 8), "xp": rand(2, 3, 4, 1)},
            {"y": FLOAT},
            {"num_branches": 4},
        ),
        (
            "EngramGate",
            {
                "x": rand(2, 3, 4, 8),
                "xq": rand(2, 3, 4, 8),
                "xv": rand(2, 3, 8),
                "k": rand(4, 8),
                "q": rand(4, 8),
                "c": rand(4, 8),
            },
            {"y": FLOAT, "z": FLOAT},
            {},
        ),
        (
            "MoEGroupRouter",
            {"x": rand(5, 8), "b": rand(8)},
            {"y": FLOAT},
            {"n_group": 4, "topk_group": 2, "top_k": 3, "group_topk": 2},
        ),
        ("UnfoldTensor", {"x": rand(2, 3, 8)}, {"y": FLOAT}, {"dim": -1, "size": 3, "step": 2}),
        ("UnfoldTensor", {"x": rand(2, 6, 3)}, {"y": FLOAT}, {"dim": 1, "size": 2}),
        (
            "ConvTransposeWithDynamicPads",
            {"x": rand(1, 2, 4, 4), "w": rand(2, 3, 3, 3), "p": np.array([1, 1, 1, 1])},
            {"y": FLOAT},
            {"strides": [2, 2]},
        ),
        (
            "CropAndResize",
            {"x": rand(2, 3, 8, 9), "xr": BOXES, "xi": IMAGES, "s": np.int32([4, 5])},
            {"y": FLOAT},
            {"mode": "bilinear", "extrapolation_value": 0.5},
        ),
        (
            "CropAndResize",
            {"x": rand(2, 3, 8, 9), "xr": BOXES, "xi": IMAGES, "s": np.int32([1, 3])},
            {"y": FLOAT},
            {"mode": "nearest"},
        ),
        (
            # Places of 0.5, which are rounded up.
            "CropAndResize",
            {
                **{"x": rand(1, 1, 2, 2), "xr": np.float32([[0, 0, 1, 1]])},
                **{"xi": np.int32([0]), "s": np.int32([3, 3])},
            },
            {"y": FLOAT},
            {"mode": "nearest"},
        ),
        (
            "NGramRepeatBlock",
            {"xt": np.array([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4]]), "x": rand(2, 8)},
            {"y": FLOAT},
            {"ngram_size": 3},
        ),
        (
            "NGramRepeatBlock",
            {"xt": RANDOM.integers(0, 4, (3, 9)), "x": rand(3, 4)},
            {"y": FLOAT},
            {"ngram_size": 2},
        ),
    ],
)
def test_operators_of_com_microsoft(
    operator: str, inputs: dict, outputs: dict, attributes: dict
) -> None:
    proto, fed = microsoft_model(operator, inputs, outputs, 17, **attributes)
    for ours, wanted in compared(proto, fed):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


@in_one_model
@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("Affine", {"alpha": 2.0, "beta": 1.0}),
        ("Crop", {"border": [1, 1, 2, 1]}),
        ("Crop", {"border": [1, 0, 0, 1], "scale": [2, 3]}),
        ("ImageScaler", {"scale": 2.0, "bias": [1.0, 2.0, 3.0]}),
        ("ParametricSoftplus", {"alpha": 2.0, "beta": 1.5}),
        ("Scale", {"scale": 2.0}),
        ("ScaledTanh", {"alpha": 2.0, "beta": 1.5}),
    ],
)
def test_operators_of_before_the_first_release(operator: str, attributes: dict) -> None:
    proto, fed = microsoft_model(operator, {"x": rand(1, 3, 6, 6)}, {"y": FLOAT}, 8, **attributes)
    proto.graph.node[0].domain = ""
    for ours, wanted in compared(proto, fed):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)


def test_a_gate_that_is_projected_is_refused() -> None:
    given = {"x": rand(2, 4), "xy": rand(2, 4), "xg": rand(2, 3), "w": rand(3, 1)}
    proto, _ = microsoft_model("GatedAdd", given, {"y": FLOAT}, 17)
    with pytest.raises(UnsupportedOperatorError, match="gate_weight"):
        compile(proto)


@pytest.mark.parametrize("operator", ["GreedySearch", "SparseAttention"])
def test_operators_without_another_form_are_refused_with_the_reason(operator: str) -> None:
    proto, _ = microsoft_model(operator, {"x": rand(2, 4)}, {"y": FLOAT}, 17)
    with pytest.raises(UnsupportedOperatorError) as refused:
        compile(proto)
    assert WITHOUT_FORM[operator] in str(refused.value)
    assert "\n" not in str(refused.value)
