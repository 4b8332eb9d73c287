"""Sizes that must agree and cannot be compared before the run.

Two sizes of a model can be equal in every run and still be different expressions: those of two
inputs with different names, or ``((h - 1) // 2 + 1) * 2`` and ``h`` where a feature map is scaled
up and added to a larger one. TVM gives up the shape of a result then, or reads as many elements of
one operand as the other has, beyond its end. Here the run checks that they agree.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx
from tvm.sym import Analyzer

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of
from tvm_ext.onnx_frontend.converters.checked_sizes import equal_sizes, of_sizes
from tvm_ext.onnx_frontend.converters.runtime_sizes import wide
from tvm_ext.onnx_frontend.converters.weighted_sizes import has_weights, with_weighted_sizes
from tvm_ext.onnx_frontend.sizes.size_values import vector

BROADCASTING = frozenset(
    {
        *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul"),
        *("Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor"),
    }
)


def with_agreeing_sizes(bb: relax.BlockBuilder, key: str, inputs: Any, attrs: dict) -> Any:
    """The inputs of an operator whose sizes TVM's operators can take for equal.

    Parameters
    ----------
    key : str
        The operator's name; inputs of operators that combine no tensors stay as they are.
    inputs : sequence
        Tensors; shapes, single sizes and missing inputs pass through.

    Raises
    ------
    FormError
        Two known sizes differ.
    """
    if has_weights(key):
        return with_weighted_sizes(bb, key, inputs, attrs)
    combine: Callable[[list[relax.Expr]], list[relax.Expr]]
    if key in BROADCASTING:
        combine = lambda tensors: broadcast_alike(bb, tensors)  # noqa: E731
    elif key == "Concat":
        combine = lambda tensors: _alike_beside(bb, tensors, attrs.get("axis", 0))  # noqa: E731
    elif key == "MatMul":
        combine = lambda tensors: _factors(bb, tensors)  # noqa: E731
    else:
        return inputs
    tensors = [value for value in inputs if _is_tensor(value)]
    if len(tensors) < 2 or not any(_is_open(value) for value in tensors):
        return inputs
    changed = iter(combine(tensors))
    return type(inputs)([next(changed) if _is_tensor(value) else value for value in inputs])


def broadcast_alike(
    bb: relax.BlockBuilder, tensors: Sequence[relax.Expr], kept: int = 0
) -> list[relax.Expr]:
    """The tensors with sizes of which TVM can tell how they broadcast.

    The last ``kept`` axes are no part of it.
    """
    listed = [sizes_of(tensor) for tensor in tensors]
    heads = [sizes[: len(sizes) - kept] for sizes in listed]
    common = broadcast_sizes(bb, heads)
    return [
        _broadcast(bb, tensor, head, common, sizes[len(head) :])
        for tensor, head, sizes in zip(tensors, heads, listed, strict=True)
    ]


def broadcast_sizes(bb: relax.BlockBuilder, shapes: Sequence[Sequence[Size]]) -> list[Size]:
    """What the shapes broadcast to; sizes that only the run can tell are new dimensions.

    The run fails when sizes neither agree nor are 1.
    """
    rank = max(len(shape) for shape in shapes)
    columns = [
        _distinct([shape[axis - rank] for shape in shapes if len(shape) >= rank - axis])
        for axis in range(rank)
    ]
    common = [_common(column) for column in columns]
    unclear = [axis for axis in range(rank) if common[axis] is None]
    if not unclear:
        return common
    counts = [len(columns[axis]) for axis in unclear]

    def kernel(sizes: list[Any]) -> te.Tensor:
        """The result's sizes, and a 1 for each that all operands agree on."""
        given = iter(sizes)
        found, agreed = [], []
        for count in counts:
            column = [wide(next(given)) for _ in range(count)]
            result = column[0]
            for size in column[1:]:
                result = tirx.Select(result == 1, size, result)
            fits = tirx.all(*(tirx.any(size == 1, size == result) for size in column))
            found.append(result)
            agreed.append(tirx.Select(fits, wide(1), wide(0)))
        return vector([*found, *agreed], name="broadcast")

    flat = [size for axis in unclear for size in columns[axis]]
    sizes = bb.emit_te(kernel, flat, primfunc_name_hint="broadcast_sizes")
    sizes = bb.match_cast(sizes, relax.TensorType([2 * len(unclear)], "int64"))
    new = [tirx.Var(f"broadcast_{axis}", "int64") for axis in unclear]
    shape = bb.emit(relax.op.tensor_to_shape(sizes))
    bb.match_cast(shape, relax.ShapeType([*new, *[tirx.const(1, "int64")] * len(new)]))
    for axis, size in zip(unclear, new, strict=True):
        common[axis] = size
    return common


def _broadcast(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    head: Sequence[Size],
    common: Sequence[Size],
    tail: Sequence[Size],
) -> relax.Expr:
    """``data`` with each size of ``head`` 1 or the ``common`` one, as far as can be known."""
    wanted = list(common[len(common) - len(head) :])
    sizes = [1 if equal_sizes(old, 1) else new for old, new in zip(head, wanted, strict=True)]
    unclear = [
        axis
        for axis, (old, new) in enumerate(zip(head, sizes, strict=True))
        if not equal_sizes(old, new) and not _is_never_one(old)
    ]
    if not unclear:
        return of_sizes(bb, data, [*sizes, *tail])
    casted = of_sizes(
        bb, data, [*(head[a] if a in unclear else s for a, s in enumerate(sizes)), *tail]
    )

    def kernel(data: te.Tensor, shape: list[Any]) -> te.Tensor:
        def read(*index: tirx.Var) -> tirx.Expr:
            places = list(index)
            for axis in unclear:
                zero = tirx.const(0, places[axis].ty.dtype)
                places[axis] = tirx.Select(data.shape[axis] == 1, zero, places[axis])
            return data(*places)

        return te.compute(shape, read, name="broadcast")

    return bb.emit_te(kernel, casted, [*sizes, *tail], primfunc_name_hint="broadcast")


def _distinct(sizes: Sequence[Size]) -> list[Size]:
    """Sizes other than 1, those that are known to be equal once, the simplest first."""
    found: list[Size] = []
    for size in sorted(sizes, key=_complexity):
        if not any(equal_sizes(size, other) for other in (1, *found)):
            found.append(size)
    return found


def _common(column: list[Size]) -> Any:
    """The size of the result along an axis with these sizes; None when only the run can tell."""
    known = [size for size in column if isinstance(size, int)]
    if len(known) > 1:
        raise FormError(f"it combines sizes {known[0]} and {known[1]}, expected equal ones or 1")
    if len(column) < 2:
        return column[0] if column else 1
    # All others must then be equal to this one, which a cast checks.
    return column[0] if all(_is_never_one(size) for size in column) else None


def _alike_beside(
    bb: relax.BlockBuilder, tensors: Sequence[relax.Expr], axis: int
) -> list[relax.Expr]:
    """The tensors with equal sizes on every axis but one."""
    listed = [sizes_of(tensor) for tensor in tensors]
    axis %= len(listed[0])
    wanted = [min(column, key=_complexity) for column in zip(*listed, strict=True)]
    return [
        of_sizes(bb, tensor, [*wanted[:axis], sizes[axis], *wanted[axis + 1 :]])
        for tensor, sizes in zip(tensors, listed, strict=True)
    ]


def _factors(bb: relax.BlockBuilder, tensors: Sequence[relax.Expr]) -> list[relax.Expr]:
    """The factors of a product of matrices: what is summed over agrees, the stack broadcasts."""
    a, b = tensors
    sizes = sizes_of(b)
    place = max(len(sizes) - 2, 0)
    inner = min(sizes_of(a)[-1], sizes[place], key=_complexity)
    a = of_sizes(bb, a, [*sizes_of(a)[:-1], inner])
    b = of_sizes(bb, b, [*sizes[:place], inner, *sizes[place + 1 :]])
    if len(sizes) < 3 or len(sizes_of(a)) < 3:
        return [a, b]
    return broadcast_alike(bb, [a, b], kept=2)


def _complexity(size: Size) -> tuple[bool, bool, int]:
    """Known sizes first, then short expressions: they are in all sizes that follow.

    Single variables come last: a cast to them costs a copy, see ``_copied``.
    """
    return (not isinstance(size, int), isinstance(size, tirx.Var), len(str(size)))


def _is_tensor(value: Any) -> bool:
    return (
        isinstance(value, relax.Expr)
        and isinstance(value.ty, relax.TensorType)
        and isinstance(value.ty.shape, relax.ShapeExpr)
    )


def _is_open(value: relax.Expr) -> bool:
    return any(not isinstance(size, int) for size in sizes_of(value))


def _is_never_one(size: Size) -> bool:
    if isinstance(size, int):
        return size != 1
    return bool(Analyzer().can_prove(size != 1))
