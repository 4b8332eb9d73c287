"""Reductions, LayerNormalization, ArgMax, ArgMin, and the running CumSum and CumProd.

Axes may be computed in the run, sets may be empty, and elements booleans.

TVM's converters want constant axes, return the input of ReduceL2 or ReduceLogSum unchanged
where ``noop_with_empty_axes`` asks for no reduction but the rest of the formula, and know no
booleans. The maximum of an empty set, or of infinities below zero as in a row of a mask, is
-3.4e38 there. Everything else is left to them.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import (
    Size,
    constant_array,
    sizes_of,
)
from tvm_ext.onnx_frontend.converters.loops import emit_loops, local_array, nested
from tvm_ext.onnx_frontend.converters.runtime_sizes import (
    computed_dimensions,
    constant_integers,
    integer_tensor,
    wide,
)
from tvm_ext.onnx_frontend.converters.shape_constraints import broadcast_to, equal_sizes
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter, onnx_converter_map, onnx_input
from tvm_ext.relay_passes.expressions import numpy_dtype
from tvm_ext.relay_passes.softmax_fusion import REDUCTION, reduction_attribute

_Unary = Callable[[relax.Expr], relax.Expr]


def _unchanged(x: relax.Expr) -> relax.Expr:
    return x


def _square(x: relax.Expr) -> relax.Expr:
    return relax.op.multiply(x, x)


def _real(x: relax.Expr) -> relax.Expr:
    """Integers in double precision, in which roots and logarithms are computed."""
    return relax.op.astype(x, "float64") if _is_integer(x) else x


def _long(x: relax.Expr) -> relax.Expr:
    """Integers as int64, which TVM's mean makes of them without saying so."""
    return relax.op.astype(x, "int64") if _is_integer(x) else x


def _is_integer(x: relax.Expr) -> bool:
    return str(x.ty.dtype).startswith(("int", "uint"))


def _real_square(x: relax.Expr) -> relax.Expr:
    return _square(_real(x))


def _wide_exp(x: relax.Expr) -> relax.Expr:
    return relax.op.exp(relax.op.astype(x, "float64"))


@dataclass(frozen=True)
class _Formula:
    """``after(combine over the axes of before(x))``, as the ONNX operators' schemas define them."""

    combine: str
    before: _Unary = _unchanged
    after: _Unary = _unchanged


_FORMULAS = {
    "ReduceL1": _Formula("sum", before=relax.op.abs),
    "ReduceL2": _Formula("sum", before=_real_square, after=relax.op.sqrt),
    "ReduceLogSum": _Formula("sum", before=_real, after=relax.op.log),
    "ReduceLogSumExp": _Formula("sum", before=_wide_exp, after=relax.op.log),
    "ReduceMax": _Formula("max"),
    "ReduceMean": _Formula("mean", before=_long),
    "ReduceMin": _Formula("min"),
    "ReduceProd": _Formula("prod"),
    "ReduceSum": _Formula("sum"),
    "ReduceSumSquare": _Formula("sum", before=_square),
}
# Those that TVM's converters do not compute, or not in the type of the input, of integers.
_NOT_OF_INTEGERS = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean")

_COMBINATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "mean": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "max": lambda a, b: tirx.Max(a, b),
    "min": lambda a, b: tirx.Min(a, b),
}


def _neutral(combine: str, dtype: str) -> float | int:
    """The value of an empty set: for max and min the infinities, or the ends of the integers."""
    if combine in ("sum", "prod"):
        return int(combine == "prod")
    if combine == "mean":
        return math.nan
    if not dtype.startswith(("int", "uint")):
        return -math.inf if combine == "max" else math.inf
    ends = np.iinfo(dtype)
    return int(ends.min if combine == "max" else ends.max)


def _reduction(name: str) -> type:
    class Reduction(OnnxOpConverter):
        @classmethod
        def get_converter(cls, opset: int) -> Callable[..., Any]:
            stock = onnx_converter_map()[name].get_converter(opset)

            def convert(bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
                x, axes = inputs[0], _axes(inputs, attr, params)
                if isinstance(axes, relax.Expr):
                    return _as_numbers(bb, x, lambda v: _runtime(bb, v, axes, attr, name))
                odd = _is_bool(x) or 0 in sizes_of(x) or _may_be_infinite(x, name)
                odd = odd or (_is_integer(x) and name in _NOT_OF_INTEGERS)
                if not axes and attr.get("noop_with_empty_axes", 0):
                    return _as_numbers(bb, x, lambda v: _elementwise(bb, v, name))
                if not odd:
                    given = inputs if axes else onnx_input([x])
                    return stock(bb, given, attr, params)
                return _as_numbers(bb, x, lambda v: _static(bb, v, axes, attr, name))

            return convert

    Reduction.__name__ = name
    Reduction.__doc__ = f"TVM's {name}, and the forms that it does not take."
    return Reduction


def _axes(inputs: Any, attr: dict, params: Any) -> list[int] | relax.Expr:
    if "axes" in attr:
        return list(attr["axes"])
    if inputs[1] is None:
        return []
    stored = constant_array(inputs[1], params)
    if stored is not None:
        return [int(axis) for axis in np.atleast_1d(stored)]
    return inputs[1] if sizes_of(inputs[1]) != [0] else []


def _may_be_infinite(x: relax.Expr, name: str) -> bool:
    return name in ("ReduceMax", "ReduceMin") and not _is_integer(x)


def _is_bool(x: relax.Expr) -> bool:
    return str(x.ty.dtype) == "bool"


def _as_numbers(bb: relax.BlockBuilder, x: relax.Expr, reduce: _Unary) -> relax.Expr:
    """Booleans as 0 and 1, and the result in the type of the input."""
    dtype = str(x.ty.dtype)
    result = bb.normalize(reduce(bb.emit(relax.op.astype(x, "uint8")) if _is_bool(x) else x))
    return result if str(result.ty.dtype) == dtype else relax.op.astype(result, dtype)


def _elementwise(bb: relax.BlockBuilder, x: relax.Expr, name: str) -> relax.Expr:
    formula = _FORMULAS[name]
    return formula.after(bb.normalize(formula.before(x)))


def _static(
    bb: relax.BlockBuilder, x: relax.Expr, axes: list[int], attr: dict, name: str
) -> relax.Expr:
    sizes, formula = sizes_of(x), _FORMULAS[name]
    reduced = {axis % len(sizes) for axis in axes} or set(range(len(sizes)))
    if not any(sizes[axis] == 0 for axis in reduced):
        x = bb.emit(formula.before(x)) if formula.before is not _unchanged else x
        total = _total(bb, x, sorted(reduced), bool(attr.get("keepdims", 1)), name)
        return formula.after(bb.normalize(total))
    kept = [1 if axis in reduced else size for axis, size in enumerate(sizes)]
    if not attr.get("keepdims", 1):
        kept = [size for axis, size in enumerate(sizes) if axis not in reduced]
    return _of_empty_set(bb, x, kept, formula)


def _total(
    bb: relax.BlockBuilder, x: relax.Expr, axes: list[int], keepdims: bool, name: str
) -> relax.Expr:
    combine = _FORMULAS[name].combine
    if not _may_be_infinite(x, name):
        return getattr(relax.op, combine)(x, axes, keepdims)
    reducer = _reducer(combine, str(x.ty.dtype))

    def kernel(x: te.Tensor) -> te.Tensor:
        steps = {axis: te.reduce_axis((0, x.shape[axis]), name=f"r{axis}") for axis in axes}
        kept = [axis for axis in range(len(x.shape)) if keepdims or axis not in steps]
        shape = [1 if axis in steps else x.shape[axis] for axis in kept]

        def value(*index: tirx.Var) -> tirx.Expr:
            at = {**dict(zip(kept, index, strict=True)), **steps}
            return reducer(x(*(at[axis] for axis in sorted(at))), axis=list(steps.values()))

        return te.compute(shape, value, name=combine)

    attributes = {REDUCTION: reduction_attribute(combine, axes, keepdims)}
    return bb.emit_te(kernel, x, primfunc_name_hint=combine, primfunc_attrs=attributes)


def _of_empty_set(
    bb: relax.BlockBuilder, x: relax.Expr, shape: Sequence[Size], formula: _Formula
) -> relax.Expr:
    dtype = str(bb.normalize(formula.before(x)).ty.dtype)
    value = relax.const(_number(_neutral(formula.combine, dtype), dtype), dtype)
    return formula.after(bb.normalize(relax.op.full(relax.ShapeExpr(list(shape)), value, dtype)))


def _runtime(
    bb: relax.BlockBuilder, x: relax.Expr, axes: relax.Expr, attr: dict, name: str
) -> relax.Expr:
    """With axes from the run: ``out[i] = sum over r of x[i + r]``.

    Along an axis that is reduced ``i`` has one value and ``r`` all, along another ``r`` has one:
    both extents are symbolic dimensions that the axes define.
    """
    formula, sizes = _FORMULAS[name], sizes_of(x)
    rank = len(sizes)
    kept, extents, shape = _dimensions(bb, x, axes, attr, name)
    x = bb.emit(formula.before(x))
    if 0 in sizes:
        total = _of_empty_set(bb, x, kept, _Formula(formula.combine))
    else:
        total = bb.emit_te(
            _kernel(formula.combine, rank), x, *kept, *extents, primfunc_name_hint=name.lower()
        )
    result = bb.normalize(formula.after(bb.normalize(total)))
    return result if attr.get("keepdims", 1) else relax.op.reshape(result, shape)


def _dimensions(
    bb: relax.BlockBuilder, x: relax.Expr, axes: relax.Expr, attr: dict, name: str
) -> tuple[list[tirx.Var], list[tirx.Var], list[tirx.Var]]:
    """Extents of what is kept and of what is reduced, one an axis, and the sizes that remain."""
    rank, left = len(sizes_of(x)), _remaining(x, axes, attr)
    none_reduces_all = not attr.get("noop_with_empty_axes", 0)

    def formula(axes: te.Tensor, x: te.Tensor) -> list[tirx.Expr]:
        sizes = [wide(size) for size in x.shape]
        masks = [_is_reduced(axes, axis, rank, none_reduces_all) for axis in range(rank)]
        kept = [tirx.Select(mask, wide(1), s) for mask, s in zip(masks, sizes, strict=True)]
        extents = [tirx.Select(mask, s, wide(1)) for mask, s in zip(masks, sizes, strict=True)]
        return [*kept, *extents, *_compacted(masks, sizes, left)]

    names = [f"{name}_{kind}_{j}" for kind in ("kept", "reduced") for j in range(rank)]
    names += [f"{name}_size_{place}" for place in range(left)]
    found = computed_dimensions(bb, names, formula, axes, x)
    return found[:rank], found[rank : 2 * rank], found[2 * rank :]


def _remaining(x: relax.Expr, axes: relax.Expr, attr: dict) -> int:
    """The rank of a result that drops the reduced axes; 0 where it keeps them with size 1."""
    if attr.get("keepdims", 1):
        return 0
    (count,) = sizes_of(axes)
    if not isinstance(count, int):
        raise FormError("it drops the axes that it reduces, whose number is not known")
    return max(len(sizes_of(x)) - count, 0)


def _is_reduced(axes: te.Tensor, axis: int, rank: int, none_reduces_all: bool) -> tirx.Expr:
    """Whether ``axes`` names this axis; no axes at all name every one, or none."""
    count = axes.shape[0]
    found = tirx.all(count == 0, tirx.const(none_reduces_all, "bool"))
    for place in range(int(count) if isinstance(count, int | tirx.IntImm) else rank):
        named = tirx.any(axes[place] == axis, axes[place] + rank == axis)
        # Not a Select: it would read behind the end.
        here = tirx.if_then_else(place < count, named, tirx.const(False, "bool"))
        found = tirx.any(found, here)
    return found


def _compacted(masks: list[tirx.Expr], sizes: list[tirx.Expr], left: int) -> list[tirx.Expr]:
    """The sizes of the axes that are not masked, ``left`` of them, in their order."""
    shape, before = [wide(0)] * left, wide(0)
    for mask, size in zip(masks, sizes, strict=True):
        for place, value in enumerate(shape):
            here = tirx.all(tirx.Not(mask), before == place)
            shape[place] = tirx.Select(here, size, value)
        before = before + tirx.Select(mask, wide(0), wide(1))
    return shape


def _kernel(combine: str, rank: int) -> Callable[..., te.Tensor]:
    def kernel(x: te.Tensor, *dimensions: tirx.Var) -> te.Tensor:
        kept, extents = dimensions[:rank], dimensions[rank:]
        reducer = _reducer(combine, str(x.dtype))
        steps = [te.reduce_axis((0, extent), name=f"r{j}") for j, extent in enumerate(extents)]

        def value(*index: tirx.Var) -> tirx.Expr:
            return reducer(x(*(i + r for i, r in zip(index, steps, strict=True))), axis=steps)

        total = te.compute(kept, value, name=combine)
        if combine != "mean":
            return total
        number = math.prod(extents, start=wide(1)).astype(x.dtype)
        is_integer = str(x.dtype).startswith(("int", "uint"))
        divide = tirx.truncdiv if is_integer else tirx.div
        return te.compute(kept, lambda *index: divide(total(*index), number), name="mean")

    return kernel


def _reducer(combine: str, dtype: str) -> Callable[..., tirx.Expr]:
    neutral = 0 if combine == "mean" else _neutral(combine, dtype)
    return te.comm_reducer(
        _COMBINATIONS[combine], lambda dtype: tirx.const(neutral, dtype), name=combine
    )


def _number(value: float | int, dtype: str) -> np.ndarray:
    return np.array(value).astype(dtype if dtype != "bfloat16" else "float32")


REDUCTIONS = {name: _reduction(name) for name in _FORMULAS}


# ArgMax and ArgMin.
#
# TVM's start from -1 and the lowest number: where all numbers are infinite or NaN, -1 or a place
# behind the end comes out. ONNX Runtime's are places in the tensor.


def _inside(name: str) -> Any:
    stock = onnx_converter_map()[name]

    class Inside(OnnxOpConverter):
        """TVM's converter, with places from the first to the last."""

        @classmethod
        def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
            size = sizes_of(inputs[0])[attr.get("axis", 0)]
            found = bb.normalize(stock._impl_v12(bb, inputs, attr, params))
            dtype = str(found.ty.dtype)
            found = bb.normalize(relax.op.maximum(found, relax.const(0, dtype)))
            if not isinstance(size, int):
                return found
            return relax.op.minimum(found, relax.const(max(size - 1, 0), dtype))

    Inside.__name__ = name
    return Inside


class Hardmax(onnx_converter_map()["Hardmax"]):  # type: ignore[misc]
    """One where an axis has its first largest element, else zero; TVM's takes known sizes only."""

    @classmethod
    def _hardmax_impl(cls, bb: relax.BlockBuilder, data: relax.Expr, axis: int) -> relax.Expr:
        data = bb.normalize(data)
        place, dtype = axis % len(sizes_of(data)), str(data.ty.dtype)

        def kernel(data: te.Tensor, largest: te.Tensor) -> te.Tensor:
            def is_largest(*index: tirx.Var) -> tirx.Expr:
                here = largest(*index[:place], 0, *index[place + 1 :]) == index[place]
                return tirx.Select(here, tirx.const(1, dtype), tirx.const(0, dtype))

            return te.compute(data.shape, is_largest, name="hardmax")

        largest = bb.emit(relax.op.argmax(data, axis=place, keepdims=True))
        return bb.emit_te(kernel, data, largest, primfunc_name_hint="hardmax")


ARG_EXTREMES: dict[str, Any] = {
    **{name: _inside(name) for name in ("ArgMax", "ArgMin")},
    "Hardmax": Hardmax,
}


# CumSum and CumProd along any axis, exclusive and reverse.
#
# TVM's CumSum takes no axis that is computed in the run; it has no CumProd.


def _cumulated(
    bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any, product: bool
) -> relax.Expr:
    data, rank = inputs[0], len(sizes_of(inputs[0]))
    axes = constant_integers(inputs[1], params)
    if axes is not None:
        return cumulated(bb, data, int(axes[0]) % rank, attr, product)
    if rank == 1:
        return cumulated(bb, data, 0, attr, product)
    chosen = integer_tensor(bb, inputs[1])
    # An axis of the run: the result for each one, of which the run's is taken.
    every = [cumulated(bb, data, axis, attr, product) for axis in range(rank)]

    def pick(chosen: te.Tensor, *every: te.Tensor) -> te.Tensor:
        def read(*index: tirx.Var) -> tirx.Expr:
            value = every[-1](*index)
            for axis in range(rank - 1):
                here = tirx.any(chosen[0] == axis, chosen[0] == axis - rank)
                value = tirx.if_then_else(here, every[axis](*index), value)
            return value

        return te.compute(every[0].shape, read, name="along_axis")

    return bb.emit_te(pick, chosen, *every, primfunc_name_hint="along_axis")


# On a kernel of running sums: its form, as JSON.
CUMULATED = "tvm_ext.cumulated_sum"


def cumulated(
    bb: relax.BlockBuilder, data: relax.Expr, axis: int, attr: dict, product: bool
) -> relax.Expr:
    """Running sums or products along an axis; ``attr``: as of CumSum."""
    sizes, dtype = sizes_of(data), str(data.ty.dtype)
    exclusive, reverse = bool(attr.get("exclusive", 0)), bool(attr.get("reverse", 0))
    size, before, behind = sizes[axis], sizes[:axis], sizes[axis + 1 :]
    summed = dtype if dtype not in ("float16", "bfloat16") else "float32"

    def body(read: Any, written: Any) -> None:
        with nested(*before, *behind) as places:
            outer, inner = places[: len(before)], places[len(before) :]
            total = local_array(1, summed)
            total[0] = tirx.const(1 if product else 0, summed)
            with T.serial(0, size) as step:
                place = size - 1 - step if reverse else step
                index = (*outer, place, *inner)
                if exclusive:
                    written[index] = total[0].astype(dtype)
                value = read[index].astype(summed)
                total[0] = total[0] * value if product else total[0] + value
                if not exclusive:
                    written[index] = total[0].astype(dtype)

    name = "cumulated_product" if product else "cumulated_sum"
    form = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
    attributes = {} if product else {CUMULATED: json.dumps(form)}
    return emit_loops(bb, name, [data], [(sizes, dtype)], body, primfunc_attrs=attributes)[0]


class CumSum(OnnxOpConverter):
    """Running sums."""

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _cumulated(bb, inputs, attr, params, product=False)


class CumProd(OnnxOpConverter):
    """Running products."""

    @classmethod
    def _impl_v26(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _cumulated(bb, inputs, attr, params, product=True)


# LayerNormalization over axes of symbolic sizes, with scale and bias that broadcast to them.


class LayerNormalization(OnnxOpConverter):
    """The normalised input; TVM's takes a scale of just the sizes that it normalises, all known."""

    @classmethod
    def _impl_v17(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, scale, bias = (*inputs, None)[:3]
        sizes = sizes_of(data)
        first = attr.get("axis", -1) % len(sizes)
        if bias is None:
            bias = relax.const(np.zeros(1, numpy_dtype(str(scale.ty.dtype))))
        scale, bias = (_whole(bb, each, sizes[first:]) for each in (scale, bias))
        axes = list(range(first, len(sizes)))
        return relax.op.nn.layer_norm(data, scale, bias, axes, attr.get("epsilon", 1e-5))


def _whole(bb: relax.BlockBuilder, data: relax.Expr, wanted: Sequence[Size]) -> relax.Expr:
    """``data`` broadcast to the sizes that are normalised; a constant stays one."""
    data = broadcast_to(bb, data, wanted)
    sizes = sizes_of(data)
    if len(sizes) == len(wanted) and all(map(equal_sizes, sizes, wanted)):
        return data
    if isinstance(data, tvm.ir.GenericConst) and all(isinstance(size, int) for size in wanted):
        return relax.const(np.broadcast_to(data.value.numpy(), wanted), str(data.ty.dtype))
    return bb.emit(relax.op.broadcast_to(data, relax.ShapeExpr(list(wanted))))
