"""GroupedConvolution: an axis of its own for the groups of a convolution."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm
from tvm import relax, te, tirx, topi

from tvm_ext.hardware.cuda.description import current_gpu
from tvm_ext.hardware.targets import current_program_target
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import feature_map_obstacle, shape_obstacle
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_cost import LAYOUT_NAMES, ChannelLayout
from tvm_ext.relay_passes.layout_roles import CONVOLUTIONS
from tvm_ext.relay_passes.sink_reshapes import ATTRIBUTE

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

    Leaves alone: depthwise convolutions with one output a group, which need no quotient, and on a
    GPU those with several, of which a thread computes neighbours; layouts that are neither
    channels first nor channels last; unknown shapes and symbolic channels; meshes.

    Run after: LayoutPlanning. Run before: SinkReshapes, LegalizeOps.
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
    spatial...) with channels first. Tuples are over the spatial axes.
    """

    groups: int
    strides: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]
    channels_last: bool
    out_dtype: str

    def compute(self, x: te.Tensor, weight: te.Tensor) -> te.Tensor:
        """The tensor expression; ``weight`` with the outputs split as ``split_outputs`` does."""
        rank = len(self.strides)
        kernel = [int(n) for n in (weight.shape[:rank] if self.channels_last else weight.shape[3:])]
        inputs = int(weight.shape[rank if self.channels_last else 2])
        taps = [te.reduce_axis((0, extent), name=f"t{n}") for n, extent in enumerate(kernel)]
        i = te.reduce_axis((0, inputs), name="i")
        data = self._padded(x, inputs)

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
        order = (*sides, *channels) if self.channels_last else (*channels, *sides)
        return te.compute((x.shape[0], *order), element, name=f"conv{rank}d")

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
        if self.channels_last:
            return index[0], list(index[1 : 1 + rank]), list(index[1 + rank :])
        return index[0], list(index[3:]), list(index[1:3])


class _GroupedConvolutionRewriter(BindingRewriter):
    pass_name = "GroupedConvolution"

    def __init__(self, for_cuda: bool) -> None:
        self.for_cuda = for_cuda

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, *CONVOLUTIONS)
        if call is None or isinstance(value, relax.Var) or int(call.attrs.groups) == 1:
            return None
        reason = _refusal(call)
        if reason:
            self.refuse(reason, var)
            return None
        kernel = _kernel_of(call)
        x, weight = call.args
        split = kernel.split_outputs([int(extent) for extent in weight.ty.shape])
        extents = dict(zip(str(call.attrs.kernel_layout), weight.ty.shape, strict=True))
        if kernel.groups == int(extents["O"]) or (self.for_cuda and int(extents["I"]) == 1):
            return None
        if isinstance(weight, tvm.ir.GenericConst):
            grouped = relax.const(weight.value.numpy().reshape(split), str(weight.ty.dtype))
        else:
            grouped = self.bind(relax.op.reshape(weight, split), var)
        name = f"grouped_{str(call.op.name).rsplit('.', 1)[-1]}"
        made = self.builder.call_te(
            kernel.compute,
            x,
            grouped,
            primfunc_name_hint=name,
            primfunc_attrs={ATTRIBUTE: name},
        )
        result = relax.op.reshape(made, call.ty.shape)
        what = f"{kernel.groups} groups on an axis of their own"
        return Replacement(result, (), what)


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
