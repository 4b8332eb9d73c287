"""Convolutions and matrix products with constant weights: which channel a weight belongs to.

Every operator here is linear in its weights, so scaling output channel ``c`` is the same as
scaling the weights of ``c``. ``LinearOp`` knows where these lie, for any layout and any groups.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import tvm
from tvm import relax

from tvm_ext.relay_passes.affine import (
    FLOAT_BITS,
    CannotFold,
    constant_value,
    is_constant,
    numpy_dtype,
)
from tvm_ext.relay_passes.binding_rewriter import GraphView

_CONVOLUTIONS = tuple(f"relax.nn.conv{n}d" for n in (1, 2, 3))
_TRANSPOSED = tuple(f"relax.nn.conv{n}d_transpose" for n in (1, 2, 3))
_MATMUL = "relax.matmul"
LINEAR_OPS = (*_CONVOLUTIONS, *_TRANSPOSED, _MATMUL)


@dataclass(frozen=True)
class LinearOp:
    """A convolution or matmul and the place of its output channels.

    Attributes
    ----------
    call : relax.Call
        The operator; its second argument is the weight, a constant or views of one.
    ndim, channel_axis : int
        Rank of the output, and which of its axes counts the output channels.
    channels : int
        Number of output channels, over all groups.
    order : tuple of int
        Axes of the weight, output channels first; for a transposed convolution input channels
        first, then output channels of one group.
    groups : int or None
        Number of groups when the weight splits the output channels by group (transposed), else
        None.
    """

    call: relax.Call
    ndim: int
    channel_axis: int
    channels: int
    order: tuple[int, ...]
    groups: int | None = None

    @property
    def name(self) -> str:
        """The operator without its namespace, for reports."""
        return str(self.call.op.name).rsplit(".", 1)[-1]

    @property
    def dtype(self) -> str:
        """Type of the output's elements."""
        return str(self.call.ty.dtype)

    def per_channel(self, name: str, factor: np.ndarray | None, neutral: float) -> np.ndarray:
        """``factor`` as one float64 for each output channel, shape (channels,).

        Raises
        ------
        CannotFold
            ``factor`` varies along another axis, or would make the output larger.
        """
        if factor is None:
            return np.full(self.channels, neutral)
        expected = [1] * max(self.ndim, factor.ndim)
        expected[self.channel_axis - self.ndim] = self.channels
        padded = factor.reshape([1] * (len(expected) - factor.ndim) + list(factor.shape))
        fits = all(have in (1, want) for have, want in zip(padded.shape, expected, strict=True))
        if not fits or factor.ndim > self.ndim:
            raise CannotFold(
                f"the constant of {name} has shape {factor.shape}, expected one value per output "
                f"channel: {self.channels} along axis {self.channel_axis} of {self.ndim}"
            )
        return np.broadcast_to(padded.reshape(-1), (self.channels,))

    def scaled(self, view: GraphView, scale: np.ndarray) -> relax.Call:
        """This operator with its weights multiplied by ``scale``, shape (channels,), float64.

        The product is formed in float64 and rounded once.

        Raises
        ------
        CannotFold
            The new weights are not finite, or so small that their type cannot hold them.
        """
        weight = constant_value(view, self.call.args[1])
        if weight is None:
            raise CannotFold(f"the weights of {self.name} are not constant")
        with np.errstate(invalid="ignore", over="ignore"):
            rows = self._to_rows(weight).astype(np.float64) * scale[:, None]
        largest = np.abs(rows).max(axis=1, initial=0.0)
        limits = ml_dtypes.finfo(weight.dtype)
        if not np.all(largest <= float(limits.max)):
            raise CannotFold(f"folded weights are not finite in {weight.dtype}")
        # Below the smallest normal number precision is lost; above it no weight is off by more
        # than half a unit in the last place of the largest one of its channel.
        if np.any((largest > 0) & (largest < float(limits.smallest_normal))):
            raise CannotFold(f"folded weights are too small for {weight.dtype}")
        folded = self._from_rows(rows.astype(weight.dtype), weight.shape)
        # Without its type TVM makes float32 of a float64.
        weights = relax.const(folded, str(folded.dtype))
        return relax.Call(self.call.op, [self.call.args[0], weights], self.call.attrs)

    def bias(self, shift: np.ndarray) -> tvm.ir.GenericConst:
        """The constant that adds ``shift``, shape (channels,), to the output.

        Its shape broadcasts on the channel axis: (channels,) for a matmul, the rank of the output
        for a convolution.

        Raises
        ------
        CannotFold
            A value is not finite in the type of the output.
        """
        with np.errstate(over="ignore"):
            values = shift.astype(numpy_dtype(self.dtype))
        if not np.all(np.isfinite(values.astype(np.float64))):
            raise CannotFold(f"the folded bias is not finite in {self.dtype}")
        shape = [1] * self.ndim
        shape[self.channel_axis] = self.channels
        is_matmul = self.call.op.name == _MATMUL
        return relax.const(values if is_matmul else values.reshape(shape), self.dtype)

    def _to_rows(self, weight: np.ndarray) -> np.ndarray:
        """The weights as (channels, weights of one channel)."""
        ordered = weight.transpose(self.order)
        if self.groups is not None:
            inputs, outputs = ordered.shape[:2]
            grouped = ordered.reshape(self.groups, inputs // self.groups, outputs, -1)
            ordered = grouped.swapaxes(1, 2)
        return ordered.reshape(self.channels, -1)

    def _from_rows(self, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        ordered_shape = [shape[axis] for axis in self.order]
        if self.groups is not None:
            inputs, outputs = ordered_shape[:2]
            grouped = rows.reshape(self.groups, outputs, inputs // self.groups, -1)
            rows = grouped.swapaxes(1, 2)
        weight = rows.reshape(ordered_shape).transpose(np.argsort(self.order))
        return np.ascontiguousarray(weight)


def read_linear(view: GraphView, call: relax.Call) -> LinearOp:
    """What ``call``, one of ``LINEAR_OPS``, does with its weights.

    Raises
    ------
    CannotFold
        The weights are not constant or not floating point, or a layout is not understood.
    """
    name = str(call.op.name).rsplit(".", 1)[-1]
    weight = call.args[1]
    if not is_constant(view, weight):
        raise CannotFold(f"the weights of {name} are not constant")
    dtypes = (str(weight.ty.dtype), str(call.ty.dtype))
    if not all(dtype in FLOAT_BITS for dtype in dtypes):
        raise CannotFold(f"{name} computes {dtypes[1]} from {dtypes[0]}, expected floating point")
    shape = [int(dim) for dim in weight.ty.shape]
    if call.op.name == _MATMUL:
        return _read_matmul(call, shape)
    return _read_convolution(call, name, shape)


def _read_matmul(call: relax.Call, shape: list[int]) -> LinearOp:
    ndim = int(call.ty.ndim)
    if len(shape) != 2 or ndim < 1:
        raise CannotFold(
            f"matmul has weights of shape {tuple(shape)} and a result of rank {ndim}, "
            "expected two-dimensional weights and a known rank"
        )
    return LinearOp(call, ndim, ndim - 1, shape[1], (1, 0))


def _read_convolution(call: relax.Call, name: str, shape: list[int]) -> LinearOp:
    kernel_layout, out_layout = str(call.attrs.kernel_layout), str(call.attrs.out_layout)
    if not (kernel_layout + out_layout).isalpha() or not (kernel_layout + out_layout).isupper():
        raise CannotFold(
            f"{name} has the layouts {kernel_layout} and {out_layout}, expected unblocked ones"
        )
    out_axis = kernel_layout.index("O")
    first: tuple[int, ...] = (out_axis,)
    groups = None
    channels = shape[out_axis]
    if call.op.name in _TRANSPOSED:
        first = (kernel_layout.index("I"), out_axis)
        groups = int(call.attrs.groups)
        channels *= groups
    rest = tuple(axis for axis in range(len(shape)) if axis not in first)
    ndim = len(out_layout)
    return LinearOp(call, ndim, out_layout.index("C"), channels, first + rest, groups)
