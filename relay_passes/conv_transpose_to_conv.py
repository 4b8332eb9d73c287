"""ConvTransposeToConv: transposed convolutions as convolutions that multiply no zeros."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.hardware.cost import Work
from tvm_ext.hardware.description import GpuDescription
from tvm_ext.hardware.roofline import cost_model
from tvm_ext.hardware.targets import current_processor
from tvm_ext.relay_passes.affine import constant_value
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.delay_reshapes import ATTRIBUTE
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_cost import (
    LAYOUT_NAMES,
    DescribedMachine,
    Layout,
    tensor_bytes,
)
from tvm_ext.relay_passes.layout_cost_gpu import planned_convolution_seconds
from tvm_ext.relay_passes.layout_roles import conversion_axes
from tvm_ext.relay_passes.pad_output_channels import lane_use
from tvm_ext.relay_passes.static_shape import shape_obstacle
from tvm_ext.relay_passes.sub_pixel import InterleavedKernel, StackedConvolution, UpsampledAxis

_OPERATORS = tuple(f"relax.nn.conv{n}d_transpose" for n in (1, 2, 3))


@graph_pass
class ConvTransposeToConv:
    """Computes a transposed convolution phase by phase, so that no inserted zero is multiplied.

    Before: ``conv2d_transpose(x, W, strides=[2, 2])``: 3 of 4 products are with a zero
    After, by modelled time one of
    - ``conv2d(x, W')`` with the weights turned around, if all strides are 1;
    - ``permute_dims(reshape(conv_transpose(permute_dims(x), W')))``: one kernel, channels last,
      that writes each phase (``o % stride``) to its place, with the taps that phase has;
    - ``reshape(permute_dims(reshape(conv2d(x, W'))))``: the phases as output channels of one
      convolution, for results of so few channels that they leave vectors empty.

    Taps that only some phases have are zeros in the last form (and on GPUs in the second, on CPUs
    along the rows where it joins phases and channels): there an infinite input makes NaN of its
    neighbours.

    Leaves alone: weights that are not constant, unknown or symbolic shapes, layouts other than
    channels first, meshes.

    Run after: ConvBnReluFold. Run before: LayoutPlanning, DelayReshapes.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        machine = current_processor()
        if machine is None:
            return mod
        return _Rewriter(DescribedMachine(machine, cost_model(machine))).run(mod)


@dataclass(frozen=True)
class _Transposed:
    """One operator: its tensors, its axes and what it costs to move its result."""

    call: relax.Call
    weight: np.ndarray
    axes: tuple[UpsampledAxis, ...]
    groups: int

    @property
    def x(self) -> relax.Expr:
        return self.call.args[0]

    @property
    def dtype(self) -> str:
        return str(self.call.ty.dtype)

    @property
    def group_outputs(self) -> int:
        return int(self.weight.shape[1])

    def work(self, products: float, lanes_used: float) -> Work:
        """The work for ``products`` of an input's channel with a weight, over all of a batch."""
        batch, inputs = int(self.x.ty.shape[0]), int(self.weight.shape[0])
        nbytes = tensor_bytes(self.x.ty) + self.weight.nbytes + tensor_bytes(self.call.ty)
        flops = 2.0 * batch * inputs * self.group_outputs * products
        return Work(flops, nbytes, str(self.x.ty.dtype), lanes_used)


class _Rewriter(BindingRewriter):
    pass_name = "ConvTransposeToConv"

    def __init__(self, machine: DescribedMachine) -> None:
        super().__init__()
        self.machine = machine

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, *_OPERATORS)
        if call is None or isinstance(value, relax.Var):
            return None
        reason = _refusal(call)
        weight = constant_value(self.view, call.args[1])
        if not reason and weight is None:
            reason = "its weights are not constant"
        if reason or weight is None:
            self.refuse(reason, var)
            return None
        operator = _Transposed(call, weight, _axes_of(call, weight), int(call.attrs.groups))
        if all(axis.stride == 1 for axis in operator.axes):
            plain = _plain(operator)
            if plain is not None:
                return Replacement(plain, (), "a convolution with the weights turned around")
        kernel, in_kernel = self._best_kernel(operator)
        stacked = StackedConvolution.of(operator.axes, operator.groups)
        as_channels = self._stacked_seconds(operator, stacked)
        times = (
            f"modelled as {in_kernel * 1e6:.1f} us in one kernel, {as_channels * 1e6:.1f} us with "
            "phases as channels"
        )
        if as_channels < in_kernel:
            made = self._unstacked(operator, stacked, var)
            return Replacement(made, (), f"phases as channels of a convolution: {times}")
        made = self._interleaved(operator, kernel, var)
        return Replacement(made, (), f"one kernel for all phases: {times}")

    def _best_kernel(self, operator: _Transposed) -> tuple[InterleavedKernel, float]:
        """The faster of joined and not, and its modelled seconds."""
        for_gpu = isinstance(self.machine.description, GpuDescription)
        choices = [False, True] if operator.groups == 1 and not for_gpu else [False]
        kernels = [
            InterleavedKernel(operator.axes, operator.groups, joined, operator.dtype, not for_gpu)
            for joined in choices
        ]
        seconds = [_kernel_seconds(operator, kernel, self.machine) for kernel in kernels]
        best = int(np.argmin(seconds))
        return kernels[best], seconds[best]

    def _stacked_seconds(self, operator: _Transposed, stacked: StackedConvolution) -> float:
        shape = stacked.weight_shape(operator.weight.shape)
        weight = relax.Var("weight", relax.TensorType(shape, str(operator.weight.dtype)))
        convolution = self.builder.normalize(_stacked_call(operator, stacked, weight))
        conversion = self.machine.conversion_seconds(tensor_bytes(operator.call.ty))
        layouts = (
            planned_convolution_seconds(convolution, layout, self.machine) for layout in Layout
        )
        return conversion + min(layouts)

    def _interleaved(
        self, operator: _Transposed, kernel: InterleavedKernel, var: relax.Var
    ) -> relax.Expr:
        ndim = len(kernel.axes) + 2
        last = relax.op.permute_dims(operator.x, list(conversion_axes(ndim, Layout.CHANNELS_LAST)))
        made = self.builder.call_te(
            kernel.compute,
            self.bind(last, var),
            _constant(kernel.pack(operator.weight)),
            primfunc_name_hint=_name(operator),
            primfunc_attrs={ATTRIBUTE: _name(operator)},
        )
        batch, channels = (int(extent) for extent in list(operator.call.ty.shape)[:2])
        image = relax.op.reshape(made, [batch, *kernel.output_spatial, channels])
        first = relax.op.permute_dims(
            self.bind(image, var), list(conversion_axes(ndim, Layout.CHANNELS_FIRST))
        )
        return self._cropped(operator, first, kernel.output_spatial, [0] * len(kernel.axes), var)

    def _unstacked(
        self,
        operator: _Transposed,
        stacked: StackedConvolution,
        var: relax.Var,
    ) -> relax.Expr:
        weight = _constant(stacked.pack(operator.weight))
        convolution = self.bind(_stacked_call(operator, stacked, weight), var)
        shape = [int(extent) for extent in convolution.ty.shape]
        sides = [side * axis.stride for side, axis in zip(shape[2:], stacked.axes, strict=True)]
        channels = operator.groups * operator.group_outputs
        value = relax.op.reshape(convolution, stacked.split_shape(shape))
        value = relax.op.permute_dims(self.bind(value, var), stacked.interleaving)
        value = relax.op.reshape(self.bind(value, var), [shape[0], channels, *sides])
        return self._cropped(operator, value, sides, stacked.begin, var)

    def _cropped(
        self,
        operator: _Transposed,
        value: relax.Expr,
        sides: Sequence[int],
        begin: Sequence[int],
        var: relax.Var,
    ) -> relax.Expr:
        """The outputs that are wanted of ``value``, channels first with spatial ``sides``."""
        wanted = [axis.outputs for axis in operator.axes]
        if list(sides) == wanted:
            return value
        end = [start + size for start, size in zip(begin, wanted, strict=True)]
        axes = list(range(2, 2 + len(wanted)))
        return relax.op.strided_slice(self.bind(value, var), axes, list(begin), end)


def _refusal(call: relax.Call) -> str:
    """Why ``call`` is left alone, weights aside; empty when nothing speaks against it."""
    attrs: Any = call.attrs
    data, weight = LAYOUT_NAMES[_rank(call) + 2][Layout.CHANNELS_FIRST]
    found = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    expected = (data, weight.replace("OI", "IO"), data)
    if found != expected:
        return f"layout {' '.join(found)} is not {' '.join(expected)}"
    if obstacle := shape_obstacle(*call.args, call):
        return obstacle
    if any(int(extent) == 0 for extent in (*call.args[0].ty.shape, *call.ty.shape)):
        return "an empty tensor"
    return ""


def _rank(call: relax.Call) -> int:
    return _OPERATORS.index(str(call.op.name)) + 1


def _axes_of(call: relax.Call, weight: np.ndarray) -> tuple[UpsampledAxis, ...]:
    attrs: Any = call.attrs
    return tuple(
        UpsampledAxis(
            length=int(call.args[0].ty.shape[2 + n]),
            outputs=int(call.ty.shape[2 + n]),
            kernel=int(weight.shape[2 + n]),
            stride=int(attrs.strides[n]),
            dilation=int(attrs.dilation[n]),
            before=int(attrs.padding[n]),
        )
        for n in range(_rank(call))
    )


def _name(operator: _Transposed) -> str:
    return str(operator.call.op.name).rsplit(".", 1)[-1]


def _kernel_seconds(
    operator: _Transposed, kernel: InterleavedKernel, machine: DescribedMachine
) -> float:
    """Modelled seconds of ``kernel``, and of dropping what it computes too much."""
    taps = [
        axis.useful_taps if kernel.branches else axis.stride * axis.taps for axis in kernel.axes
    ]
    channels = operator.group_outputs
    if kernel.joined:
        axis = kernel.axes[-1]
        taps[-1], channels = axis.stride * axis.taps, channels * axis.stride
    elif channels == 1 and int(operator.weight.shape[0]) == operator.groups:
        # Depthwise: the channel itself fills the vectors.
        channels = operator.groups
    lanes_used, _ = lane_use(channels, machine.vector_lanes(operator.dtype))
    products = prod(taps) * prod(axis.positions for axis in kernel.axes)
    seconds = machine.seconds(operator.work(products, lanes_used))
    if kernel.output_spatial != [axis.outputs for axis in kernel.axes]:
        seconds += machine.conversion_seconds(tensor_bytes(operator.call.ty))
    return seconds


def _plain(operator: _Transposed) -> relax.Call | None:
    """The convolution that an operator without strides is; None if it pads less than nothing."""
    before = [(axis.kernel - 1) * axis.dilation - axis.before for axis in operator.axes]
    after = [axis.outputs - 1 + axis.before - (axis.length - 1) for axis in operator.axes]
    if min(*before, *after) < 0:
        return None
    weight = operator.weight
    inputs = weight.shape[0] // operator.groups
    grouped = weight.reshape(operator.groups, inputs, *weight.shape[1:]).swapaxes(1, 2)
    ordered = grouped.reshape(-1, inputs, *weight.shape[2:])
    turned = _constant(np.flip(ordered, tuple(range(2, weight.ndim))))
    dilation = [axis.dilation for axis in operator.axes]
    return _convolution(operator, turned, [*before, *after], dilation)


def _stacked_call(
    operator: _Transposed, stacked: StackedConvolution, weight: relax.Expr
) -> relax.Call:
    return _convolution(operator, weight, stacked.padding, [1] * len(stacked.axes))


def _convolution(
    operator: _Transposed, weight: relax.Expr, padding: list[int], dilation: list[int]
) -> relax.Call:
    convolve = getattr(relax.op.nn, _name(operator).removesuffix("_transpose"))
    return convolve(
        operator.x,
        weight,
        padding=padding,
        dilation=dilation,
        groups=operator.groups,
        out_dtype=operator.dtype,
    )


def _constant(array: np.ndarray) -> relax.Expr:
    return relax.const(np.ascontiguousarray(array), str(array.dtype))
