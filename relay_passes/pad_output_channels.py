"""Rounds output channels up to whole vectors where they would leave lanes empty."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, topi

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.hardware.targets import current_cpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.gemm_compute import ATTRIBUTE, GemmCompute, cropped
from tvm_ext.relay_passes.graph_pass import graph_pass

# How much of the vector lanes' use must be won: below, the crop at the end costs as much.
LEAST_GAIN = 1.2

_CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")


@graph_pass
class PadOutputChannels:
    """Computes more output channels of convolutions and products than asked for, to fill vectors.

    Before: ``conv2d(x, W)`` with 243 output channels: divisible by 9 lanes of 16, not by 16
    After:  one kernel that convolves with ``W`` padded by zeros to 256 channels at compile time,
            and writes the first 243

    Share of useful lanes: largest divisor up to the vector length over the vector length, before;
    channels over padded channels, after. Products that GemmFusion made a function of as well.

    Leaves alone: weights that are not constant; channels-first layouts, where the width fills the
    vectors; grouped convolutions; counts that fill vectors well enough; targets without vectors
    of a fixed length.

    Run after: LayoutPlanning, GemmFusion. Run before: LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when nothing gains."""
        machine = current_cpu()
        if machine is None:
            return mod
        return _Padder(machine).run(mod)


def lane_use(channels: int, lanes: int) -> tuple[float, float]:
    """Share of useful vector lanes for ``channels`` as they are, and padded to whole vectors.

    As they are, the vectors are as long as a divisor; an odd length takes several instructions.
    """
    divisors = [n for n in range(1, min(channels, lanes) + 1) if channels % n == 0]
    useful = max(n / n.bit_count() for n in divisors)
    padded = -(-channels // lanes) * lanes
    return useful / lanes, channels / padded


class _Padder(BindingRewriter):
    pass_name = "PadOutputChannels"

    def __init__(self, machine: CpuDescription) -> None:
        super().__init__()
        self.machine = machine
        self._widened: dict[tuple[int, int], tuple[relax.Expr, relax.Expr]] = {}

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return None
        product = _product_of(value, self.mod)
        if product is None or not isinstance(product.inputs[1], tvm.ir.GenericConst):
            return None
        x, weight, *addends = product.inputs
        channels = int(weight.ty.shape[-1])
        lanes = self.machine.vector_lanes(str(var.ty.dtype))
        now, padded = lane_use(channels, lanes)
        if padded < LEAST_GAIN * now:
            return None
        if not isinstance(var.ty.shape, relax.ShapeExpr):
            self.refuse("its shape is not known", var)
            return None
        extra = -channels % lanes
        replacement = self.builder.call_te(
            product.compute,
            *(x, self._wide(weight, extra), *addends),
            primfunc_name_hint=f"{product.name}_padded",
        )
        what = (
            f"{channels} output channels computed as {channels + extra}: "
            f"{100 * padded:.0f} % of the vector lanes useful instead of {100 * now:.0f} %"
        )
        return Replacement(replacement, (), what)

    def _wide(self, weight: tvm.ir.GenericConst, extra: int) -> relax.Expr:
        """``weight`` with ``extra`` channels of zeros, once for all that share it."""
        key = hash(weight), extra
        if key not in self._widened:
            array = weight.value.numpy()
            wide = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, extra)])
            # The original is kept for its identity.
            self._widened[key] = weight, relax.const(wide, str(array.dtype))
        return self._widened[key][1]


@dataclass(frozen=True)
class _Product:
    """What has output channels: its operands, the weight second, and how to compute as many
    channels as asked for when the weight has more."""

    name: str
    inputs: tuple[relax.Expr, ...]
    compute: Callable[..., te.Tensor]


def _product_of(call: relax.Call, mod: tvm.IRModule) -> _Product | None:
    name = str(call.op.name)
    if name == "relax.call_tir":
        return _gemm(call, mod)
    wider: Callable[..., te.Tensor] | None = None
    if name in _CONVOLUTIONS:
        wider = _convolution(call)
    elif name == "relax.matmul":
        wider = _matmul(call)
    if wider is None:
        return None
    compute, channels = wider, call.args[1].ty.shape

    def narrowed(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        return cropped(compute(x, w), int(channels[-1]))

    return _Product(name.rsplit(".", 1)[-1], tuple(call.args), narrowed)


def _gemm(call: relax.Call, mod: tvm.IRModule) -> _Product | None:
    """A function of GemmFusion with a weight that lies in memory row by row."""
    attrs = mod[call.args[0]].attrs
    if attrs is None or ATTRIBUTE not in attrs:
        return None
    kernel = GemmCompute.from_attribute(str(attrs[ATTRIBUTE]))
    inputs = tuple(call.args[1].fields)
    if kernel.transpose_b or inputs[1].ty.ndim != 2:
        return None
    columns = int(inputs[1].ty.shape[-1]) if isinstance(inputs[1], tvm.ir.GenericConst) else None
    name = str(call.args[0].name_hint)
    return _Product(name, inputs, replace(kernel, columns=columns).compute)


def _convolution(call: relax.Call) -> Callable[..., te.Tensor] | None:
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


def _matmul(call: relax.Call) -> Callable[..., te.Tensor] | None:
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
