"""ZeroPointCompensation: zero points out of the sums of integer matmuls and convolutions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, topi

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import constant_value, convolution_like
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_cost import LAYOUT_NAMES, ChannelLayout
from tvm_ext.relay_passes.layout_roles import CONVOLUTIONS

# From int8 to uint8.
_SIGN = 128

# Products that such an instruction adds to a lane of int32.
_STEPS = 4


@graph_pass
class ZeroPointCompensation:
    """Multiplies uint8 by int8, and corrects the sums by what the zero points would have changed.

    Before: ``y = matmul(astype(x, int16) - z, W)``        x: uint8, z: int16, W: int16, y: int32
    After:  ``y = matmul(x, V) - z * sum(V, axis=0)``      V: int8, the sum is a constant

    A difference of 8-bit numbers takes 16 bits; without it CPUs add four products to each lane of
    int32 at once (``vpdpbusd``, ``usdot``). The result is the same, bit by bit: int32 wraps. Where
    the weights have a zero point as well and leave int8, they are shifted, and the sums of the
    data's rows times the shift are added. Data with a sign are shifted to uint8. What is summed is
    padded to a multiple of four, with weights of zero. See oneDNN's "Nuances of int8
    Computations".

    Leaves alone: weights that are computed in the run or span more than 8 bits, zero points that
    have more; sums of a length that is symbolic; convolutions in groups, of one channel, or with
    channels first; CPUs without such an instruction, and other targets.

    Run after: LayoutPlanning. Run before: PadOutputChannels, LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        machine = current_cpu()
        takes = machine is not None and machine.has_dot_products
        return _Compensator().run(mod) if takes else mod


@dataclass(frozen=True)
class _Data:
    """The integers ``x - zero_point`` as a matmul or convolution reads them.

    ``x`` is int8 or uint8, ``zero_point`` int16 and broadcasts to it; None where it is zero.
    """

    x: relax.Expr
    zero_point: relax.Expr | None

    @property
    def is_signed(self) -> bool:
        """Whether ``x`` is int8."""
        return str(self.x.ty.dtype) == "int8"


class _Compensator(BindingRewriter):
    pass_name = "ZeroPointCompensation"

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.matmul", *CONVOLUTIONS)
        if call is None or str(var.ty.dtype) != "int32":
            return None
        data, weights = self._data(call.args[0]), self._weights(call.args[1])
        if data is None or weights is None:
            return None
        is_matmul = call.op.name == "relax.matmul"
        made = (
            self._matmul(data, weights, var) if is_matmul else self._conv(call, data, weights, var)
        )
        if made is None:
            return None
        return Replacement(made, (), "uint8 by int8, corrected for zero points")

    def _data(self, expr: relax.Expr) -> _Data | None:
        centred = self.view.call(expr, "relax.subtract")
        wide = self.view.call(expr if centred is None else centred.args[0], "relax.astype")
        if wide is None or str(wide.ty.dtype) != "int16":
            return None
        if str(wide.args[0].ty.dtype) not in ("int8", "uint8"):
            return None
        if centred is None:
            return _Data(wide.args[0], None)
        zero_point = centred.args[1]
        return _Data(wide.args[0], zero_point) if self._is_narrow(zero_point) else None

    def _is_narrow(self, zero_point: relax.Expr) -> bool:
        """Whether it is one of 8 bits: differences with a larger one might not fit into int16."""
        wide, value = self.view.call(zero_point, "relax.astype"), self.view.value(zero_point)
        if isinstance(value, tvm.ir.GenericConst):
            numbers = value.value.numpy()
            return bool(numbers.min() >= -_SIGN and numbers.max() < 2 * _SIGN)
        return wide is not None and str(wide.args[0].ty.dtype) in ("int8", "uint8")

    def _weights(self, expr: relax.Expr) -> np.ndarray | None:
        """Of 8 bits, less a zero point for each column: those of a module may be any int16."""
        value = self.view.value(expr)
        if not isinstance(value, tvm.ir.GenericConst) or str(value.ty.dtype) != "int16":
            return None
        numbers = value.value.numpy()
        columns = numbers.reshape(-1, numbers.shape[-1]).astype(np.int32)
        spans = columns.max(axis=0) - columns.min(axis=0)
        return numbers if numbers.size and (spans < 2 * _SIGN).all() else None

    def _matmul(self, data: _Data, weights: np.ndarray, var: relax.Var) -> relax.Expr | None:
        if weights.ndim != 2 or data.x.ty.ndim < 2:
            self.refuse("the weights are no matrix", var)
            return None
        x, zero_point = self._unsigned(data, var)
        narrow, shift = _narrow(weights, 0)
        stored = relax.const(_with_whole_steps(narrow), "int8")
        steps = (0, int(stored.ty.shape[0]) - len(weights))
        x = self._padded(x, [*[(0, 0)] * (x.ty.ndim - 1), steps], None, var)
        total: relax.Expr = relax.op.matmul(x, stored, out_dtype="int32")
        rows = narrow.sum(axis=0, dtype=np.int32) + np.int32(weights.shape[0]) * shift
        if shift.any():
            wide = self.bind(relax.op.astype(x, "int32"), var)
            sums = self.bind(relax.op.sum(wide, axis=-1, keepdims=True), var)
            total = self.bind(total, var)
            total = relax.op.add(total, relax.op.multiply(sums, relax.const(shift, "int32")))
        return self._corrected(total, zero_point, rows)

    def _conv(
        self, call: relax.Call, data: _Data, weights: np.ndarray, var: relax.Var
    ) -> relax.Expr | None:
        attrs, rank = call.attrs, weights.ndim - 2
        layouts = LAYOUT_NAMES[weights.ndim][ChannelLayout.CHANNELS_LAST]
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != layouts or attrs.groups != 1:
            self.refuse("channels are not innermost, or in groups", var)
            return None
        if weights.shape[-2] == 1:
            self.refuse("the pixels have one channel", var)
            return None
        narrow, shift = _narrow(weights, tuple(range(rank + 1)))
        if shift.any():
            self.refuse("the weights leave int8", var)
            return None
        x, zero_point = self._unsigned(data, var)
        stored = relax.const(_with_whole_steps(narrow), "int8")
        steps = (0, int(stored.ty.shape[-2]) - weights.shape[-2])
        padding = [int(size) for size in attrs.padding]
        pairs = [(0, 0), *zip(padding[:rank], padding[rank:], strict=True), steps]
        x = self._padded(x, pairs, zero_point, var)
        total = convolution_like(call, x, stored, padding=[0] * (2 * rank))
        sums = narrow.sum(axis=tuple(range(rank + 1)), dtype=np.int32)
        return self._corrected(total, zero_point, sums)

    def _padded(
        self,
        x: relax.Expr,
        pairs: list[tuple[int, int]],
        zero_point: relax.Expr | None,
        var: relax.Var,
    ) -> relax.Expr:
        """``x`` with so many zero points more before and after its elements along each axis.

        As a kernel, since a zero point may be a value of the run, and since TVM's operator leaves
        symbolic sizes as sums that its own kernels have not.
        """
        if not any(width for pair in pairs for width in pair):
            return x
        before, after = ([pair[side] for pair in pairs] for side in (0, 1))
        known, of_run = 0, []
        if isinstance(zero_point, tvm.ir.GenericConst):
            known = int(zero_point.value.numpy().item())
        elif zero_point is not None:
            of_run = [self.bind(relax.op.astype(zero_point, "uint8"), var)]

        def pad(data: te.Tensor, *fill: te.Tensor) -> te.Tensor:
            value = fill[0](*[0] * fill[0].ndim) if fill else known
            return topi.nn.pad(data, before, after, value, "pad_temp")

        return self.bind(self.builder.call_te(pad, x, *of_run), var)

    def _unsigned(self, data: _Data, var: relax.Var) -> tuple[relax.Expr, relax.Expr | None]:
        """The data as uint8, and their zero point as int32; None for zero."""
        more, x = _SIGN if data.is_signed else 0, data.x
        if data.is_signed:
            wide = relax.op.add(relax.op.astype(x, "int16"), relax.const(_SIGN, "int16"))
            x = self.bind(relax.op.astype(self.bind(wide, var), "uint8"), var)
        zero = data.zero_point
        known = np.zeros((), "int16") if zero is None else constant_value(self.view, zero)
        if known is None:
            made = relax.op.add(relax.op.astype(zero, "int32"), relax.const(more, "int32"))
            return x, self.bind(made, var)
        known = known.astype("int32") + np.int32(more)
        return x, relax.const(known, "int32") if known.any() else None

    def _corrected(
        self, total: relax.Expr, zero_point: relax.Expr | None, sums: np.ndarray
    ) -> relax.Expr:
        if zero_point is None:
            return total
        by = relax.const(sums, "int32")
        return relax.op.subtract(total, relax.op.multiply(zero_point, by))


def _with_whole_steps(weights: np.ndarray) -> np.ndarray:
    """With rows of zeros for what pads the data, up to a multiple of four rows."""
    pairs = [(0, 0)] * weights.ndim
    pairs[-2] = (0, -weights.shape[-2] % _STEPS)
    return np.pad(weights, pairs)


def _narrow(weights: np.ndarray, axes: Any) -> tuple[np.ndarray, np.ndarray]:
    """int16 weights as int8, and by column what was taken from them.

    Differences of 8-bit numbers with one zero point a column span 255 at most.
    """
    low, high = weights.min(axis=axes), weights.max(axis=axes)
    fits = (low >= -_SIGN) & (high < _SIGN)
    shift = np.where(fits, 0, low + _SIGN).astype(np.int32)
    return (weights - shift).astype(np.int8), shift
