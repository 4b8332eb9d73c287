"""Tensors made from sizes: Expand, ConstantOfShape, Reshape, Tile and EyeLike.

TVM's Expand takes a size of 1 that the run's shape gives for the result's ([3, 1] expanded to
[2, 1, 6] came out as [2, 1, 6] and not [2, 3, 6]); its ConstantOfShape and Reshape take no shape
that is computed in the run, its Tile gives new sizes even where they are known; its EyeLike takes
no type of its own.
"""

from typing import Any

import numpy as np
import tvm
import tvm_ffi
from onnx import numpy_helper
from tvm import relax, te, tirx
from tvm.sym import Analyzer

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter, onnx_type_name
from tvm_ext.onnx_frontend.converters.agreement import broadcast_sizes
from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of
from tvm_ext.onnx_frontend.converters.checked_sizes import with_as_many_elements
from tvm_ext.onnx_frontend.converters.runtime_sizes import (
    computed_dimensions,
    constant_integers,
    integer_tensor,
    sizes_in_the_run,
    vector_length,
    wide,
)
from tvm_ext.onnx_frontend.converters.traits import takes_sizes
from tvm_ext.onnx_frontend.sizes import SizeValues


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
        if not unclear and all(
            not isinstance(a, int) or isinstance(b, int) for a, b in zip(old, shape, strict=True)
        ):
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
            if not any(_is(s, -1) for s in known):
                data = with_as_many_elements(bb, data, known)
            is_empty = any(_is(s, 0) for s in known)
            return relax.op.reshape(data, relax.ShapeExpr(known) if is_empty else known)
        wanted = integer_tensor(bb, target)
        count = vector_length(wanted, "sizes")
        found: list[Any] = [None] * count
        if isinstance(target, SizeValues):
            found = target.listed()
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
    total, known = wide(1), wide(1)
    for size in sizes:
        total = total * size
    for size in wanted:
        known = known * tirx.Select(size == -1, wide(1), size)
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
