"""PointwiseBeforeResize: pointwise convolutions of enlarged maps, computed before these grow."""

from itertools import pairwise
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.flatten_pointwise import is_pointwise
from tvm_ext.relay_passes.graph_pass import graph_pass

_RESIZE = "relax.image.resize2d"

# Sizes for which symbolic ones are taken: which way round is right for all, one may be faster.
_SAMPLES = (64, 512)

# Of a kernel that interpolates along one axis of its first argument: which.
RESIZED_AXIS = "tvm_ext.resized_axis"


@graph_pass
class PointwiseBeforeResize:
    """Splits a pointwise convolution over the maps it reads, and enlarges its results instead.

    Before: ``y = conv2d(concat(a, resize2d(b), resize2d(c)), W)``, W: [O, A + B + C, 1, 1]
    After:  ``y = conv2d(a, W[:, :A]) + resize2d(conv2d(b, W[:, A:A+B])) + ...``

    Interpolation weighs pixels, a pointwise convolution channels: the order does not matter. Heads
    of segmentation networks (SegFormer, ASPP) convolve what they enlarged 4 to 1024 times.

    Leaves alone: other convolutions, weights that the run computes, layouts other than channels
    first; maps that are not known to grow, or whose channels would become more.

    Run after: ConvBnReluFold. Run before: LayoutPlanning.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when no such convolution reads an enlarged map."""
        return _Splitter().run(mod)


class _Splitter(BindingRewriter):
    pass_name = "PointwiseBeforeResize"
    roots = frozenset({"relax.nn.conv2d"})

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.nn.conv2d")
        if call is None or not isinstance(call.args[1], GenericConst) or not is_pointwise(call):
            return None
        parts = self._parts(call.args[0])
        weight = call.args[1].value.numpy()
        channels = [_channels(part) for part in parts]
        enlarged = [self._enlarged(part, len(weight)) for part in parts]
        if None in channels or not any(enlarged):
            return None
        ends = np.cumsum([0, *channels])
        plain = [i for i, resizes in enumerate(enlarged) if not resizes]
        sums = []
        if plain:
            kept = np.concatenate([weight[:, ends[i] : ends[i + 1]] for i in plain], 1)
            joined = [parts[i] for i in plain]
            x = joined[0] if len(joined) == 1 else self.bind(relax.op.concat(joined, 1), var)
            sums.append(self._convolved(call, x, kept, var))
        for resizes, (first, end) in zip(enlarged, pairwise(ends), strict=True):
            if resizes:
                large = self._convolved(call, _data(resizes[0]), weight[:, first:end], var)
                for resize in resizes:
                    large = self.bind(_of(resize, large), var)
                sums.append(large)
        total = sums[0]
        for more in sums[1:-1]:
            total = self.bind(relax.op.add(total, more), var)
        last = relax.op.add(total, sums[-1]) if len(sums) > 1 else self.view.value(total)
        grown = len(parts) - len(plain)
        what = f"{grown} of {len(parts)} maps convolved before they are enlarged"
        return Replacement(last, (), what)

    def _parts(self, x: relax.Expr) -> list[relax.Expr]:
        """What is concatenated along the channels for this convolution alone, or ``x`` itself."""
        concat = self.view.call(x, "relax.concat")
        if concat is None or self.view.uses(x) != 1 or int(concat.attrs.axis) != 1:
            return [x]
        joined = self.view.value(concat.args[0])
        return list(joined.fields) if isinstance(joined, relax.Tuple) else [x]

    def _enlarged(self, part: relax.Expr, outputs: int) -> list[relax.Call]:
        """The resizes that give ``part``, in order; none if convolving first is not worth it."""
        found: list[relax.Call] = []
        small = part
        while self.view.uses(small) == 1 and (resize := self._resize(small, outputs)) is not None:
            found.insert(0, resize)
            small = _data(resize)
        channels = _channels(part)
        is_wide = channels is not None and channels >= outputs
        return found if found and is_wide and _grows(small.ty.shape, part.ty.shape) else []

    def _resize(self, x: relax.Expr, outputs: int) -> relax.Call | None:
        resize = self.view.call(x, _RESIZE, "relax.call_tir")
        if resize is None or "float" not in str(x.ty.dtype):
            return None
        if resize.op.name == "relax.call_tir":
            # The kernel is for this number of channels.
            attrs = self.mod[resize.args[0]].attrs
            fits = attrs is not None and attrs.get(RESIZED_AXIS, 0) in (2, 3)
            return resize if fits and _channels(x) == outputs else None
        read_around = str(resize.attrs.coordinate_transformation_mode) == "tf_crop_and_resize"
        return None if read_around or str(resize.attrs.layout) != "NCHW" else resize

    def _convolved(
        self, call: relax.Call, x: relax.Expr, weight: np.ndarray, var: relax.Var
    ) -> relax.Var:
        stored = relax.const(np.ascontiguousarray(weight), str(call.args[1].ty.dtype))
        return self.bind(relax.Call(call.op, [x, stored], call.attrs), var)


def _data(resize: relax.Call) -> relax.Expr:
    return resize.args[0] if resize.op.name == _RESIZE else resize.args[1].fields[0]


def _of(resize: relax.Call, x: relax.Expr) -> relax.Call:
    """The same of other data."""
    if resize.op.name == _RESIZE:
        args = [x, *resize.args[1:]]
    else:
        args = [resize.args[0], relax.Tuple([x, *resize.args[1].fields[1:]]), *resize.args[2:]]
    return relax.Call(resize.op, args, resize.attrs, resize.ty_args)


def _channels(x: relax.Expr) -> int | None:
    shape = x.ty.shape
    if not isinstance(shape, relax.ShapeExpr) or not isinstance(shape.values[1], tirx.IntImm):
        return None
    return int(shape.values[1])


def _grows(before: Any, after: Any) -> bool:
    """Whether there are twice as many pixels afterwards, of symbolic sizes for what they may be."""
    if not isinstance(before, relax.ShapeExpr) or not isinstance(after, relax.ShapeExpr):
        return False
    old, new = (list(shape.values)[2:] for shape in (before, after))
    return all(_pixels(new, sample) >= 2 * _pixels(old, sample) for sample in _SAMPLES)


def _pixels(sides: list[tirx.Expr], sample: int) -> int:
    analyzer, count = Analyzer(), 1
    for side in sides:
        sized = structural_map(side, (tvm.ir.Var, lambda v: tirx.const(sample, str(v.ty))))
        count *= int(analyzer.simplify(sized))
    return count
