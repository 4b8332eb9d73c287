"""Activations, normalisations, fused products and distances of com.microsoft in default operators.

The formulas are those of ONNX Runtime's ContribOperators.md.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.onnx_frontend.microsoft.builder import Builder

_Results = list[ir.Value | None]


def gelu(b: Builder) -> _Results:
    """``x / 2 * (1 + erf(x / sqrt(2)))``, or the approximation with tanh."""
    if b.attribute("approximate", "none") == "tanh":
        return fast_gelu(b)
    return [_gelu(b, b.input(0))]


def bias_gelu(b: Builder) -> _Results:
    """Gelu of ``x + bias``."""
    return [_gelu(b, b.op("Add", b.input(0), b.input(1)))]


def fast_gelu(b: Builder) -> _Results:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`` of ``x + bias``."""
    return [gelu_by_tanh(b, _plus(b, b.input(0), b.optional(1)), b.number)]


def gelu_by_tanh(b: Builder, x: ir.Value, number: Callable[[float], ir.Value]) -> ir.Value:
    """The same of ``x``, with scalars as ``number`` makes them."""
    cube = b.op("Mul", b.op("Mul", x, x), x)
    inner = b.op("Add", x, b.op("Mul", cube, number(0.044715)))
    gate = b.op("Tanh", b.op("Mul", inner, number(math.sqrt(2 / math.pi))))
    gate = b.op("Add", gate, number(1))
    return b.op("Mul", b.op("Mul", x, number(0.5)), gate)


def quick_gelu(b: Builder) -> _Results:
    """``x * sigmoid(alpha * x)``."""
    x = b.input(0)
    scaled = b.op("Mul", x, b.number(b.attribute("alpha", 1.702)))
    return [b.op("Mul", x, b.op("Sigmoid", scaled))]


def distances(b: Builder) -> _Results:
    """Of each row of one matrix to each row of another, ``sqrt(sum((a - b)^2))`` or its square."""
    metric = b.attribute("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise NotApplicable(f"metric {metric}")
    apart = b.op("Sub", b.unsqueezed(b.input(0), 1), b.unsqueezed(b.input(1), 0))
    squares = b.total(b.op("Mul", apart, apart), 2)
    return [b.op("Sqrt", squares) if metric == "euclidean" else squares]


def fused_conv(b: Builder) -> _Results:
    """Conv, a sum with another tensor, and an activation."""
    skipped = {"activation", "activation_params"}
    kept = {k: a.value for k, a in b.node.attributes.items() if k not in skipped}
    result = b.op("Conv", b.input(0), b.input(1), b.optional(2), **kept)
    result = _plus(b, result, b.optional(3))
    return [activated(b, result, list(b.attribute("activation_params", ())))]


def fused_gemm(b: Builder) -> _Results:
    """Gemm and an activation."""
    kept = {name: b.attribute(name) for name in ("alpha", "beta", "transA", "transB")}
    result = b.op("Gemm", b.input(0), b.input(1), b.optional(2), **kept)
    given = [b.attribute(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return [activated(b, result, [value for value in given if value is not None])]


def fused_matmul(b: Builder) -> _Results:
    """``alpha * (A or its transpose) @ (B or its transpose)``."""
    if b.attribute("transBatchA", 0) or b.attribute("transBatchB", 0):
        raise NotApplicable("transBatchA or transBatchB")
    operands = [
        b.transposed(b.input(index)) if b.attribute(name, 0) else b.input(index)
        for index, name in enumerate(("transA", "transB"))
    ]
    result = b.op("MatMul", *operands)
    alpha = b.attribute("alpha", 1.0)
    return [result if alpha == 1 else b.op("Mul", result, b.number(alpha))]


def layer_normalization(b: Builder) -> _Results:
    """Over the axes from ``axis`` on, with the mean and the reciprocal deviation as results."""
    x, axis = b.input(0), b.attribute("axis", -1)
    if axis >= 0 and x.shape is None:
        raise NotApplicable("the rank of its input is not known")
    axes = range(axis, len(x.shape) if axis >= 0 and x.shape is not None else 0)
    return list(_normalized(b, x, b.input(1), b.optional(2), axes, b.attribute("epsilon", 1e-5)))


def skip_layer_normalization(b: Builder) -> _Results:
    """LayerNormalization of ``input + skip + bias``; the sum is the fourth output."""
    total = _plus(b, b.op("Add", b.input(0), b.input(1)), b.optional(4))
    result = _layer_normalization(b, total, b.input(2), b.optional(3))
    return [result, None, None, total]


def skip_simplified_layer_normalization(b: Builder) -> _Results:
    """The same divided by the root mean square, without subtracting the mean."""
    total = _plus(b, b.op("Add", b.input(0), b.input(1)), b.optional(3))
    normed = over_root_mean_square(b, total, b.number(_epsilon(b)))
    return [b.op("Mul", normed, b.input(2)), None, None, total]


def simplified_layer_normalization(b: Builder) -> _Results:
    """Rows divided by their root mean square, times a scale."""
    if b.attribute("axis", -1) != -1 or b.used(1):
        raise NotApplicable("another axis than the last, or the reciprocal root as a result")
    normed = over_root_mean_square(b, b.input(0), b.number(b.attribute("epsilon", 1e-5)))
    return [b.op("Mul", normed, b.input(1))]


def over_root_mean_square(b: Builder, x: ir.Value, epsilon: ir.Value) -> ir.Value:
    """Each row divided by its root mean square."""
    square = b.mean(b.op("Mul", x, x), -1)
    return b.op("Div", x, b.op("Sqrt", b.op("Add", square, epsilon)))


def embed_layer_normalization(b: Builder) -> _Results:
    """LayerNormalization of the sum of word, position and segment embeddings."""

    def rows(table: int, places: ir.Value) -> ir.Value:
        return b.op("Gather", b.input(table), places)

    return embedded(b, rows, b.optional(8), b.input(5), b.optional(6))


def embedded(
    b: Builder,
    rows: Callable[[int, ir.Value], ir.Value],
    positions: ir.Value | None,
    gamma: ir.Value,
    beta: ir.Value | None,
) -> _Results:
    """The same for tables of any kind: ``rows`` reads those of the table at an input."""
    ids, segments = b.input(0), b.optional(1)
    positions = b.counted(b.size(ids, 1)) if positions is None else positions
    total = b.op("Add", rows(2, ids), rows(3, positions))
    total = _plus(b, total, None if segments is None else rows(4, segments))
    result = _layer_normalization(b, total, gamma, beta)
    return [result, _mask_index(b, ids) if b.used(1) else None, total]


def _plus(b: Builder, x: ir.Value, addend: ir.Value | None) -> ir.Value:
    return x if addend is None else b.op("Add", x, addend)


def _gelu(b: Builder, x: ir.Value) -> ir.Value:
    gate = b.op("Erf", b.op("Div", x, b.number(math.sqrt(2))))
    gate = b.op("Add", gate, b.number(1))
    return b.op("Mul", b.op("Mul", x, gate), b.number(0.5))


def activated(b: Builder, x: ir.Value, parameters: list[float]) -> ir.Value:
    """``x`` behind the activation that the node names, if it does, with these parameters."""
    name = b.attribute("activation", "")
    if name in ("Relu", "Tanh", "Sigmoid"):
        return b.op(name, x)
    if name == "LeakyRelu":
        return b.op(name, x, alpha=parameters[0] if parameters else 0.01)
    if name == "Clip" and len(parameters) == 2:
        return b.op("Min", b.op("Max", x, b.number(parameters[0])), b.number(parameters[1]))
    if name == "HardSigmoid":
        alpha, beta = parameters or (0.2, 0.5)
        return b.op(name, x, alpha=alpha, beta=beta)
    if name == "HardSwish":
        return b.op("Mul", x, b.op("HardSigmoid", x, alpha=1 / 6, beta=0.5))
    if name:
        raise NotApplicable(f"activation {name}")
    return x


def _epsilon(b: Builder) -> float:
    return b.attribute("epsilon", 1e-12)


def _layer_normalization(
    b: Builder, x: ir.Value, gamma: ir.Value, beta: ir.Value | None
) -> ir.Value:
    if b.opset >= 17:
        return b.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=_epsilon(b))
    return _normalized(b, x, gamma, beta, (-1,), _epsilon(b))[0]


def _normalized(
    b: Builder,
    x: ir.Value,
    gamma: ir.Value,
    beta: ir.Value | None,
    axes: Sequence[int],
    epsilon: float,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The result, the mean, and the reciprocal deviation."""
    mean = b.mean(x, *axes)
    centred = b.op("Sub", x, mean)
    variance = b.mean(b.op("Mul", centred, centred), *axes)
    deviation = b.op("Sqrt", b.op("Add", variance, b.number(epsilon)))
    result = b.op("Mul", b.op("Div", centred, deviation), gamma)
    return _plus(b, result, beta), mean, b.op("Reciprocal", deviation)


def _mask_index(b: Builder, ids: ir.Value) -> ir.Value:
    """How many elements of each row are not masked; zeros without a mask."""
    mask = b.optional(7)
    if mask is None:
        return b.total(b.op("Sub", ids, ids), 1)
    one = b.constant(np.array(1, np.int32))
    return b.total(b.cast(b.op("Equal", mask, one), ir.DataType.INT32), 1)
