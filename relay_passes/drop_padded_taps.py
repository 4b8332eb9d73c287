"""DropPaddedTaps: convolutions without the taps that see nothing but padding."""

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import convolution_like, item_shape
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_roles import CONVOLUTIONS


@graph_pass
class DropPaddedTaps:
    """Leaves out the taps of a convolution that see nothing but padding.

    Before: ``conv2d(x, W, padding=12, dilation=12)``, x: [1, C, 6, 6], W: [O, C, 3, 3]
    After:  ``conv2d(x, W[:, :, 1:2, 1:2])``

    A window that is spread over more than the image (the pyramids of DeepLab, large kernels over
    small maps) multiplies weights with zeros, and the zeros are written to memory first.

    Leaves alone: unknown shapes, symbolic sizes other than the batch; a convolution all of whose
    taps see padding only.

    Run after: ConvBnReluFold. Run before: LayoutPlanning, FlattenPointwise.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when no tap is dropped."""
        return _Dropper().run(mod)


@dataclass(frozen=True)
class _Window:
    """What a convolution reads along one axis.

    Attributes
    ----------
    size, taps, results : int
        Extents of the input, the weights and the result.
    stride, dilation, before, after : int
        Those of the convolution; the last two are its padding.
    """

    size: int
    taps: int
    results: int
    stride: int
    dilation: int
    before: int
    after: int

    def seeing(self) -> range:
        """The taps that meet the input somewhere: they follow each other."""
        seen = [tap for tap in range(self.taps) if self._sees(tap)]
        return range(seen[0], seen[-1] + 1) if seen else range(0)

    def _sees(self, tap: int) -> bool:
        first = tap * self.dilation - self.before
        places = range(first, first + self.results * self.stride, self.stride)
        return any(0 <= place < self.size for place in places)

    def padding(self, kept: range) -> tuple[int, int]:
        """Before and after the input; below zero where some of it is not read any more."""
        dropped = self.taps - kept.stop
        return (
            self.before - kept.start * self.dilation,
            self.after - dropped * self.dilation,
        )


class _Dropper(BindingRewriter):
    pass_name = "DropPaddedTaps"
    roots = frozenset(CONVOLUTIONS)

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, *CONVOLUTIONS)
        if call is None:
            return None
        windows = _windows(call, var)
        if windows is None:
            return None
        kept = [window.seeing() for window in windows]
        if all(len(taps) == w.taps for taps, w in zip(kept, windows, strict=True)):
            return None
        if not all(kept):
            self.refuse("all of its taps see padding only", var)
            return None
        what = ", ".join(
            f"{len(taps)} of {window.taps}" for taps, window in zip(kept, windows, strict=True)
        )
        return Replacement(
            self._dropped(call, windows, kept, var), (), f"taps that see the input: {what}"
        )

    def _dropped(
        self, call: relax.Call, windows: list[_Window], kept: list[range], var: relax.Var
    ) -> relax.Expr:
        attrs: Any = call.attrs
        pairs = [w.padding(taps) for w, taps in zip(windows, kept, strict=True)]
        dilation = [w.dilation if len(t) > 1 else 1 for w, t in zip(windows, kept, strict=True)]
        # Input that no tap sees any more is cut off: TVM knows no padding below zero.
        seen = [
            range(max(-before, 0), w.size - max(-after, 0))
            for (before, after), w in zip(pairs, windows, strict=True)
        ]
        x = self._cut(call.args[0], str(attrs.data_layout), seen, var)
        weight = self._cut(call.args[1], str(attrs.kernel_layout), kept, var)
        padding = [max(p[side], 0) for side in (0, 1) for p in pairs]
        return convolution_like(call, x, weight, padding=padding, dilation=dilation)

    def _cut(self, expr: relax.Expr, layout: str, kept: list[range], var: relax.Var) -> relax.Expr:
        """The ranges of the axes of an image's dimensions that are kept."""
        axes = _image_axes(layout)
        shape = item_shape(expr) or []
        if all(len(part) == shape[axis] for part, axis in zip(kept, axes, strict=True)):
            return expr
        if isinstance(expr, GenericConst):
            inside = [slice(None)] * len(shape)
            for part, axis in zip(kept, axes, strict=True):
                inside[axis] = slice(part.start, part.stop)
            return relax.const(expr.value.numpy()[tuple(inside)], str(expr.ty.dtype))
        first, last = [part.start for part in kept], [part.stop for part in kept]
        return self.bind(relax.op.strided_slice(expr, axes, first, last), var)


def _image_axes(layout: str) -> list[int]:
    """Positions of depth, height and width, of those that there are."""
    return [layout.index(letter) for letter in "DHW" if letter in layout]


def _windows(call: relax.Call, var: relax.Var) -> list[_Window] | None:
    """What the convolution reads along each dimension of the image; None where that is unknown."""
    attrs: Any = call.attrs
    image, taps, results = (item_shape(expr) for expr in (*call.args, var))
    if image is None or taps is None or results is None or 0 in (*image, *taps, *results):
        return None
    layouts = [str(attrs.data_layout), str(attrs.kernel_layout)]
    layouts.append(str(attrs.out_layout) or layouts[0])
    if not all(layout.isalpha() for layout in layouts):
        return None
    data, kernel, made = (_image_axes(layout) for layout in layouts)
    padding = [int(n) for n in attrs.padding]
    return [
        _Window(
            image[data[i]],
            taps[kernel[i]],
            results[made[i]],
            int(attrs.strides[i]),
            int(attrs.dilation[i]),
            padding[i],
            padding[i + len(data)],
        )
        for i in range(len(data))
    ]
