"""Small models of the usual blocks, to be trained: each with its weights as initializers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from unoptimised import HOST

from tvm_ext import training


def compile_training(*arguments: Any, **options: Any) -> training.Trainer:
    """What users call, without LLVM's optimisations."""
    return training.compile_training(*arguments, **{"target": HOST, **options})


class Graph:
    """Nodes and weights of a model that is being written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rng = np.random.default_rng(len(name))
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._count = 0

    def __call__(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """The result of a new node, or the list of its results."""
        self._count += 1
        names = [f"v{self._count}_{place}" for place in range(outputs)]
        name = f"{kind.lower()}_{self._count}"
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return names[0] if outputs == 1 else names

    def weight(self, name: str, *shape: int, around: float = 0.0) -> str:
        """A weight with values as layers are initialised with, around a number."""
        fan = max(int(np.prod(shape[1:])), 1) if len(shape) > 1 else 16
        array = self.rng.standard_normal(shape) / np.sqrt(fan) + around
        self.initializers.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def constant(self, name: str, values: Any, dtype: str = "int64") -> str:
        """A constant."""
        self.initializers.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def linear(self, name: str, x: str, inputs: int, outputs: int) -> str:
        """``x @ w + b`` along the last axis."""
        product = self("MatMul", x, self.weight(f"{name}.weight", inputs, outputs))
        return self("Add", product, self.weight(f"{name}.bias", outputs))

    def conv(
        self, name: str, x: str, inputs: int, outputs: int, width: int = 3, **more: Any
    ) -> str:
        """A convolution of two axes that keeps the sizes."""
        share = inputs // more.get("group", 1)
        weight = self.weight(f"{name}.weight", outputs, share, width, width)
        return self("Conv", x, weight, pads=[width // 2] * 4, **more)

    def batch_norm(self, name: str, x: str, channels: int) -> str:
        """A batch normalisation with running statistics."""
        parts = [self.weight(f"{name}.weight", channels, around=1.0)]
        parts.append(self.weight(f"{name}.bias", channels))
        parts.append(self.constant(f"{name}.running_mean", np.zeros(channels), "float32"))
        parts.append(self.constant(f"{name}.running_var", np.ones(channels), "float32"))
        return self("BatchNormalization", x, *parts)

    def layer_norm(self, name: str, x: str, width: int) -> str:
        """A layer normalisation of the last axis."""
        scale = self.weight(f"{name}.weight", width, around=1.0)
        return self("LayerNormalization", x, scale, self.weight(f"{name}.bias", width), axis=-1)

    def model(
        self, x: list[int], y: list[int], result: str, dtype: int = TensorProto.FLOAT
    ) -> onnx.ModelProto:
        """The model from ``x`` to ``result``."""
        self.nodes.append(helper.make_node("Identity", [result], ["y"], name="result"))
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [helper.make_tensor_value_info("x", dtype, x)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
            self.initializers,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
        model.ir_version = 9
        return model


def mlp(batch: int = 16, width: int = 32) -> onnx.ModelProto:
    """Two layers with ReLU between."""
    g = Graph("mlp")
    hidden = g("Relu", g.linear("fc1", "x", 20, width))
    return g.model([batch, 20], [batch, 10], g.linear("head", hidden, width, 10))


def resnet_block(batch: int = 4, channels: int = 16, size: int = 8) -> onnx.ModelProto:
    """A stem, a residual block with a shortcut of stride 2, and a classifier."""
    g = Graph("resnet")
    stem = g("Relu", g.batch_norm("bn0", g.conv("conv0", "x", 3, channels), channels))
    out = g.conv("conv1", stem, channels, 2 * channels, strides=[2, 2])
    out = g("Relu", g.batch_norm("bn1", out, 2 * channels))
    out = g.batch_norm("bn2", g.conv("conv2", out, 2 * channels, 2 * channels), 2 * channels)
    short = g.conv("down", stem, channels, 2 * channels, width=1, strides=[2, 2])
    out = g("Relu", g("Add", out, g.batch_norm("bn3", short, 2 * channels)))
    pooled = g("Flatten", g("GlobalAveragePool", out))
    head = g.linear("head", pooled, 2 * channels, 10)
    return g.model([batch, 3, size, size], [batch, 10], head)


def attention(g: Graph, x: str, batch: int, length: int, width: int, heads: int) -> str:
    """Self-attention in single operators, as exporters write it."""
    size = width // heads
    split = g.constant("split", [batch, length, heads, size])
    q, k, v = (g("Reshape", g.linear(name, x, width, width), split) for name in "qkv")
    q, v = (g("Transpose", one, perm=[0, 2, 1, 3]) for one in (q, v))
    k = g("Transpose", k, perm=[0, 2, 3, 1])
    scores = g("Mul", g("MatMul", q, k), g.constant("scale", size**-0.5, "float32"))
    mixed = g("MatMul", g("Softmax", scores, axis=-1), v)
    joined = g("Reshape", g("Transpose", mixed, perm=[0, 2, 1, 3]),
               g.constant("join", [batch, length, width]))  # fmt: skip
    return g.linear("out", joined, width, width)


def transformer_block(
    batch: int = 2, length: int = 8, width: int = 32, heads: int = 4
) -> onnx.ModelProto:
    """A block with the normalisations in front, GELU, and a classifier of the mean."""
    g = Graph("transformer")
    x = g("Add", "x", attention(g, g.layer_norm("ln1", "x", width), batch, length, width, heads))
    hidden = g("Gelu", g.linear("up", g.layer_norm("ln2", x, width), width, 4 * width))
    x = g("Add", x, g.linear("down", hidden, 4 * width, width))
    mean = g("ReduceMean", g.layer_norm("ln3", x, width), g.constant("axes", [1]), keepdims=0)
    return g.model([batch, length, width], [batch, 10], g.linear("head", mean, width, 10))


def _recurrent(kind: str, gates: int, direction: str, **more: Any) -> Callable[..., Any]:
    def build(batch: int = 4, length: int = 6, width: int = 12, units: int = 16) -> onnx.ModelProto:
        g = Graph(kind)
        ways = 2 if direction == "bidirectional" else 1
        weights = [
            g.weight(f"{kind}.W", ways, gates * units, width),
            g.weight(f"{kind}.R", ways, gates * units, units),
            g.weight(f"{kind}.B", ways, 2 * gates * units),
        ]
        steps = g("Transpose", "x", perm=[1, 0, 2])
        sizes = {"hidden_size": units, "direction": direction}
        found = g(kind.upper(), steps, *weights, outputs=2, **sizes, **more)
        last = g("Reshape", g("Transpose", found[1], perm=[1, 0, 2]),
                 g.constant("flat", [batch, ways * units]))  # fmt: skip
        mean = g("Reshape", g("ReduceMean", found[0], g.constant("axes", [0]), keepdims=0),
                 g.constant("flat_mean", [batch, ways * units]))  # fmt: skip
        both = g("Concat", last, mean, axis=1)
        return g.model([batch, length, width], [batch, 10],
                       g.linear("head", both, 2 * ways * units, 10))  # fmt: skip

    return build


lstm = _recurrent("lstm", 4, "forward")
bidirectional_lstm = _recurrent("lstm", 4, "bidirectional")
gru = _recurrent("gru", 3, "forward", linear_before_reset=1)
gru_of_reset_state = _recurrent("gru", 3, "reverse")


def convolutional_classifier(batch: int = 4) -> onnx.ModelProto:
    """Convolutions with bias, pools and a linear layer, as in LeNet."""
    g = Graph("lenet")
    x = g("MaxPool", g("Relu", g.conv("conv1", "x", 1, 8, 5)), kernel_shape=[2, 2], strides=[2, 2])
    x = g("Tanh", g("Conv", x, g.weight("conv2.weight", 16, 8, 3, 3), g.weight("conv2.bias", 16)))
    x = g("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 1])
    x = g("Flatten", x)
    return g.model([batch, 1, 12, 12], [batch, 10], g.linear("head", x, 16 * 2 * 2, 10))


def separable_block(batch: int = 4, channels: int = 16) -> onnx.ModelProto:
    """An inverted bottleneck with a convolution of depth and HardSwish, as in MobileNetV3."""
    g = Graph("separable")
    x = g("Clip", g.batch_norm("bn1", g.conv("up", "x", 8, channels, 1), channels),
          g.constant("low", 0.0, "float32"), g.constant("high", 6.0, "float32"))  # fmt: skip
    x = g.conv("depth", x, channels, channels, 3, group=channels, strides=[2, 2])
    x = g("HardSwish", g.batch_norm("bn2", x, channels))
    gate = g("Sigmoid", g.conv("gate", g("GlobalAveragePool", x), channels, channels, 1))
    x = g.conv("project", g("Mul", x, gate), channels, 8, 1)
    x = g("LeakyRelu", x, alpha=0.1)
    return g.model([batch, 8, 8, 8], [batch, 10],
                   g.linear("head", g("Flatten", x), 8 * 4 * 4, 10))  # fmt: skip


def language_block(batch: int = 2, length: int = 6, width: int = 16) -> onnx.ModelProto:
    """An embedding, RMS normalisation and a gated layer, as in Llama; a class for each token."""
    g = Graph("language")
    x = g("Gather", g.weight("embedding", 30, width), "x", axis=0)
    square = g("ReduceMean", g("Mul", x, x), g.constant("axes", [-1]), keepdims=1)
    root = g("Sqrt", g("Add", square, g.constant("epsilon", 1e-5, "float32")))
    normal = g("Mul", g("Div", x, root), g.weight("norm.weight", width, around=1.0))
    gate = g.linear("gate", normal, width, 2 * width)
    gate = g("Mul", gate, g("Sigmoid", gate))
    hidden = g("Mul", gate, g.linear("up", normal, width, 2 * width))
    x = g("Add", x, g.linear("down", hidden, 2 * width, width))
    logits = g("Transpose", g.linear("head", x, width, 10), perm=[0, 2, 1])
    return g.model([batch, length], [batch, 10, length], logits, TensorProto.INT64)


def up_and_down(batch: int = 2) -> onnx.ModelProto:
    """A convolution with stride and its transpose with a skip, as in a U-Net, of one axis more."""
    g = Graph("unet")
    first = g("Relu", g.conv("conv1", "x", 2, 8))
    down = g("Elu", g.conv("down", first, 8, 16, strides=[2, 2]))
    weight = g.weight("up.weight", 16, 8, 2, 2)
    up = g("ConvTranspose", down, weight, g.weight("up.bias", 8), strides=[2, 2])
    both = g("Concat", first, up, axis=1)
    return g.model([batch, 2, 8, 8], [batch, 3, 8, 8], g.conv("head", both, 16, 3))


def convolutions_of_sequences(batch: int = 2) -> onnx.ModelProto:
    """Convolutions of one axis with group and instance normalisation, Slice and Pad."""
    g = Graph("sequences")
    x = g("Conv", "x", g.weight("conv1.weight", 8, 3, 5), pads=[2, 2], strides=[2])
    x = g("InstanceNormalization", x, g.weight("in.weight", 8, around=1.0), g.weight("in.bias", 8))
    x = g("Softplus", x)
    x = g("Slice", x, *(g.constant(name, value) for name, value in
                        (("from", [1]), ("to", [7]), ("along", [2]), ("by", [2]))))  # fmt: skip
    x = g("Pad", x, g.constant("pads", [0, 0, 1, 0, 0, 1]))
    x = g("ReduceMax", x, g.constant("axes", [2]), keepdims=0)
    x = g("PRelu", x, g.weight("prelu", 8, around=0.25))
    return g.model([batch, 3, 16], [batch, 10], g.linear("head", x, 8, 10))


BLOCKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp": mlp,
    "resnet block": resnet_block,
    "transformer block": transformer_block,
    "lstm": lstm,
    "gru": gru,
    "gru that resets its state": gru_of_reset_state,
    "convolutional classifier": convolutional_classifier,
    "separable block": separable_block,
    "language block": language_block,
    "up and down": up_and_down,
    "convolutions of sequences": convolutions_of_sequences,
}


def batch_for(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs and labels of a model."""
    rng = np.random.default_rng(seed)
    given, result = model.graph.input[0].type.tensor_type, model.graph.output[0].type.tensor_type
    shape = [dim.dim_value for dim in given.shape.dim]
    labels = [dim.dim_value for dim in result.shape.dim]
    classes = labels.pop(1)
    if given.elem_type == TensorProto.INT64:
        x: Any = rng.integers(0, 30, shape)
    else:
        x = rng.standard_normal(shape).astype(np.float32)
    return {"x": x, "target": rng.integers(0, classes, labels)}
