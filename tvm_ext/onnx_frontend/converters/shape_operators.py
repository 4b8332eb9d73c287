"""Operators on shapes: Reshape, Expand, Tile, Squeeze, SpaceToDepth; tensors made from sizes.

TVM's Expand takes a size of 1 that the run's shape gives for the result's ([3, 1] expanded to
[2, 1, 6] came out as [2, 1, 6] and not [2, 3, 6]); its ConstantOfShape and Reshape take no
shape that is computed in the run, its Tile gives new sizes even where they are known; its
EyeLike takes no type of its own.
"""

import math
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from onnx import numpy_helper
from tvm import relax, te, tirx
from tvm.sym import Analyzer

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
from tvm_ext.onnx_frontend.converters.shape_constraints import (
    broadcast_sizes,
    of_sizes,
    with_as_many_elements,
)
from tvm_ext.onnx_frontend.sizes import SizeValues
from tvm_ext.onnx_frontend.sizes.quasi_affine import inferred_size
from tvm_ext.onnx_frontend.sizes.scalar_rules import analyzer_of
from tvm_ext.onnx_frontend.sizes.size_values import FLOATS
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter, onnx_converter_map, onnx_type_name
from tvm_ext.onnx_frontend.value_sizes import range_steps


@takes_sizes(1)
class Expand(OnnxOpConverter):
    """Broadcasts both ways: a size of 1 on either side takes the other side's."""

    @classmethod
    def _impl_v8(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, sizes = inputs[0], sizes_of(inputs[0])
        target = sizes_in_the_run(bb, inputs[1], params, "expanded")
        rank = max(len(target), len(sizes))
        old, new = [1] * (rank - len(sizes)) + sizes, [1] * (rank - len(target)) + target
        shape = [_both_ways(a, b) for a, b in zip(old, new, strict=True)]
        unclear = [axis for axis in range(rank) if shape[axis] is None]
        pairs = [[sizes[axis] for axis in unclear] for sizes in (old, new)]
        for axis, size in zip(unclear, broadcast_sizes(bb, pairs), strict=True):
            shape[axis] = size
        if not unclear:
            return relax.op.broadcast_to(data, relax.ShapeExpr(shape))
        return bb.emit_te(_expanded, data, shape, primfunc_name_hint="expand")


def _both_ways(old: Size, new: Size) -> Any:
    """The size of the result; None when only the run can tell which of the two is 1."""
    if isinstance(old, int) and isinstance(new, int) and 1 not in (old, new) and old != new:
        raise FormError(f"size {old} cannot be expanded to {new}")
    if isinstance(old, int):
        return new if old == 1 else old
    if isinstance(new, int):
        return old if new == 1 else new
    return old if Analyzer().can_prove_equal(old, new) else None


def _expanded(data: te.Tensor, shape: list[Any]) -> te.Tensor:
    lead = len(shape) - len(data.shape)

    def read(*index: tirx.Var) -> tirx.Expr:
        places = [
            tirx.Select(size == 1, tirx.const(0, place.ty.dtype), place)
            for size, place in zip(data.shape, index[lead:], strict=True)
        ]
        return data(*places)

    return te.compute(shape, read, name="expand")


@takes_sizes(0)
class ConstantOfShape(OnnxOpConverter):
    """One value everywhere."""

    @classmethod
    def _impl_v9(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        value = numpy_helper.to_array(attr["value"]) if "value" in attr else np.zeros(1, np.float32)
        fill = relax.const(value.reshape(()), str(value.dtype))
        shape = sizes_in_the_run(bb, inputs[0], params, "size")
        return relax.op.full(relax.ShapeExpr(shape), fill, str(value.dtype))


@takes_sizes(1)
class Reshape(OnnxOpConverter):
    """With sizes that are known, that follow from other sizes, or that are computed in the run."""

    @classmethod
    def _impl_v5(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, target = inputs[0], inputs[1]
        known = constant_integers(target, params)
        sizes, allow_zero = sizes_of(data), bool(attr.get("allowzero", 0))
        if known is not None and not any(map(_may_be_inferred, known)):
            if not allow_zero:
                known = [sizes[i] if _is(s, 0) else s for i, s in enumerate(known)]
            if any(_is(s, 0) for s in known) and any(_is(s, -1) for s in known):
                raise FormError("its shape has a size of 0 beside one to be inferred")
            others = [s for s in known if not _is(s, -1)]
            if len(others) == len(known) - 1 and (left := inferred_size(sizes, others)) is not None:
                known = [left if _is(s, -1) else s for s in known]
            elif len(others) == len(known):
                data = with_as_many_elements(bb, data, known)
            is_empty = any(_is(s, 0) for s in known)
            return relax.op.reshape(data, relax.ShapeExpr(known) if is_empty else known)
        wanted = integer_tensor(bb, target)
        count = vector_length(wanted, "sizes")
        found: list[Any] = target.listed() if isinstance(target, SizeValues) else [None] * count
        if not allow_zero:
            found = [sizes[i] if _is(s, 0) else s for i, s in enumerate(found)]
        places = [i for i, s in enumerate(found) if s is None or _is(s, -1) or _may_be_inferred(s)]

        def formula(wanted: te.Tensor, *sizes: Any) -> list[tirx.Expr]:
            every = _resolved([wanted[i] for i in range(count)], sizes, allow_zero)
            return [every[place] for place in places]

        names = [f"reshaped_{place}" for place in places]
        new = computed_dimensions(bb, names, formula, wanted, *sizes)
        for place, dimension in zip(places, new, strict=True):
            found[place] = dimension
        return relax.op.reshape(data, relax.ShapeExpr(found))


def _is(size: Any, number: int) -> bool:
    return isinstance(size, int) and size == number


def _may_be_inferred(size: Any) -> bool:
    """Whether a size is chosen in the run among some of which one is negative."""
    if not isinstance(size, tvm.ir.Expr):
        return False
    found: list[tirx.Expr] = []

    def look(choice: tirx.Select) -> None:
        arms = (choice.true_value, choice.false_value)
        found.extend(arm for arm in arms if isinstance(arm, tirx.IntImm) and int(arm) < 0)

    tvm_ffi.structural_walk(size, (tirx.Select, look), order="post")
    return bool(found)


def _resolved(wanted: list[Any], sizes: Any, allow_zero: bool) -> list[tirx.Expr]:
    """Sizes with 0 (as in the input) and -1 (what is left) replaced."""
    if not allow_zero:
        wanted = [
            tirx.Select(size == 0, wide(sizes[i]), size) if i < len(sizes) else size
            for i, size in enumerate(wanted)
        ]
    total = math.prod(sizes, start=wide(1))
    known = math.prod((tirx.Select(s == -1, wide(1), s) for s in wanted), start=wide(1))
    left = tirx.floordiv(total, tirx.max(known, wide(1)))
    return [tirx.Select(size == -1, left, size) for size in wanted]


@takes_sizes(1)
class Tile(OnnxOpConverter):
    """As many copies along each axis as an input says."""

    @classmethod
    def _impl_v6(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        sizes = sizes_of(inputs[0])
        counts = sizes_in_the_run(bb, inputs[1], params, "copies")
        if len(counts) != len(sizes):
            raise FormError(f"it has {len(counts)} numbers of copies for {len(sizes)} axes")
        shape = [size * count for size, count in zip(sizes, counts, strict=True)]
        once = [_is(count, 1) for count in counts]

        def kernel(data: te.Tensor, shape: list[Any]) -> te.Tensor:
            def read(*index: tirx.Var) -> tirx.Expr:
                places = zip(index, data.shape, once, strict=True)
                return data(*(i if same else tirx.floormod(i, size) for i, size, same in places))

            return te.compute(shape, read, name="tile")

        return bb.emit_te(kernel, inputs[0], shape, primfunc_name_hint="tile")


class EyeLike(OnnxOpConverter):
    """Ones on a diagonal, in the attribute's type or the input's."""

    @classmethod
    def _impl_v9(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, offset = inputs[0], attr.get("k", 0)
        dtype = onnx_type_name(attr["dtype"]) if "dtype" in attr else str(data.ty.dtype)

        def kernel(*shape: Any) -> te.Tensor:
            return te.compute(shape, lambda i, j: (j - i == offset).astype(dtype), name="eye")

        return bb.emit_te(kernel, *sizes_of(data), primfunc_name_hint="eye")


# Range with a length that follows from sizes, and long lists that are no constants.
#
# TVM's converter computes the number of elements in the run where a bound is a float, and gives
# it a size that is related to no other: a grid of anchors of a detector then fits its feature map
# in no proof, and everything behind it is compared in the run. It makes a constant of known
# bounds whatever its length, and takes a length beyond NumPy's integers for none at all: from 0
# to 2**63 - 1 came out empty.


# Longer ones are computed in the run and are no constant of the program.
LISTED_STEPS = 1 << 20

_TvmRange = onnx_converter_map()["Range"]


@takes_sizes(0, 1, 2)
class Range(OnnxOpConverter):
    """Numbers from a start to a limit; TVM's converter where one is computed from values."""

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        stored = [constant_array(value, params) for value in inputs]
        numbers = [a.item() for a in stored if a is not None and a.size == 1]
        if len(numbers) == len(stored):
            count = range_steps(*numbers)
            if count <= LISTED_STEPS:
                return _TvmRange.get_converter(11)(bb, inputs, attr, params)
            dtype = str(inputs[0].ty.dtype)
            first, step = (tirx.const(number, dtype) for number in (numbers[0], numbers[2]))
            return _sequence(bb, count, lambda i: first + i.astype(dtype) * step)
        bounds = [_whole_number(value, params) for value in inputs]
        delta = bounds[2]
        if None in bounds or not isinstance(delta, int) or not delta:
            tensors = [v.as_tensor(bb) if isinstance(v, SizeValues) else v for v in inputs]
            return _TvmRange.get_converter(11)(bb, type(inputs)(tensors), attr, params)
        start, limit = (wide(bound) for bound in bounds[:2])
        length, dtype = _number_of_steps(start, limit, delta), _dtype_of(inputs)
        return _sequence(bb, length, lambda i, start: (start + i * delta).astype(dtype), start)


def _sequence(bb: relax.BlockBuilder, length: Size, element: Any, *values: Any) -> relax.Expr:
    def kernel(length: Any, *values: Any) -> te.Tensor:
        return te.compute((length,), lambda i: element(i, *values), name="range")

    return bb.emit_te(kernel, length, *values, primfunc_name_hint="range")


def _number_of_steps(start: tirx.Expr, limit: tirx.Expr, delta: int) -> Size:
    """How many steps of ``delta`` there are from ``start`` until before ``limit``."""
    distance = limit - start if delta > 0 else start - limit
    analyzer = analyzer_of(distance)
    length = analyzer.simplify(tirx.floordiv(distance + (abs(delta) - 1), abs(delta)))
    if isinstance(length, tirx.IntImm):
        return max(0, int(length))
    return length if analyzer.can_prove(length >= 0) else tirx.max(length, wide(0))


def _whole_number(value: Any, params: Any) -> Size | None:
    """A bound as an integer or as an expression of sizes; None where it is neither."""
    if isinstance(value, SizeValues):
        (element,) = value.listed()
        if isinstance(element, tirx.Cast) and value.dtype in FLOATS:
            element = element.value
        is_whole = isinstance(element, tvm.ir.Expr) and str(element.ty.dtype) == "int64"
        return element if is_whole else None
    stored = constant_array(value, params)
    if stored is None or stored.size != 1 or float(stored.item()) != int(stored.item()):
        return None
    return int(stored.item())


def _dtype_of(inputs: Any) -> str:
    """The type of the elements, which is that of the bounds."""
    first = inputs[0]
    return first.dtype if isinstance(first, SizeValues) else str(first.ty.dtype)


# Squeeze of axes whose size only the run knows.
#
# TVM's converter refuses them. Such an axis is often 1 in every run, or squeezed in a branch of
# If that is only taken where it is; the run checks that it is.


_TvmSqueeze = onnx_converter_map()["Squeeze"]


class Squeeze(OnnxOpConverter):
    """TVM's converter, behind a check of the sizes that it would refuse."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data = _checked(bb, inputs[0], attr.get("axes"))
        return _from_front(_TvmSqueeze._impl_v1(bb, type(inputs)([data]), attr, params))

    @classmethod
    def _impl_v13(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        axes = None if inputs[1] is None else constant_integers(inputs[1], params)
        data = _checked(bb, inputs[0], axes)
        result = _TvmSqueeze._impl_v13(bb, type(inputs)([data, inputs[1]]), attr, params)
        return _from_front(result)


def _from_front(result: Any) -> Any:
    """A squeeze with its axes counted from the front.

    TVM 0.27's ConvertLayout writes outside of a string for the others.
    """
    called = result.op if isinstance(result, relax.Call) else None
    if called != tvm.ir.Op.get("relax.squeeze") or result.attrs.axis is None:
        return result
    data = result.args[0]
    return relax.op.squeeze(data, [int(axis) % data.ty.ndim for axis in result.attrs.axis])


def _checked(bb: relax.BlockBuilder, data: Any, axes: Any) -> Any:
    """The tensor with size 1 on the axes; shapes and single sizes as they are."""
    if not isinstance(data, relax.Var) or not isinstance(data.ty, relax.TensorType):
        return data
    sizes = sizes_of(data)
    if axes is None:
        return data
    squeezed = {int(axis) % len(sizes) for axis in axes}
    wanted = [
        1 if axis in squeezed and not isinstance(size, int) else size
        for axis, size in enumerate(sizes)
    ]
    return of_sizes(bb, data, wanted)


# SpaceToDepth in both orders; TVM's converter ignores the mode CRD.


class SpaceToDepth(OnnxOpConverter):
    """Blocks of an image become channels: block by block (DCR) or channel by channel (CRD)."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        batch, channels, height, width = sizes_of(inputs[0])
        block, mode = int(attr["blocksize"]), text(attr, "mode", "DCR")
        if mode not in ("DCR", "CRD"):
            raise FormError(f"its mode is {mode}, expected DCR or CRD")
        for size in (height, width):
            if isinstance(size, int) and size % block:
                raise FormError(f"size {size} is no multiple of its block of {block}")
        rows, columns = height // block, width // block
        split = bb.emit(relax.op.reshape(inputs[0], (batch, channels, rows, block, columns, block)))
        order = [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4]
        turned = bb.emit(relax.op.permute_dims(split, order))
        return relax.op.reshape(turned, (batch, channels * block * block, rows, columns))
