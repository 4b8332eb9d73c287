"""ConvTransposeToConv: transposed convolutions as convolutions that multiply no zeros."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi
from tvm.sym import Analyzer

from tvm_ext.hardware.cost_model import Work, cost_model
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.targets import current_program_target
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import (
    constant_value,
    feature_map_obstacle,
    nominal_shape,
    shape_obstacle,
    tensor_bytes,
)
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_cost import (
    LAYOUT_NAMES,
    ChannelLayout,
    DescribedMachine,
    planned_convolution_seconds,
)
from tvm_ext.relay_passes.layout_roles import CHANNELS_FIRST_ONLY, conversion_axes
from tvm_ext.relay_passes.pad_output_channels import lane_use
from tvm_ext.relay_passes.sink_reshapes import ATTRIBUTE

# Transposed convolution without inserted zeros: which weight meets which input, along each axis.
#
# Along one axis, input ``i`` adds ``x[i] * w[j]`` to output ``i * stride + j * dilation -
# before``. So outputs of one phase, ``o = stride * m + f``, read neighbouring inputs, and only
# the weights with ``stride`` dividing ``f + before - j * dilation``: a plain convolution for each
# phase, whose results lie ``stride`` apart (Shi et al. 2016, arXiv 1609.05158, section 3.2).


@dataclass(frozen=True)
class UpsampledAxis:
    """One spatial axis of a transposed convolution.

    Attributes
    ----------
    length, outputs : int
        Extents of input and output along the axis; nominal ones where a run decides. What is
        derived from them but for ``positions`` depends on their difference only.
    kernel, stride, dilation : int
        As the operator has them.
    before : int
        Outputs cut off at the start: the operator's padding.
    shift : int
        Inputs by which each phase reads on from where the one before it does.
    """

    length: int
    outputs: int
    kernel: int
    stride: int
    dilation: int
    before: int
    shift: int = 0

    @cached_property
    def _offsets(self) -> dict[tuple[int, int], int]:
        """By phase and weight that meet: the input's position less the output's ``m``, and less
        what the phase is shifted by.
        """
        offsets = {}
        for j in range(self.kernel):
            phase = (j * self.dilation - self.before) % self.stride
            offset = (phase + self.before - j * self.dilation) // self.stride
            offsets[phase, j] = offset - self.shift * phase
        return offsets

    @property
    def first(self) -> int:
        """Of the first input that an output reads: ``m + first + tap + shift * phase``."""
        return min(self._offsets.values())

    @property
    def taps(self) -> int:
        """Neighbouring inputs that the phases together read for one ``m``."""
        return max(self._offsets.values()) - self.first + 1

    @property
    def positions(self) -> int:
        """Outputs of one phase; the last may be one too many."""
        return -(-self.outputs // self.stride)

    def positions_of(self, length: Any) -> Any:
        """``positions`` for an input of another length, a number or symbolic."""
        return length + (self.positions - self.length)

    @property
    def useful_taps(self) -> int:
        """Pairs of phase and tap with a weight, of ``stride * taps``."""
        return len(self._offsets)

    @property
    def is_dense(self) -> bool:
        """Whether every phase has a weight at every tap."""
        return self.useful_taps == self.stride * self.taps

    @property
    def padding(self) -> tuple[int, int]:
        """Zeros that a convolution over the taps needs before and after the input."""
        last = self.positions + self.first + self.taps - 1 + self.shift * (self.stride - 1)
        return max(0, -self.first), max(0, last - self.length)

    @property
    def skipped(self) -> int:
        """Inputs, after padding, that no output reads at the start."""
        return max(0, self.first)

    def weight_table(self) -> np.ndarray:
        """The weight for each phase and tap, -1 where there is none; shape (stride, taps)."""
        table = np.full((self.stride, self.taps), -1)
        for (phase, j), offset in self._offsets.items():
            table[phase, offset - self.first] = j
        return table

    def has_weight(self, phase: tirx.Expr, tap: tirx.Expr) -> list[tirx.Expr]:
        """What must hold for ``phase`` to have a weight at ``tap``; nothing if it always has."""
        if self.is_dense:
            return []
        reached = phase + self.before - self.stride * (tap + self.first + self.shift * phase)
        conditions = [reached >= 0, reached <= (self.kernel - 1) * self.dilation]
        if self.dilation > 1:
            conditions.append(tirx.indexmod(reached, self.dilation) == 0)
        return conditions

    def shifted(self) -> "UpsampledAxis":
        """The axis whose phases start where they have weights, if that takes fewer taps."""
        return min(self, replace(self, shift=1), key=lambda axis: axis.taps)

    def aligned(self) -> tuple["UpsampledAxis", int]:
        """The axis with the fewest taps that computes these outputs, and how many more before."""
        cut = self.before % self.stride
        return replace(self, before=self.before - cut, outputs=self.outputs + cut), cut


def spread_weights(weight: np.ndarray, axes: Sequence[UpsampledAxis]) -> np.ndarray:
    """``weight`` of shape (..., kernel of each axis) with phases and taps for each axis of kernel.

    Returns shape (..., stride, taps, stride, taps, ...), zero where a phase has no weight.
    """
    leading = weight.ndim - len(axes)
    for number, axis in enumerate(axes):
        table = axis.weight_table()
        spread = np.take(weight, np.maximum(table, 0), axis=leading + 2 * number)
        mask = (table >= 0).reshape(table.shape + (1,) * (len(axes) - number - 1))
        weight = np.where(mask, spread, np.zeros((), weight.dtype))
    return weight


@dataclass(frozen=True)
class InterleavedKernel:
    """All phases in one kernel that writes every output to its place, channels last.

    Takes the input as (batch, length..., channels) and gives, as one stretch of memory,
    (batch, positions, stride, positions, stride, ..., channels): outputs from left to right, one
    phase after the other. Taps without a weight are skipped by a branch outside of the vectors.
    ``joined`` kernels have the phases of the last axis and the channels on one axis, and compute
    taps without a weight there; ``groups`` is 1 for them. Without ``branches`` all are computed,
    so that the kernel is a matmul.
    """

    axes: tuple[UpsampledAxis, ...]
    groups: int
    joined: bool
    out_dtype: str
    branches: bool = True

    @property
    def output_spatial(self) -> list[int]:
        """Extents of the output's spatial axes, with what is one too many."""
        return [axis.positions * axis.stride for axis in self.axes]

    def pack(self, weight: np.ndarray) -> np.ndarray:
        """The operator's weight, (inputs, outputs of a group, kernel...), as the kernel reads it.

        Shape (phases..., taps..., inputs of a group, groups, outputs of a group), or, joined,
        (phases but the last..., taps..., inputs, last phase times outputs).
        """
        rank = len(self.axes)
        inputs = weight.shape[0] // self.groups
        grouped = weight.reshape(self.groups, inputs, *weight.shape[1:])
        spread = spread_weights(grouped, self.axes)
        phases, taps = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
        if not self.joined:
            return np.ascontiguousarray(spread.transpose(*phases, *taps, 1, 0, 2))
        *early, last = phases
        ordered = spread[0].transpose(*(n - 1 for n in (*early, *taps, 1, last, 2)))
        return ordered.reshape(*ordered.shape[:-2], -1)

    def compute(self, x: te.Tensor, weight: te.Tensor) -> te.Tensor:
        """The tensor expression; ``weight`` as ``pack`` makes it."""
        rank = len(self.axes)
        before, after = zip(*(axis.padding for axis in self.axes), strict=True)
        padded = x
        if any((*before, *after)):
            padded = topi.nn.pad(x, [0, *before, 0], [0, *after, 0], name="pad")
        inputs = int(weight.shape[2 * rank - self.joined])
        taps = [te.reduce_axis((0, axis.taps), name=f"t{n}") for n, axis in enumerate(self.axes)]
        i = te.reduce_axis((0, inputs), name="i")
        channels = [weight.shape[-1]] if self.joined else weight.shape[-2:]

        def element(*index: tirx.Var) -> tirx.Expr:
            batch, positions, phases, rest = self._split(index)
            group = rest[0] if not self.joined else 0
            places = [
                m + tap + axis.skipped
                for m, tap, axis in zip(positions, taps, self.axes, strict=True)
            ]
            for n, phase in enumerate(phases):
                if self.axes[n].shift:
                    places[n] += self.axes[n].shift * phase
            value = padded(batch, *places, group * inputs + i).astype(self.out_dtype)
            product = value * weight(*phases, *taps, i, *rest).astype(self.out_dtype)
            conditions = [
                condition
                for phase, tap, axis in zip(phases, taps, self.axes, strict=False)
                for condition in axis.has_weight(phase, tap)
            ]
            if conditions and self.branches:
                zero = tirx.const(0, self.out_dtype)
                product = tirx.if_then_else(tirx.all(*conditions), product, zero)
            return te.sum(product, axis=[*taps, i])

        positions = [axis.positions_of(n) for axis, n in zip(self.axes, x.shape[1:-1], strict=True)]
        spatial = [
            extent
            for count, axis in zip(positions, self.axes, strict=True)
            for extent in (count, axis.stride)
        ]
        shape = [x.shape[0], *(spatial[:-1] if self.joined else spatial), *channels]
        return te.compute(shape, element, name="conv_transpose")

    def _split(self, index: tuple[tirx.Var, ...]) -> tuple[tirx.Var, list, list, list]:
        """Batch, position and phase along each axis (joined: but the last phase), channels."""
        rank = len(self.axes)
        spatial = 2 * rank - self.joined
        return (
            index[0],
            list(index[1 : 1 + spatial : 2]),
            list(index[2 : 1 + spatial : 2]),
            list(index[1 + spatial :]),
        )


@dataclass(frozen=True)
class StackedConvolution:
    """All phases as output channels of one plain convolution, channels first.

    Attributes
    ----------
    axes : tuple of UpsampledAxis
        Aligned: the convolution computes ``cut`` outputs too many at the start of each.
    cut : tuple of int
        Outputs to drop at the start of each axis.
    groups : int
        Groups of the operator.
    """

    axes: tuple[UpsampledAxis, ...]
    cut: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, axes: Sequence[UpsampledAxis], groups: int) -> "StackedConvolution":
        """The one with the smallest window for ``axes``."""
        aligned, cut = zip(*(axis.aligned() for axis in axes), strict=True)
        return cls(aligned, cut, groups)

    @property
    def padding(self) -> list[int]:
        """Padding of the convolution: before on all axes, then after."""
        before, after = zip(*(axis.padding for axis in self.axes), strict=True)
        return [*before, *after]

    @property
    def begin(self) -> list[int]:
        """The first output of each axis that is wanted, after the phases are interleaved."""
        return [
            axis.skipped * axis.stride + cut for axis, cut in zip(self.axes, self.cut, strict=True)
        ]

    def pack(self, weight: np.ndarray) -> np.ndarray:
        """The operator's weight, (inputs, outputs of a group, kernel...), for the convolution.

        Shape (groups * phases * outputs of a group, inputs of a group, taps...).
        """
        rank = len(self.axes)
        inputs = weight.shape[0] // self.groups
        grouped = weight.reshape(self.groups, inputs, *weight.shape[1:])
        spread = spread_weights(grouped, self.axes)
        phases, taps = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
        ordered = spread.transpose(0, *phases, 2, 1, *taps)
        return ordered.reshape(self.weight_shape(weight.shape))

    def weight_shape(self, shape: Sequence[int]) -> list[int]:
        """The shape of what ``pack`` makes of a weight of ``shape``."""
        phases = prod(axis.stride for axis in self.axes)
        outputs, inputs = self.groups * phases * shape[1], shape[0] // self.groups
        return [outputs, inputs, *(axis.taps for axis in self.axes)]

    def split_shape(self, shape: Sequence[int]) -> list[int]:
        """``shape`` of the convolution's result with groups, phases and channels apart."""
        strides = [axis.stride for axis in self.axes]
        channels = shape[1] // self.groups // prod(strides)
        return [shape[0], self.groups, *strides, channels, *shape[2:]]

    @property
    def interleaving(self) -> list[int]:
        """The order of axes that puts each phase behind its position."""
        rank = len(self.axes)
        places = [axis for n in range(rank) for axis in (3 + rank + n, 2 + n)]
        return [0, 1, 2 + rank, *places]


@graph_pass
class ConvTransposeToConv:
    """Computes a transposed convolution phase by phase, so that no inserted zero is multiplied.

    Before: ``conv2d_transpose(x, W, strides=[2, 2])``: 3 of 4 products are with a zero
    After, by modelled time one of
    - ``conv2d(x, W')`` with the weights flipped, if all strides are 1;
    - ``permute_dims(reshape(conv_transpose(permute_dims(x), W')))``: one kernel, channels last,
      that writes each phase (``o % stride``) to its place, with the taps that phase has;
    - ``reshape(permute_dims(reshape(conv2d(x, W'))))``: the phases as output channels of one
      convolution, for results of so few channels that they leave vectors empty.

    Of stride 2, each phase starts where it has weights. Taps that only some phases have are zeros
    in the last form (and on GPUs in the second, on CPUs along the rows where it joins phases and
    channels): there an infinite input makes NaN of its neighbours.

    Leaves alone: weights that are not constant, unknown shapes, symbolic channels, layouts other
    than channels first, meshes.

    Run after: ConvBnReluFold. Run before: LayoutPlanning, SinkReshapes.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        machine = current_program_target()
        if machine is None:
            return mod
        return _ConvTransposeRewriter(DescribedMachine(machine, cost_model(machine))).run(mod)


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
        batch, *_ = nominal_shape(self.x.ty) or []
        inputs = int(self.weight.shape[0])
        nbytes = tensor_bytes(self.x.ty) + self.weight.nbytes + tensor_bytes(self.call.ty)
        flops = 2.0 * batch * inputs * self.group_outputs * products
        return Work(flops, nbytes, str(self.x.ty.dtype), lanes_used)


class _ConvTransposeRewriter(BindingRewriter):
    pass_name = "ConvTransposeToConv"
    roots = frozenset(CHANNELS_FIRST_ONLY)

    def __init__(self, machine: DescribedMachine) -> None:
        self.machine = machine

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, *CHANNELS_FIRST_ONLY)
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
                return Replacement(plain, (), "a convolution with the weights flipped")
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
        for_cuda = isinstance(self.machine.description, CudaDescription)
        choices = [False, True] if operator.groups == 1 and not for_cuda else [False]
        shifted = operator.axes if for_cuda else tuple(axis.shifted() for axis in operator.axes)
        branches = not for_cuda
        kernels = [
            InterleavedKernel(
                # A phase that is one axis with the channels reads what the others read.
                (*shifted[:-1], operator.axes[-1]) if joined else shifted,
                operator.groups,
                joined,
                operator.dtype,
                branches,
            )
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
            planned_convolution_seconds(convolution, layout, self.machine)
            for layout in ChannelLayout
        )
        return conversion + min(layouts)

    def _interleaved(
        self, operator: _Transposed, kernel: InterleavedKernel, var: relax.Var
    ) -> relax.Expr:
        ndim = len(kernel.axes) + 2
        last = relax.op.permute_dims(
            operator.x, list(conversion_axes(ndim, ChannelLayout.CHANNELS_LAST))
        )
        made = self.builder.call_te(
            kernel.compute,
            self.bind(last, var),
            _constant(kernel.pack(operator.weight)),
            primfunc_name_hint=_name(operator),
            primfunc_attrs={ATTRIBUTE: _name(operator)},
        )
        batch, channels = list(operator.call.ty.shape)[:2]
        lengths = list(operator.x.ty.shape)[2:]
        sides = [
            axis.positions_of(n) * axis.stride for axis, n in zip(kernel.axes, lengths, strict=True)
        ]
        image = relax.op.reshape(made, [batch, *sides, channels])
        first = relax.op.permute_dims(
            self.bind(image, var), list(conversion_axes(ndim, ChannelLayout.CHANNELS_FIRST))
        )
        return self._cropped(operator, first, [0] * len(kernel.axes), var)

    def _unstacked(
        self, operator: _Transposed, stacked: StackedConvolution, var: relax.Var
    ) -> relax.Expr:
        weight = _constant(stacked.pack(operator.weight))
        convolution = self.bind(_stacked_call(operator, stacked, weight), var)
        shape = list(convolution.ty.shape)
        sides = [side * axis.stride for side, axis in zip(shape[2:], stacked.axes, strict=True)]
        channels = operator.groups * operator.group_outputs
        value = relax.op.reshape(convolution, stacked.split_shape(shape))
        value = relax.op.permute_dims(self.bind(value, var), stacked.interleaving)
        value = relax.op.reshape(self.bind(value, var), [shape[0], channels, *sides])
        return self._cropped(operator, value, stacked.begin, var)

    def _cropped(
        self, operator: _Transposed, value: relax.Expr, begin: Sequence[int], var: relax.Var
    ) -> relax.Expr:
        """The outputs that are wanted of ``value``, channels first."""
        wanted = list(operator.call.ty.shape)[2:]
        sides = list(self.builder.normalize(value).ty.shape)[2:]
        if all(Analyzer().can_prove_equal(*pair) for pair in zip(sides, wanted, strict=True)):
            return value
        end = [start + size for start, size in zip(begin, wanted, strict=True)]
        axes = list(range(2, 2 + len(wanted)))
        # Clipped to symbolic sides, the slice would have sizes that equal no other value's.
        return relax.op.strided_slice(
            self.bind(value, var), axes, list(begin), end, assume_inbound=True
        )


def _refusal(call: relax.Call) -> str:
    """Why ``call`` is left alone, weights aside; empty when nothing speaks against it."""
    attrs: Any = call.attrs
    data, weight = LAYOUT_NAMES[_rank(call) + 2][ChannelLayout.CHANNELS_FIRST]
    found = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    expected = (data, weight.replace("OI", "IO"), data)
    if found != expected:
        return f"layout {' '.join(found)} is not {' '.join(expected)}"
    if obstacle := shape_obstacle(call.args[1]) or feature_map_obstacle(1, call.args[0], call):
        return obstacle
    if 0 in (*(nominal_shape(call.args[0].ty) or []), *(nominal_shape(call.ty) or [])):
        return "an empty tensor"
    if any(_added(call, n) is None for n in range(_rank(call))):
        return "how much longer its result is than its input is not known"
    return ""


def _added(call: relax.Call, axis: int) -> int | None:
    """Outputs along a spatial axis beyond those that strides make; None where that is symbolic."""
    length, outputs = (t.ty.shape[2 + axis] for t in (call.args[0], call))
    added = Analyzer().simplify(outputs - length * int(call.attrs.strides[axis]))
    return int(added) if isinstance(added, tirx.IntImm) else None


def _rank(call: relax.Call) -> int:
    return CHANNELS_FIRST_ONLY.index(str(call.op.name)) + 1


def _axes_of(call: relax.Call, weight: np.ndarray) -> tuple[UpsampledAxis, ...]:
    attrs: Any = call.attrs
    lengths = (nominal_shape(call.args[0].ty) or [])[2:]
    return tuple(
        UpsampledAxis(
            length=lengths[n],
            outputs=lengths[n] * int(attrs.strides[n]) + (_added(call, n) or 0),
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
