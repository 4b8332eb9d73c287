"""Single kernels as ONNX models, each with the same computation in PyTorch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

GROUPS = ("matmul", "fused", "attention", "memory", "conv")


@dataclass(frozen=True)
class Case:
    """One computation.

    Attributes
    ----------
    name, group, dtype : str
        For the table.
    shapes : sequence of shapes
        Of the inputs, in the order of the ONNX model's.
    work : float
        Operations of the definition, or bytes read and written once.
    limit : "flops" or "bytes"
        Which peak the work is held against.
    model : onnx.ModelProto
        The ONNX model.
    torch : callable
        Takes PyTorch, the input tensors and the weights.
    weights : sequence of arrays
        The model's constants.
    images : bool
        Whether PyTorch is also measured with channels last, as it is told for speed.
    """

    name: str
    group: str
    dtype: str
    shapes: Sequence[Sequence[int]]
    work: float
    limit: Literal["flops", "bytes"]
    model: onnx.ModelProto
    torch: Callable[..., Any]
    weights: Sequence[np.ndarray] = field(default=(), compare=False)
    images: bool = False


def cases() -> list[Case]:
    """All of them, by group."""
    found = [_product(*sizes, dtype) for dtype in ("bfloat16", "float16") for sizes in _PRODUCTS]
    found += [_fused(*sizes, "float16") for sizes in _FUSED]
    found += [_attention(*sizes) for sizes in _ATTENTIONS]
    found += [*_rows(), *(_convolution(*sizes) for sizes in _CONVOLUTIONS)]
    return found


# Rows, columns, steps: square, odd, and thin ones.
_PRODUCTS = (
    *((size, size, size) for size in (1024, 2048, 4096, 8192)),
    (1000, 1000, 1000),
    (4095, 4097, 4093),
    (16, 4096, 4096),
    (128, 4096, 4096),
    (4096, 128, 8192),
)
_FUSED = ((2048, 2048, 2048), (4096, 4096, 4096), (4096, 16384, 4096), (64, 4096, 4096))
# Batch, heads, length, size of a head.
_ATTENTIONS = ((4, 32, 1024, 64), (2, 32, 4096, 64), (2, 32, 4096, 128), (8, 16, 577, 64))
# Batch, channels in, channels out, size, kernel, stride, groups.
_CONVOLUTIONS = (
    (32, 64, 64, 56, 3, 1, 1),
    (32, 256, 256, 14, 3, 1, 1),
    (32, 256, 1024, 14, 1, 1, 1),
    (32, 3, 64, 224, 7, 2, 1),
    (32, 128, 128, 56, 3, 1, 128),
)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int]],
    output: Sequence[int],
    dtype: str,
    **weights: np.ndarray,
) -> onnx.ModelProto:
    kind = _TYPES[dtype]
    values = [helper.make_tensor_value_info(n, kind, list(s)) for n, s in inputs.items()]
    results = [helper.make_tensor_value_info("y", kind, list(output))]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(list(nodes), "case", values, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _product(rows: int, columns: int, steps: int, dtype: str) -> Case:
    shapes = {"a": (rows, steps), "b": (steps, columns)}
    return Case(
        f"{rows}x{columns}x{steps}",
        "matmul",
        dtype,
        list(shapes.values()),
        2.0 * rows * columns * steps,
        "flops",
        _model([helper.make_node("MatMul", ["a", "b"], ["y"])], shapes, (rows, columns), dtype),
        lambda torch, a, b: torch.matmul(a, b),
    )


def _fused(rows: int, columns: int, steps: int, dtype: str) -> Case:
    shapes = {"a": (rows, steps), "b": (steps, columns), "c": (columns,)}
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["m"]),
        helper.make_node("Add", ["m", "c"], ["s"]),
        helper.make_node("Gelu", ["s"], ["y"]),
    ]
    return Case(
        f"gelu(a @ b + c) {rows}x{columns}x{steps}",
        "fused",
        dtype,
        list(shapes.values()),
        2.0 * rows * columns * steps,
        "flops",
        _model(nodes, shapes, (rows, columns), dtype),
        lambda torch, a, b, c: torch.nn.functional.gelu(torch.addmm(c, a, b)),
    )


def _attention(batch: int, heads: int, length: int, size: int) -> Case:
    shape = (batch, heads, length, size)
    scale = helper.make_tensor("scale", TensorProto.FLOAT16, [], [size**-0.5])
    nodes = [
        helper.make_node("Constant", [], ["f"], value=scale),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Mul", ["s", "f"], ["t"]),
        helper.make_node("Softmax", ["t"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    return Case(
        "x".join(map(str, shape)),
        "attention",
        "float16",
        [shape] * 3,
        4.0 * batch * heads * length * length * size,
        "flops",
        _model(nodes, dict.fromkeys("qkv", shape), shape, "float16"),
        lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v),
    )


def _rows() -> list[Case]:
    """Kernels that only move memory."""
    rows, width = 65536, 1024
    big = (rows, width)
    once = 2.0 * rows * width

    def case(name: str, dtype: str, node: onnx.NodeProto, shapes: dict, torch: Callable) -> Case:
        moved = once + (rows * width if name == "add" else 0)
        model = _model([node], shapes, big, dtype)
        work = moved * _BYTES[dtype]
        return Case(name, "memory", dtype, list(shapes.values()), work, "bytes", model, torch)

    make = helper.make_node
    found = []
    for dtype in ("float32", "float16"):
        norm = {"x": big, "g": (width,), "b": (width,)}
        found += [
            case("add", dtype, make("Add", ["x", "z"], ["y"]), {"x": big, "z": big}, _add),
            case("gelu", dtype, make("Gelu", ["x"], ["y"]), {"x": big}, _gelu),
            case("softmax", dtype, make("Softmax", ["x"], ["y"], axis=-1), {"x": big}, _softmax),
            case("layer norm", dtype, make("LayerNormalization", list(norm), ["y"]), norm, _norm),
        ]
    return found


def _add(torch: Any, x: Any, z: Any) -> Any:
    return torch.add(x, z)


def _gelu(torch: Any, x: Any) -> Any:
    return torch.nn.functional.gelu(x)


def _softmax(torch: Any, x: Any) -> Any:
    return torch.softmax(x, -1)


def _norm(torch: Any, x: Any, g: Any, b: Any) -> Any:
    return torch.nn.functional.layer_norm(x, g.shape, g, b)


def _convolution(
    batch: int, inner: int, outer: int, size: int, kernel: int, stride: int, groups: int
) -> Case:
    pad = kernel // 2
    side = (size + 2 * pad - kernel) // stride + 1
    x = (batch, inner, size, size)
    shape = (outer, inner // groups, kernel, kernel)
    w = np.random.default_rng(0).standard_normal(shape, np.float32).astype(np.float16)
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], strides=[stride] * 2, pads=[pad] * 4, group=groups
    )
    work = 2.0 * batch * outer * side * side * kernel * kernel * inner / groups
    name = f"{batch}x{inner}x{size}x{size} to {outer}, {kernel}x{kernel}"
    name += f" stride {stride}" if stride > 1 else ""
    return Case(
        f"{name} groups {groups}" if groups > 1 else name,
        "conv",
        "float16",
        [x],
        work,
        "flops",
        _model([node], {"x": x}, (batch, outer, side, side), "float16", w=w),
        lambda torch, x, w: torch.nn.functional.conv2d(
            x, w, stride=stride, padding=pad, groups=groups
        ),
        [w],
        images=True,
    )
