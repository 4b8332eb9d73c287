"""Interpolation along one axis, as the operator Resize of ONNX specifies it."""

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import text
from tvm_ext.onnx_frontend.converters.runtime_sizes import computed_dimensions
from tvm_ext.relay_passes.pointwise_before_resize import RESIZED_AXIS

_COORDINATES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners"),
    *("asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"),
)
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
# Points that lie in the middle of two elements are rounded one way or the other: in single
# precision 2 / (4 / 7) is a little less than 3.5.
_PRECISE = "float64"
_CLOSE = 1e-9


@dataclass(frozen=True)
class Interpolation:
    """The attributes of Resize that say how a value is computed from its neighbours."""

    mode: str
    coordinates: str
    rounding: str
    cubic_a: float
    exclude_outside: bool
    antialias: bool
    extrapolation: float

    @classmethod
    def of(cls, attr: dict) -> "Interpolation":
        """From a node's attributes; raises FormError for a value that ONNX does not have."""
        found = cls(
            mode=text(attr, "mode", "nearest"),
            coordinates=text(attr, "coordinate_transformation_mode", "half_pixel"),
            rounding=text(attr, "nearest_mode", "round_prefer_floor"),
            cubic_a=float(attr.get("cubic_coeff_a", -0.75)),
            exclude_outside=bool(attr.get("exclude_outside", 0)),
            antialias=bool(attr.get("antialias", 0)),
            extrapolation=float(attr.get("extrapolation_value", 0.0)),
        )
        if found.mode not in ("nearest", "linear", "cubic"):
            raise FormError(f"its mode is {found.mode}, expected nearest, linear or cubic")
        if found.coordinates not in _COORDINATES:
            raise FormError(f"its coordinates are {found.coordinates}, which ONNX does not have")
        if found.rounding not in _ROUNDINGS:
            raise FormError(f"its nearest_mode is {found.rounding}, which ONNX does not have")
        return found

    @property
    def reach(self) -> int:
        """Neighbours on each side of a point, at a scale of one."""
        return 2 if self.mode == "cubic" else 1


def resized_along(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    axis: int,
    size: Any,
    scale: relax.Expr,
    region: tuple[relax.Expr, int, int] | None,
    how: Interpolation,
) -> relax.Expr:
    """``data`` with ``size`` elements along ``axis``.

    Parameters
    ----------
    size : int or tirx.Expr
        How many elements there will be.
    scale : relax.Expr
        float64[1], by which ``axis`` is scaled.
    region : (relax.Expr, int, int) or None
        For tf_crop_and_resize: the region of interest as float64[2n], the place of the axis in it,
        and n.
    """
    taps = taps_of(bb, scale, how)
    roi = [] if region is None else [region[0]]
    places = (0, 0) if region is None else (region[1], region[1] + region[2])

    def kernel(
        data: te.Tensor, scale: te.Tensor, roi: list[te.Tensor], size: Any, taps: Any
    ) -> te.Tensor:
        window = (roi[0][places[0]], roi[0][places[1]]) if roi else None
        point = points(data.shape[axis], size, scale[0], window, how)
        return _resample(data, axis, size, point, scale[0], taps, how)

    # What a region reads around the image is no weighted sum of its pixels.
    attributes = {RESIZED_AXIS: axis} if region is None else {}
    return bb.emit_te(
        kernel,
        *(data, scale, roi, size, taps),
        primfunc_name_hint="resize",
        primfunc_attrs=attributes,
    )


def taps_of(bb: relax.BlockBuilder, scale: relax.Expr, how: Interpolation) -> Any:
    """How many neighbours a point is computed from; antialias has more the smaller the scale."""
    if how.mode == "nearest":
        return 1
    if not how.antialias:
        return 2 * how.reach
    if isinstance(scale, tvm.ir.GenericConst):
        shrunk = min(float(scale.value.numpy()[0]), 1.0)
        return 2 * math.ceil(how.reach / shrunk)

    def formula(scale: te.Tensor) -> list[tirx.Expr]:
        shrunk = tirx.min(scale[0], _real(1.0))
        return [2 * tirx.ceil(_real(how.reach) / shrunk).astype("int64")]

    return computed_dimensions(bb, ["taps"], formula, scale)[0]


def _real(value: Any) -> tirx.Expr:
    if isinstance(value, int | float):
        return tirx.const(float(value), _PRECISE)
    return value.astype(_PRECISE)


def points(old: Any, new: Any, scale: tirx.Expr, window: Any, how: Interpolation) -> te.Tensor:
    """Where in the input each output element lies, float64[new]."""
    size = _real(old)
    scaled, one, half = scale * size, _real(1.0), _real(0.5)

    def point(place: tirx.Var) -> tirx.Expr:
        x = _real(place)
        centered = (x + half) / scale - half
        if how.coordinates == "asymmetric":
            return x / scale
        if how.coordinates == "align_corners":
            return tirx.Select(scaled == one, _real(0.0), x * (size - one) / (scaled - one))
        if how.coordinates == "pytorch_half_pixel":
            return tirx.Select(scaled == one, _real(-0.5), centered)
        if how.coordinates == "tf_half_pixel_for_nn":
            return (x + half) / scale
        if how.coordinates == "half_pixel_symmetric":
            return size / _real(2.0) * (one - _real(new) / scaled) + centered
        if how.coordinates == "tf_crop_and_resize":
            start, length = window[0], window[1] - window[0]
            inner = x * length * (size - one) / (scaled - one)
            middle = length * (size - one) / _real(2.0)
            return tirx.Select(scaled == one, middle, inner) + start * (size - one)
        return centered

    return te.compute((new,), lambda place: _snapped(point(place)), name="points")


def _snapped(x: tirx.Expr) -> tirx.Expr:
    """``x``, or the multiple of a half that it is next to: compilers reorder divisions."""
    near = tirx.floor(x * _real(2.0) + _real(0.5)) * _real(0.5)
    return tirx.Select(tirx.abs(x - near) < _real(_CLOSE), near, x)


def _resample(
    data: te.Tensor,
    axis: int,
    new: Any,
    point: te.Tensor,
    scale: tirx.Expr,
    taps: Any,
    how: Interpolation,
) -> te.Tensor:
    old = data.shape[axis]
    shape = [new if place == axis else size for place, size in enumerate(data.shape)]
    dtype = str(data.dtype)
    computed = dtype if dtype == "float64" else "float32"
    outside = how.coordinates == "tf_crop_and_resize"

    def inside(place: tirx.Expr) -> tirx.Expr:
        return tirx.max(tirx.min(place, tirx.Cast("int64", old) - 1), tirx.const(0, "int64"))

    def element(index: tuple, place: tirx.Expr) -> tirx.Expr:
        return data(*index[:axis], place, *index[axis + 1 :])

    def guarded(index: tuple, value: tirx.Expr) -> tirx.Expr:
        """``value``, or what stands for points outside of the input."""
        if not outside:
            return value
        x = point[index[axis]]
        beyond = tirx.any(x < _real(0.0), x > _real(old) - _real(1.0))
        return tirx.if_then_else(beyond, tirx.const(how.extrapolation, dtype), value)

    if how.mode == "nearest":
        nearest = te.compute(
            (new,),
            lambda i: inside(rounded(point[i], how.rounding)).astype("int32"),
            name="places",
        )
        return te.compute(
            shape,
            lambda *i: guarded(i, element(i, nearest[i[axis]].astype("int64"))),
            name="resize",
        )
    weight = weights(old, new, point, scale, taps, how)
    # Worked out once for an element of the axis, and a row of each for a tap.
    places = te.compute(
        (taps, new),
        lambda tap, i: inside(first_neighbour(point[i], taps) + tap).astype("int32"),
        name="places",
    )
    parts = te.compute(
        (taps, new), lambda tap, i: weight[i, tap].astype(computed), name="parts_of_taps"
    )

    def term(index: tuple, tap: Any) -> tirx.Expr:
        value = element(index, places[tap, index[axis]].astype("int64"))
        return value.astype(computed) * parts[tap, index[axis]]

    if isinstance(taps, int):

        def total(*index: tirx.Var) -> tirx.Expr:
            value = term(index, 0)
            for tap in range(1, taps):
                value = value + term(index, tap)
            return guarded(index, stored(value, dtype))

        return te.compute(shape, total, name="resize")
    tap = te.reduce_axis((0, taps), "tap")
    summed = te.compute(shape, lambda *i: te.sum(term(i, tap), axis=tap), name="summed")
    return te.compute(shape, lambda *i: guarded(i, stored(summed(*i), dtype)), name="resize")


def rounded(x: tirx.Expr, rounding: str) -> tirx.Expr:
    half = _real(0.5)
    if rounding == "floor":
        x = tirx.floor(x)
    elif rounding == "ceil":
        x = tirx.ceil(x)
    elif rounding == "round_prefer_ceil":
        x = tirx.floor(x + half)
    else:
        x = tirx.ceil(x - half)
    return x.astype("int64")


def first_neighbour(x: tirx.Expr, taps: Any) -> tirx.Expr:
    """The first of the neighbours of a point."""
    half = taps // 2 if isinstance(taps, int) else tirx.floordiv(taps, 2)
    return tirx.floor(x).astype("int64") - half + 1


def weights(
    old: Any, new: Any, point: te.Tensor, scale: tirx.Expr, taps: Any, how: Interpolation
) -> te.Tensor:
    """The share of each neighbour, float64[new, taps]."""
    shrunk = tirx.min(scale, _real(1.0)) if how.antialias else _real(1.0)

    def share(place: tirx.Var, tap: tirx.Expr) -> tirx.Expr:
        neighbour = first_neighbour(point[place], taps) + tap
        distance = tirx.abs(_real(neighbour) - point[place]) * shrunk
        value = _filter(distance, how)
        if how.exclude_outside:
            inside = tirx.all(neighbour >= 0, neighbour < old)
            value = tirx.Select(inside, value, _real(0.0))
        return value

    share_of = te.compute((new, taps), share, name="shares")
    if not (how.antialias or how.exclude_outside):
        return share_of
    tap = te.reduce_axis((0, taps), "tap")
    total = te.compute((new,), lambda i: te.sum(share_of[i, tap], axis=tap), name="total")

    def part(place: tirx.Var, tap: tirx.Var) -> tirx.Expr:
        whole = tirx.Select(total[place] == _real(0.0), _real(1.0), total[place])
        return share_of[place, tap] / whole

    return te.compute((new, taps), part, name="parts")


def _filter(x: tirx.Expr, how: Interpolation) -> tirx.Expr:
    """A neighbour's weight by its distance: a triangle, or Keys' cubic convolution (1981)."""
    one, zero = _real(1.0), _real(0.0)
    if how.mode == "linear":
        return tirx.max(one - x, zero)
    a = _real(how.cubic_a)
    near = ((a + _real(2.0)) * x - (a + _real(3.0))) * x * x + one
    far = ((a * x - _real(5.0) * a) * x + _real(8.0) * a) * x - _real(4.0) * a
    return tirx.Select(x <= one, near, tirx.Select(x < _real(2.0), far, zero))


def stored(value: tirx.Expr, dtype: str) -> tirx.Expr:
    """A computed value in the tensor's type; integers are rounded and kept in range."""
    if dtype.startswith(("float", "bfloat")):
        return value.astype(dtype)
    kind = str(value.ty.dtype)
    low, high = tirx.min_value(dtype), tirx.max_value(dtype)
    limited = tirx.max(tirx.min(value, high.astype(kind)), low.astype(kind))
    return tirx.nearbyint(limited).astype(dtype)


# Interpolation along one axis by tables that are constants: which neighbours, and their weights.
#
# Formulas are those of ``interpolation``: here they depend on nothing of the run, so that the
# tables are folded at compile time and a kernel only loads and multiplies.


def are_known(data: relax.Expr, axis: int, size: Any, scale: relax.Expr) -> bool:
    """Whether neighbours and weights do not depend on anything of the run."""
    sizes = (data.ty.shape.values[axis], size)
    known = all(isinstance(value, int | tirx.IntImm) for value in sizes)
    return known and isinstance(scale, tvm.ir.GenericConst)


def resized_by_tables(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    axis: int,
    size: int,
    scale: relax.Expr,
    how: Interpolation,
) -> relax.Expr:
    """See ``resized_along``, for a known scale and sizes and without a region of interest.

    Neighbours are int32[size, taps], weights float32[size, taps], or float64 for such data.
    """
    taps = taps_of(bb, scale, how)
    old = int(data.ty.shape.values[axis])
    computed = "float64" if str(data.ty.dtype) == "float64" else "float32"

    def places(scale: te.Tensor) -> te.Tensor:
        point = points(old, size, scale[0], None, how)

        def place(i: tirx.Var, tap: tirx.Var) -> tirx.Expr:
            if how.mode == "nearest":
                found = rounded(point[i], how.rounding)
            else:
                found = first_neighbour(point[i], taps) + tap
            last = tirx.const(old - 1, "int64")
            return tirx.max(tirx.min(found, last), tirx.const(0, "int64")).astype("int32")

        return te.compute((size, taps), place, name="places")

    def shares(scale: te.Tensor) -> te.Tensor:
        point = points(old, size, scale[0], None, how)
        share = weights(old, size, point, scale[0], taps, how)
        return te.compute((size, taps), lambda *i: share(*i).astype(computed), name="weights")

    def kernel(data: te.Tensor, place: te.Tensor, weight: list[te.Tensor]) -> te.Tensor:
        def term(index: tuple, tap: int) -> tirx.Expr:
            inside = place[index[axis], tap]
            value = data(*index[:axis], inside, *index[axis + 1 :])
            return value.astype(computed) * weight[0][index[axis], tap] if weight else value

        def total(*index: tirx.Var) -> tirx.Expr:
            value = term(index, 0)
            for tap in range(1, taps):
                value = value + term(index, tap)
            return stored(value, str(data.dtype)) if weight else value

        shape = [size if place == axis else extent for place, extent in enumerate(data.shape)]
        return te.compute(shape, total, name="resize")

    table = bb.emit_te(places, scale, primfunc_name_hint="places")
    nearest = how.mode == "nearest"
    parts = [] if nearest else [bb.emit_te(shares, scale, primfunc_name_hint="weights")]
    return bb.emit_te(kernel, data, table, parts, primfunc_name_hint="resize")
