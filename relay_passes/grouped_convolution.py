"""GroupedConvolution: an axis of its own for the groups of a convolution."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from tvm_ext.hardware.cuda.description import current_gpu
from tvm_ext.hardware.targets import current_program_target
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import (
    constant_value,
    feature_map_obstacle,
    shape_obstacle,
    static_shape,
)
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_cost import LAYOUT_NAMES, ChannelLayout
from tvm_ext.relay_passes.layout_roles import CONVOLUTIONS
from tvm_ext.relay_passes.sink_reshapes import ATTRIBUTE
from tvm_ext.relay_passes.zero_point_compensation import (
    CentredIntegers,
    are_whole,
    centred_integers,
)

# An element of the input by batch, group, input of the group and places along the spatial axes.
DataAt: TypeAlias = Callable[[tirx.Var, tirx.Var, tirx.Var, list[tirx.Expr]], tirx.Expr]


@graph_pass
class GroupedConvolution:
    """Writes a grouped convolution with groups and the outputs of a group on axes of their own.

    Before: ``y = conv2d(x, W, groups=4)``            y: [1, 14, 14, 256]
    After:  ``v = conv2d(x, reshape(W)); y = reshape(v, [1, 14, 14, 256])``
                                                      v: [1, 14, 14, 4, 64]

    In TVM's own kernel the input channel is a quotient of the output channel, so that no schedule
    can load what neighbouring outputs share. Here outputs of a group read the same inputs.

    On a CPU, of numbers of 8 bits less a zero point, and weights that are stored whole numbers:

    Before: ``y = conv2d(astype(astype(x, int16) - z, float32), W, groups=4)``
    After:  ``v = conv2d(x, z, reshape(astype(W, int8))); ...``           the casts in the kernel

    Such a kernel reads a quarter of the bytes, and so does a file with its weights.

    Leaves alone: depthwise convolutions with one output a group, which need no quotient, but those
    of 8-bit numbers; on a GPU also those with several, of which a thread computes neighbours;
    layouts that are neither channels first nor channels last; unknown shapes and symbolic
    channels; meshes.

    Run after: AccumulateInFloat32, LayoutPlanning. Run before: SinkReshapes, LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        machine = current_program_target()
        if machine is None:
            return mod
        return _GroupedConvolutionRewriter(current_gpu() is not None).run(mod)


@dataclass(frozen=True)
class GroupedKernel:
    """A convolution whose channels are counted by group and within a group.

    Gives (batch, spatial..., groups, outputs of a group), or (batch, groups, outputs of a group,
    spatial...) with channels first; without the axis for the outputs where there is one a group.
    Tuples are over the spatial axes.
    """

    groups: int
    strides: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]
    channels_last: bool
    out_dtype: str

    def compute(self, x: te.Tensor, weight: te.Tensor, *zero_point: te.Tensor) -> te.Tensor:
        """The tensor expression; ``weight`` with the outputs split as ``split_outputs`` does.

        With a zero point, ``x`` less that.
        """
        rank = len(self.strides)
        kernel = [int(n) for n in (weight.shape[:rank] if self.channels_last else weight.shape[3:])]
        inputs = int(weight.shape[rank if self.channels_last else 2])
        taps = [te.reduce_axis((0, extent), name=f"t{n}") for n, extent in enumerate(kernel)]
        i = te.reduce_axis((0, inputs), name="i")
        data = self._padded(self._centred(x, *zero_point), inputs)

        def element(*index: tirx.Var) -> tirx.Expr:
            batch, spatial, (group, channel) = self._split(index)
            places = [
                at * stride + tap * step
                for at, stride, tap, step in zip(
                    spatial, self.strides, taps, self.dilation, strict=True
                )
            ]
            value = data(batch, group, i, places).astype(self.out_dtype)
            if self.channels_last:
                return te.sum(
                    value * weight(*taps, i, group, channel).astype(self.out_dtype), [*taps, i]
                )
            return te.sum(
                value * weight(group, channel, i, *taps).astype(self.out_dtype), [i, *taps]
            )

        sides = self._output_sides(list(self._spatial(x.shape)), kernel)
        channels = weight.shape[-2:] if self.channels_last else weight.shape[:2]
        channels = channels[:1] if int(channels[1]) == 1 else channels
        order = (*sides, *channels) if self.channels_last else (*channels, *sides)
        return te.compute((x.shape[0], *order), element, name=f"conv{rank}d")

    def _centred(self, x: te.Tensor, *zero_point: te.Tensor) -> te.Tensor:
        """Numbers of 8 bits in the type of the sums, less their zero point if they have one."""
        if str(x.dtype) == self.out_dtype:
            return x

        def centred(*place: tirx.Var) -> tirx.Expr:
            value = x(*place).astype(self.out_dtype)
            for zero in zero_point:
                value = value - zero(*[0] * zero.ndim).astype(self.out_dtype)
            return value

        return te.compute(x.shape, centred, name="centred")

    def _padded(self, x: te.Tensor, inputs: int) -> DataAt:
        """Reads ``x`` at a batch, group, input of the group, and places counted with padding.

        What is padded is copied anyway. With channels last the copy has one group after the other:
        a group's inputs at neighbouring places are far apart in ``x``, often by a power of two,
        and then share a few lines of the cache.
        """
        rank = len(self.strides)
        if self.channels_last and inputs > 1 and any((*self.before, *self.after)):
            sides = self._spatial(x.shape)
            ends = [side + b for side, b in zip(sides, self.before, strict=True)]
            shape = [end + after for end, after in zip(ends, self.after, strict=True)]

            def copied(batch: tirx.Var, group: tirx.Var, *rest: tirx.Var) -> tirx.Expr:
                *places, i = rest
                inside = [
                    condition
                    for at, before, end in zip(places, self.before, ends, strict=True)
                    for condition in (at >= before, at < end)
                ]
                inner = [at - before for at, before in zip(places, self.before, strict=True)]
                value = x(batch, *inner, group * inputs + i)
                return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, str(x.dtype)))

            by_group = te.compute((x.shape[0], self.groups, *shape, inputs), copied, name="pad")
            return lambda batch, group, i, places: by_group(batch, group, *places, i)
        padded = x
        if any((*self.before, *self.after)):
            first = 1 if self.channels_last else 2
            widths = [[0] * len(x.shape), [0] * len(x.shape)]
            for width, side in zip(widths, (self.before, self.after), strict=True):
                width[first : first + rank] = side
            padded = topi.nn.pad(x, *widths, name="pad")
        if self.channels_last:
            return lambda batch, group, i, places: padded(batch, *places, group * inputs + i)
        return lambda batch, group, i, places: padded(batch, group * inputs + i, *places)

    def _spatial(self, shape: Sequence[Any]) -> Sequence[Any]:
        return shape[1:-1] if self.channels_last else shape[2:]

    def _output_sides(self, sides: list[Any], kernel: list[int]) -> list[Any]:
        around = [b + a for b, a in zip(self.before, self.after, strict=True)]
        return [
            (side + pad - (size - 1) * step - 1) // stride + 1
            for side, pad, size, step, stride in zip(
                sides, around, kernel, self.dilation, self.strides, strict=True
            )
        ]

    def split_outputs(self, shape: list[int]) -> list[int]:
        """``shape`` of a weight (OI and spatial axes, or spatial axes and IO) with O in two."""
        axis = len(shape) - 1 if self.channels_last else 0
        return [*shape[:axis], self.groups, shape[axis] // self.groups, *shape[axis + 1 :]]

    def _split(self, index: tuple[tirx.Var, ...]) -> tuple[tirx.Var, list, list]:
        rank = len(self.strides)
        first = 1 + rank if self.channels_last else 1
        channels = list(index[first : len(index) - (0 if self.channels_last else rank)])
        spatial = list(index[1:first] if self.channels_last else index[len(index) - rank :])
        return index[0], spatial, channels if len(channels) > 1 else [*channels, 0]


@dataclass(frozen=True)
class _Operands:
    """What a convolution multiplies: data, less their zero point if they have one, and weights."""

    x: relax.Expr
    weight: relax.Expr
    zero_points: tuple[relax.Expr, ...] = ()
    are_bytes: bool = False


class _GroupedConvolutionRewriter(BindingRewriter):
    pass_name = "GroupedConvolution"
    roots = frozenset({"relax.astype", *CONVOLUTIONS})

    def __init__(self, for_cuda: bool) -> None:
        self.for_cuda = for_cuda

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(self._rounded(value), *CONVOLUTIONS)
        if call is None or isinstance(value, relax.Var) or int(call.attrs.groups) == 1:
            return None
        reason = _refusal(call)
        if reason:
            self.refuse(reason, var)
            return None
        kernel = _kernel_of(call)
        operands = self._operands(call, var)
        weight = operands.weight
        split = kernel.split_outputs([int(extent) for extent in weight.ty.shape])
        extents = dict(zip(str(call.attrs.kernel_layout), weight.ty.shape, strict=True))
        alone = kernel.groups == int(extents["O"]) and not operands.are_bytes
        if alone or (self.for_cuda and int(extents["I"]) == 1):
            return None
        if isinstance(weight, tvm.ir.GenericConst):
            grouped = relax.const(weight.value.numpy().reshape(split), str(weight.ty.dtype))
        else:
            grouped = self.bind(relax.op.reshape(weight, split), var)
        name = f"grouped_{str(call.op.name).rsplit('.', 1)[-1]}"
        made = self.builder.call_te(
            kernel.compute,
            operands.x,
            grouped,
            *operands.zero_points,
            primfunc_name_hint=name,
            primfunc_attrs={ATTRIBUTE: name},
        )
        what = f"{kernel.groups} groups on an axis of their own"
        if operands.are_bytes:
            what = f"{kernel.groups} groups of 8-bit numbers"
        result = (
            made if kernel.groups == int(extents["O"]) else relax.op.reshape(made, call.ty.shape)
        )
        return Replacement(result, (), what)

    def _rounded(self, value: relax.Expr) -> relax.Expr:
        """Sums of integers in float32 that are cast to int32 and back; other values themselves."""
        back = None if isinstance(value, relax.Var) else self.view.call(value, "relax.astype")
        whole = None if back is None else self.view.call(back.args[0], "relax.astype")
        if back is None or whole is None or self.view.uses(back.args[0]) > 1:
            return value
        types = [str(expr.ty.dtype) for expr in (whole.args[0], whole, back)]
        sums = self.view.call(whole.args[0], *CONVOLUTIONS)
        if sums is None or types != ["float32", "int32", "float32"]:
            return value
        return whole.args[0] if self._integers(sums) is not None else value

    def _integers(self, call: relax.Call) -> CentredIntegers | None:
        """The data of a convolution in float32 if they and the weights are numbers of 8 bits."""
        wide, numbers = self.view.call(call.args[0], "relax.astype"), self._numbers(call)
        if wide is None or numbers is None or not are_whole(numbers, -128, 127):
            return None
        integers = centred_integers(self.view, wide.args[0])
        zero_point = None if integers is None else integers.zero_point
        if zero_point is not None and static_shape(zero_point) != [1] * zero_point.ty.ndim:
            return None
        return integers

    def _numbers(self, call: relax.Call) -> np.ndarray | None:
        return constant_value(self.view, call.args[1])

    def _operands(self, call: relax.Call, var: relax.Var) -> "_Operands":
        """Those of a convolution, as numbers of 8 bits where they are."""
        integers, numbers = self._integers(call), self._numbers(call)
        if integers is None or numbers is None:
            return _Operands(*call.args)
        data = integers.x
        if integers.axes:
            data = self.bind(relax.op.permute_dims(data, list(integers.axes)), var)
        stored = relax.const(numbers.astype("int8"), "int8")
        if integers.zero_point is None:
            return _Operands(data, stored, (), True)
        narrow = self.view.call(integers.zero_point, "relax.astype")
        zero_point = integers.zero_point if narrow is None else narrow.args[0]
        return _Operands(data, stored, (zero_point,), True)


def _refusal(call: relax.Call) -> str:
    """Why ``call`` is left alone; empty when nothing speaks against it."""
    attrs: Any = call.attrs
    names = (str(attrs.data_layout), str(attrs.kernel_layout))
    known = LAYOUT_NAMES[CONVOLUTIONS[str(call.op.name)]]
    if names not in known or str(attrs.out_layout) != names[0]:
        return f"layout {' '.join(names)} {attrs.out_layout}, neither channels first nor last"
    if obstacle := shape_obstacle(call.args[1]):
        return obstacle
    return feature_map_obstacle(names[0].index("C"), call.args[0], call)


def _kernel_of(call: relax.Call) -> GroupedKernel:
    attrs: Any = call.attrs
    rank = len(attrs.strides)
    padding = tuple(int(pad) for pad in attrs.padding)
    names = (str(attrs.data_layout), str(attrs.kernel_layout))
    return GroupedKernel(
        groups=int(attrs.groups),
        strides=tuple(int(stride) for stride in attrs.strides),
        before=padding[:rank],
        after=padding[rank:],
        dilation=tuple(int(step) for step in attrs.dilation),
        channels_last=names == LAYOUT_NAMES[rank + 2][ChannelLayout.CHANNELS_LAST],
        out_dtype=str(call.ty.dtype),
    )
