"""Kernels whose sizes TVM writes in another way than the operator's, compared with ONNX Runtime.

The length of ``s`` is a difference of two sizes, plus six, and at least zero. An operator with a
window says what is left of that in fewer words than its kernel, and TVM cannot prove the two equal.
"""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext

CUT = [
    node("Shape", ["p"], ["a"]),
    node("Shape", ["q"], ["b"]),
    node("Shape", ["x"], ["all"]),
    node("Gather", ["all", "two"], ["length"]),
    node("Sub", ["a", "b"], ["difference"]),
    node("Add", ["difference", "six"], ["wanted"]),
    node("Sub", ["wanted", "length"], ["more"]),
    node("Concat", ["zeros", "more"], ["pads"], axis=0),
    node("Pad", ["x", "pads"], ["padded"]),
    node("Slice", ["padded", "zero", "wanted", "two"], ["s"]),
]
WINDOWS = {
    "Conv": [node("Conv", ["s", "w"], ["c"])],
    "ConvTranspose": [node("ConvTranspose", ["s", "w"], ["c"], strides=[2])],
    "MaxPool": [node("MaxPool", ["s"], ["c"], kernel_shape=[3])],
    "AveragePool": [node("AveragePool", ["s"], ["c"], kernel_shape=[3], strides=[2])],
    "two Conv": [node("Conv", ["s", "w"], ["first"]), node("Conv", ["first", "w"], ["c"])],
}


@pytest.mark.extended
@pytest.mark.parametrize("window", WINDOWS)
def test_a_result_keeps_the_sizes_of_its_operator(window: str) -> None:
    """CumSum's result has the operator's sizes; adding it to the kernel's needs both equal."""
    nodes = [
        *CUT,
        *WINDOWS[window],
        node("CumSum", ["c", "axis"], ["summed"]),
        node("Add", ["c", "summed"], ["y"]),
    ]
    stored = {"two": [2], "six": [6], "zeros": [0] * 5, "zero": [0]}
    weights = {name: np.array(numbers, "int64") for name, numbers in stored.items()}
    proto = model(
        nodes,
        [value("x", ["N", 4, "L"]), value("p", ["A"]), value("q", ["B"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        axis=np.array(2, "int64"), w=rand(4, 4, 7), **weights,
    )  # fmt: skip
    compiled = tvm_ext.compile(proto, HOST, opt_level="O1")
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for batch, length, plus in ((2, 30, 21), (1, 9, 12)):
        inputs = {"x": rand(batch, 4, length), "p": rand(plus + 5), "q": rand(5)}
        (wanted,) = session.run(None, inputs)
        found = compiled.run(inputs)["y"]
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
