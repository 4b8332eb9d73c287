"""Sizes that must agree and cannot be compared before the run.

Two sizes of a model can be equal in every run and still be different expressions: those of two
inputs with different names, or ``((h - 1) // 2 + 1) * 2`` and ``h`` where a feature map is scaled
up and added to a larger one. TVM gives up the shape of a result then, or reads as many elements of
one operand as the other has, beyond its end. Here the run checks that they agree.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import relax, te, tirx
from tvm.sym import Analyzer

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of
from tvm_ext.onnx_frontend.converters.runtime_sizes import computed_dimensions, wide
from tvm_ext.onnx_frontend.sizes.quasi_affine import equal_products, inferred_size
from tvm_ext.onnx_frontend.sizes.scalar_rules import (
    analyzer_of,
    ends_of,
    holds,
    is_positive,
    known_broadcasts,
    known_result,
    note_broadcast,
    note_equal,
    note_result,
    note_some,
    note_times,
    note_unclear,
)
from tvm_ext.onnx_frontend.sizes.size_values import vector
from tvm_ext.relay_passes.expressions import BROADCAST_ATTRIBUTE

# Tensors whose sizes the run checks before anything reads them.


def of_sizes(bb: relax.BlockBuilder, data: relax.Expr, sizes: Sequence[Size]) -> relax.Expr:
    """``data`` with these sizes, which the run checks where they are not known to be its own."""
    if all(equal_sizes(old, new) for old, new in zip(sizes_of(data), sizes, strict=True)):
        return _written_with(bb, data, sizes)
    if not isinstance(data, relax.Var):
        data = bb.emit(data)
    pairs = list(zip(sizes_of(data), sizes, strict=True))
    for pair in pairs:
        note_equal(*pair)
        note_result(*pair)
    if any(isinstance(new, tirx.Var) and not equal_sizes(old, new) for old, new in pairs):
        data = _copied(bb, data, pairs)
        sizes = [
            old if isinstance(new, tirx.Var) else new
            for old, new in zip(sizes_of(data), sizes, strict=True)
        ]
    return bb.match_cast(data, relax.TensorType(list(sizes), str(data.ty.dtype)))


def _written_with(bb: relax.BlockBuilder, data: relax.Expr, sizes: Sequence[Size]) -> relax.Expr:
    """``data`` with these sizes, which are its own, in the form in which TVM compares them.

    TVM knows no shape of a sum of two tensors whose sizes it cannot prove equal.
    """
    if all(Analyzer().can_prove_equal(*pair) for pair in zip(sizes_of(data), sizes, strict=True)):
        return data
    return bb.emit(relax.op.reshape(data, relax.ShapeExpr(list(sizes))))


def _copied(
    bb: relax.BlockBuilder, data: relax.Expr, pairs: Sequence[tuple[Size, Size]]
) -> relax.Expr:
    """``data`` with the second of each pair as size where that is a variable, after a check.

    TVM takes a cast of one variable to another for a renaming, and checks nothing in the run.
    """
    renamed = [
        axis
        for axis, (old, new) in enumerate(pairs)
        if isinstance(new, tirx.Var) and not equal_sizes(old, new)
    ]

    def agreed(old: list[Any], new: list[Any]) -> te.Tensor:
        fits = tirx.all(*(wide(a) == wide(b) for a, b in zip(old, new, strict=True)))
        return vector([tirx.Select(fits, wide(1), wide(0))], name="agreed")

    flag = bb.emit_te(
        agreed,
        [pairs[axis][0] for axis in renamed],
        [pairs[axis][1] for axis in renamed],
        primfunc_name_hint="agreed",
    )
    shape = [new if axis in renamed else old for axis, (old, new) in enumerate(pairs)]
    return _checked_copy(bb, data, shape, flag)


def _checked_copy(
    bb: relax.BlockBuilder, data: relax.Expr, shape: Sequence[Size], flag: relax.Expr
) -> relax.Expr:
    """``data``, of at least one axis, with these sizes; the run fails if ``flag``, int64[1], is 0.

    The check defines a size that the copy reads, so that no pass takes it for unused.
    """
    note_unclear()

    def first_and_flag(flag: te.Tensor, first: Any) -> te.Tensor:
        return vector([wide(first), flag[0]], name="checked")

    first = shape[0] if isinstance(shape[0], int) else wide(shape[0])
    pair = bb.emit_te(first_and_flag, flag, first, primfunc_name_hint="checked")
    pair = bb.match_cast(pair, relax.TensorType([2], "int64"))
    size = tirx.Var("checked", "int64")
    found = bb.emit(relax.op.tensor_to_shape(pair))
    bb.match_cast(found, relax.ShapeType([size, tirx.const(1, "int64")]))

    def kernel(data: te.Tensor, size: tirx.Var, shape: list[Any]) -> te.Tensor:
        def read(first: tirx.Var, *rest: tirx.Var) -> tirx.Expr:
            return data(tirx.min(wide(first), size - 1), *rest)

        return te.compute(shape, read, name="copy")

    return bb.emit_te(kernel, data, size, list(shape), primfunc_name_hint="copy")


def with_as_many_elements(
    bb: relax.BlockBuilder, data: relax.Expr, wanted: Sequence[Size]
) -> relax.Expr:
    """``data`` after the run's check that it has as many elements as ``wanted``.

    Kernels would read beyond its end where the sizes of the inputs make it smaller.
    """
    sizes = sizes_of(data)
    have, need = (functools.reduce(operator.mul, listed, 1) for listed in (sizes, wanted))
    if (isinstance(have, int) and isinstance(need, int)) or equal_sizes(have, need):
        return data
    if not sizes:
        return data
    note_times(inferred_size([have], [need]))
    note_result(have, need)

    def agreed(old: list[Any], new: list[Any]) -> te.Tensor:
        counts = [functools.reduce(operator.mul, map(wide, side), wide(1)) for side in (old, new)]
        return vector([tirx.Select(counts[0] == counts[1], wide(1), wide(0))], name="agreed")

    flag = bb.emit_te(agreed, sizes, wanted, primfunc_name_hint="agreed")
    return _checked_copy(bb, data, sizes, flag)


def equal_sizes(first: Size, second: Size) -> bool:
    """Whether two sizes are known to be the same in every run."""
    if isinstance(first, int) and isinstance(second, int):
        return first == second
    proved = analyzer_of(first, second).can_prove_equal(first, second)
    return bool(proved) or equal_products([first], [second], ends_of)


# Sizes of an operand that follow from the weights it meets.
#
# A model may leave its channels dynamic, or a user may. TVM's operators believe that they fit the
# weights, and read beyond the end of one of them where they do not; here the run checks it.


# The sizes of the first input by axis, from those of the weights, its rank and the attributes.
_Rule = Callable[[list[Size], int, dict], dict[int, Size]]


def _channels_of_groups(weights: list[Size], rank: int, attrs: dict) -> dict[int, Size]:
    return {1: weights[1] * int(attrs.get("group", 1))}


def _first_of_weights(weights: list[Size], rank: int, attrs: dict) -> dict[int, Size]:
    return {1: weights[0]}


def _inner_size(weights: list[Size], rank: int, attrs: dict) -> dict[int, Size]:
    return {0 if attrs.get("transA") else 1: weights[1 if attrs.get("transB") else 0]}


def _normalised_axes(weights: list[Size], rank: int, attrs: dict) -> dict[int, Size]:
    first = max(int(attrs.get("axis", -1)) % rank, rank - len(weights))
    sizes = enumerate(weights[first - rank :], first) if weights else ()
    # Others broadcast.
    return {axis: size for axis, size in sizes if isinstance(size, int) and size != 1}


def _features(weights: list[Size], rank: int, attrs: dict) -> dict[int, Size]:
    return {2: weights[2]}


# For each operator, which input the weights are, and the rule.
_RULES: dict[str, tuple[int, _Rule]] = {
    "BatchNormalization": (1, _first_of_weights),
    "Conv": (1, _channels_of_groups),
    "ConvInteger": (1, _channels_of_groups),
    "ConvTranspose": (1, _first_of_weights),
    "GRU": (1, _features),
    "Gemm": (1, _inner_size),
    "InstanceNormalization": (1, _first_of_weights),
    "LSTM": (1, _features),
    "LayerNormalization": (1, _normalised_axes),
    "QLinearConv": (3, _channels_of_groups),
    "RNN": (1, _features),
}


def has_weights(key: str) -> bool:
    """Whether sizes of the operator's first input follow from its weights."""
    return key in _RULES


def with_weighted_sizes(bb: relax.BlockBuilder, key: str, inputs: Any, attrs: dict) -> Any:
    """The inputs, of the first the sizes that the weights ask for, checked in the run."""
    given = list(inputs)
    position, rule = _RULES[key]
    data, weights = given[0], given[position] if len(given) > position else None
    if not (_has_sizes(data) and _has_sizes(weights)):
        return inputs
    weights = given[position] = _with_whole_groups(bb, weights, int(attrs.get("group", 1)))
    sizes = sizes_of(data)
    wanted = {
        axis: size
        for axis, size in rule(sizes_of(weights), len(sizes), attrs).items()
        if axis < len(sizes) and not (isinstance(size, int) and isinstance(sizes[axis], int))
    }
    if wanted:
        given[0] = of_sizes(bb, data, [wanted.get(axis, size) for axis, size in enumerate(sizes)])
    return type(inputs)(given)


def _with_whole_groups(bb: relax.BlockBuilder, weights: relax.Expr, groups: int) -> relax.Expr:
    """Weights whose first size is symbolic, after the run's check that the groups divide it.

    Kernels divide by what a group has, which may be nothing otherwise.
    """
    sizes = sizes_of(weights)
    if groups == 1 or isinstance(sizes[0], int):
        return weights
    (each,) = computed_dimensions(
        bb, ["group"], lambda size: [tirx.floordiv(wide(size), wide(groups))], sizes[0]
    )
    return of_sizes(bb, weights, [each * groups, *sizes[1:]])


def _has_sizes(value: Any) -> bool:
    ty = getattr(value, "ty", None)
    return isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)


BROADCASTING = frozenset(
    {
        *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul"),
        *("Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor"),
    }
)

# Which inputs a matmul multiplies; others are scales and zero points.
_FACTORS = {"MatMul": (0, 1), "MatMulInteger": (0, 1), "QLinearMatMul": (0, 3)}


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
        inputs = with_weighted_sizes(bb, key, inputs, attrs)
        return _with_addend(bb, inputs, attrs) if key == "Gemm" else inputs
    combine: Callable[[list[relax.Expr]], list[relax.Expr]]
    places: Sequence[int] = range(len(inputs))
    if key in BROADCASTING:
        combine = lambda tensors: broadcast_alike(bb, tensors)  # noqa: E731
    elif key == "Concat":
        combine = lambda tensors: _alike_beside(bb, tensors, attrs.get("axis", 0))  # noqa: E731
    elif key == "Einsum":
        combine = lambda tensors: _labelled_alike(bb, tensors, attrs["equation"])  # noqa: E731
    elif key in _FACTORS:
        combine, places = (lambda tensors: _factors(bb, tensors)), _FACTORS[key]
    else:
        return inputs
    given = list(inputs)
    places = [place for place in places if place < len(given) and _is_tensor(given[place])]
    if not any(_is_symbolic(given[place]) for place in places):
        return inputs
    changed = combine([given[place] for place in places])
    for place, tensor in zip(places, changed, strict=True):
        given[place] = tensor
    return type(inputs)(given)


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

    The run fails when sizes neither agree nor are 1. Where one is never less than the others, the
    result has it: so it is beside rows of a table, ``table[first:first + length]``, which has no
    row for a position beyond its end.
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
    note_unclear()
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
    known, key = known_broadcasts(), tuple((axis, *map(_key, columns[axis])) for axis in unclear)
    if key not in known:
        sizes = bb.emit_te(kernel, flat, primfunc_name_hint="broadcast_sizes")
        sizes = bb.match_cast(sizes, relax.TensorType([2 * len(unclear)], "int64"))
        new = [_largest(columns[axis], tirx.Var(f"broadcast_{axis}", "int64")) for axis in unclear]
        shape = bb.emit(relax.op.tensor_to_shape(sizes))
        bb.match_cast(shape, relax.ShapeType([*new, *[tirx.const(1, "int64")] * len(new)]))
        known[key] = new
        for axis, size in zip(unclear, new, strict=True):
            if not any(size is one for one in columns[axis]):
                note_broadcast(size, columns[axis])
    for axis, size in zip(unclear, known[key], strict=True):
        common[axis] = size
    return common


def _largest(column: Sequence[Size], new: tirx.Var) -> tirx.Expr:
    """The size of a column that all its sizes broadcast to in any run; else ``new``."""
    known = known_result(column)
    if known is not None:
        return known
    variables = (size for size in column if isinstance(size, tirx.Var))
    return next((v for v in variables if all(_is_at_most(size, v) for size in column)), new)


def _is_at_most(size: Size, most: tirx.Var) -> bool:
    if size is most:
        return True
    if not isinstance(size, int):
        analyzer = analyzer_of(size, most)
        with analyzer.constraint_scope(most >= 1):
            # Beside 1, a size of 0 makes the result empty.
            if analyzer.can_prove(size <= most) and analyzer.can_prove(size >= 1):
                return True
    # Both ends of a slice stop at the table's.
    if not isinstance(size, tirx.Sub):
        return False
    ends = (size.a, size.b)
    if not all(isinstance(end, tirx.Min) and isinstance(end.b, tirx.IntImm) for end in ends):
        return False
    (end, limit), (begin, same_limit) = ((end.a, end.b) for end in ends)
    return int(limit) == int(same_limit) and equal_sizes(end - begin, most)


def _key(size: Size) -> Any:
    return size if isinstance(size, int) else tvm_ffi.StructuralKey(size)


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
    # A cast behind the kernel checks what no kernel of sizes compared.
    made = [
        size if isinstance(size, int | tirx.Var) or a not in unclear else _stretched(head[a], size)
        for a, size in enumerate(sizes)
    ]

    def kernel(data: te.Tensor, shape: list[Any]) -> te.Tensor:
        def read(*index: tirx.Var) -> tirx.Expr:
            places = list(index)
            for axis in unclear:
                zero = tirx.const(0, places[axis].ty.dtype)
                places[axis] = tirx.Select(data.shape[axis] == 1, zero, places[axis])
            return data(*places)

        return te.compute(shape, read, name="broadcast")

    result = bb.emit_te(
        kernel,
        casted,
        [*made, *tail],
        primfunc_name_hint="broadcast",
        primfunc_attrs={BROADCAST_ATTRIBUTE: 1},
    )
    if all(old is new for old, new in zip(made, sizes, strict=True)):
        return result
    return bb.match_cast(result, relax.TensorType([*sizes, *tail], str(data.ty.dtype)))


def _stretched(size: tirx.Expr, wanted: tirx.Expr) -> tirx.Expr:
    """``wanted`` where ``size`` is 1, else ``size``, in the operators that a shape may contain."""
    is_one = tirx.max(tirx.min(size, 2 - size), wide(0))
    return size + (wanted - size) * is_one


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
    for first, second in itertools.combinations(column, 2):
        # The smaller of a size and a number is 1 where that size is, so neither broadcasts.
        if not any(isinstance(side, int) for side in (first, second)):
            note_equal(first, second)
    # All others must then be equal to this one, which a cast checks.
    if all(_is_never_one(size) for size in column):
        return column[0]
    return next((size for size in column if _is_whole(size, column)), None)


def _is_whole(size: Size, column: Sequence[Size]) -> bool:
    """Whether it is the result's size in each run without an error: all others are 1 where it is.

    So it is where a mask is cut to a length, ``min(length, given)``, that a mask of one fits too.
    A variable is left to the run: it cannot be the size of a cast, see ``_copied``.
    """
    if isinstance(size, int | tirx.Var):
        return False
    return all(other is size or _is_one_with(size, other) for other in column)


def _is_one_with(size: Size, other: Size) -> bool:
    """Whether ``other`` is 1 in each run in which ``size`` is: a factor of it, or one cut off."""
    if equal_sizes(size, other) or inferred_size([size], [other]) is not None:
        return True
    if not isinstance(other, tirx.Min):
        return False
    for own, given in ((other.a, other.b), (other.b, other.a)):
        if _is_one_with(size, own):
            note_some(given)
            return is_positive(given)
    return False


def _with_addend(bb: relax.BlockBuilder, inputs: Any, attrs: dict) -> Any:
    """The inputs of a Gemm, whose third one does not make the product any larger."""
    given = list(inputs)
    if len(given) < 3 or not all(_has_sizes(value) for value in given[:3]):
        return inputs
    rows = sizes_of(given[0])[1 if attrs.get("transA") else 0]
    columns = sizes_of(given[1])[0 if attrs.get("transB") else 1]
    given[2] = broadcast_to(bb, given[2], [rows, columns])
    return type(inputs)(given)


def broadcast_to(bb: relax.BlockBuilder, data: relax.Expr, wanted: Sequence[Size]) -> relax.Expr:
    """``data`` with each size 1 or the ``wanted`` one, which the run checks.

    Raises
    ------
    FormError
        It has more axes, or known sizes that differ.
    """
    sizes = sizes_of(data)
    if len(sizes) > len(wanted):
        raise FormError(f"an input has {len(sizes)} axes, expected {len(wanted)} at most")
    wanted = list(wanted)[len(wanted) - len(sizes) :]
    pairs = [
        pair
        for pair in zip(sizes, wanted, strict=True)
        if not any(equal_sizes(pair[0], n) for n in (1, pair[1]))
    ]
    if not pairs:
        return data
    for old, new in pairs:
        if isinstance(old, int) and isinstance(new, int):
            raise FormError(f"an input has size {old} beside {new}, expected an equal one or 1")

    def agreed(old: list[Any], new: list[Any]) -> te.Tensor:
        fits = [tirx.any(wide(a) == 1, wide(a) == wide(b)) for a, b in zip(old, new, strict=True)]
        return vector([tirx.Select(tirx.all(*fits), wide(1), wide(0))], name="agreed")

    flag = bb.emit_te(
        agreed, *(list(side) for side in zip(*pairs, strict=True)), primfunc_name_hint="agreed"
    )
    return _broadcast(bb, _checked_copy(bb, data, sizes, flag), sizes, wanted, [])


def _labelled_alike(
    bb: relax.BlockBuilder, tensors: Sequence[relax.Expr], equation: bytes
) -> list[relax.Expr]:
    """The operands of an Einsum, along each label 1 or of the size that they broadcast to."""
    terms = equation.decode().replace(" ", "").split("->")[0].split(",")
    if len(terms) != len(tensors):
        raise FormError(f"it has {len(tensors)} inputs and an equation of {len(terms)}")
    labels = [_labels(term, len(sizes_of(t))) for term, t in zip(terms, tensors, strict=True)]
    operands, found = [], []
    for tensor, own in zip(tensors, labels, strict=True):
        # Along a diagonal nothing broadcasts.
        extents: dict[str | int, Size] = {}
        for label, size in sorted(
            zip(own, sizes_of(tensor), strict=True), key=lambda pair: _complexity(pair[1])
        ):
            extents.setdefault(label, size)
        operands.append(of_sizes(bb, tensor, [extents[label] for label in own]))
        found.append(extents)
    every = list(dict.fromkeys(itertools.chain(*labels)))
    sizes = broadcast_sizes(bb, [[extents.get(label, 1) for label in every] for extents in found])
    common = dict(zip(every, sizes, strict=True))
    return [
        _broadcast(bb, tensor, sizes_of(tensor), [common[label] for label in own], [])
        for tensor, own in zip(operands, labels, strict=True)
    ]


def _labels(term: str, rank: int) -> list[str | int]:
    """The label of each axis of an operand; of those of an ellipsis, its place from the last."""
    head, dots, tail = term.partition("...")
    several = rank - len(head) - len(tail)
    if several < 0 or (several and not dots):
        raise FormError(f"its input of {rank} axes has the labels '{term}', expected one for each")
    return [*head, *range(-several, 0), *tail]


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
    """The factors of a matmul: what is summed over agrees, the stack broadcasts."""
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


def _is_symbolic(value: relax.Expr) -> bool:
    return any(not isinstance(size, int) for size in sizes_of(value))


def _is_never_one(size: Size) -> bool:
    if isinstance(size, int):
        return size != 1
    return holds(size != 1)
