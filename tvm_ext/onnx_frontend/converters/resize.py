"""Resize in all modes, with scales, sizes and region computed in the run or known.

TVM's converter takes constant scales and sizes only, resizes by the ratio of the sizes where ONNX
goes by the scale (7 * 0.5 gives 3, at a ratio of 2.33), has no antialias, no axes, no
keep_aspect_ratio_policy and no half_pixel_symmetric, and does not resize the first two axes. It
stays in use for the plain forms that it gets right, which later passes know as one operator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.hardware.cuda.description import current_gpu
from tvm_ext.onnx_frontend.converters.arguments import (
    Size,
    constant_array,
    sizes_of,
    takes_sizes,
    text,
)
from tvm_ext.onnx_frontend.converters.interpolation import (
    Interpolation,
    are_known,
    resized_along,
    resized_by_tables,
    stored,
)
from tvm_ext.onnx_frontend.converters.runtime_sizes import (
    computed_dimensions,
    constant_integers,
    integer_tensor,
    sizes_in_the_run,
)
from tvm_ext.onnx_frontend.converters.shape_constraints import equal_sizes
from tvm_ext.onnx_frontend.sizes import SizeValues
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter, onnx_converter_map

_TvmResize = onnx_converter_map()["Resize"]
_WHOLE = 1e-6
# Integers of so many bits are float32 numbers, and so is what lies between two of them.
_BITS_OF_FLOAT32 = 16


@dataclass(frozen=True)
class _Target:
    """What each of the resized axes becomes.

    Attributes
    ----------
    axes : list[int]
        Not negative, in the order of ``scales`` and ``sizes``.
    scales : list[float] or relax.Expr
        float64[len(axes)]; an expression when they are computed in the run.
    sizes : list
        Whole numbers or symbolic dimensions.
    """

    axes: list[int]
    scales: Any
    sizes: list[Any]


@takes_sizes(2, 3)
class Resize(OnnxOpConverter):
    """Separable interpolation, one axis after the other."""

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        """Before opset 11 the coordinates were those of ``asymmetric``, rounded down."""
        old = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
        given = type(inputs)([inputs[0], None, inputs[1], None])
        return cls._impl_v11(bb, given, {**attr, **old}, params)

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        given = _without_empty(inputs, params)
        if not _is_float(given[0]) and text(attr, "mode", "nearest") != "nearest":
            return _of_integers(bb, type(inputs), given, attr, params)
        if _tvm_is_right(given, attr, params):
            return _plain(bb, given, attr, params)
        data, roi = given[0], given[1]
        interpolation = Interpolation.of(attr)
        target = _target(bb, given, attr, params)
        if interpolation.coordinates == "tf_crop_and_resize":
            if roi is None:
                raise FormError("it crops and has no region of interest")
            roi = bb.emit(relax.op.astype(roi, "float64"))
        else:
            roi = None
        for place, axis in enumerate(target.axes):
            if roi is None and _stays(sizes_of(data)[axis], target, place):
                continue
            size, scale = target.sizes[place], _scale(bb, target, place)
            if roi is None and are_known(data, axis, size, scale):
                data = resized_by_tables(bb, data, axis, size, scale, interpolation)
                continue
            region = None if roi is None else (roi, place, len(target.axes))
            data = resized_along(bb, data, axis, size, scale, region, interpolation)
        return data


def _is_float(data: relax.Expr) -> bool:
    return str(data.ty.dtype).startswith(("float", "bfloat"))


def _of_integers(bb: relax.BlockBuilder, kind: type, given: Any, attr: dict, params: Any) -> Any:
    """Interpolated as floats and rounded once; each axis would round what others have rounded.

    ONNX's reference rounds to the nearest integer, ONNX Runtime towards zero: its results are half
    a step too small.
    """
    dtype = str(given[0].ty.dtype)
    floats = "float32" if tvm.DataType(dtype).bits <= _BITS_OF_FLOAT32 else "float64"
    data = bb.emit(relax.op.astype(given[0], floats))
    resized = Resize._impl_v11(bb, kind([data, *given[1:]]), attr, params)

    def rounded(values: te.Tensor) -> te.Tensor:
        return te.compute(values.shape, lambda *i: stored(values(*i), dtype), name="rounded")

    return bb.emit_te(rounded, bb.normalize(resized), primfunc_name_hint="rounded")


def _without_empty(inputs: Any, params: Any) -> Any:
    """The inputs, with None for the empty tensors that exporters write for absent ones."""
    kept = []
    for place in range(4):
        value = inputs[place] if place < len(inputs) else None
        array = constant_array(value, params) if place else None
        kept.append(None if array is not None and array.size == 0 else value)
    if kept[2] is None and kept[3] is None:
        raise FormError("it has neither scales nor sizes")
    return type(inputs)(kept)


def _plain(bb: relax.BlockBuilder, given: Any, attr: dict, params: Any) -> relax.Expr:
    """TVM's converter, or its operator for symbolic sizes.

    Its converter takes no sizes that are symbolic, and makes floats of those that scales give.
    """
    data, sizes = given[0], sizes_of(given[0])
    if text(attr, "coordinate_transformation_mode", "half_pixel") == "pytorch_half_pixel":
        # They differ where one element is all that is left.
        attr = {**attr, "coordinate_transformation_mode": b"half_pixel"}
    new = constant_integers(given[3], params) if given[3] is not None else None
    if new is None:
        scales = constant_array(given[2], params)
        if scales is None:
            raise FormError("its scales are computed in the run")
        new = _scaled_sizes(sizes, [np.float32(scale) for scale in scales])
    if all(isinstance(size, int) for size in (*sizes, *new)):
        return _TvmResize._impl_v18(bb, given, attr, params)
    mode = text(attr, "mode", "nearest")
    return relax.op.image.resize2d(
        data,
        relax.ShapeExpr(new[2:]),
        layout="NCHW",
        method="nearest_neighbor" if mode == "nearest" else mode,
        coordinate_transformation_mode=text(attr, "coordinate_transformation_mode", "half_pixel"),
        rounding_method=text(attr, "nearest_mode", "round_prefer_floor"),
    )


def _tvm_is_right(given: Any, attr: dict, params: Any) -> bool:
    """Nearest and linear of the last axes, where the ratio of the sizes is the scale."""
    shape = sizes_of(given[0])
    scales = constant_array(given[2], params)
    sizes = constant_integers(given[3], params) if given[3] is not None else None
    if "axes" in attr or attr.get("antialias") or len(shape) not in (4, 5):
        return False
    if text(attr, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return False
    if attr.get("exclude_outside") or not _is_float(given[0]):
        return False
    mode = text(attr, "mode", "nearest")
    coordinates = text(attr, "coordinate_transformation_mode", "half_pixel")
    rounding = text(attr, "nearest_mode", "round_prefer_floor")
    if len(shape) == 5 and not all(isinstance(size, int) for size in shape):
        return False
    known = all(isinstance(size, int) for size in shape)
    if coordinates == "pytorch_half_pixel" and known and current_gpu() is not None:
        # One kernel on a GPU; on a CPU one for each axis is faster by a half.
        coordinates = "half_pixel"
    plain = {
        "linear": coordinates in ("half_pixel", "asymmetric", "align_corners"),
        "nearest": (coordinates, rounding)
        in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")),
    }
    if not plain.get(mode, False):
        return False
    if scales is not None and given[3] is None:
        whole = all(
            abs(old * scale - round(old * scale)) < _WHOLE
            if isinstance(old, int)
            else float(scale).is_integer()
            for old, scale in zip(shape, map(float, scales), strict=True)
        )
        new = [old * s if isinstance(old, int) else 2 for old, s in zip(shape, scales, strict=True)]
        kept = all(float(scale) == 1.0 for scale in scales[:2])
    elif sizes is not None:
        whole, new = True, [size if isinstance(size, int) else 2 for size in sizes]
        kept = all(map(equal_sizes, shape[:2], sizes[:2]))
    else:
        return False
    return whole and kept and all(size > 1 for size in new[2:])


def _target(bb: relax.BlockBuilder, given: Any, attr: dict, params: Any) -> _Target:
    shape = sizes_of(given[0])
    axes = [axis % len(shape) for axis in attr.get("axes", range(len(shape)))]
    old = [shape[axis] for axis in axes]
    if given[3] is None:
        scales = constant_array(given[2], params)
        if scales is not None:
            single = [np.float32(scale) for scale in scales]
            return _Target(axes, [float(s) for s in single], _scaled_sizes(old, single))
        return _scaled_in_the_run(bb, given[2], axes, old)
    policy = text(attr, "keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        sizes: list[Any] | None = sizes_in_the_run(bb, given[3], params, "resized")
    else:
        sizes = constant_integers(given[3], params)
    if sizes is not None and all(isinstance(size, int) for size in (*sizes, *old)):
        return _fitted(axes, old, sizes, policy)
    if sizes is not None and policy == "stretch":
        return _Target(axes, _known_ratios(sizes, old) or _ratios(bb, sizes, old), sizes)
    return _fitted_in_the_run(bb, integer_tensor(bb, given[3]), axes, old, policy)


def _scaled_sizes(old: list[Size], scales: list[Any]) -> list[Size]:
    found: list[Size] = []
    for size, scale in zip(old, scales, strict=True):
        if isinstance(size, int) and isinstance(scale, tvm.ir.Expr):
            scaled = tirx.floor(scale * tirx.const(float(size), "float32"))
            found.append(scaled.astype("int64"))
        elif isinstance(size, int):
            found.append(int(scale * np.float32(size)))
        elif scale == 1.0:
            found.append(size)
        elif isinstance(scale, tvm.ir.Expr):
            found.append(tirx.floor(scale * size.astype("float32")).astype("int64"))
        elif float(scale).is_integer():
            found.append(size * int(scale))
        else:
            scaled = tirx.floor(size.astype("float32") * tirx.const(float(scale), "float32"))
            found.append(scaled.astype("int64"))
    return found


def _scaled_in_the_run(
    bb: relax.BlockBuilder, scales: Any, axes: list[int], old: list[Size]
) -> _Target:
    if isinstance(scales, SizeValues):
        tensor = bb.emit(relax.op.astype(scales.as_tensor(bb), "float64"))
        if not scales.unknown and scales.dtype == "float32":
            return _Target(axes, tensor, _scaled_sizes(old, scales.listed()))
        scales = scales.as_tensor(bb)

    def formula(scales: te.Tensor, *old: Any) -> list[tirx.Expr]:
        return [
            tirx.floor(scales[place] * _float(size).astype("float32")).astype("int64")
            for place, size in enumerate(old)
        ]

    names = [f"resized_{axis}" for axis in axes]
    sizes = list(computed_dimensions(bb, names, formula, scales, *old))
    return _Target(axes, bb.emit(relax.op.astype(scales, "float64")), sizes)


def _fitted(axes: list[int], old: list[Any], sizes: list[Any], policy: str) -> _Target:
    ratios = [new / size for new, size in zip(sizes, old, strict=True)]
    if policy == "stretch":
        return _Target(axes, ratios, sizes)
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return _Target(axes, [ratio] * len(axes), [int(ratio * size + 0.5) for size in old])


def _known_ratios(sizes: Sequence[Any], old: Sequence[Any]) -> list[float] | None:
    """Sizes by sizes, where each are numbers or equal, as those of a dynamic batch are."""
    pairs = list(zip(sizes, old, strict=True))
    if not all((isinstance(a, int) and isinstance(b, int)) or equal_sizes(a, b) for a, b in pairs):
        return None
    return [a / b if isinstance(a, int) and isinstance(b, int) else 1.0 for a, b in pairs]


def _ratios(bb: relax.BlockBuilder, sizes: Sequence[Any], old: Sequence[Any]) -> relax.Expr:
    """Sizes by sizes, some of them symbolic, as float64."""

    def kernel(sizes: list[Any], old: list[Any]) -> te.Tensor:
        return _floats([_float(a) / _float(b) for a, b in zip(sizes, old, strict=True)])

    return bb.emit_te(kernel, list(sizes), list(old), primfunc_name_hint="ratios")


def _fitted_in_the_run(
    bb: relax.BlockBuilder, sizes: relax.Expr, axes: list[int], old: list[Size], policy: str
) -> _Target:
    count = len(axes)

    def ratios(sizes: te.Tensor, *old: Any) -> te.Tensor:
        each = [_float(sizes[place]) / _float(size) for place, size in enumerate(old)]
        if policy != "stretch":
            choose, chosen = (tirx.min if policy == "not_larger" else tirx.max), each[0]
            for ratio in each[1:]:
                chosen = choose(chosen, ratio)
            each = [chosen] * count
        return _floats(each)

    scales = bb.emit_te(ratios, sizes, *old, primfunc_name_hint="ratios")

    def formula(sizes: te.Tensor, scales: te.Tensor, *old: Any) -> list[tirx.Expr]:
        if policy == "stretch":
            return [sizes[place] for place in range(count)]
        half = tirx.const(0.5, "float64")
        return [
            tirx.floor(scales[place] * _float(size) + half).astype("int64")
            for place, size in enumerate(old)
        ]

    names = [f"resized_{axis}" for axis in axes]
    found = computed_dimensions(bb, names, formula, sizes, scales, *old)
    return _Target(axes, scales, list(found))


def _float(value: Any) -> tirx.Expr:
    return (
        tirx.const(float(value), "float64") if isinstance(value, int) else value.astype("float64")
    )


def _floats(values: Sequence[tirx.Expr]) -> te.Tensor:
    def pick(place: tirx.Var) -> tirx.Expr:
        picked = values[-1]
        for index in range(len(values) - 2, -1, -1):
            picked = tirx.Select(place == index, values[index], picked)
        return picked

    return te.compute((len(values),), pick, name="ratios")


def _stays(size: Size, target: _Target, place: int) -> bool:
    """Whether an axis keeps its size, known before the run."""
    if isinstance(target.scales, list) and target.scales[place] != 1.0:
        return False
    return equal_sizes(target.sizes[place], size)


def _scale(bb: relax.BlockBuilder, target: _Target, place: int) -> relax.Expr:
    """The scale of one axis, float64[1]."""
    if isinstance(target.scales, list):
        return relax.const(np.array([target.scales[place]], np.float64), "float64")
    return bb.emit(relax.op.strided_slice(target.scales, [0], [place], [place + 1]))
