"""Whole models for a GPU, run in the emulator of CUDA code, against ONNX Runtime."""

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from attention_models import attention_block
from emulated_models import emulated_model
from small_models import mlp, model, node, rand, value

from tvm_ext.check.check import check_compiled


def assert_matches(
    source: onnx.ModelProto, inputs: Mapping[str, np.ndarray], target: str = "nvidia-h100"
) -> None:
    """Twice: what a run leaves in the memory that is planned must not matter to the next."""
    compiled = emulated_model(source, target)
    for _ in range(2):
        result = check_compiled(compiled, source, inputs)
        assert result.ok, result.outputs


def convolutions() -> onnx.ModelProto:
    """A convolution of an image, a strided one, a depthwise one, pooling, and a product."""
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Conv", ["c2", "w3"], ["c3"], pads=[1, 1, 1, 1], group=16),
        node("Sigmoid", ["c3"], ["s3"]),
        node("Mul", ["c3", "s3"], ["m3"]),
        node("MaxPool", ["m3"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["p"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w4", "b4"], ["z"]),
    ]
    weights = {"w1": rand(8, 3, 3, 3), "b1": rand(8), "w2": rand(16, 8, 3, 3)}
    weights |= {"w3": rand(16, 1, 3, 3), "w4": rand(16, 5), "b4": rand(5)}
    return model(nodes, [value("x", [1, 3, 16, 16])], [value("z", [1, 5])], **weights)


@pytest.mark.parametrize("target", ["nvidia-a100", "nvidia-h100"])
def test_attention_and_norms(target: str) -> None:
    assert_matches(attention_block(), {"x": rand(2, 40, 64)}, target)


def test_convolutions() -> None:
    assert_matches(convolutions(), {"x": rand(1, 3, 16, 16)})


def test_boxes_scans_and_scatters() -> None:
    long = onnx.TensorProto.INT64
    nodes = [
        node("NonMaxSuppression", ["b", "s", "most", "near", "low"], ["kept"]),
        node("CumSum", ["s", "axis"], ["sums"]),
        node("TopK", ["sums", "k"], ["best", "places"]),
        node("ScatterElements", ["sums", "places", "best"], ["turned"], axis=2),
        node("Softmax", ["turned"], ["y"]),
    ]
    weights = {"most": np.array([20]), "near": np.array([0.4], "float32")}
    weights |= {"low": np.array([0.3], "float32"), "axis": np.array(2), "k": np.array([7])}
    outputs = [value("kept", ["N", 3], long), value("places", [1, 3, 7], long)]
    outputs.append(value("y", [1, 3, 90]))
    inputs = [value("b", [1, 90, 4]), value("s", [1, 3, 90])]
    boxes = np.sort(np.random.default_rng(0).uniform(0, 1, (1, 90, 4)).astype("float32"), axis=-1)
    source = model(nodes, inputs, outputs, opset=18, **weights)
    assert_matches(source, {"b": boxes, "s": np.abs(rand(1, 3, 90))})


def test_a_symbolic_size_is_run_with_several() -> None:
    compiled = emulated_model(mlp())
    for rows in (1, 3, 130):
        assert check_compiled(compiled, mlp(), {"x": rand(rows, 6)}).ok


def test_scatters_of_a_symbolic_number_of_updates() -> None:
    long = onnx.TensorProto.INT64
    nodes = [
        node("ScatterElements", ["x", "i", "u"], ["e"], axis=1),
        node("ScatterND", ["e", "j", "v"], ["y"]),
    ]
    inputs = [value("x", [9, 20]), value("i", [9, "n"], long), value("u", [9, "n"])]
    inputs += [value("j", ["m", 1], long), value("v", ["m", 20])]
    source = model(nodes, inputs, [value("y", [9, 20])], opset=18)
    compiled = emulated_model(source)
    for count in (1, 7):
        places = np.random.default_rng(count).permutation(9)[:count]
        given = {"x": rand(9, 20), "i": np.tile(places, (9, 1)), "u": rand(9, count)}
        given |= {"j": places[:, None], "v": rand(count, 20)}
        assert check_compiled(compiled, source, given).ok


def test_constants_of_odd_sizes_are_padded_while_compiling() -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("MatMul", ["y", "v"], ["z"])]
    weights = {"w": rand(75, 51).astype("float16"), "v": rand(51, 45).astype("float16")}
    half = onnx.TensorProto.FLOAT16
    source = model(nodes, [value("x", [40, 75], half)], [value("z", [40, 45], half)], **weights)
    assert_matches(source, {"x": rand(40, 75).astype("float16")}, "nvidia-a100")
