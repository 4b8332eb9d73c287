"""LegalizeOps: TVM's pass, but reshapes of sizes that a run decides stay views of memory."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi
from tvm.ir import GenericConst
from tvm.sym import Analyzer

from tvm_ext.relay_passes.expressions import static_shape

# Exponents of powers that few products compute.
_PRODUCTS = range(3, 9)
_WIDE = ("float32", "float64")
_NARROW = ("float16", "bfloat16")


def legalize_ops() -> tvm.transform.Pass:
    """Turns operators into kernels, except for reshapes whose sizes are symbolic.

    Before: ``y = reshape(x, (b, c, h * w))``
    After:  the same, which the virtual machine runs: another shape for the memory of ``x``

    TVM makes such a reshape a kernel that divides by every size for each element, which operator
    fusion leaves alone. Reshapes of known sizes become kernels, so that they can be fused;
    RewriteDataflowReshape makes those views again that nothing was fused with.

    A kernel's result keeps the sizes that the operator had where TVM writes them in another way
    and cannot prove the two equal: of what was computed from them, TVM would forget the shape.

    The mean of no elements, which a run may meet, is 0 as in ONNX Runtime. Means and variances of
    narrow numbers are summed in float32.

    A group normalisation finds its groups among the channels; TVM reshapes what it is given, and
    divides by every symbolic size for each element.

    A narrow batch normalisation that no pass took apart has the type that the operator says, and so
    have grid_sample and roi_align, whose kernels give float32.

    TVM raises an error for ``full`` of infinity or of no number, which is a sum here, and prints a
    warning for each power above the second, which is a product. It raises one for a division by a
    stored zero too, which is a product with infinity. A product with a stored zero is a quotient by
    infinity, as TVM takes it for zero where the other factor is NaN or an infinity.

    What is not equal is the exclusive or of "equal" and true, and so is what is not below a number:
    TVM makes one comparison of a negated one, and none of its comparisons holds for NaN.
    """
    return relax.transform.LegalizeOps(_rules())


@functools.cache
def _rules() -> dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]]:
    names = (name for name in tvm.ir.Op.list_op_names() if name.startswith("relax."))
    known = [name for name in names if tvm.ir.Op.get(name).get_attr("FLegalize") is not None]
    ours: dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]] = {
        "relax.divide": _quotient,
        "relax.multiply": _product,
        "relax.reshape": _view,
        "relax.flatten": _view,
        "relax.full": _full,
        "relax.logical_not": _logical_not,
        "relax.not_equal": _not_equal,
        "relax.nn.batch_norm": _batch_norm,
        "relax.nn.group_norm": _group_norm,
        "relax.mean": functools.partial(_in_float32, _mean),
        "relax.variance": functools.partial(_in_float32, _with_own_sizes),
        "relax.power": _power,
    }
    return {**dict.fromkeys(known, _with_own_sizes), **ours}


def _with_own_sizes(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return _with_own_sizes_of(builder, _with_own_type(builder, call), call)


def _in_float32(
    rule: Callable[[relax.BlockBuilder, relax.Call], relax.Expr],
    builder: relax.BlockBuilder,
    call: relax.Call,
) -> relax.Expr:
    """A reduction of narrow numbers whose sum is in float32: in float16 a thousand lose digits."""
    x, dtype = call.args[0], str(call.ty.dtype)
    if dtype not in _NARROW:
        return rule(builder, call)
    widened = builder.normalize(relax.op.astype(x, "float32"))
    wide = builder.emit(_by_tvm(builder, widened))
    reduced = builder.normalize(relax.Call(call.op, [wide], call.attrs))
    made = builder.emit(rule(builder, reduced))
    return _by_tvm(builder, builder.normalize(relax.op.astype(made, dtype)))


def _with_own_type(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM's kernel; of a narrow operator whose kernel gives float32, with a cast behind it."""
    made = _by_tvm(builder, call)
    dtype = str(call.ty.dtype) if isinstance(call.ty, relax.TensorType) else ""
    if dtype not in _NARROW:
        return made
    made = builder.normalize(made)
    if not isinstance(made.ty, relax.TensorType) or str(made.ty.dtype) == dtype:
        return made
    cast = relax.op.astype(builder.emit(made), dtype)
    return _by_tvm(builder, builder.normalize(cast))


def _with_own_sizes_of(
    builder: relax.BlockBuilder, made: relax.Expr, call: relax.Call
) -> relax.Expr:
    wanted = call.ty
    if not isinstance(wanted, relax.TensorType) or static_shape(call) is not None:
        return made
    made = builder.normalize(made)
    if _have_equal_sizes(made.ty, wanted):
        return made
    return builder.match_cast(made, wanted)


def _have_equal_sizes(given: relax.TensorType, wanted: relax.TensorType) -> bool:
    """Whether TVM knows them to be equal; also where one of them is not known at all."""
    shapes = (given.shape, wanted.shape)
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return True
    pairs = zip(given.shape.values, wanted.shape.values, strict=True)
    return all(Analyzer().can_prove_equal(*pair) for pair in pairs)


def _quotient(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dividend, divisor = call.args
    if not isinstance(divisor, GenericConst) or "float" not in str(call.ty.dtype):
        return _with_own_sizes(builder, call)
    zero = divisor.value.numpy()
    if zero.size != 1 or zero.item() != 0:
        return _with_own_sizes(builder, call)
    # Zero has a sign, which the quotients have too; zero over zero is no number either way.
    endless = relax.const(np.copysign(np.ones_like(zero) * np.inf, zero), str(call.ty.dtype))
    return _with_own_sizes(builder, builder.normalize(relax.op.multiply(dividend, endless)))


def _product(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    for zero, other in zip(call.args, reversed(call.args), strict=True):
        if not isinstance(zero, GenericConst) or "float" not in str(call.ty.dtype):
            continue
        values = zero.value.numpy()
        if values.size == 1 and values.item() == 0:
            endless = np.copysign(np.ones_like(values) * np.inf, values)
            inverse = relax.const(endless, str(call.ty.dtype))
            return _with_own_sizes(builder, builder.normalize(relax.op.divide(other, inverse)))
    return _with_own_sizes(builder, call)


def _power(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    base, exponent = call.args
    if not isinstance(exponent, GenericConst) or len(exponent.value.shape) > base.ty.ndim:
        return _by_tvm(builder, call)
    values = exponent.value.numpy()
    if values.size != 1 or values.item() not in _PRODUCTS or str(call.ty.dtype) not in _WIDE:
        return _by_tvm(builder, call)

    def product(x: te.Tensor) -> te.Tensor:
        y = x
        for digit in f"{int(values.item()):b}"[1:]:
            y = topi.multiply(y, y)
            y = topi.multiply(y, x) if digit == "1" else y
        return y

    return builder.call_te(product, base, primfunc_name_hint="power")


def _mean(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    x, attrs = call.args[0], call.attrs
    axes = range(x.ty.ndim) if attrs.axis is None else [int(axis) for axis in attrs.axis]
    if all(isinstance(x.ty.shape.values[axis], tirx.IntImm) for axis in axes):
        return _by_tvm(builder, call)

    def mean(x: te.Tensor) -> te.Tensor:
        count = math.prod((x.shape[axis] for axis in axes), start=tirx.const(1, "int64"))
        total = topi.sum(x, list(axes), bool(attrs.keepdims))
        return topi.divide(total, tirx.max(count, tirx.const(1, "int64")).astype(x.dtype))

    return builder.call_te(mean, x, primfunc_name_hint="mean")


def _batch_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM computes a narrow one in float32, and leaves it so, against the type of the operator."""
    x, types = call.args[0], call.ty.fields
    if str(x.ty.dtype) in _WIDE:
        return _with_own_sizes(builder, call)
    attrs = call.attrs

    def batch_norm(*inputs: te.Tensor) -> list[te.Tensor]:
        options = (attrs.axis, attrs.epsilon, attrs.center, attrs.scale)
        found = topi.nn.batch_norm(*inputs, *options, attrs.training, attrs.momentum)
        return [topi.cast(one, str(ty.dtype)) for one, ty in zip(found, types, strict=True)]

    return builder.call_te(batch_norm, *call.args, primfunc_name_hint="batch_norm")


def _group_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attrs, ty = call.attrs, call.args[0].ty
    channel, axes = int(attrs.channel_axis) % ty.ndim, [int(a) % ty.ndim for a in attrs.axes]
    sizes = ty.shape.values if isinstance(ty.shape, relax.ShapeExpr) else []
    if not sizes or not isinstance(sizes[channel], tirx.IntImm):
        return _by_tvm(builder, call)
    return builder.call_te(
        _normal_groups,
        *call.args,
        channel=channel,
        axes=axes,
        groups=int(attrs.num_groups),
        epsilon=float(attrs.epsilon),
        primfunc_name_hint="group_norm",
    )


def _normal_groups(
    x: te.Tensor,
    gamma: te.Tensor,
    beta: te.Tensor,
    channel: int,
    axes: Sequence[int],
    groups: int,
    epsilon: float,
) -> te.Tensor:
    """Each group of channels less its mean, divided by its deviation; two passes over a group."""
    wide = x if x.dtype in _WIDE else topi.cast(x, "float32")
    members = int(x.shape[channel]) // groups
    rows = [axis for axis in range(x.ndim) if axis not in axes]
    extents = [groups if axis == channel else x.shape[axis] for axis in rows]
    count = math.prod((x.shape[axis] for axis in axes), start=tirx.const(members, "int64"))

    def mean(term: Callable[..., tirx.Expr], name: str) -> te.Tensor:
        member = te.reduce_axis((0, members), "member")
        inner = {axis: te.reduce_axis((0, x.shape[axis])) for axis in axes}

        def total(*group: tirx.Var) -> tirx.Expr:
            place = dict(zip(rows, group, strict=True)) | inner
            place[channel] = place[channel] * members + member
            value = term(wide(*(place[axis] for axis in range(x.ndim))), group)
            return te.sum(value, axis=[member, *inner.values()])

        sums = te.compute(extents, total, f"{name}_sum")
        return te.compute(extents, lambda *group: sums(*group) / count.astype(wide.dtype), name)

    def squared(value: tirx.Expr, group: Sequence[tirx.Expr]) -> tirx.Expr:
        return (value - means(*group)) * (value - means(*group))

    means = mean(lambda value, group: value, "mean")
    variances = mean(squared, "variance")

    def normal(*place: tirx.Var) -> tirx.Expr:
        group = [place[axis] // members if axis == channel else place[axis] for axis in rows]
        factor = tirx.rsqrt(variances(*group) + tirx.const(epsilon, wide.dtype))
        result = ((wide(*place) - means(*group)) * factor).astype(x.dtype)
        return result * gamma(place[channel]) + beta(place[channel])

    return te.compute(x.shape, normal, "group_norm")


def _logical_not(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if str(call.ty.dtype) != "bool":
        return _with_own_sizes(builder, call)
    made = builder.call_te(_negated, call.args[0], primfunc_name_hint="logical_not")
    return _with_own_sizes_of(builder, made, call)


def _not_equal(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if "float" not in str(call.args[0].ty.dtype):
        return _with_own_sizes(builder, call)

    def differs(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return _negated(topi.equal(a, b))

    made = builder.call_te(differs, *call.args, primfunc_name_hint="not_equal")
    return _with_own_sizes_of(builder, made, call)


def _negated(flags: te.Tensor) -> te.Tensor:
    def negated(*index: tirx.Var) -> tirx.Expr:
        return tirx.bitwise_xor(flags(*index), tirx.const(True, "bool"))

    return te.compute(flags.shape, negated, name="logical_not")


def _full(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    fill, dtype = call.args[1], str(call.ty.dtype)
    value = fill.value.numpy().item() if isinstance(fill, GenericConst) else 0
    if math.isfinite(value):
        return _by_tvm(builder, call)
    zeros = builder.normalize(relax.op.full(call.args[0], relax.const(0, dtype), dtype))
    zeros = builder.emit(_by_tvm(builder, zeros))
    return builder.call_te(topi.add, zeros, tirx.const(value, dtype), primfunc_name_hint="full")


def _view(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if static_shape(call) is None or static_shape(call.args[0]) is None:
        places = _places_without_ones(call)
        if places is not None:
            return _with_own_sizes_of(builder, _moved_ones(builder, call, places), call)
        is_reshape = call.op.name == "relax.reshape"
        return call if is_reshape else relax.op.reshape(call.args[0], call.ty.shape)
    return _by_tvm(builder, call)


def _places_without_ones(call: relax.Call) -> list[int | None] | None:
    """By axis of what is reshaped: the axis of the result, or None along one element.

    None where the reshape does more than to add and remove axes of one element.
    """
    types = [call.args[0].ty, call.ty]
    if not all(isinstance(ty.shape, relax.ShapeExpr) for ty in types):
        return None
    old, new = ([(a, s) for a, s in enumerate(ty.shape.values) if not _is_one(s)] for ty in types)
    if len(old) != len(new) or len(types[0].shape.values) == len(types[1].shape.values):
        return None
    pairs = list(zip(old, new, strict=True))
    if not all(Analyzer().can_prove_equal(a[1], b[1]) for a, b in pairs):
        return None
    found: list[int | None] = [None] * types[0].ndim
    for (axis, _), (place, _) in pairs:
        found[axis] = place
    return found


def _is_one(size: tirx.Expr) -> bool:
    return isinstance(size, tirx.IntImm) and int(size) == 1


def _moved_ones(
    builder: relax.BlockBuilder, call: relax.Call, places: Sequence[int | None]
) -> relax.Call:
    """A kernel that reads one element for each of its own, which is fused with others."""
    sizes = call.ty.shape.values
    source = {place: axis for axis, place in enumerate(places) if place is not None}

    def reshape(data: te.Tensor) -> te.Tensor:
        shape = [
            data.shape[source[axis]] if axis in source else sizes[axis]
            for axis in range(len(sizes))
        ]

        def read(*index: tirx.Var) -> tirx.Expr:
            zero = tirx.const(0, "int64")
            return data(*(zero if place is None else index[place] for place in places))

        return te.compute(shape, read, name="reshape")

    return builder.call_te(reshape, call.args[0], primfunc_name_hint="reshape")


def _by_tvm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    legalize: Any = call.op.get_attr("FLegalize")
    return legalize(builder, call)
