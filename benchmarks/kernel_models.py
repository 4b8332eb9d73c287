"""The single kernels that are measured, each as a tiny ONNX model, so that all peers take the same.

Names give the size: ``conv1x1_56x56_64_256`` has 56x56 positions, 64 channels in and 256 out.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_ext.configs.errors import nearest_hint
from tvm_ext.errors import InputError

# What all kernels share: their record, their sizes, and the making of an ONNX model.


_OPSET, _IR_VERSION = 20, 9
FLOAT_BYTES = 4

Shape = Sequence[int]


@dataclass(frozen=True)
class KernelModel:
    """One kernel.

    Attributes
    ----------
    name, group : str
        What ``--kernels`` takes.
    flops : float
        Operations of the definition, however they are computed: a multiply-add is two, an
        elementary function (erf, exp, tanh) one.
    bytes : float
        Inputs, weights and outputs, each counted once.
    limit : "flops" or "bytes"
        Which of the machine's peaks the kernel is held against.
    build : callable
        Makes the model, with random weights.
    """

    name: str
    group: str
    flops: float
    bytes: float
    limit: Literal["flops", "bytes"]
    build: Callable[[], onnx.ModelProto]


@dataclass(frozen=True)
class Scale:
    """How large the kernels are: as in real networks, or a fraction of it for a quick test.

    Attributes
    ----------
    large_bytes : int
        Least size of the tensors that shall not fit into any cache.
    divisor : int
        Divides every size of 16 and above.
    """

    large_bytes: int
    divisor: int = 1

    def size(self, full: int) -> int:
        """``full`` on this scale."""
        return full if full < 16 else max(1, full // self.divisor)

    def sizes(self, full: Shape) -> tuple[int, ...]:
        """``size`` of each."""
        return tuple(self.size(one) for one in full)

    def rows(self, row: Shape) -> int:
        """How many rows of this shape make a tensor that is beyond the caches."""
        return max(1, math.ceil(self.large_bytes / (FLOAT_BYTES * math.prod(row))))


def float_bytes(*shapes: Shape) -> float:
    """Bytes of float32 tensors of these shapes."""
    return float(FLOAT_BYTES * sum(math.prod(shape) for shape in shapes))


def random_weights(shape: Shape, fan_in: int = 1) -> np.ndarray:
    """Normal float32 values, scaled so that sums over ``fan_in`` of them stay near 1."""
    values = np.random.default_rng(0).standard_normal(tuple(shape), np.float32)
    return np.asarray(values / np.float32(math.sqrt(fan_in)))


def onnx_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    output: Shape,
    weights: Mapping[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    """A checked float32 model with these inputs and the output ``y``."""
    graph = helper.make_graph(
        nodes,
        "kernel",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
            for name, shape in inputs.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(output))],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
    )
    onnx.checker.check_model(model, full_check=True)
    return model


# Convolutions: those of ResNet, and the forms that need a schedule of their own.


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


# Matmuls: square, of few rows, batched, and with a transposed operand.


# Below so many rows, reading the weights takes longer than multiplying by them.
_ROWS_TO_BE_BUSY = 8


@dataclass(frozen=True)
class _Product:
    """``batch`` products of [rows, inner] and [inner, columns].

    The right operand is a weight, known when the model is compiled, or an input.
    """

    rows: int
    inner: int
    columns: int
    batch: int = 1
    weights: bool = True
    transposed: bool = False

    def build(self) -> onnx.ModelProto:
        """The model."""
        lead = (self.batch,) if self.batch > 1 else ()
        left, right = (*lead, self.rows, self.inner), (*lead, self.inner, self.columns)
        node = helper.make_node("MatMul", ["a", "b"], ["y"])
        if self.transposed:
            right = (self.columns, self.inner)
            node = helper.make_node("Gemm", ["a", "b"], ["y"], transB=1)
        constants = {"b": random_weights(right, self.inner)} if self.weights else {}
        inputs = {"a": left} if self.weights else {"a": left, "b": right}
        return onnx_model([node], inputs, (*lead, self.rows, self.columns), constants)

    def kernel(self, name: str) -> KernelModel:
        """The record."""
        pairs = (self.rows, self.inner), (self.inner, self.columns), (self.rows, self.columns)
        return KernelModel(
            name,
            "matmul",
            2.0 * self.batch * self.rows * self.inner * self.columns,
            self.batch * float_bytes(*pairs),
            "flops" if self.rows >= _ROWS_TO_BE_BUSY else "bytes",
            self.build,
        )


def matmuls(scale: Scale) -> list[KernelModel]:
    """The group ``matmul``."""
    size = scale.size
    found = {
        "matmul_1024x1024x1024": _Product(size(1024), size(1024), size(1024)),
        "matmul_1008x1024x1024": _Product(size(1008), size(1024), size(1024)),
        "matmul_1x1024x4096": _Product(1, size(1024), size(4096)),
        "matmul_4x1024x4096": _Product(4, size(1024), size(4096)),
        "matmul_16x1024x4096": _Product(16, size(1024), size(4096)),
        "matmul_12x128x64x128": _Product(size(128), size(64), size(128), batch=12, weights=False),
        "matmul_abt_512x768x768": _Product(
            size(512), size(768), size(768), weights=False, transposed=True
        ),
    }
    return [product.kernel(name) for name, product in found.items()]


# Kernels that memory limits, on tensors beyond the last-level cache, and chains to be fused.


def memory_bound(scale: Scale) -> list[KernelModel]:
    """The group ``memory``."""
    row = scale.sizes((1024,))
    table = (scale.rows(row), *row)
    scale_and_shift = {"s": random_weights(row), "t": random_weights(row)}
    return [
        _simple("add", "Add", {"x": table, "z": table}, table, 1),
        _simple("relu", "Relu", {"x": table}, table, 1),
        _simple("gelu", "Gelu", {"x": table}, table, 5),
        _simple("softmax", "Softmax", {"x": table}, table, 5),
        _simple("layernorm", "LayerNormalization", {"x": table}, table, 7, scale_and_shift),
        *_pooling(scale),
        *_movement(scale),
    ]


def fusion_chains(scale: Scale) -> list[KernelModel]:
    """The group ``fusion``: five elementwise operators in a row, on rows of 1024 values."""
    row = scale.sizes((1024,))
    table = (scale.rows(row), *row)
    return [
        _chain("chain_cheap", ("Add", "Relu", "Mul", "Sub", "Clip"), table),
        _chain("chain_math", ("Add", "Sigmoid", "Mul", "Tanh", "Add"), table),
    ]


def _pooling(scale: Scale) -> list[KernelModel]:
    image = scale.sizes((64, 112, 112))
    batch = (scale.rows(image), *image)
    halved = (*batch[:2], batch[2] // 2, batch[3] // 2)
    maps = scale.sizes((256, 28, 28))
    many = (scale.rows(maps), *maps)
    # Operations of a pooling are counted at its outputs: as many a window as it has elements.
    return [
        _simple(
            "max_pool3x3_s2",
            "MaxPool",
            {"x": batch},
            halved,
            9,
            kernel_shape=[3, 3],
            strides=[2, 2],
            pads=[1, 1, 1, 1],
        ),
        _simple(
            "average_pool2x2_s2",
            "AveragePool",
            {"x": batch},
            halved,
            4,
            kernel_shape=[2, 2],
            strides=[2, 2],
        ),
        _simple(
            "global_average_pool",
            "GlobalAveragePool",
            {"x": many},
            (*many[:2], 1, 1),
            math.prod(maps[1:]),
        ),
    ]


def _movement(scale: Scale) -> list[KernelModel]:
    maps = scale.sizes((256, 784))
    flat = (scale.rows(maps), *maps)
    heads = (*scale.sizes((128,)), 12, *scale.sizes((64,)))
    tokens = (scale.rows(heads), *heads)
    half = scale.sizes((64, 56, 56))
    # Two of them are as large as any other tensor here.
    part = (max(1, scale.rows(half) // 2), *half)
    return [
        _simple(
            "transpose_matrix",
            "Transpose",
            {"x": flat},
            (flat[0], flat[2], flat[1]),
            0,
            perm=[0, 2, 1],
        ),
        _simple(
            "transpose_heads",
            "Transpose",
            {"x": tokens},
            (tokens[0], tokens[2], tokens[1], tokens[3]),
            0,
            perm=[0, 2, 1, 3],
        ),
        _simple(
            "concat_channels",
            "Concat",
            {"x": part, "z": part},
            (part[0], 2 * part[1], *part[2:]),
            0,
            axis=1,
        ),
    ]


def _simple(
    name: str,
    operator: str,
    inputs: dict[str, Shape],
    output: Shape,
    operations: int,
    weights: dict[str, np.ndarray] | None = None,
    **attributes: int | list[int],
) -> KernelModel:
    """One operator; ``operations`` an element of the output."""
    constants = weights or {}
    node = helper.make_node(operator, [*inputs, *constants], ["y"], **attributes)

    def build() -> onnx.ModelProto:
        return onnx_model([node], inputs, output, constants)

    nbytes = float_bytes(*inputs.values(), output, *(w.shape for w in constants.values()))
    return KernelModel(
        name, "memory", float(operations * math.prod(output)), nbytes, "bytes", build
    )


def _chain(name: str, operators: tuple[str, ...], table: Shape) -> KernelModel:
    """Operators in a row; those of two operands take a vector as long as a row."""
    weights: dict[str, np.ndarray] = {}
    nodes = []
    value = "x"
    for position, operator in enumerate(operators):
        result = "y" if position == len(operators) - 1 else f"v{position}"
        operands = [value]
        if operator in ("Add", "Mul", "Sub"):
            weights[f"w{position}"] = random_weights(table[-1:])
            operands.append(f"w{position}")
        elif operator == "Clip":
            weights |= {"low": np.array(-1, np.float32), "high": np.array(1, np.float32)}
            operands += ["low", "high"]
        nodes.append(helper.make_node(operator, operands, [result]))
        value = result

    def build() -> onnx.ModelProto:
        return onnx_model(nodes, {"x": table}, table, weights)

    flops = float(len(operators) * math.prod(table))
    return KernelModel(name, "fusion", flops, float_bytes(table, table), "bytes", build)


__all__ = ["GROUPS", "KernelModel", "Scale", "kernel_models", "select_kernels"]

_MAKERS = {
    "conv": convolutions,
    "matmul": matmuls,
    "memory": memory_bound,
    "fusion": fusion_chains,
}
GROUPS = tuple(_MAKERS)


def kernel_models(scale: Scale) -> list[KernelModel]:
    """All kernels, by group."""
    return [kernel for make in _MAKERS.values() for kernel in make(scale)]


def select_kernels(kernels: Iterable[KernelModel], names: Iterable[str]) -> list[KernelModel]:
    """The kernels that are named, themselves or by their group; all of them without a name.

    Raises
    ------
    InputError
        There is no kernel and no group of some name.
    """
    known = list(kernels)
    wanted = set(names)
    words = {*GROUPS, *(kernel.name for kernel in known)}
    for name in sorted(wanted - words):
        raise InputError(
            f"--kernels names '{name}', which is no kernel and no group; "
            f"{nearest_hint(name, words)}"
        )
    if not wanted:
        return known
    return [kernel for kernel in known if {kernel.name, kernel.group} & wanted]
