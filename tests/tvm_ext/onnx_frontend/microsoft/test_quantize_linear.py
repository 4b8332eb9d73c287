"""Operators of com.microsoft, rewritten at ONNX level, against ONNX Runtime."""

import numpy as np
import pytest
from microsoft_models import bytes_of, compared, microsoft_model, weights_of
from one_model import in_one_model
from onnx import TensorProto
from random_numbers import RANDOM
from small_models import rand

import tvm_ext
from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.onnx_frontend import prepare_model

runtime = pytest.importorskip("onnxruntime")
U8, I8, F = TensorProto.UINT8, TensorProto.INT8, TensorProto.FLOAT


X = rand(2, 5, 8)
SCALE = {name: np.array(s, np.float32) for name, s in (("as", 0.02), ("bs", 0.03), ("ys", 0.05))}
ZERO = {name: np.array(z, np.uint8) for name, z in (("az", 120), ("bz", 131), ("yz", 127))}

FLOATS = {
    "gelu": ("Gelu", {"x": X}, {}),
    "bias gelu": ("BiasGelu", {"x": X, "bias": rand(8)}, {}),
    "fast gelu": ("FastGelu", {"x": X, "bias": rand(8)}, {}),
    "fast gelu without bias": ("FastGelu", {"x": X}, {}),
    "quick gelu": ("QuickGelu", {"x": X}, {"alpha": 1.5}),
    "distances": ("CDist", {"x": rand(5, 3), "x2": rand(4, 3, seed=1)}, {"metric": "euclidean"}),
    "squared distances": ("CDist", {"x": rand(5, 3), "x2": rand(4, 3, seed=1)}, {}),
    "fused conv": (
        "FusedConv",
        {"x": rand(1, 3, 8, 8), "w": rand(4, 3, 3, 3), "b": rand(4)},
        {"activation": "LeakyRelu", "activation_params": [0.2], "pads": [1, 1, 1, 1]},
    ),
    "fused conv with a sum": (
        "FusedConv",
        {"x": rand(1, 3, 8, 8), "w": rand(4, 3, 3, 3), "b": rand(4), "x2": rand(1, 4, 6, 6)},
        {"activation": "Relu"},
    ),
    "fused gemm": (
        "FusedGemm",
        {"x": rand(4, 8), "w": rand(6, 8), "b": rand(6)},
        {"activation": "Relu", "transB": 1, "alpha": 0.5},
    ),
    "fused matmul": (
        "FusedMatMul",
        {"x": rand(2, 5, 8), "x2": rand(2, 6, 8)},
        {"alpha": 0.125, "transB": 1},
    ),
    "fused matmul, transposed": ("FusedMatMul", {"x": rand(8, 5), "w": rand(8, 3)}, {"transA": 1}),
    "skip layer normalization": (
        "SkipLayerNormalization",
        {"x": X, "x2": rand(2, 5, 8, seed=1), "g": rand(8), "b": rand(8, seed=2), "c": rand(8)},
        {"epsilon": 1e-5},
    ),
    "skip simplified": (
        "SkipSimplifiedLayerNormalization",
        {"x": X, "x2": rand(2, 5, 8, seed=1), "g": rand(8)},
        {"epsilon": 1e-5},
    ),
    "dynamic quantize matmul": (
        "DynamicQuantizeMatMul",
        {
            "x": X,
            "w": weights_of(8, 6),
            "s": rand(6) ** 2 + np.float32(0.01),
            "z": bytes_of(6, dtype="int8"),
            "b": rand(6),
        },
        {},
    ),
    "matmul integer to float": (
        "MatMulIntegerToFloat",
        {"x": bytes_of(4, 8), "w": bytes_of(8, 6), **SCALE, "az": ZERO["az"], "bz": ZERO["bz"]},
        {},
    ),
}
del FLOATS["matmul integer to float"][1]["ys"]


@in_one_model
@pytest.mark.parametrize("case", FLOATS)
def test_operators_on_floats(case):
    op, inputs, attributes = FLOATS[case]
    proto, fed = microsoft_model(op, inputs, {"y": F}, **attributes)
    for found, wanted in compared(proto, fed):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("opset", [14, 17, 20])
def test_skip_layer_normalization_returns_the_sum(opset):
    inputs = {"x": X, "x2": rand(2, 5, 8, seed=1), "g": rand(8)}
    made = {"y": F, "_": F, "__": F, "sum": F}
    proto, fed = microsoft_model("SkipLayerNormalization", inputs, made, opset)
    del proto.graph.output[1:3]
    proto.graph.node[0].output[1:3] = ["", ""]
    for found, wanted in compared(proto, fed):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("masked", [False, True])
def test_embed_layer_normalization(masked):
    inputs = {
        "x_ids": RANDOM.integers(0, 11, (2, 5)).astype(np.int32),
        "x_segments": RANDOM.integers(0, 2, (2, 5)).astype(np.int32),
        **{"word": rand(11, 8), "position": rand(7, 8), "segment": rand(2, 8)},
        **{"gamma": rand(8), "beta": rand(8, seed=3)},
    }
    if masked:
        inputs["x_mask"] = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    outputs = {"y": F, "mask_index": TensorProto.INT32}
    proto, fed = microsoft_model("EmbedLayerNormalization", inputs, outputs, epsilon=1e-12)
    (normed, sums), (found, wanted) = compared(proto, fed)
    np.testing.assert_allclose(normed, sums, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found, wanted)


def pair(op: str, a: np.ndarray, b: np.ndarray, dtype: str = "uint8") -> tuple:
    zero = {name: z.astype(dtype) if dtype == "uint8" else np.int8(3) for name, z in ZERO.items()}
    inputs = {"xa": a, "as": SCALE["as"], "az": zero["az"]}
    inputs |= {"xb": b, "bs": SCALE["bs"], "bz": zero["bz"], "ys": SCALE["ys"], "yz": zero["yz"]}
    return op, inputs, {}


def single(op: str, x: np.ndarray, **attributes) -> tuple:
    inputs = {"x": x, "as": SCALE["as"], "az": ZERO["az"], "ys": SCALE["ys"], "yz": ZERO["yz"]}
    return op, inputs, attributes


IMAGE = bytes_of(1, 3, 7, 7)
QUANTIZED = {
    "add": pair("QLinearAdd", bytes_of(4, 50), bytes_of(4, 50)),
    "add int8": pair(
        "QLinearAdd", bytes_of(4, 50, dtype="int8"), bytes_of(50, dtype="int8"), "int8"
    ),
    "mul": pair("QLinearMul", bytes_of(4, 50), bytes_of(4, 50)),
    "sigmoid": single("QLinearSigmoid", bytes_of(4, 50)),
    "leaky relu": single("QLinearLeakyRelu", bytes_of(4, 50), alpha=0.1),
    "global average pool": single("QLinearGlobalAveragePool", IMAGE),
    "average pool": single(
        "QLinearAveragePool",
        bytes_of(2, 5, 15, 15),
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
    ),
    "global average pool, channels last": single(
        "QLinearGlobalAveragePool", bytes_of(1, 7, 7, 3), channels_last=1
    ),
    "average pool, channels last": single(
        *("QLinearAveragePool", bytes_of(2, 15, 15, 5)),
        **{"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "channels_last": 1},
    ),
    "convolution, channels last": (
        "QLinearConv",
        {
            **{"x": bytes_of(1, 7, 6, 3), "as": SCALE["as"], "az": ZERO["az"]},
            **{"w": weights_of(4, 3, 3, 3), "bs": SCALE["bs"], "wz": np.int8(0)},
            **{"ys": np.float32(3), "yz": ZERO["yz"]},
            "bias": bytes_of(4, dtype="int8").astype(np.int32),
        },
        {"channels_last": 1, "pads": [1, 1, 1, 1], "strides": [2, 1]},
    ),
    "concat": (
        "QLinearConcat",
        {
            **{"ys": SCALE["ys"], "yz": ZERO["yz"]},
            **{"xa": bytes_of(2, 30), "as": SCALE["as"], "az": ZERO["az"]},
            **{"xb": bytes_of(3, 30), "bs": SCALE["bs"], "bz": ZERO["bz"]},
        },
        {"axis": 0},
    ),
}


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("case", QUANTIZED)
def test_quantized_operators_differ_by_a_step_at_borders_only(case):
    op, inputs, attributes = QUANTIZED[case]
    dtype = I8 if "int8" in case else U8
    proto, fed = microsoft_model(op, inputs, {"y": dtype}, **attributes)
    ((found, wanted),) = compared(proto, fed)
    steps = np.abs(found.astype(int) - wanted.astype(int))
    assert steps.max() <= 1
    assert np.count_nonzero(steps) <= 0.02 * steps.size
    assert len(np.unique(wanted)) > 1


def test_a_pool_of_bytes_whose_channels_are_last():
    inputs = {"x": bytes_of(1, 7, 6, 3)}
    proto, fed = microsoft_model("NhwcMaxPool", inputs, {"y": U8}, kernel_shape=[3, 2])
    ((found, wanted),) = compared(proto, fed)
    np.testing.assert_array_equal(found, wanted)


@in_one_model
@pytest.mark.parametrize("to_float", [False, True])
def test_qgemm_is_exact(to_float):
    columns = rand(6) ** 2 + np.float32(0.01)
    inputs = {"x": bytes_of(5, 40), "as": SCALE["as"], "az": ZERO["az"], "w": bytes_of(6, 40)}
    inputs |= {"ws": columns, "wz": bytes_of(6), "c": bytes_of(6).astype(np.int32)}
    if not to_float:
        inputs |= {"ys": np.float32(1.5), "yz": ZERO["yz"]}
    proto, fed = microsoft_model("QGemm", inputs, {"y": F if to_float else U8}, transB=1, alpha=0.5)
    ((found, wanted),) = compared(proto, fed)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_what_cannot_be_rewritten_is_refused_by_name():
    inputs = {"x": rand(2, 3, 4, 5), "w": rand(2, 3, 5, 4)}
    proto, _ = microsoft_model("FusedMatMul", inputs, {"y": F}, transBatchA=1)
    with pytest.raises(UnsupportedOperatorError, match=r"com\.microsoft::FusedMatMul"):
        tvm_ext.compile(proto)


def test_nothing_of_the_domain_is_left():
    op, inputs, attributes = FLOATS["fused conv"]
    proto, _ = microsoft_model(op, inputs, {"y": F}, **attributes)
    prepared = prepare_model(proto)[2]
    assert [n.op_type for n in prepared.graph.node] == ["Conv", "LeakyRelu"]
    assert not any(n.domain for n in prepared.graph.node)
