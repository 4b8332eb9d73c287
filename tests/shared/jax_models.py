"""ONNX models in JAX: an oracle for gradients that shares no code with the importer."""

import os
from collections.abc import Callable, Mapping
from typing import Any

# Compiled once and run a few times, as our own programs in tests.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax
from onnx import helper, numpy_helper

Arrays = dict[str, Any]


def _pads(attrs: dict[str, Any], rank: int) -> list[tuple[int, int]]:
    pads = attrs.get("pads", [0] * 2 * rank)
    return list(zip(pads[:rank], pads[rank:], strict=True))


def _conv(attrs: dict[str, Any], x: Any, w: Any, b: Any = None) -> Any:
    rank = x.ndim - 2
    y = lax.conv_general_dilated(
        x,
        w,
        attrs.get("strides", [1] * rank),
        _pads(attrs, rank),
        feature_group_count=attrs.get("group", 1),
    )
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def _conv_transpose(attrs: dict[str, Any], x: Any, w: Any, b: Any = None) -> Any:
    rank = x.ndim - 2
    turned = jnp.flip(jnp.swapaxes(w, 0, 1), range(2, 2 + rank))
    widths = [(k - 1, k - 1) for k in w.shape[2:]]
    y = lax.conv_general_dilated(x, turned, [1] * rank, widths, lhs_dilation=attrs["strides"])
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def _batch_norm(attrs: dict[str, Any], x: Any, scale: Any, shift: Any, *_: Any) -> Any:
    """By the statistics of the batch, as in training."""
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    shape = [-1] + [1] * (x.ndim - 2)
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    normal = (x - mean) / jnp.sqrt(variance + attrs.get("epsilon", 1e-5))
    return normal * scale.reshape(shape) + shift.reshape(shape)


def _instance_norm(attrs: dict[str, Any], x: Any, scale: Any, shift: Any) -> Any:
    axes, shape = tuple(range(2, x.ndim)), [-1] + [1] * (x.ndim - 2)
    normal = (x - x.mean(axes, keepdims=True)) / jnp.sqrt(x.var(axes, keepdims=True) + 1e-5)
    return normal * scale.reshape(shape) + shift.reshape(shape)


def _layer_norm(attrs: dict[str, Any], x: Any, scale: Any, shift: Any) -> Any:
    normal = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return normal * scale + shift


def _windows(attrs: dict[str, Any], x: Any, start: float, combine: Any) -> Any:
    rank = x.ndim - 2
    window, strides = (1, 1, *attrs["kernel_shape"]), (1, 1, *attrs["strides"])
    return lax.reduce_window(x, start, combine, window, strides, [(0, 0)] * 2 + _pads(attrs, rank))


def _average(attrs: dict[str, Any], x: Any) -> Any:
    total, count = (_windows(attrs, one, 0.0, lax.add) for one in (x, jnp.ones_like(x)))
    return total / count


def _lstm(attrs: dict[str, Any], x: Any, w: Any, r: Any, b: Any) -> Any:
    units = attrs["hidden_size"]
    bias = b[0, : 4 * units] + b[0, 4 * units :]

    def step(state: Any, given: Any) -> Any:
        h, c = state
        i, o, f, g = jnp.split(given @ w[0].T + h @ r[0].T + bias, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((x.shape[1], units))
    (h, c), every = lax.scan(step, (zeros, zeros), x)
    return [every[:, None], h[None], c[None]]


def _gru(attrs: dict[str, Any], x: Any, w: Any, r: Any, b: Any) -> Any:
    units, is_reverse = attrs["hidden_size"], attrs.get("direction") == b"reverse"
    by_x, by_h = b[0, : 3 * units], b[0, 3 * units :]

    def step(h: Any, given: Any) -> Any:
        xz, xr, xn = jnp.split(given @ w[0].T + by_x, 3, axis=-1)
        rz, rr, rn = jnp.split(r[0].T, 3, axis=1)
        bz, br, bn = jnp.split(by_h, 3)
        z, reset = jax.nn.sigmoid(xz + h @ rz + bz), jax.nn.sigmoid(xr + h @ rr + br)
        if attrs.get("linear_before_reset"):
            new = jnp.tanh(xn + reset * (h @ rn + bn))
        else:
            new = jnp.tanh(xn + (reset * h) @ rn + bn)
        h = (1 - z) * new + z * h
        return h, h

    last, every = lax.scan(step, jnp.zeros((x.shape[1], units)), x, reverse=is_reverse)
    return [every[:, None], last[None]]


def _ints(value: Any) -> list[int]:
    return [int(one) for one in np.asarray(value)]


def _slice(attrs: dict[str, Any], x: Any, begin: Any, end: Any, axes: Any, steps: Any) -> Any:
    index = [slice(None)] * x.ndim
    for axis, *bounds in zip(*map(_ints, (axes, begin, end, steps)), strict=True):
        index[axis] = slice(*bounds)
    return x[tuple(index)]


def _reduced(combine: Any) -> Callable[..., Any]:
    return lambda attrs, x, axes: combine(
        x, axis=tuple(_ints(axes)), keepdims=bool(attrs.get("keepdims", 1))
    )


_OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": lambda attrs, a, b: a + b,
    "AveragePool": _average,
    "BatchNormalization": _batch_norm,
    "Clip": lambda attrs, x, low, high: jnp.clip(x, low, high),
    "Concat": lambda attrs, *parts: jnp.concatenate(parts, attrs["axis"]),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Div": lambda attrs, a, b: a / b,
    "Elu": lambda attrs, x: jax.nn.elu(x),
    "Flatten": lambda attrs, x: x.reshape(x.shape[0], -1),
    "GRU": _gru,
    "Gather": lambda attrs, x, places: jnp.take(x, places, axis=attrs.get("axis", 0)),
    "Gelu": lambda attrs, x: jax.nn.gelu(x, approximate=False),
    "GlobalAveragePool": lambda attrs, x: x.mean(tuple(range(2, x.ndim)), keepdims=True),
    "HardSwish": lambda attrs, x: x * jnp.clip(x / 6 + 0.5, 0, 1),
    "Identity": lambda attrs, x: x,
    "InstanceNormalization": _instance_norm,
    "LSTM": _lstm,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda attrs, x: jax.nn.leaky_relu(x, attrs["alpha"]),
    "MatMul": lambda attrs, a, b: a @ b,
    "MaxPool": lambda attrs, x: _windows(attrs, x, -jnp.inf, lax.max),
    "Mul": lambda attrs, a, b: a * b,
    "PRelu": lambda attrs, x, slope: jnp.where(x > 0, x, x * slope),
    "Pad": lambda attrs, x, pads: jnp.pad(x, _pads({"pads": _ints(pads)}, x.ndim)),
    "ReduceMax": _reduced(jnp.max),
    "ReduceMean": _reduced(jnp.mean),
    "Relu": lambda attrs, x: jax.nn.relu(x),
    "Reshape": lambda attrs, x, shape: x.reshape(_ints(shape)),
    "Sigmoid": lambda attrs, x: jax.nn.sigmoid(x),
    "Slice": _slice,
    "Softmax": lambda attrs, x: jax.nn.softmax(x, attrs.get("axis", -1)),
    "Softplus": lambda attrs, x: jax.nn.softplus(x),
    "Sqrt": lambda attrs, x: jnp.sqrt(x),
    "Tanh": lambda attrs, x: jnp.tanh(x),
    "Transpose": lambda attrs, x: x.transpose(attrs["perm"]),
}


def outputs_of(
    model: onnx.ModelProto, weights: Mapping[str, Any], inputs: Mapping[str, Any]
) -> Any:
    """The first output of a model with these weights in place of its own."""
    stored = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    values: Arrays = {**stored, **weights, **inputs}
    for node in model.graph.node:
        attrs = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        made = _OPERATORS[node.op_type](attrs, *(values[name] for name in node.input))
        made = made if isinstance(made, list) else [made]
        values.update(zip(node.output, made, strict=False))
    return values[model.graph.output[0].name]


def cross_entropy(model: onnx.ModelProto) -> Callable[[Arrays, Arrays], Any]:
    """The loss, from weights and a batch."""

    def loss(weights: Arrays, batch: Arrays) -> Any:
        logits = jnp.moveaxis(outputs_of(model, weights, {"x": batch["x"]}), 1, -1)
        logs = jax.nn.log_softmax(logits, -1)
        return -jnp.take_along_axis(logs, batch["target"][..., None], -1).mean()

    return loss


def adam_curve(
    model: onnx.ModelProto, weights: Arrays, batches: list[Arrays], rate: float
) -> list[float]:
    """The losses of training with Adam."""
    gradient = jax.value_and_grad(cross_entropy(model))

    @jax.jit
    def step(shares: Any, state: tuple[Arrays, Arrays, Arrays], batch: Arrays) -> Any:
        weights, mean, square = state
        loss, by = gradient(weights, batch)
        mean = {name: 0.9 * mean[name] + 0.1 * one for name, one in by.items()}
        square = {name: 0.999 * square[name] + 0.001 * one * one for name, one in by.items()}
        moved = {
            name: weights[name]
            - rate * (mean[name] / shares[0]) / (jnp.sqrt(square[name] / shares[1]) + 1e-8)
            for name in by
        }
        return loss, ({**weights, **moved}, mean, square)

    nothing = {name: jnp.zeros_like(one) for name, one in weights.items()}
    state, losses = (weights, nothing, nothing), []
    for count, batch in enumerate(batches, 1):
        # In float32 the second share would be off by up to 6e-5 of it.
        shares = np.array([1 - 0.9**count, 1 - 0.999**count], np.float32)
        loss, state = step(shares, state, batch)
        losses.append(float(loss))
    return losses
