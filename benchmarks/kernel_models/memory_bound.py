"""Kernels that memory limits, on tensors beyond the last-level cache, and chains to be fused."""

import math

import numpy as np
import onnx
from onnx import helper

from kernel_models.common import KernelModel, Scale, Shape, float_bytes, onnx_model, random_weights


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
