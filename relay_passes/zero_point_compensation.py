"""ZeroPointCompensation: zero points out of the sums of integer matmuls and convolutions."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, topi

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, GraphView, Replacement
from tvm_ext.relay_passes.expressions import constant_value, convolution_like
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_cost import LAYOUT_NAMES, ChannelLayout, fits_dot_products
from tvm_ext.relay_passes.layout_roles import CONVOLUTIONS, permutation_of

# From int8 to uint8, and back: both flip the highest bit.
_SIGN = 128
_SHIFTS = {("int8", "uint8"): _SIGN, ("uint8", "int8"): -_SIGN}

# Whole numbers below it are exact in float32.
EXACT_IN_FLOAT32 = 1 << 24

# Products that such an instruction adds to a lane of int32.
_STEPS = 4


@graph_pass
class ZeroPointCompensation:
    """Multiplies bytes by int8, and corrects the sums by what the zero points would have changed.

    Before: ``y = matmul(astype(x, int16) - z, W)``        x: uint8, z: int16, W: int16, y: int32
    After:  ``y = matmul(x, V) - z * sum(V, axis=0)``      V: int8, the sum is a constant

    A difference of 8-bit numbers takes 16 bits; without it CPUs add four products to each lane of
    int32 at once (``vpdpbusd``, ``usdot``, ``sdot``). The result is the same, bit by bit: int32
    wraps. Where the weights have a zero point as well and leave int8, they are shifted, and the
    sums of the data's rows or windows times the shift are added. Data of the type that the
    instruction does not take are shifted by 128, with their zero point: int8 for ``vpdpbusd``,
    uint8 for ``sdot``. What is summed is padded to a multiple of four, with weights of zero. See
    oneDNN's "Nuances of int8 Computations".

    Leaves alone: weights that are computed in the run or span more than 8 bits, zero points that
    the type of the data does not hold; convolutions in groups, of few output channels, without
    neighbours to sum, or with channels first; CPUs without such an instruction, and other targets.

    Run after: LayoutPlanning. Run before: PadOutputChannels, LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        machine = current_cpu()
        types = machine.dot_product_types if machine is not None else ()
        return _Compensator(types).run(mod) if types else mod


@dataclass(frozen=True)
class CentredIntegers:
    """The integers ``x - zero_point`` as a matmul or convolution reads them, in a wider type.

    ``x`` is int8 or uint8, ``zero_point`` of the wider type and broadcasts to it; None where it is
    zero. With ``axes`` they are transposed so.
    """

    x: relax.Expr
    zero_point: relax.Expr | None
    axes: tuple[int, ...] = ()

    @property
    def is_signed(self) -> bool:
        """Whether ``x`` is int8."""
        return str(self.x.ty.dtype) == "int8"


def centred_integers(
    view: GraphView, expr: relax.Expr, dtype: str = "int16"
) -> CentredIntegers | None:
    """``expr`` as 8-bit numbers less a zero point of their type, in ``dtype``; None for others."""
    transposed = view.call(expr, "relax.permute_dims")
    if transposed is not None:
        inner = centred_integers(view, transposed.args[0], dtype)
        if inner is None or inner.axes:
            return None
        if inner.zero_point is not None and inner.zero_point.ty.ndim:
            return None
        return replace(inner, axes=tuple(permutation_of(transposed)))
    centred = view.call(expr, "relax.subtract")
    wide = view.call(expr if centred is None else centred.args[0], "relax.astype")
    if wide is None or str(wide.ty.dtype) != dtype:
        return None
    x = wide.args[0]
    if str(x.ty.dtype) not in ("int8", "uint8"):
        return None
    if centred is None:
        return CentredIntegers(x, None)
    zero_point = centred.args[1]
    fits = _is_of_type(view, zero_point, str(x.ty.dtype))
    return CentredIntegers(x, zero_point) if fits else None


def _is_of_type(view: GraphView, zero_point: relax.Expr, dtype: str) -> bool:
    """Whether it is one of the data's ``dtype``: they are padded with it."""
    wide, value = view.call(zero_point, "relax.astype"), view.value(zero_point)
    if isinstance(value, tvm.ir.GenericConst):
        held = np.iinfo(dtype)
        return are_whole(value.value.numpy(), held.min, held.max)
    return wide is not None and str(wide.args[0].ty.dtype) == dtype


def are_whole(numbers: np.ndarray, low: int, high: int) -> bool:
    """Whether there are numbers, and all are whole ones from ``low`` to ``high``."""
    inside = (numbers >= low) & (numbers <= high) & (np.rint(numbers) == numbers)
    return bool(numbers.size and inside.all())


class _Compensator(BindingRewriter):
    pass_name = "ZeroPointCompensation"
    roots = frozenset({"relax.matmul", *CONVOLUTIONS})

    def __init__(self, types: tuple[str, ...]) -> None:
        self.types = types

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.matmul", *CONVOLUTIONS)
        if call is None or str(var.ty.dtype) != "int32":
            return None
        data, weights = centred_integers(self.view, call.args[0]), self._weights(call.args[1])
        if data is None or weights is None:
            return None
        multiply = self._matmul if call.op.name == "relax.matmul" else self._conv
        made = multiply(call, data, weights, var)
        if made is None:
            return None
        dtype = self._type_for(data)
        return Replacement(made, (), f"{dtype} by int8, corrected for zero points")

    def _weights(self, expr: relax.Expr) -> np.ndarray | None:
        """Of 8 bits, less a zero point for each column: those of a module may be any int16."""
        value = self.view.value(expr)
        if not isinstance(value, tvm.ir.GenericConst) or str(value.ty.dtype) != "int16":
            return None
        numbers = value.value.numpy()
        if not numbers.size:
            return None
        columns = numbers.reshape(-1, numbers.shape[-1]).astype(np.int32)
        spans = columns.max(axis=0) - columns.min(axis=0)
        return numbers if (spans < 2 * _SIGN).all() else None

    def _matmul(
        self, call: relax.Call, data: CentredIntegers, weights: np.ndarray, var: relax.Var
    ) -> relax.Expr | None:
        if not fits_dot_products(call):
            self.refuse("the weights are no matrix", var)
            return None
        x, zero_point = self._as_taken(data, var)
        narrow, shift = _narrow(weights, 0)
        stored = relax.const(_with_whole_steps(narrow), "int8")
        steps = (0, int(stored.ty.shape[0]) - len(weights))
        x = self._padded(x, [*[(0, 0)] * (x.ty.ndim - 1), steps], None, var)
        total: relax.Expr = relax.op.matmul(x, stored, out_dtype="int32")
        if shift.any():
            wide = self.bind(relax.op.astype(x, "int32"), var)
            sums = self.bind(relax.op.sum(wide, axis=-1, keepdims=True), var)
            total = self.bind(total, var)
            total = relax.op.add(total, relax.op.multiply(sums, relax.const(shift, "int32")))
        return self._corrected(total, zero_point, weights)

    def _conv(
        self, call: relax.Call, data: CentredIntegers, weights: np.ndarray, var: relax.Var
    ) -> relax.Expr | None:
        layouts = LAYOUT_NAMES[weights.ndim][ChannelLayout.CHANNELS_LAST]
        if (str(call.attrs.data_layout), str(call.attrs.kernel_layout)) != layouts:
            self.refuse("channels are not innermost", var)
            return None
        if not fits_dot_products(call):
            self.refuse("its sums have no neighbours, or few channels use them", var)
            return None
        narrow, shift = _narrow(weights, tuple(range(weights.ndim - 1)))
        x, zero_point = self._as_taken(data, var)
        convolve = self._of_one_channel if weights.shape[-2] == 1 else self._of_channels
        total = convolve(call, narrow, x, zero_point, var)
        if shift.any():
            taps = weights.shape[:-2]
            windows = self._window_sums(call, taps, x, zero_point, var)
            total = self.bind(total, var)
            total = relax.op.add(total, relax.op.multiply(windows, relax.const(shift, "int32")))
        return self._corrected(total, zero_point, weights)

    def _window_sums(
        self,
        call: relax.Call,
        taps: tuple[int, ...],
        x: relax.Expr,
        zero_point: relax.Expr | None,
        var: relax.Var,
    ) -> relax.Expr:
        """The sum of each window of ``taps``, padding included, as one channel."""
        channels = relax.const(np.int32(int(x.ty.shape[-1])), "int32")
        if isinstance(zero_point, tvm.ir.GenericConst):
            fill = relax.const(zero_point.value.numpy() * channels.value.numpy(), "int32")
        else:
            fill = None
            if zero_point is not None:
                fill = self.bind(relax.op.multiply(zero_point, channels), var)
        wide = self.bind(relax.op.astype(x, "int32"), var)
        image = self.bind(relax.op.sum(wide, axis=-1, keepdims=True), var)
        image = self._padded(image, [(0, 0), *_padding(call), (0, 0)], fill, var)
        steps, apart = (list(map(int, getattr(call.attrs, n))) for n in ("strides", "dilation"))
        sizes = list(call.ty.shape.values)[:-1]

        def window_sums(image: te.Tensor) -> te.Tensor:
            over = [te.reduce_axis((0, count), "tap") for count in taps]

            def total(*at: tvm.ir.Expr) -> tvm.ir.Expr:
                moved = zip(at[1:-1], steps, over, apart, strict=True)
                places = [i * step + tap * distance for i, step, tap, distance in moved]
                return te.sum(image(at[0], *places, 0), axis=over)

            return te.compute((*sizes, 1), total, "window_sums")

        return self.bind(self.builder.call_te(window_sums, image), var)

    def _of_channels(
        self,
        call: relax.Call,
        weights: np.ndarray,
        x: relax.Expr,
        zero_point: relax.Expr | None,
        var: relax.Var,
    ) -> relax.Expr:
        stored = _with_whole_steps(weights)
        steps = (0, stored.shape[-2] - weights.shape[-2])
        x = self._padded(x, [(0, 0), *_padding(call), steps], zero_point, var)
        return convolution_like(call, x, relax.const(stored, "int8"), padding=0)

    def _of_one_channel(
        self,
        call: relax.Call,
        weights: np.ndarray,
        x: relax.Expr,
        zero_point: relax.Expr | None,
        var: relax.Var,
    ) -> relax.Expr:
        """The columns of a window become the channels of one that is a column wide."""
        stored = _with_whole_steps(np.swapaxes(weights, -2, -3))
        steps, apart = (list(map(int, getattr(call.attrs, n))) for n in ("strides", "dilation"))
        step, distance = steps[-1], apart[-1]
        *pairs, (left, right) = _padding(call)
        right += (stored.shape[-2] - weights.shape[-3]) * distance
        x = self._padded(x, [(0, 0), *pairs, (left, right), (0, 0)], zero_point, var)
        results = call.ty.shape[-2]

        def columns(image: te.Tensor) -> te.Tensor:
            return te.compute(
                (*image.shape[:-2], results, stored.shape[-2]),
                lambda *at: image(*at[:-2], at[-2] * step + at[-1] * distance, 0),
                "window_columns",
            )

        x = self.bind(self.builder.call_te(columns, x), var)
        steps[-1] = apart[-1] = 1
        stored_const = relax.const(stored, "int8")
        return convolution_like(call, x, stored_const, padding=0, strides=steps, dilation=apart)

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
            of_run = [self.bind(relax.op.astype(zero_point, str(x.ty.dtype)), var)]

        def pad(data: te.Tensor, *fill: te.Tensor) -> te.Tensor:
            value = fill[0](*[0] * fill[0].ndim) if fill else known
            return topi.nn.pad(data, before, after, value, "pad_temp")

        return self.bind(self.builder.call_te(pad, x, *of_run), var)

    def _type_for(self, data: CentredIntegers) -> str:
        """Their own type where an instruction takes it."""
        own = str(data.x.ty.dtype)
        return own if own in self.types else self.types[0]

    def _as_taken(
        self, data: CentredIntegers, var: relax.Var
    ) -> tuple[relax.Expr, relax.Expr | None]:
        """The data in a type that an instruction takes, and their zero point as int32; None for
        zero.
        """
        x, dtype = data.x, self._type_for(data)
        more = _SHIFTS.get((str(x.ty.dtype), dtype), 0)
        if data.axes:
            x = self.bind(relax.op.permute_dims(x, list(data.axes)), var)
        if more:
            wide = relax.op.add(relax.op.astype(x, "int16"), relax.const(more, "int16"))
            x = self.bind(relax.op.astype(self.bind(wide, var), dtype), var)
        zero = data.zero_point
        known = np.zeros((), "int16") if zero is None else constant_value(self.view, zero)
        if known is None:
            made = relax.op.add(relax.op.astype(zero, "int32"), relax.const(more, "int32"))
            return x, self.bind(made, var)
        known = known.astype("int32") + np.int32(more)
        return x, relax.const(known, "int32") if known.any() else None

    def _corrected(
        self, total: relax.Expr, zero_point: relax.Expr | None, weights: np.ndarray
    ) -> relax.Expr:
        if zero_point is None:
            return total
        sums = weights.sum(axis=tuple(range(weights.ndim - 1)), dtype=np.int32)
        by = relax.const(sums, "int32")
        return relax.op.subtract(total, relax.op.multiply(zero_point, by))


def _padding(call: relax.Call) -> list[tuple[int, int]]:
    """What a convolution adds before and after each side of its image."""
    sizes = [int(size) for size in call.attrs.padding]
    rank = len(sizes) // 2
    return list(zip(sizes[:rank], sizes[rank:], strict=True))


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
