"""Models of one operator whose indices, counts, sizes and axes are inputs, and what they are fed.

A program knows nothing of them before the run: each is a way to an address.
"""

import random
from typing import Any

import numpy as np
import onnx
from operator_models import operator_model
from small_models import rand

Fed = tuple[onnx.ModelProto, dict[str, np.ndarray]]


def ints(*values: int, dtype: Any = np.int64) -> np.ndarray:
    return np.array(values, dtype)


def _index() -> np.ndarray:
    return ints(0, 2, -1).reshape(3, 1)


X = rand(3, 4)
IMAGE = rand(1, 2, 5, 6)
BOXES = np.float32([[[0, 0, 2, 2], [0, 0.1, 2, 2.1], [3, 3, 5, 5], [8, 8, 9, 9]]])

# Of each operator: its inputs, how many outputs, its attributes.
CASES: tuple[tuple[str, dict[str, np.ndarray | None], int, dict[str, Any]], ...] = (
    ("Gather", {"x": X, "at": ints(0, 2, -1)}, 1, {"axis": 0}),
    ("Gather", {"x": X, "at": ints(3, 1, dtype=np.int32)}, 1, {"axis": 1}),
    ("GatherElements", {"x": X, "at": _index()}, 1, {"axis": 1}),
    ("GatherND", {"x": X, "at": ints(0, 1, 2, -1).reshape(2, 2)}, 1, {}),
    ("GatherND", {"x": rand(2, 3, 4), "at": ints(1, -1).reshape(2, 1)}, 1, {"batch_dims": 1}),
    ("ScatterElements", {"x": X, "at": _index(), "u": rand(3, 1)}, 1, {"axis": 1}),
    ("ScatterElements", {"x": X, "at": _index(), "u": rand(3, 1)}, 1, {"reduction": "add"}),
    ("ScatterND", {"x": X, "at": ints(0, -1).reshape(2, 1), "u": rand(2, 4)}, 1, {}),
    ("ScatterND", {"x": X, "at": ints(0, 1).reshape(1, 2), "u": rand(1)}, 1, {"reduction": "max"}),
    ("Slice", {"x": X, "a": ints(0, 1), "b": ints(2, 4), "c": ints(0, 1), "d": ints(1, 2)}, 1, {}),
    ("Slice", {"x": X, "a": ints(-1), "b": ints(-9), "c": ints(1), "d": ints(-1)}, 1, {}),
    ("Tile", {"x": X, "n": ints(2, 1)}, 1, {}),
    ("Expand", {"x": rand(3, 1), "n": ints(2, 3, 4)}, 1, {}),
    ("Reshape", {"x": X, "n": ints(2, -1)}, 1, {}),
    ("Range", {"a": np.array(0), "b": np.array(9), "c": np.array(2)}, 1, {}),
    ("ConstantOfShape", {"n": ints(2, 3)}, 1, {}),
    ("OneHot", {"x": ints(0, 2, -1), "n": np.array(3), "v": np.float32([0, 5])}, 1, {}),
    ("TopK", {"x": X, "k": ints(2)}, 2, {}),
    ("CumSum", {"x": X, "axis": np.array(1)}, 1, {}),
    ("Trilu", {"x": X, "k": np.array(1)}, 1, {}),
    ("Split", {"x": X, "n": ints(1, 3)}, 2, {"axis": 1}),
    ("Squeeze", {"x": rand(1, 3, 1), "axes": ints(0, -1)}, 1, {}),
    ("Unsqueeze", {"x": X, "axes": ints(0, -1)}, 1, {}),
    ("ReduceSum", {"x": X, "axes": ints(1)}, 1, {}),
    ("ReduceMax", {"x": X, "axes": ints(-1)}, 1, {"keepdims": 0}),
    ("Compress", {"x": X, "at": np.array([True, False, True])}, 1, {"axis": 0}),
    ("ReverseSequence", {"x": X, "n": ints(1, 3, 2, 0)}, 1, {}),
    ("Resize", {"x": IMAGE, "r": None, "s": np.float32([1, 1, 2, 0.5])}, 1, {"mode": "linear"}),
    ("Resize", {"x": IMAGE, "r": None, "s": None, "n": ints(1, 2, 3, 9)}, 1, {"mode": "cubic"}),
    ("Resize", {"x": IMAGE, "r": None, "s": None, "n": ints(1, 2, 9, 3)}, 1, {}),
    ("Upsample", {"x": IMAGE, "s": np.float32([1, 1, 2, 3])}, 1, {"opset": 9}),
    *(
        ("Pad", {"x": X, "n": ints(0, 1, 2, 3), "v": np.array(1, np.float32)}, 1, {"mode": mode})
        for mode in ("constant", "edge", "reflect", "wrap")
    ),
    ("Pad", {"x": X, "n": ints(1, 2), "v": None, "axes": ints(-1)}, 1, {"mode": "reflect"}),
    ("CenterCropPad", {"x": X, "n": ints(5, 2)}, 1, {}),
    ("Col2Im", {"x": rand(1, 12, 12), "n": ints(5, 5), "k": ints(2, 3)}, 1, {}),
    ("GridSample", {"x": IMAGE, "grid": rand(1, 3, 2, 2)}, 1, {"padding_mode": "reflection"}),
    ("GridSample", {"x": IMAGE, "grid": rand(1, 3, 2, 2)}, 1, {"mode": "cubic"}),
    ("AffineGrid", {"x": rand(1, 2, 3), "n": ints(1, 2, 3, 4)}, 1, {}),
    (
        "RoiAlign",
        {"x": IMAGE, "boxes": np.float32([[0, 1, 4, 5], [2, 2, 3, 3]]), "at": ints(0, 0)},
        1,
        {"output_height": 2, "output_width": 2},
    ),
    ("MaxRoiPool", {"x": IMAGE, "r": np.float32([[0, 0, 1, 4, 5]])}, 1, {"pooled_shape": [2, 2]}),
    (
        "NonMaxSuppression",
        {
            "boxes": BOXES,
            "scores": np.float32([[[0.9, 0.8, 0.7, 0.1]]]),
            "n": ints(3),
            "iou": np.float32([0.5]),
            "least": np.float32([0.2]),
        },
        1,
        {},
    ),
    ("MaxUnpool", {"x": rand(1, 1, 2, 2), "at": ints(0, 3, 9, 14).reshape(1, 1, 2, 2)}, 1,
     {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("LSTM", {"x": rand(4, 2, 3), "w": rand(1, 8, 3), "r": rand(1, 8, 2), "b": None,
              "n": ints(4, 2, dtype=np.int32)}, 1, {"hidden_size": 2}),
    ("GRU", {"x": rand(4, 2, 3), "w": rand(1, 6, 3), "r": rand(1, 6, 2), "b": None,
             "n": ints(4, 2, dtype=np.int32)}, 1, {"hidden_size": 2, "direction": "reverse"}),
    ("DequantizeLinear", {"x": ints(0, 200, dtype=np.uint8), "s": np.float32([0.1, 2]),
                          "z": ints(3, 9, dtype=np.uint8)}, 1, {"axis": 0}),
    ("QuantizeLinear", {"x": rand(2, 3), "s": np.array(0.1, np.float32),
                        "z": np.array(3, np.int8)}, 1, {}),
    ("Cast", {"x": X}, 1, {"to": onnx.TensorProto.INT32}),
    ("Div", {"x": ints(7, -7, 0), "y": ints(2, -2, 3)}, 1, {}),
    ("Mod", {"x": ints(7, -7, 0), "y": ints(2, -2, 3)}, 1, {}),
    ("BitShift", {"x": ints(1, 2, dtype=np.uint32), "y": ints(1, 3, dtype=np.uint32)}, 1,
     {"direction": "LEFT"}),
    ("Where", {"at": np.array([True, False, True, True]), "x": X, "y": rand(1, 4)}, 1, {}),
    ("NonZero", {"x": X}, 1, {}),
    ("Unique", {"x": ints(3, 1, 3)}, 1, {"opset": 11}),
    ("DFT", {"x": rand(1, 6, 1), "n": np.array(4), "axis": np.array(1)}, 1, {}),
    ("Einsum", {"x": X, "y": rand(4, 3)}, 1, {"equation": "ij,jk->ik"}),
    ("MatMul", {"x": rand(2, 3, 4), "y": rand(4, 5)}, 1, {}),
    ("AveragePool", {"x": IMAGE}, 1, {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ("ConvTranspose", {"x": IMAGE, "w": rand(2, 3, 2, 2)}, 1, {"strides": [2, 2]}),
    ("Softmax", {"x": rand(2, 3, 5)}, 1, {"axis": 1}),
    ("LayerNormalization", {"x": X, "s": rand(4), "b": rand(4)}, 1, {}),
    ("TensorScatter", {"x": rand(2, 1, 4, 3), "u": rand(2, 1, 2, 3), "at": ints(0, 2)}, 1,
     {"opset": 24}),
    ("TensorScatter", {"x": rand(2, 1, 4, 3), "u": rand(2, 1, 2, 3), "at": ints(0, 3)}, 1,
     {"opset": 24, "mode": "circular"}),
    ("NegativeLogLikelihoodLoss", {"x": X, "at": ints(0, 3, 1), "w": rand(4)}, 1, {}),
    ("BatchNormalization", {"x": IMAGE, "s": rand(2), "b": rand(2), "m": rand(2),
                            "v": np.float32([1, 2])}, 1, {}),
    ("InstanceNormalization", {"x": IMAGE, "s": rand(2), "b": rand(2)}, 1, {}),
    ("GroupNormalization", {"x": rand(1, 4, 3), "s": rand(4), "b": rand(4)}, 1,
     {"opset": 21, "num_groups": 2}),
    ("PRelu", {"x": IMAGE, "s": rand(2, 1, 1)}, 1, {}),
    ("DeformConv", {"x": IMAGE, "w": rand(3, 2, 2, 2), "at": rand(1, 8, 4, 5)}, 1, {}),
    ("Conv", {"x": IMAGE, "w": rand(3, 2, 2, 2), "b": rand(3)}, 1, {"pads": [1, 0, 0, 1]}),
    ("Conv", {"x": rand(1, 4, 9), "w": rand(4, 2, 3)}, 1, {"group": 2, "auto_pad": "SAME_UPPER"}),
    ("Gemm", {"x": X, "y": rand(5, 4), "c": rand(5)}, 1, {"transB": 1}),
    ("LSTM", {"x": rand(4, 2, 3), "w": rand(1, 8, 3), "r": rand(1, 8, 2), "b": rand(1, 16),
              "n": None, "h": rand(1, 2, 2), "c": rand(1, 2, 2), "p": rand(1, 6)}, 3,
     {"hidden_size": 2}),
    ("RNN", {"x": rand(4, 2, 3), "w": rand(1, 2, 3), "r": rand(1, 2, 2), "b": rand(1, 4),
             "n": ints(4, 1, dtype=np.int32), "h": rand(1, 2, 2)}, 2, {"hidden_size": 2}),
    ("Attention", {"q": rand(1, 2, 3, 4), "k": rand(1, 2, 5, 4), "v": rand(1, 2, 5, 4),
                   "mask": rand(3, 5)}, 1, {"opset": 23}),
    ("RotaryEmbedding", {"x": rand(1, 2, 3, 4), "cos": rand(9, 2), "sin": rand(9, 2),
                         "at": ints(0, 3, 8).reshape(1, 3)}, 1, {"opset": 23}),
    ("RotaryEmbedding", {"x": rand(1, 2, 3, 4), "at": ints(0, 3, 8).reshape(1, 3),
                         "cos": rand(9, 2), "sin": rand(9, 2)}, 1, {"domain": "com.microsoft"}),
    ("EmbedLayerNormalization",
     {"ids": ints(0, 4, 2, dtype=np.int32).reshape(1, 3),
      "segments": ints(0, 1, 1, dtype=np.int32).reshape(1, 3), "words": rand(5, 4),
      "places": rand(3, 4), "kinds": rand(2, 4), "s": rand(4), "b": rand(4)}, 1,
     {"domain": "com.microsoft"}),
    ("MaxPool", {"x": IMAGE}, 2, {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1]}),
    ("LpPool", {"x": IMAGE}, 1, {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER"}),
    ("QLinearMatMul", {"a": ints(1, 2, dtype=np.uint8).reshape(1, 2), "as": np.float32([0.1]),
                       "az": ints(3, dtype=np.uint8), "b": ints(4, 5, dtype=np.uint8).reshape(2, 1),
                       "bs": np.float32([0.2]), "bz": ints(1, dtype=np.uint8),
                       "ys": np.float32([0.3]), "yz": ints(7, dtype=np.uint8)}, 1, {}),
    ("Concat", {"x": X, "y": rand(2, 4)}, 1, {"axis": 0}),
    ("Clip", {"x": X, "a": np.array(-0.5, np.float32), "b": np.array(0.5, np.float32)}, 1, {}),
    ("STFT", {"x": rand(1, 16, 1), "step": np.array(4), "w": rand(8), "n": np.array(8)}, 1, {}),
    ("HannWindow", {"n": np.array(5)}, 1, {}),
    ("ArgMax", {"x": X}, 1, {"axis": 1}),
    ("Scatter", {"x": X, "at": _index(), "u": rand(3, 1)}, 1, {"opset": 9}),
    ("ArrayFeatureExtractor", {"x": X, "at": ints(0, 3)}, 1, {"domain": "ai.onnx.ml"}),
)  # fmt: skip


def model_of(index: int) -> Fed:
    """One of the models, and what it is fed."""
    operator, arrays, outputs, attributes = CASES[index]
    return operator_model(operator, arrays, outputs, **attributes)


def with_symbolic_sizes(model: onnx.ModelProto, draw: random.Random) -> None:
    """Leaves sizes of some inputs to the run, each under a name of its own or a common one."""
    for value in model.graph.input:
        if draw.random() < 0.7:
            for axis, size in enumerate(value.type.tensor_type.shape.dim):
                if draw.random() < 0.8:
                    size.dim_param = f"{value.name}_{axis}" if draw.random() < 0.8 else f"n{axis}"
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
