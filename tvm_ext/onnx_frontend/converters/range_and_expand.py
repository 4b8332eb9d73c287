"""Tensors made from sizes: Expand, ConstantOfShape, Reshape and EyeLike.

TVM's Expand takes a size of 1 that the run's shape gives for the result's ([3, 1] expanded to
[2, 1, 6] came out as [2, 1, 6] and not [2, 3, 6]); its ConstantOfShape and Reshape take no shape
that is computed in the run; its EyeLike takes no type of its own.
"""

from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax, te, tirx
from tvm.sym import Analyzer

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter, onnx_converter_map, onnx_type_name
from tvm_ext.onnx_frontend.converters.agreement import broadcast_sizes
from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of
from tvm_ext.onnx_frontend.converters.checked_sizes import with_as_many_elements
from tvm_ext.onnx_frontend.converters.runtime_sizes import (
    computed_dimensions,
    constant_integers,
    integer_tensor,
    vector_length,
    wide,
)
from tvm_ext.onnx_frontend.converters.traits import Shapes, takes_shapes


@takes_shapes(Shapes.AS_THEY_ARE)
class Expand(OnnxOpConverter):
    """Broadcasts both ways: a size of 1 on either side takes the other side's."""

    @classmethod
    def _impl_v8(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, target = inputs[0], constant_integers(inputs[1], params)
        sizes = sizes_of(data)
        if target is None:
            wanted = integer_tensor(bb, inputs[1])
            count = vector_length(wanted, "sizes")
            rank = max(count, len(sizes))
            padded: list[Size] = [1] * (rank - len(sizes)) + sizes

            def formula(wanted: te.Tensor, *padded: Any) -> list[tirx.Expr]:
                given = [wide(1)] * (rank - count) + [wanted[i] for i in range(count)]
                return [
                    tirx.Select(wide(old) == 1, new, wide(old))
                    for old, new in zip(padded, given, strict=True)
                ]

            names = [f"expanded_{axis}" for axis in range(rank)]
            shape = computed_dimensions(bb, names, formula, wanted, *padded)
            return bb.emit_te(_expanded, data, shape, primfunc_name_hint="expand")
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


@takes_shapes(Shapes.AS_THEY_ARE)
class ConstantOfShape(OnnxOpConverter):
    """One value everywhere."""

    @classmethod
    def _impl_v9(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        value = numpy_helper.to_array(attr["value"]) if "value" in attr else np.zeros(1, np.float32)
        fill = relax.const(value.reshape(()), str(value.dtype))
        shape = target_sizes(bb, inputs[0], params)
        return relax.op.full(relax.ShapeExpr(shape), fill, str(value.dtype))


def target_sizes(bb: relax.BlockBuilder, shape: Any, params: Any) -> list[Size]:
    """A shape that is an input: known sizes, or symbolic ones that the run defines."""
    known = constant_integers(shape, params)
    if known is not None:
        return known
    sizes = integer_tensor(bb, shape)
    count = vector_length(sizes, "sizes")
    names = [f"size_{axis}" for axis in range(count)]
    return list(
        computed_dimensions(bb, names, lambda given: [given[i] for i in range(count)], sizes)
    )


_TvmReshape = onnx_converter_map()["Reshape"]


@takes_shapes(Shapes.AS_THEY_ARE)
class Reshape(OnnxOpConverter):
    """TVM's converter, and shapes that are computed in the run."""

    @classmethod
    def _impl_v5(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, target = inputs[0], inputs[1]
        known = constant_integers(target, params)
        if isinstance(data, relax.ShapeExpr) or isinstance(target, relax.ShapeExpr):
            return _TvmReshape._impl_v13(bb, inputs, attr, params)
        sizes, allow_zero = sizes_of(data), bool(attr.get("allowzero", 0))
        if known is not None:
            if not allow_zero:
                known = [sizes[i] if s == 0 else s for i, s in enumerate(known)]
            if 0 in known and -1 in known:
                raise FormError("its shape has a size of 0 beside one to be inferred")
            if -1 not in known:
                data = with_as_many_elements(bb, data, known)
            return relax.op.reshape(data, relax.ShapeExpr(known) if 0 in known else known)
        wanted = integer_tensor(bb, target)
        count = vector_length(wanted, "sizes")

        def formula(wanted: te.Tensor, *sizes: Any) -> list[tirx.Expr]:
            return _resolved([wanted[i] for i in range(count)], sizes, allow_zero)

        names = [f"reshaped_{axis}" for axis in range(count)]
        dimensions = computed_dimensions(bb, names, formula, wanted, *sizes)
        return relax.op.reshape(data, relax.ShapeExpr(dimensions))


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


class EyeLike(OnnxOpConverter):
    """Ones on a diagonal, in the attribute's type or the input's."""

    @classmethod
    def _impl_v9(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, offset = inputs[0], attr.get("k", 0)
        dtype = onnx_type_name(attr["dtype"]) if "dtype" in attr else str(data.ty.dtype)

        def kernel(*shape: Any) -> te.Tensor:
            return te.compute(shape, lambda i, j: (j - i == offset).astype(dtype), name="eye")

        return bb.emit_te(kernel, *sizes_of(data), primfunc_name_hint="eye")
