"""Convolutions: those of ResNet, and the forms that need a schedule of their own."""

import math
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper

from kernel_models.common import KernelModel, Scale, Shape, float_bytes, onnx_model, random_weights


@dataclass(frozen=True)
class _Convolution:
    """A convolution with bias, batch 1; ``padding`` is the same on all sides.

    ``size`` and ``window`` have one entry a spatial dimension.
    """

    size: Shape
    channels: int
    out_channels: int
    window: Shape
    stride: int = 1
    padding: int = 0
    groups: int = 1
    relu: bool = False
    transposed: bool = False

    @property
    def input(self) -> Shape:
        return (1, self.channels, *self.size)

    @property
    def output(self) -> Shape:
        return (1, self.out_channels, *map(self._output_size, self.size, self.window))

    @property
    def weights(self) -> Shape:
        first, second = self.out_channels, self.channels
        if self.transposed:
            first, second = second, first
        return (first, second // self.groups, *self.window)

    @property
    def flops(self) -> float:
        """Two a multiply-add: each weight is used at every position of the side that is strided."""
        positions = self.size if self.transposed else self.output[2:]
        return 2.0 * math.prod(self.weights) * math.prod(positions)

    def _output_size(self, size: int, window: int) -> int:
        if self.transposed:
            return (size - 1) * self.stride - 2 * self.padding + window
        return (size + 2 * self.padding - window) // self.stride + 1

    def build(self) -> onnx.ModelProto:
        """The model."""
        rank = len(self.size)
        node = helper.make_node(
            "ConvTranspose" if self.transposed else "Conv",
            ["x", "w", "b"],
            ["c" if self.relu else "y"],
            kernel_shape=list(self.window),
            strides=[self.stride] * rank,
            pads=[self.padding] * 2 * rank,
            group=self.groups,
        )
        nodes = [node]
        if self.relu:
            nodes.append(helper.make_node("Relu", ["c"], ["y"]))
        fan_in = math.prod(self.window) * self.channels // self.groups
        weights = {
            "w": random_weights(self.weights, fan_in),
            "b": random_weights((self.out_channels,)),
        }
        return onnx_model(nodes, {"x": self.input}, self.output, weights)


def convolutions(scale: Scale) -> list[KernelModel]:
    """The group ``conv``."""

    def square(size: int, ins: int, outs: int, window: int, **options: Any) -> _Convolution:
        options = {"padding": window // 2, **options}
        return _Convolution(
            size=scale.sizes((size, size)),
            channels=scale.size(ins),
            out_channels=scale.size(outs),
            window=(window, window),
            **options,
        )

    wide = scale.size(128)
    found = {
        # ResNet's, on which single schedules were compared.
        "conv3x3_56x56_64_relu": square(56, 64, 64, 3, relu=True),
        "conv3x3_28x28_128": square(28, 128, 128, 3),
        "conv3x3_14x14_256": square(14, 256, 256, 3),
        "conv3x3_7x7_512": square(7, 512, 512, 3),
        "conv1x1_56x56_64_256": square(56, 64, 256, 1),
        "conv1x1_14x14_1024_256": square(14, 1024, 256, 1),
        "conv3x3_s2_56x56_128": square(56, 128, 128, 3, stride=2),
        # Each of the others breaks an assumption of a schedule for the ones above.
        "depthwise3x3_56x56_128": square(56, 128, 128, 3, groups=wide),
        "depthwise3x3_s2_112x112_128": square(112, 128, 128, 3, groups=wide, stride=2),
        "depthwise5x5_28x28_128": square(28, 128, 128, 5, groups=wide),
        "grouped3x3_28x28_256_g32": square(28, 256, 256, 3, groups=scale.size(32)),
        "conv3x3_80x80_64_8": square(80, 64, 8, 3),
        "first3x3_s2_224x224_3_32": square(224, 3, 32, 3, stride=2),
        "first7x7_s2_224x224_3_64": square(224, 3, 64, 7, stride=2),
        "transposed2x2_s2_40x40_64": square(40, 64, 64, 2, stride=2, padding=0, transposed=True),
        "transposed4x4_s2_16x16_256_128": square(
            16, 256, 128, 4, stride=2, padding=1, transposed=True
        ),
        "conv1d_k5_1000_128": _Convolution((scale.size(1000),), wide, wide, (5,), padding=2),
        "conv3d_3x3x3_8x28x28_32": _Convolution(
            (8, *scale.sizes((28, 28))), scale.size(32), scale.size(32), (3, 3, 3), padding=1
        ),
    }
    return [
        KernelModel(
            name,
            "conv",
            conv.flops,
            float_bytes(conv.input, conv.weights, (conv.out_channels,), conv.output),
            "flops",
            conv.build,
        )
        for name, conv in found.items()
    ]
