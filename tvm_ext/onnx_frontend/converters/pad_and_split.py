"""Pad, CenterCropPad and Split, with sizes that only the run may know.

TVM's Pad takes neither pads, value nor axes that are computed in the run; it has no
CenterCropPad.
"""

import itertools
import json
from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import (
    Size,
    constant_array,
    sizes_of,
    takes_sizes,
    text,
)
from tvm_ext.onnx_frontend.converters.runtime_sizes import (
    computed_dimensions,
    constant_integers,
    integer_tensor,
    sizes_in_the_run,
    vector_length,
    wide,
)
from tvm_ext.onnx_frontend.converters.shape_constraints import equal_sizes, of_sizes
from tvm_ext.onnx_frontend.sizes.scalar_rules import analyzer_of
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter

MODES = ("constant", "edge", "reflect", "wrap")
# What a kernel carries that pads with a number by known widths: these, as JSON.
PADDING = "tvm_ext.padding"


@takes_sizes(1)
class Pad(OnnxOpConverter):
    """Pads, or crops where a pad is negative; modes constant, edge, reflect and wrap."""

    @classmethod
    def _impl_v2(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, rank = inputs[0], len(sizes_of(inputs[0]))
        fill = relax.const(attr.get("value", 0.0), str(data.ty.dtype))
        pads = list(attr["pads"])
        return _padded(bb, data, pads[:rank], pads[rank:], text(attr, "mode", "constant"), fill)

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, mode = inputs[0], text(attr, "mode", "constant")
        fill = inputs[2]
        if fill is None:
            fill = relax.const(0, str(data.ty.dtype))
        stored = constant_array(fill, params)
        if stored is not None:
            fill = relax.const(stored.reshape(()), str(data.ty.dtype))
        axes = inputs[3] if len(inputs) > 3 else None
        rank = len(sizes_of(data))
        pads = constant_integers(inputs[1], params)
        known_axes = list(range(rank)) if axes is None else constant_integers(axes, params)
        if pads is not None and known_axes is not None:
            before, after = [0] * rank, [0] * rank
            for place, axis in enumerate(known_axes):
                before[axis] = pads[place]
                after[axis] = pads[place + len(known_axes)]
            return _padded(bb, data, before, after, mode, fill)
        return _padded_in_the_run(bb, data, inputs[1], axes, known_axes, mode, fill)


def _padded(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    before: Sequence[Size],
    after: Sequence[Size],
    mode: str,
    fill: relax.Expr,
) -> relax.Expr:
    """Padding by known sizes."""
    _require_mode(mode)
    shape = [old + b + a for old, b, a in zip(sizes_of(data), before, after, strict=True)]
    if any(isinstance(size, int) and size < 0 for size in shape):
        raise FormError("its negative pads remove more elements than there are")

    def kernel(data: te.Tensor, fill: te.Tensor, before: list[Any], shape: list[Any]) -> te.Tensor:
        return _pad_compute(data, fill, before, shape, mode)

    is_known = mode == "constant" and all(isinstance(size, int) for size in (*before, *after))
    form = json.dumps({"before": list(before), "after": list(after)}) if is_known else ""
    attributes = {PADDING: form} if is_known else {}
    return bb.emit_te(
        kernel,
        data,
        fill,
        list(before),
        shape,
        primfunc_name_hint="pad",
        primfunc_attrs=attributes,
    )


def _padded_in_the_run(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    pads: relax.Expr,
    axes: relax.Expr | None,
    known_axes: list[Size] | None,
    mode: str,
    fill: relax.Expr,
) -> relax.Expr:
    _require_mode(mode)
    pads, rank = integer_tensor(bb, pads), len(sizes_of(data))
    count = vector_length(pads, "pads") // 2
    given = [] if known_axes is not None else [integer_tensor(bb, axes)]

    def widths(pads: te.Tensor, given: Sequence[te.Tensor], first: int) -> list[tirx.Expr]:
        """The pads before (first 0) or behind (first count) each axis of the data."""
        found = []
        for axis in range(rank):
            width = wide(0)
            for place in range(count):
                if given:
                    here = tirx.any(given[0][place] == axis, given[0][place] == axis - rank)
                    width = tirx.Select(here, pads[first + place], width)
                elif known_axes is not None and known_axes[place] % rank == axis:
                    width = pads[first + place]
            found.append(width)
        return found

    def formula(pads: te.Tensor, *rest: Any) -> list[tirx.Expr]:
        sizes, given_axes = rest[:rank], rest[rank:]
        before, after = widths(pads, given_axes, 0), widths(pads, given_axes, count)
        return [size + b + a for size, b, a in zip(sizes, before, after, strict=True)]

    names = [f"padded_{axis}" for axis in range(rank)]
    shape = computed_dimensions(bb, names, formula, pads, *sizes_of(data), *given)

    def kernel(
        data: te.Tensor, fill: te.Tensor, pads: te.Tensor, given: list[te.Tensor], shape: list[Any]
    ) -> te.Tensor:
        return _pad_compute(data, fill, widths(pads, given, 0), shape, mode)

    return bb.emit_te(kernel, data, fill, pads, given, shape, primfunc_name_hint="pad")


def _require_mode(mode: str) -> None:
    if mode not in MODES:
        raise FormError(f"its mode is {mode}, expected one of {', '.join(MODES)}")


def _pad_compute(
    data: te.Tensor, fill: te.Tensor, before: Sequence[Any], shape: Sequence[Any], mode: str
) -> te.Tensor:
    value = fill() if len(fill.shape) == 0 else fill[0]
    kept = [
        isinstance(b, int) and b == 0 and equal_sizes(old, new)
        for b, old, new in zip(before, data.shape, shape, strict=True)
    ]

    def read(*index: tirx.Var) -> tirx.Expr:
        moved = [
            (i if isinstance(b, int) and b == 0 else wide(i) - b, b)
            for i, b in zip(index, before, strict=True)
        ]
        if mode != "constant":
            return data(
                *(
                    place if same else _inside(place, b, size, mode)
                    for (place, b), size, same in zip(moved, data.shape, kept, strict=True)
                )
            )
        inner = [
            tirx.all(place >= 0, place < size)
            for (place, _), size in zip(moved, data.shape, strict=True)
        ]
        here = data(*(place for place, _ in moved))
        return tirx.if_then_else(tirx.all(*inner), here, value) if inner else here

    return te.compute(shape, read, name="pad")


def _inside(place: Any, before: Any, size: Any, mode: str) -> Any:
    """The element of the input that a place in front of, in or behind it takes."""
    if isinstance(before, int) and before == 0 and mode == "edge":
        return tirx.min(place, size - 1)
    if mode == "edge":
        return tirx.max(tirx.min(place, size - 1), 0)
    if mode == "wrap":
        return tirx.floormod(place, size)
    period = tirx.max(2 * (size - 1), 1)
    turned = tirx.floormod(place, period)
    return tirx.min(turned, 2 * (size - 1) - turned)


@takes_sizes(1)
class CenterCropPad(OnnxOpConverter):
    """Crops or pads each axis around its middle to a wanted size.

    As in the specification's function: a crop starts at half of what is too much, rounded down; a
    pad puts the smaller half in front.
    """

    @classmethod
    def _impl_v18(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, sizes = inputs[0], sizes_of(inputs[0])
        rank = len(sizes)
        axes = [axis % rank for axis in attr.get("axes", range(rank))]
        wanted = sizes_in_the_run(bb, inputs[1], params, "centered")
        shape = list(sizes)
        for axis, size in zip(axes, wanted, strict=True):
            shape[axis] = size

        def kernel(data: te.Tensor, shape: list[Any]) -> te.Tensor:
            fill = te.compute((), lambda: tirx.const(0, data.dtype), name="fill")
            before = [
                _front(wide(new), wide(old)) if axis in axes else 0
                for axis, (old, new) in enumerate(zip(data.shape, shape, strict=True))
            ]
            return _pad_compute(data, fill, before, shape, "constant")

        return bb.emit_te(kernel, data, shape, primfunc_name_hint="center_crop_pad")


def _front(new: tirx.Expr, old: tirx.Expr) -> tirx.Expr:
    """What is padded in front; minus what is cropped there."""
    return tirx.Select(
        new >= old,
        tirx.floordiv(new - old, 2),
        tirx.const(0, "int64") - tirx.floordiv(old - new, 2),
    )


# Split of symbolic sizes, and by sizes of the run; TVM's converter refuses both.


@takes_sizes(1)
class Split(OnnxOpConverter):
    """Parts of given sizes, or as many equal ones as there are outputs, the last one smaller."""

    @classmethod
    def _impl_v2(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        parts = attr.get("split")
        return _split(bb, inputs[0], list(parts) if parts else None, attr)

    @classmethod
    def _impl_v13(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        if inputs[1] is None:
            return _split(bb, inputs[0], None, attr)
        return _split(bb, inputs[0], sizes_in_the_run(bb, inputs[1], params, "part"), attr)


def _split(
    bb: relax.BlockBuilder, data: relax.Expr, parts: list[Any] | None, attr: dict
) -> relax.Expr:
    sizes = sizes_of(data)
    axis = attr.get("axis", 0) % len(sizes)
    count, size = attr["tvm_custom"]["num_outputs"], sizes[axis]
    if parts is None:
        parts = _equal_parts(size, count)
    if len(parts) == count and not all(isinstance(part, int) for part in parts):
        return _symbolic_parts(bb, data, parts, axis)
    if len(parts) != count or (isinstance(size, int) and sum(parts) != size):
        raise FormError(f"it splits size {size} into {len(parts)} parts of {parts}")
    if not isinstance(size, int):
        # The run checks it. TVM would say of the last part that it has what is left.
        data = of_sizes(bb, data, [*sizes[:axis], sum(parts), *sizes[axis + 1 :]])
    if count == 1:
        return data
    ends = list(itertools.accumulate(parts))
    if 0 not in parts:
        return relax.op.split(data, ends[:-1], axis)
    # TVM's kernel wants every part to have elements.
    return relax.Tuple(
        [
            bb.emit(relax.op.strided_slice(data, [axis], [end - part], [end]))
            for part, end in zip(parts, ends, strict=True)
        ]
    )


def _equal_parts(size: Any, count: int) -> list[Any]:
    """The sizes of equal parts; the last ones may be smaller, or empty."""
    if isinstance(size, int):
        each = -(-size // count)
        return [max(0, min(each, size - place * each)) for place in range(count)]
    analyzer = analyzer_of(size)
    each = tirx.floordiv(size + (count - 1), wide(count))
    parts = [tirx.max(tirx.min(each, size - place * each), wide(0)) for place in range(count)]
    return [analyzer.simplify(part) for part in parts]


def _symbolic_parts(
    bb: relax.BlockBuilder, data: relax.Expr, parts: list[Any], axis: int
) -> relax.Expr:
    def kernel(data: te.Tensor, size: Any, earlier: list[Any]) -> te.Tensor:
        start = sum(map(wide, earlier), wide(0))
        shape = [size if place == axis else extent for place, extent in enumerate(data.shape)]

        def read(*index: tirx.Var) -> tirx.Expr:
            # Parts that add up to more than there is would read behind the data.
            inside = tirx.min(wide(index[axis]) + start, data.shape[axis] - 1)
            return data(*index[:axis], inside, *index[axis + 1 :])

        return te.compute(shape, read, name="part")

    return relax.Tuple(
        [
            bb.emit_te(kernel, data, size, parts[:place], primfunc_name_hint="part")
            for place, size in enumerate(parts)
        ]
    )
