"""Rounds output channels up to whole vectors where they would leave lanes empty."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, topi

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.graph_pass import graph_pass

# How much of the vector lanes' use must be won: below, the crop at the end costs as much.
LEAST_GAIN = 1.2

_CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")


@graph_pass
class PadOutputChannels:
    """Computes a few more output channels than asked for, so that vectors are full.

    Before: ``conv2d(x, W)`` with 243 output channels: divisible by 9 lanes of 16, not by 16
    After:  one kernel that convolves with ``W`` padded by zeros to 256 channels at compile time,
            and writes the first 243

    Share of useful lanes: largest divisor up to the vector length over the vector length, before;
    channels over padded channels, after.

    Leaves alone: weights that are not constant; channels-first layouts, where the width fills the
    vectors; grouped convolutions; counts that fill vectors well enough; targets without vectors
    of a fixed length.

    Run after: LayoutPlanning, GemmFusion. Run before: LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when nothing gains."""
        machine = resolve_target(tvm.target.Target.current(allow_none=True) or "cpu")
        if not isinstance(machine, CpuDescription):
            return mod
        return _Padder(machine).run(mod)


def lane_use(channels: int, lanes: int) -> tuple[float, float]:
    """Share of useful vector lanes for ``channels`` as they are, and padded to whole vectors."""
    divisor = next(n for n in range(min(channels, lanes), 0, -1) if channels % n == 0)
    padded = -(-channels // lanes) * lanes
    return divisor / lanes, channels / padded


class _Padder(BindingRewriter):
    pass_name = "PadOutputChannels"

    def __init__(self, machine: CpuDescription) -> None:
        super().__init__()
        self.machine = machine

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return None
        name = str(value.op.name)
        if name in _CONVOLUTIONS:
            return self._replace(var, value, _convolution(value), name.removeprefix("relax.nn."))
        if name == "relax.matmul":
            return self._replace(var, value, _matmul(value), "matmul")
        return None

    def _replace(
        self, var: relax.Var, call: relax.Call, compute: "_Compute | None", name: str
    ) -> Replacement | None:
        weight = call.args[1]
        if compute is None or not isinstance(weight, tvm.ir.GenericConst):
            return None
        array = weight.value.numpy()
        channels = int(array.shape[-1])
        lanes = self.machine.vector_lanes(str(var.ty.dtype))
        now, padded = lane_use(channels, lanes)
        if padded < LEAST_GAIN * now:
            return None
        if not isinstance(var.ty, relax.TensorType) or var.ty.shape is None:
            self.refuse("its shape is not known", var)
            return None
        extra = -channels % lanes
        wide = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, extra)])
        shape = list(var.ty.shape.values)

        def cropped(x: te.Tensor, w: te.Tensor) -> te.Tensor:
            result = compute(x, w)
            return te.compute(shape, lambda *index: result(*index), name="crop")

        replacement = self.builder.call_te(
            cropped,
            call.args[0],
            relax.const(wide, str(array.dtype)),
            primfunc_name_hint=f"{name}_padded",
        )
        what = (
            f"{channels} output channels computed as {channels + extra}: "
            f"{100 * padded:.0f} % of the vector lanes useful instead of {100 * now:.0f} %"
        )
        return Replacement(replacement, (), what)


_Compute = Callable[[te.Tensor, te.Tensor], te.Tensor]


def _convolution(call: relax.Call) -> _Compute | None:
    attrs: Any = call.attrs
    data_layout, kernel_layout = str(attrs.data_layout), str(attrs.kernel_layout)
    channels_last = data_layout.endswith("C") and kernel_layout.endswith("O")
    if int(attrs.groups) != 1 or not channels_last or str(attrs.out_layout) != data_layout:
        return None

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        return topi.nn.conv(
            x,
            w,
            _integers(attrs.strides),
            _integers(attrs.padding),
            _integers(attrs.dilation),
            1,
            data_layout,
            kernel_layout,
            str(call.ty.dtype),
        )

    return compute


def _matmul(call: relax.Call) -> _Compute | None:
    left, right = (arg.ty for arg in call.args)
    if right.ndim != 2 or left.ndim < 2 or str(left.dtype) != str(right.dtype):
        return None

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        depth = te.reduce_axis((0, w.shape[0]), name="k")
        dtype = str(call.ty.dtype)
        return te.compute(
            [*x.shape[:-1], w.shape[1]],
            lambda *i: te.sum(
                x(*i[:-1], depth).astype(dtype) * w(depth, i[-1]).astype(dtype), axis=depth
            ),
            name="matmul",
        )

    return compute


def _integers(values: Sequence[Any]) -> list[int]:
    return [int(value) for value in values]
