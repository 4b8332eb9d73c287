"""Draws one ONNX operator at a time with random but valid attributes: tensors and arithmetic."""

from collections.abc import Sequence

import numpy as np
from graph_builder import GraphBuilder, NotApplicable
from onnx import TensorProto

_INT64 = np.int64


def unary(g: GraphBuilder) -> None:
    op = g.pick(("Relu", "Sigmoid", "Tanh", "Erf", "Neg", "Abs", "Softplus", "Identity", "Floor"))
    if op == "Floor":
        # Rounding is a jump: only inputs are the same on both sides.
        g.add_float(op, [g.value(lambda v: v in g.inputs)])
        return
    g.add_float(op, [g.value()])


def activation(g: GraphBuilder) -> None:
    x = g.value()
    op = g.pick(("LeakyRelu", "Elu", "HardSwish", "HardSigmoid", "Gelu", "Selu", "ThresholdedRelu"))
    if op == "Gelu" and g.opset < 20:
        op = "Elu"
    attributes = {
        "LeakyRelu": {"alpha": g.pick((0.01, 0.25))},
        "Elu": {"alpha": g.pick((1.0, 0.5))},
        "HardSigmoid": {"alpha": g.pick((0.2, 1 / 6)), "beta": 0.5},
        "Gelu": {"approximate": g.pick(("none", "tanh"))},
    }.get(op, {})
    if op == "ThresholdedRelu":
        x = g.value(lambda v: v in g.inputs)
    g.add_float(op, [x], **(attributes if not g.chance(4) else {}))


def clip(g: GraphBuilder) -> None:
    x = g.value()
    low = g.constant(g.pick((0.0, -1.0)), g.dtype) if g.chance() else None
    high = g.constant(g.pick((6.0, 1.0)), g.dtype) if g.chance() else None
    g.add_float("Clip", [x, low, high])


def prelu(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank >= 1)
    g.add_float("PRelu", [x, g.weight(_broadcastable(g, x.shape))])


def batch_norm(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank >= 2)
    size = [x.shape[1]]
    mean, variance = g.weight(size), g.positive(size)
    epsilon = g.pick((1e-5, 1e-3))
    inputs = [x, g.weight(size), g.weight(size), mean, variance]
    g.add_float("BatchNormalization", inputs, epsilon=epsilon)


def layer_norm(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank >= 2)
    axis = g.integer(1, x.rank - 1)
    shape = x.shape[axis:]
    if int(np.prod(shape)) < 3:
        raise NotApplicable
    bias = g.weight(shape) if g.chance() else None
    axis = axis if g.chance() else axis - x.rank
    inputs = [x, g.weight(shape), bias] if bias else [x, g.weight(shape)]
    g.add_float("LayerNormalization", inputs, axis=axis, epsilon=1e-2)


def instance_norm(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank >= 3 and int(np.prod(v.shape[2:])) >= 3)
    size = [x.shape[1]]
    g.add_float("InstanceNormalization", [x, g.weight(size), g.weight(size)], epsilon=1e-2)


def softmax(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank >= 1)
    axis = {"axis": g.integer(-x.rank, x.rank - 1)} if not g.chance(4) else {}
    g.add_float(g.pick(("Softmax", "LogSoftmax")), [x], **axis)


def binary(g: GraphBuilder) -> None:
    """With another value, a constant, an input or itself, broadcast either way."""
    x = g.value()
    op = g.pick(("Add", "Mul", "Sub", "Max", "Min"))
    kind = g.pick(("value", "value", "constant", "input"))
    if kind == "value":
        y = g.value(lambda v: _can_broadcast(v.shape, x.shape))
    elif kind == "constant":
        y = g.weight(_broadcastable(g, x.shape))
    else:
        y = g.input(_broadcastable(g, x.shape))
    pair = [x, y] if g.chance() else [y, x]
    g.add_float(op, pair)


def variadic(g: GraphBuilder) -> None:
    x = g.value()
    others = [g.value(lambda v: v.shape == x.shape), g.weight(_broadcastable(g, x.shape))]
    g.add_float(g.pick(("Sum", "Mean", "Max", "Min")), [x, *others])


def divide(g: GraphBuilder) -> None:
    """By constants far from zero, or by a value that is kept away from it."""
    x = g.value()
    if g.chance():
        g.add_float("Div", [x, g.positive(_broadcastable(g, x.shape))])
        return
    safe = g.add("Add", [*g.add("Abs", [x]), g.constant(0.5, g.dtype)])
    g.add_float("Div", [g.value(lambda v: _can_broadcast(v.shape, x.shape)), *safe])


def power(g: GraphBuilder) -> None:
    x = g.value()
    if g.chance():
        base = g.add("Sigmoid", [x])
        g.add_float("Pow", [*base, g.constant(g.pick((2.0, 0.5, -1.0, 3.0)), g.dtype)])
        return
    small = g.add("Tanh", [x])
    exponent = g.constant(g.pick((2, 3)), g.pick((g.dtype, np.int64, np.int32)))
    g.add_float("Pow", [*small, exponent])


def root(g: GraphBuilder) -> None:
    x = g.value()
    safe = g.add("Add", [*g.add("Abs", [x]), g.constant(0.5, g.dtype)])
    g.add_float(g.pick(("Sqrt", "Log", "Reciprocal")), safe)


def exponential(g: GraphBuilder) -> None:
    g.add_float("Exp", g.add("Tanh", [g.value()]))


def cast(g: GraphBuilder) -> None:
    """Through a wider or narrower type and back; to integers only from an input, which is exact."""
    x = g.value()
    through = g.pick((TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL))
    if through != TensorProto.DOUBLE:
        x = g.value(lambda v: v in g.inputs)
    between = g.add("Cast", [x], to=through)
    g.add_float("Cast", between, to=g.elem_type)


def integer_input(g: GraphBuilder) -> None:
    x = g.value()
    kind = g.pick((TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8, TensorProto.BOOL))
    g.add_float("Cast", [g.input(_broadcastable(g, x.shape), kind)], to=g.elem_type)


def where(g: GraphBuilder) -> None:
    x = g.value()
    y = g.value(lambda v: _can_broadcast(v.shape, x.shape))
    kind = g.pick(("constant", "input", "compare"))
    if kind == "constant":
        shape = _broadcastable(g, x.shape)
        condition = g.constant(g.numbers.integers(0, 2, shape), np.bool_)
    elif kind == "input":
        condition = g.input(_broadcastable(g, x.shape), TensorProto.BOOL)
    else:
        exact = g.value(
            lambda v: (
                v in g.inputs
                and _can_broadcast(v.shape, x.shape)
                and _can_broadcast(v.shape, y.shape)
            )
        )
        op = g.pick(("Greater", "Less", "GreaterOrEqual", "LessOrEqual"))
        condition = g.add(op, [exact, g.constant(0.1, g.dtype)])[0]
    g.add_float("Where", [condition, x, y])


def matmul(g: GraphBuilder) -> None:
    """With weights or another value; batched, broadcast, or with a vector on one side."""
    x = g.value(lambda v: v.rank >= 1)
    inner, columns = x.shape[-1], g.integer(1, 17)
    kind = g.pick(("weight", "batched", "vector", "left", "value", "transposed"))
    if kind == "weight":
        g.add_float("MatMul", [x, g.weight((inner, columns))])
    elif kind == "batched":
        batch = _broadcastable(g, x.shape[:-2])
        g.add_float("MatMul", [x, g.weight((*batch, inner, columns))])
    elif kind == "vector":
        g.add_float("MatMul", [x, g.weight((inner,))])
    elif kind == "left" and x.rank >= 2:
        g.add_float("MatMul", [g.weight((columns, x.shape[-2])), x])
    elif kind == "transposed" and x.rank >= 2:
        order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
        g.add_float("MatMul", [x, *g.add("Transpose", [x], perm=order)])
    else:
        y = g.value(lambda v: x.rank == v.rank >= 2 and v.shape[-2] == inner)
        if not _can_broadcast(x.shape[:-2], y.shape[:-2]):
            raise NotApplicable
        g.add_float("MatMul", [x, y])


def gemm(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank == 2)
    trans_a, trans_b = int(g.chance()), int(g.chance())
    rows, inner = x.shape[::-1] if trans_a else x.shape
    columns = g.integer(1, 17)
    inputs = [x, g.weight((columns, inner) if trans_b else (inner, columns))]
    if g.chance():
        shapes = ((columns,), (rows, columns), (1, columns), (rows, 1), ())
        inputs.append(g.weight(g.pick(shapes)))
    attributes = {"alpha": g.pick((1.0, 0.5)), "beta": g.pick((1.0, 2.0, 0.0))}
    given = attributes if g.chance() else {}
    g.add_float("Gemm", inputs, transA=trans_a, transB=trans_b, **given)


def reduce(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank >= 1)
    op = g.pick(
        ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare")
    )
    count = g.integer(1, x.rank)
    axes = sorted(g.rng.sample(range(x.rank), count))
    axes = [axis - x.rank if g.chance(3) else axis for axis in axes]
    keep = {"keepdims": g.integer(0, 1)} if g.chance() else {}
    if g.chance(5):
        g.add_float(op, [x], **keep)
    elif op == "ReduceSum" or g.opset >= 18:
        g.add_float(op, [x, g.constant(axes, _INT64)], **keep)
    else:
        g.add_float(op, [x], axes=axes, **keep)


def _can_broadcast(a: Sequence[int], b: Sequence[int]) -> bool:
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(p == q or 1 in (p, q) for p, q in pairs)


def _broadcastable(g: GraphBuilder, shape: Sequence[int]) -> tuple[int, ...]:
    """A shape that broadcasts with ``shape``: sizes set to one, or leading ones left away."""
    kind = g.pick(("same", "some", "channel", "scalar", "tail"))
    if kind == "same" or not shape:
        return tuple(shape)
    if kind == "scalar":
        return g.pick(((), (1,)))
    if kind == "channel" and len(shape) >= 2:
        return (shape[1], *[1] * (len(shape) - 2))
    if kind == "tail":
        return tuple(shape[g.integer(0, len(shape) - 1) :])
    return tuple(1 if g.chance() else size for size in shape)


ARITHMETIC = (
    unary, unary, activation, activation, clip, prelu, batch_norm, batch_norm, layer_norm,
    instance_norm, softmax, binary, binary, binary, variadic, divide, power, root, exponential,
    cast, integer_input, where, matmul, matmul, gemm, gemm, reduce, reduce,
)  # fmt: skip
