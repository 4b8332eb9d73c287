"""Builds a ResNet-18 in ONNX with random weights: a model for where none can be downloaded."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
BLOCKS_PER_STAGE = 2


class _Builder:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def constant(self, name: str, values: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(values.astype("float32"), name))
        return name

    def node(self, operator: str, inputs: list[str], name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def conv_bn(self, x: str, name: str, shape: tuple[int, int, int], stride: int) -> str:
        """Convolution (out, in, size) without bias, then batch normalisation."""
        out, inputs, size = shape
        spread = np.sqrt(2.0 / (inputs * size * size))
        weight = self.random.normal(0.0, spread, (out, inputs, size, size))
        conv = self.node(
            "Conv",
            [x, self.constant(f"{name}.weight", weight)],
            f"{name}.conv",
            strides=[stride, stride],
            pads=[size // 2] * 4,
            kernel_shape=[size, size],
        )
        statistics = {
            "scale": self.random.uniform(0.5, 1.0, out),
            "bias": self.random.normal(0.0, 0.1, out),
            "mean": self.random.normal(0.0, 0.1, out),
            "var": self.random.uniform(0.5, 1.5, out),
        }
        inputs_of_bn = [self.constant(f"{name}.{k}", v) for k, v in statistics.items()]
        return self.node("BatchNormalization", [conv, *inputs_of_bn], f"{name}.bn")

    def residual_block(self, x: str, name: str, inputs: int, outputs: int, stride: int) -> str:
        main = self.conv_bn(x, f"{name}.1", (outputs, inputs, 3), stride)
        main = self.node("Relu", [main], f"{name}.relu1")
        main = self.conv_bn(main, f"{name}.2", (outputs, outputs, 3), 1)
        if stride != 1 or inputs != outputs:
            x = self.conv_bn(x, f"{name}.shortcut", (outputs, inputs, 1), stride)
        return self.node("Relu", [self.node("Add", [main, x], f"{name}.add")], f"{name}.relu2")


def build_resnet18(path: Path, classes: int = 1000, seed: int = 0) -> Path:
    """Writes the model (input ``x``: float32[1, 3, 224, 224]) to ``path`` and returns the path."""
    builder = _Builder(seed)
    x = builder.node("Relu", [builder.conv_bn("x", "stem", (64, 3, 7), 2)], "stem.relu")
    x = builder.node(
        "MaxPool", [x], "stem.pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
    )
    channels = 64
    for stage, (outputs, first_stride) in enumerate(STAGES):
        for block in range(BLOCKS_PER_STAGE):
            stride = first_stride if block == 0 else 1
            name = f"stage{stage}.{block}"
            x = builder.residual_block(x, name, channels, outputs, stride)
            channels = outputs
    x = builder.node("GlobalAveragePool", [x], "pool")
    x = builder.node("Flatten", [x], "flatten")
    weight = builder.constant("fc.weight", builder.random.normal(0, 0.05, (classes, channels)))
    bias = builder.constant("fc.bias", np.zeros(classes))
    builder.node("Gemm", [x, weight, bias], "logits", transB=1)
    graph = helper.make_graph(
        builder.nodes,
        "resnet18",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 224, 224])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, classes])],
        builder.initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path
