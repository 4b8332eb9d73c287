"""Sound models that mutations start from: small, and of many kinds of operators."""

from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_node = helper.make_node
# The file of external data, in the model's folder.
WEIGHTS = "weights.bin"

_FLOAT, _INT64, _BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def _value(name: str, shape: list[int | str], dtype: int = _FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _rand(*shape: int) -> np.ndarray:
    return np.random.default_rng([7, *shape]).uniform(-1, 1, shape).astype(np.float32)


def _model(nodes: list, inputs: list, outputs: list, **weights: np.ndarray) -> onnx.ModelProto:
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "seed", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def convolutions() -> onnx.ModelProto:
    """Convolution, normalisation, pooling, a residual, a classifier."""
    nodes = [
        _node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1], strides=[1, 1]),
        _node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], name="norm"),
        _node("Relu", ["n"], ["r"], name="relu"),
        _node("Conv", ["r", "u"], ["d"], name="conv2", group=4, kernel_shape=[3, 3]),
        _node("MaxPool", ["d"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        _node("GlobalAveragePool", ["p"], ["g"], name="global"),
        _node("Flatten", ["g"], ["f"], name="flatten", axis=1),
        _node("Gemm", ["f", "k", "h"], ["y"], name="gemm", transB=1),
    ]
    weights = {"w": _rand(4, 3, 3, 3), "u": _rand(4, 1, 3, 3), "k": _rand(5, 4), "h": _rand(5)}
    norm = {"s": _rand(4), "b": _rand(4), "m": _rand(4), "v": np.abs(_rand(4)) + 1}
    return _model(nodes, [_value("x", ["N", 3, 9, 9])], [_value("y", ["N", 5])], **weights, **norm)


def attention() -> onnx.ModelProto:
    """Products, transposes, reshapes with computed shapes, softmax, a layer normalisation."""
    nodes = [
        _node("MatMul", ["x", "q"], ["a"], name="query"),
        _node("Reshape", ["a", "split"], ["a4"], name="split_heads"),
        _node("Transpose", ["a4"], ["t"], name="heads", perm=[0, 2, 1, 3]),
        _node("Transpose", ["a4"], ["k"], name="keys", perm=[0, 2, 3, 1]),
        _node("MatMul", ["t", "k"], ["s"], name="scores"),
        _node("Softmax", ["s"], ["p"], name="softmax", axis=-1),
        _node("MatMul", ["p", "t"], ["o"], name="mix"),
        _node("Transpose", ["o"], ["b"], name="back", perm=[0, 2, 1, 3]),
        _node("Shape", ["x"], ["shape"], name="shape"),
        _node("Reshape", ["b", "shape"], ["j"], name="join"),
        _node("LayerNormalization", ["j", "g"], ["y"], name="norm", axis=-1),
    ]
    split = np.array([0, 0, 2, 4], np.int64)
    weights = {"q": _rand(8, 8), "g": _rand(8)}
    ends = [_value("x", [1, "S", 8])], [_value("y", [1, "S", 8])]
    return _model(nodes, *ends, split=split, **weights)


def shapes() -> onnx.ModelProto:
    """Gather, slice, pad, concatenate, tile, expand, resize, reductions, one-hot, top-k."""
    nodes = [
        _node("Gather", ["x", "rows"], ["a"], name="gather", axis=1),
        _node("Slice", ["x", "starts", "ends", "axes"], ["b"], name="slice"),
        _node("Concat", ["a", "b"], ["c"], name="concat", axis=1),
        _node("Pad", ["c", "pads"], ["d"], name="pad", mode="constant"),
        _node("Unsqueeze", ["d", "first"], ["e"], name="unsqueeze"),
        _node("Resize", ["e", "", "scales"], ["f"], name="resize", mode="nearest"),
        _node("ReduceMean", ["f"], ["h"], name="mean", axes=[0, 1], keepdims=0),
        _node("TopK", ["h", "k"], ["top", "where"], name="top", axis=-1),
        _node("Tile", ["top", "repeats"], ["y"], name="tile"),
    ]
    constants = {
        "rows": np.array([0, 2], np.int64),
        "starts": np.array([1], np.int64),
        "ends": np.array([3], np.int64),
        "axes": np.array([1], np.int64),
        "pads": np.array([0, 1, 0, 1], np.int64),
        "first": np.array([0], np.int64),
        "scales": np.array([1, 1, 2], np.float32),
        "k": np.array([3], np.int64),
        "repeats": np.array([2], np.int64),
    }
    return _model(nodes, [_value("x", [2, 4])], [_value("y", [6])], **constants)


def branches() -> onnx.ModelProto:
    """An If and a Loop."""
    then = helper.make_graph(
        [_node("Mul", ["x", "two"], ["t"], name="double")], "then", [], [_value("t", [3])]
    )
    other = helper.make_graph(
        [_node("Neg", ["x"], ["n"], name="negate")], "else", [], [_value("n", [3])]
    )
    body = helper.make_graph(
        [
            _node("Add", ["state", "two"], ["next"], name="add"),
            _node("Identity", ["go"], ["again"], name="again"),
            _node("Identity", ["next"], ["scan"], name="scan"),
        ],
        "body",
        [_value("i", [], _INT64), _value("go", [], _BOOL), _value("state", [3])],
        [_value("again", [], _BOOL), _value("next", [3]), _value("scan", [3])],
    )
    nodes = [
        _node("If", ["flag"], ["c"], name="if", then_branch=then, else_branch=other),
        _node("Loop", ["trips", "true", "c"], ["last", "all"], name="loop", body=body),
    ]
    inputs = [_value("flag", [], _BOOL), _value("x", [3])]
    outputs = [_value("last", [3]), _value("all", ["T", 3])]
    constants = {"trips": np.int64(4), "true": np.bool_(True), "two": np.float32(2)}
    return _model(nodes, inputs, outputs, **constants)


def recurrence() -> onnx.ModelProto:
    """An LSTM in both directions and a GRU."""
    both_ways = {"hidden_size": 4, "direction": "bidirectional"}
    nodes = [
        _node("LSTM", ["x", "w", "r", "b"], ["a"], name="lstm", **both_ways),
        _node("ReduceSum", ["a", "directions"], ["z"], name="sum", keepdims=0),
        _node("GRU", ["z", "u", "q"], ["g"], name="gru", hidden_size=3),
        _node("Sigmoid", ["g"], ["y"], name="sigmoid"),
    ]
    weights = {"w": _rand(2, 16, 5), "r": _rand(2, 16, 4), "b": _rand(2, 32)}
    second = {"u": _rand(1, 9, 4), "q": _rand(1, 9, 3)}
    ends = [_value("x", [6, 1, 5])], [_value("y", [6, 1, 1, 3])]
    return _model(nodes, *ends, **weights, **second, directions=np.array([1]))


def quantised() -> onnx.ModelProto:
    """Quantise, an integer product, dequantise."""
    nodes = [
        _node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quantize"),
        _node("MatMulInteger", ["q", "w", "zero"], ["p"], name="product"),
        _node("Cast", ["p"], ["f"], name="cast", to=_FLOAT),
        _node("Mul", ["f", "scale"], ["y"], name="scale_back"),
    ]
    constants = {
        "scale": np.float32(0.05),
        "zero": np.uint8(128),
        "w": (_rand(4, 3) * 100).astype(np.int8),
    }
    return _model(nodes, [_value("x", [2, 4])], [_value("y", [2, 3])], **constants)


def detection() -> onnx.ModelProto:
    """Boxes and scores of a head, suppressed where they overlap, and what is left gathered."""
    nodes = [
        _node("Conv", ["x", "w"], ["c"], name="head", pads=[1, 1, 1, 1]),
        _node("Reshape", ["c", "flat"], ["r"], name="flatten"),
        _node("Split", ["r"], ["a", "b", "s"], name="split", axis=1),
        _node("Concat", ["a", "b"], ["boxes_last"], name="corners", axis=1),
        _node("Transpose", ["boxes_last"], ["boxes"], name="boxes", perm=[0, 2, 1]),
        _node("Sigmoid", ["s"], ["both"], name="sigmoid"),
        _node("ReduceMax", ["both"], ["scores"], name="score", axes=[1], keepdims=1),
        _node(
            "NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["kept"],
            name="suppress",
        ),
        _node("Gather", ["kept", "column"], ["index"], name="index", axis=1),
        _node("Gather", ["boxes", "index"], ["g"], name="gather", axis=1),
        _node("Squeeze", ["g", "first"], ["y"], name="squeeze"),
    ]  # fmt: skip
    constants = {
        "flat": np.array([1, 6, -1]),
        "most": np.array([5]),
        "overlap": np.float32([0.4]),
        "least": np.float32([0.1]),
        "column": np.array(2),
        "first": np.array([0]),
    }
    outputs = [_value("y", ["kept", 4]), _value("kept", ["kept", 3], _INT64)]
    weights = {"w": _rand(6, 3, 3, 3)}
    return _model(nodes, [_value("x", [1, 3, 4, 4])], outputs, **weights, **constants)


def external() -> onnx.ModelProto:
    """A perceptron whose weights lie in the file ``WEIGHTS`` beside the model."""
    nodes = [
        _node("Gemm", ["x", "w", "b"], ["h"], name="hidden"),
        _node("Tanh", ["h"], ["t"], name="tanh"),
        _node("MatMul", ["t", "u"], ["y"], name="last"),
    ]
    ends = [_value("x", ["N", 8])], [_value("y", ["N", 3])]
    model = _model(nodes, *ends, w=_rand(8, 16), b=_rand(16), u=_rand(16, 3))
    offset = 0
    for tensor in model.graph.initializer:
        length = len(tensor.raw_data)
        onnx.external_data_helper.set_external_data(tensor, WEIGHTS, offset, length)
        tensor.ClearField("raw_data")
        offset += length
    return model


def external_bytes() -> bytes:
    """The file that ``external`` reads."""
    return b"".join(_rand(*shape).tobytes() for shape in ((8, 16), (16,), (16, 3)))


def sizes() -> onnx.ModelProto:
    """Tensors whose sizes are computed from those of the input."""
    nodes = [
        _node("Shape", ["x"], ["shape"], name="shape"),
        _node("Gather", ["shape", "at"], ["rows"], name="rows"),
        _node("Range", ["zero", "rows", "one"], ["steps"], name="steps"),
        _node("Unsqueeze", ["steps", "at_one"], ["column"], name="column"),
        _node("Cast", ["column"], ["position"], name="cast", to=_FLOAT),
        _node("ConstantOfShape", ["shape"], ["ones"], name="fill",
              value=numpy_helper.from_array(np.float32([1.5]))),
        _node("Expand", ["position", "shape"], ["wide"], name="expand"),
        _node("Mul", ["wide", "ones"], ["m"], name="scale"),
        _node("Add", ["m", "x"], ["p"], name="add"),
        _node("Concat", ["whole", "four"], ["target"], name="target", axis=0),
        _node("Reshape", ["p", "target"], ["r"], name="reshape"),
        _node("CumSum", ["r", "last"], ["s"], name="sum"),
        _node("Where", ["mask", "s", "r"], ["y"], name="where"),
    ]  # fmt: skip
    constants = {
        "at": np.array(0),
        "zero": np.array(0),
        "one": np.array(1),
        "at_one": np.array([1]),
        "whole": np.array([-1]),
        "four": np.array([4]),
        "last": np.array(1),
        "mask": np.array([True, False, True, False]),
    }
    ends = [_value("x", ["N", 8])], [_value("y", ["M", 4])]
    return _model(nodes, *ends, **constants)


def integers() -> onnx.ModelProto:
    """A convolution between quantised tensors, as converters of trained models write it."""
    nodes = [
        _node("DequantizeLinear", ["w", "ws", "wz"], ["f"], name="weights", axis=0),
        _node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantize"),
        _node("QLinearConv", ["q", "s", "z", "w", "ws", "wz", "t", "z"], ["c"], name="integer",
              pads=[1, 1, 1, 1]),
        _node("DequantizeLinear", ["c", "t", "z"], ["d"], name="dequantize"),
        _node("Conv", ["x", "f"], ["e"], name="real", pads=[1, 1, 1, 1]),
        _node("Sub", ["d", "e"], ["y"], name="error"),
    ]  # fmt: skip
    constants = {
        "w": (_rand(4, 2, 3, 3) * 100).astype(np.int8),
        "ws": np.float32([0.01, 0.02, 0.01, 0.03]),
        "wz": np.zeros(4, np.int8),
        "s": np.float32(0.03),
        "t": np.float32(0.2),
        "z": np.uint8(120),
    }
    ends = [_value("x", [1, 2, 6, 6])], [_value("y", [1, 4, 6, 6])]
    return _model(nodes, *ends, **constants)


def upscaling() -> onnx.ModelProto:
    """A transposed convolution, a resize to a size, a crop, normalisation by instance."""
    nodes = [
        _node("ConvTranspose", ["x", "w"], ["a"], name="up", strides=[2, 2], output_padding=[1, 1]),
        _node("InstanceNormalization", ["a", "s", "b"], ["n"], name="norm", epsilon=1e-5),
        _node("LeakyRelu", ["n"], ["l"], name="relu", alpha=0.1),
        _node("Resize", ["l", "", "", "size"], ["r"], name="resize", mode="linear",
              coordinate_transformation_mode="half_pixel"),
        _node("AveragePool", ["r"], ["p"], name="pool", kernel_shape=[3, 3], strides=[2, 2],
              pads=[1, 1, 1, 1], count_include_pad=1),
        _node("DepthToSpace", ["p"], ["d"], name="shuffle", blocksize=2, mode="CRD"),
        _node("Pad", ["d", "border", "zero"], ["y"], name="pad", mode="reflect"),
    ]  # fmt: skip
    constants = {
        "s": np.abs(_rand(4)),
        "b": _rand(4),
        "size": np.array([1, 4, 12, 12]),
        "border": np.array([0, 0, 1, 1, 0, 0, 1, 2]),
        "zero": np.float32(0),
    }
    ends = [_value("x", [1, 3, 4, 4])], [_value("y", [1, 1, 14, 15])]
    return _model(nodes, *ends, w=_rand(3, 4, 3, 3), **constants)


def old() -> onnx.ModelProto:
    """Operators of opset 9, whose sizes and bounds are attributes; the weights are inputs too."""
    nodes = [
        _node("Conv", ["x", "w"], ["c"], name="conv", kernel_shape=[3, 3], auto_pad="SAME_UPPER"),
        _node("Clip", ["c"], ["l"], name="clip", min=0.0, max=6.0),
        _node("Upsample", ["l", "scales"], ["u"], name="up", mode="nearest"),
        _node("Slice", ["u"], ["s"], name="slice", axes=[2, 3], starts=[1, 1], ends=[-1, 9]),
        _node("Pad", ["s"], ["p"], name="pad", pads=[0, 0, 1, 1, 0, 0, 1, 1], mode="edge"),
        _node("Flatten", ["p"], ["f"], name="flatten"),
        _node("Softmax", ["f"], ["y"], name="softmax", axis=1),
    ]
    ends = [_value("x", [1, 2, 4, 4]), _value("w", [2, 2, 3, 3])], [_value("y", [1, 144])]
    model = _model(nodes, *ends, w=_rand(2, 2, 3, 3), scales=np.float32([1, 1, 2, 2]))
    model.opset_import[0].version = 9
    return model


def functions() -> onnx.ModelProto:
    """A function of the model's own, a Scan, and a sequence that is put together and taken."""
    opset = [helper.make_opsetid("", 17)]
    inner = [_node("Mul", ["a", "b"], ["m"], name="mul"), _node("Tanh", ["m"], ["t"], name="tanh")]
    function = helper.make_function("own", "Gate", ["a", "b"], ["t"], inner, opset)
    body = helper.make_graph(
        [
            _node("Add", ["state", "row"], ["sum"], name="add"),
            _node("Identity", ["sum"], ["out"], name="out"),
        ],
        "body",
        [_value("state", [3]), _value("row", [3])],
        [_value("sum", [3]), _value("out", [3])],
    )
    nodes = [
        _node("Gate", ["x", "w"], ["g"], name="gate", domain="own"),
        _node("Scan", ["start", "g"], ["last", "rows"], name="scan", body=body, num_scan_inputs=1),
        _node("SequenceConstruct", ["rows", "g"], ["both"], name="sequence"),
        _node("SequenceAt", ["both", "at"], ["r"], name="item"),
        _node("Einsum", ["r", "w"], ["y"], name="product", equation="ij,kj->ik"),
    ]
    weights = {"w": _rand(4, 3), "start": _rand(3), "at": np.array(0)}
    ends = [_value("x", [4, 3])], [_value("y", [4, 4]), _value("last", [3])]
    model = _model(nodes, *ends, **weights)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


def fills() -> onnx.ModelProto:
    """Tensors whose sizes are constants, filled with constants or with the input, summed up."""
    nodes = [
        _node("ConstantOfShape", ["count"], ["constant"], name="constant"),
        _node("Range", ["zero", "stop", "one"], ["steps"], name="range"),
        _node("Cast", ["steps"], ["range"], name="cast", to=_FLOAT),
        _node("OneHot", ["count", "depth", "pair"], ["one_hot"], name="one_hot"),
    ]
    made = ["constant", "range", "one_hot"]
    for data in ("pair", "x"):
        operators = {"Expand": ["wide"], "Tile": ["repeats"], "Pad": ["border"]}
        operators["Resize"] = ["", "", "size"]
        for operator, sizes in operators.items():
            made.append(f"{operator}_{data}")
            nodes.append(_node(operator, [data, *sizes], [made[-1]], name=made[-1]))
    sums = [_node("ReduceSum", [name], [f"{name}_sum"], keepdims=0) for name in made]
    nodes += [*sums, _node("Sum", [f"{name}_sum" for name in made], ["y"], name="total")]
    constants = {
        "count": np.array([2]),
        "zero": np.array(0),
        "stop": np.array(3),
        "one": np.array(1),
        "depth": np.array(2),
        "pair": np.float32([1, 2]),
        "wide": np.array([1, 1, 2]),
        "repeats": np.array([2]),
        "border": np.array([1, 0]),
        "size": np.array([3]),
    }
    return _model(nodes, [_value("x", [2])], [_value("y", [])], **constants)


SEEDS: tuple[Callable[[], onnx.ModelProto], ...] = (
    *(convolutions, attention, shapes, branches, recurrence, quantised, detection, external),
    *(sizes, integers, upscaling, old, functions, fills),
)


@cache
def seed_bytes(index: int) -> bytes:
    """One of the models, serialised."""
    return bytes(SEEDS[index]().SerializeToString())
