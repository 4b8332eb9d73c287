"""Small ONNX graphs that between them need every kind of kernel, also of odd sizes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from small_models import mlp, model, node, rand, value

F16, BF16, I8, I64 = (
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.INT8,
    TensorProto.INT64,
)
Shape = Sequence[int | str]


def one(
    operator: str, x: Shape, y: Shape, dtype: int = TensorProto.FLOAT, opset: int = 17, **given: Any
) -> onnx.ModelProto:
    """One operator on ``x``; arrays among ``given`` are its further inputs, in their order."""
    weights = {name: array for name, array in given.items() if isinstance(array, np.ndarray)}
    attributes = {name: what for name, what in given.items() if name not in weights}
    nodes = [node(operator, ["x", *weights], ["y"], name="tested", **attributes)]
    return model(nodes, [value("x", x, dtype)], [value("y", y, dtype)], opset, **weights)


def product(a: Shape, b: Shape, y: Shape, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """a @ b, both of them inputs."""
    inputs = [value("a", a, dtype), value("b", b, dtype)]
    return model([node("MatMul", ["a", "b"], ["y"])], inputs, [value("y", y, dtype)])


def linear(rows: int, steps: int, columns: int, dtype: str = "float16") -> onnx.ModelProto:
    """gelu(x @ w + b) with weights."""
    kind = {"float16": F16, "float32": TensorProto.FLOAT}[dtype]
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "b"], ["s"]),
        node("Gelu", ["s"], ["y"]),
    ]
    weights = {"w": rand(steps, columns) / np.sqrt(steps), "b": rand(columns)}
    stored = {name: array.astype(dtype) for name, array in weights.items()}
    inputs, outputs = [value("x", [rows, steps], kind)], [value("y", [rows, columns], kind)]
    return model(nodes, inputs, outputs, 20, **stored)


def attention(length: int | str, heads: int = 4, size: int = 64) -> onnx.ModelProto:
    """softmax(q @ k.T / sqrt(size)) @ v, float16."""
    shape = [2, heads, length, size]
    nodes = [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["s"]),
        node("Mul", ["s", "scale"], ["t"]),
        node("Softmax", ["t"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    scale = np.array(size**-0.5, "float16")
    inputs = [value(name, shape, F16) for name in "qkv"]
    return model(nodes, inputs, [value("y", shape, F16)], scale=scale)


def convolution(x: Shape, w: Shape, y: Shape, **attributes: Any) -> onnx.ModelProto:
    """relu(conv(x, w) + b)."""
    fan_in = float(np.prod(w[1:]))
    weights = {"w": rand(*w) / np.float32(np.sqrt(fan_in)), "b": rand(w[0], seed=1)}
    nodes = [node("Conv", ["x", "w", "b"], ["c"], **attributes), node("Relu", ["c"], ["y"])]
    return model(nodes, [value("x", x)], [value("y", y)], **weights)


def quantized() -> onnx.ModelProto:
    """An int8 product added up in int32."""
    nodes = [node("MatMulInteger", ["x", "w"], ["y"])]
    weights = np.random.default_rng(0).integers(-99, 99, (80, 48)).astype("int8")
    inputs, outputs = [value("x", [33, 80], I8)], [value("y", [33, 48], TensorProto.INT32)]
    return model(nodes, inputs, outputs, w=weights)


def branches() -> onnx.ModelProto:
    """An If with other operators in its branches."""

    def branch(name: str, operator: str) -> onnx.GraphProto:
        nodes = [node(operator, ["x"], [name])]
        return onnx.helper.make_graph(nodes, name, [], [value(name, [4, 8])])

    choice = node(
        "If", ["flag"], ["y"], then_branch=branch("t", "Exp"), else_branch=branch("e", "Neg")
    )
    inputs = [value("x", [4, 8]), value("flag", [], TensorProto.BOOL)]
    return model([choice], inputs, [value("y", [4, 8])])


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp of any batch": mlp,
    "mlp of four": lambda: mlp(4),
    "product float32": lambda: product([130, 70], [70, 200], [130, 200]),
    "product float16": lambda: product([256, 192], [192, 320], [256, 320], F16),
    "product float16 odd": lambda: product([131, 75], [75, 203], [131, 203], F16),
    "product of few rows": lambda: product([3, 1024], [1024, 640], [3, 640], F16),
    "product in batches": lambda: product([6, 65, 40], [6, 40, 72], [6, 65, 72], F16),
    "linear float16": lambda: linear(128, 256, 192),
    "linear float32": lambda: linear(100, 60, 130, "float32"),
    "int8": quantized,
    "attention": lambda: attention(128),
    "attention odd": lambda: attention(77),
    "conv 3x3": lambda: convolution([2, 32, 28, 28], [48, 32, 3, 3], [2, 48, 28, 28], pads=[1] * 4),
    "conv 1x1": lambda: convolution([1, 64, 14, 14], [96, 64, 1, 1], [1, 96, 14, 14]),
    "first conv": lambda: convolution(
        [1, 3, 65, 65], [32, 3, 7, 7], [1, 32, 33, 33], strides=[2, 2], pads=[3] * 4
    ),
    "depthwise": lambda: convolution(
        [1, 40, 30, 30], [40, 1, 3, 3], [1, 40, 15, 15], strides=[2, 2], pads=[1] * 4, group=40
    ),
    "transposed conv": lambda: one(
        "ConvTranspose", [1, 16, 9, 9], [1, 8, 18, 18], w=rand(16, 8, 2, 2), strides=[2, 2]
    ),
    "softmax": lambda: one("Softmax", [33, 1000], [33, 1000], axis=-1),
    "softmax of columns": lambda: one("Softmax", [5, 77, 6], [5, 77, 6], axis=1),
    "layer norm": lambda: one(
        "LayerNormalization", [50, 384], [50, 384], scale=rand(384), shift=rand(384), axis=-1
    ),
    "mean": lambda: one("ReduceMean", [4, 300, 7], [4, 7], axes=[1], keepdims=0),
    "largest of all": lambda: one("ReduceMax", [70_001], [1]),
    "elementwise": lambda: one("Tanh", [1_000_003], [1_000_003]),
    "elementwise of any size": lambda: one("Sigmoid", ["N", 7], ["N", 7]),
    "transpose": lambda: one("Transpose", [130, 67], [67, 130], perm=[1, 0]),
    "transpose of heads": lambda: one(
        "Transpose", [2, 50, 4, 16], [2, 4, 50, 16], F16, perm=[0, 2, 1, 3]
    ),
    "max pool": lambda: one(
        "MaxPool", [1, 8, 31, 31], [1, 8, 16, 16], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
    ),
    "resize": lambda: one(
        "Resize",
        [1, 3, 20, 20],
        [1, 3, 40, 40],
        roi=np.zeros(0, "float32"),
        scales=np.array([1, 1, 2, 2], "float32"),
        mode="linear",
    ),
    "gather": lambda: one("Gather", [50, 12], [3, 12], at=np.array([4, 49, 0]), axis=0),
    "branches": branches,
}
