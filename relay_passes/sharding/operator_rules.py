"""What a split operand means for each operator: the ways to compute it slice by slice."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

from tvm import relax, tirx
from tvm.ir import GenericConst

from tvm_ext.relay_passes.axis_factors import RESHAPES, AxisFactors, Factor
from tvm_ext.relay_passes.expressions import convolution_like, operator_name
from tvm_ext.relay_passes.layout_roles import BROADCASTING, CONVOLUTIONS, permutation_of
from tvm_ext.relay_passes.sharding.sharding import (
    PARTIAL_SUM,
    REPLICATED,
    Placement,
    Sharding,
    is_divisible,
    local_shape,
    shape_of,
    split,
)
from tvm_ext.relay_passes.sink_reshapes import UNARY

_ELEMENTWISE = (
    UNARY
    | BROADCASTING
    | {
        *(f"relax.{name}" for name in ("where", "isnan", "isinf", "isfinite", "sign", "tan")),
        *(f"relax.{name}" for name in ("logical_and", "logical_or", "logical_xor", "logical_not")),
        *(f"relax.{name}" for name in ("not_equal", "greater", "greater_equal", "less")),
        *(f"relax.{name}" for name in ("less_equal", "bitwise_and", "bitwise_or", "bitwise_not")),
        *(f"relax.{name}" for name in ("log", "log2", "log10", "log1p", "exp", "erf", "sinh")),
        *(f"relax.{name}" for name in ("cosh", "asin", "acos", "atan", "nn.gelu", "nn.selu")),
    }
)

# Operators that work along the axes that their attribute ``axis`` or ``axes`` names, and on each
# slice along the others by itself.
_ALONG_AXES = frozenset(
    f"relax.{name}"
    for name in (
        *("nn.softmax", "nn.log_softmax", "nn.layer_norm", "nn.rms_norm", "cumsum", "cumprod"),
        *("concat", "split", "argmax", "argmin", "flip", "repeat", "sort", "argsort", "topk"),
    )
)
# Reductions, and how the results of slices are put together.
_REDUCTIONS = {"relax.sum": "sum", "relax.max": "max", "relax.min": "min"}
_OTHER_REDUCTIONS = frozenset({"relax.mean", "relax.variance", "relax.std", "relax.prod"})

# Operators on feature maps, which treat each channel of each image by itself.
_ON_FEATURE_MAPS = frozenset(
    f"relax.{name}"
    for name in (
        *(f"nn.{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)),
        *(f"nn.adaptive_avg_pool{n}d" for n in (1, 2, 3)),
        *("image.resize2d", "image.resize3d"),
    )
)

Placements: TypeAlias = Iterator[Placement]


@dataclass(frozen=True)
class Operation:
    """A call of an operator, with all tensors that it takes and gives.

    Attributes
    ----------
    call : relax.Call
        The call on whole tensors.
    operands : list of relax.Expr
        The tensors among its arguments, those of a tuple one by one.
    devices : int
        How many there are.
    """

    call: relax.Call
    operands: list[relax.Expr]
    devices: int

    @classmethod
    def of(cls, call: relax.Call, devices: int) -> "Operation":
        """The operation that ``call`` is."""
        found: list[relax.Expr] = []
        for argument in call.args[:]:
            found += argument.fields[:] if isinstance(argument, relax.Tuple) else [argument]
        return cls(call, [one for one in found if is_tensor(one)], devices)

    @property
    def name(self) -> str:
        """The operator's name."""
        return operator_name(self.call)

    @cached_property
    def result_shapes(self) -> list[list[Any] | None]:
        """The extents of each result."""
        fields = getattr(self.call.ty, "fields", None)
        types = [self.call.ty] if fields is None else list(fields)
        shapes = [getattr(ty, "shape", None) for ty in types]
        return [list(s.values[:]) if isinstance(s, relax.ShapeExpr) else None for s in shapes]

    @cached_property
    def shapes(self) -> list[list[Any]]:
        """The extents of each operand; empty where they are not known."""
        return [shape_of(operand) or [] for operand in self.operands]

    @cached_property
    def weight(self) -> int | None:
        """Which operand is a matrix or a filter of constants that the operator multiplies with."""
        if self.name != "relax.matmul" and self.name not in CONVOLUTIONS:
            return None
        return 1 if isinstance(self.operands[1], GenericConst) and len(self.shapes[1]) > 1 else None

    def splits(self, extent: Any) -> bool:
        """Whether an axis of this extent can be split."""
        return is_divisible(extent, self.devices)

    def with_axis(self, axis: int) -> list[int]:
        """By operand, its own number of an axis of the result; -1 where it broadcasts along it."""
        result = self.result_shapes[0] or []
        places = [axis - len(result) + len(shape) for shape in self.shapes]
        return [
            place if place >= 0 and not _is_one(shape[place]) else -1
            for place, shape in zip(places, self.shapes, strict=True)
        ]

    def local(self, arguments: Sequence[relax.Expr], placement: Placement) -> relax.Call:
        """The call on what one device holds; ``arguments`` stand for the operands."""
        given = iter(arguments)
        args = [_replaced(argument, given) for argument in self.call.args[:]]
        if self.name == "relax.broadcast_to" or self.name in RESHAPES:
            shape = local_shape(self.result_shapes[0] or [], placement.results[0], self.devices)
            make = relax.op.broadcast_to if self.name.endswith("_to") else relax.op.reshape
            return make(args[0], relax.ShapeExpr(shape))
        if self.name in CONVOLUTIONS and placement == _by_groups():
            groups = int(self.call.attrs.groups) // self.devices
            return convolution_like(self.call, args[0], args[1], groups=groups)
        call = relax.Call(self.call.op, args, self.call.attrs, self.call.ty_args)
        if self.name == "relax.mean" and placement.results[0] == PARTIAL_SUM:
            # Not a sum divided by all elements: half precision may not hold either of them.
            return relax.op.divide(call, relax.const(self.devices, str(self.call.ty.dtype)))
        return call


def is_tensor(expr: relax.Expr) -> bool:
    """Whether it is one tensor."""
    return isinstance(expr.ty, relax.TensorType)


def _replaced(argument: relax.Expr, given: Iterator[relax.Expr]) -> relax.Expr:
    if isinstance(argument, relax.Tuple):
        return relax.Tuple([_replaced(field, given) for field in argument.fields[:]])
    return next(given) if is_tensor(argument) else argument


def placements(operation: Operation, blocks: Iterable[int] = ()) -> list[Placement]:
    """All ways to compute the operator from slices, or from parts of a reduction.

    Empty for an operator that is computed from whole tensors alone. Of axes in blocks are those
    ways that keep as many ``blocks``, and those that a reshape makes.
    """
    rule = _RULES.get(operation.name)
    shapes = [*map(shape_of, operation.operands), *operation.result_shapes]
    if rule is None or any(shape is None for shape in shapes):
        return []
    found = list(rule(operation))
    if operation.name in RESHAPES or operation.name in CONVOLUTIONS:
        return found
    made = (_in_blocks(operation, one, count) for count in blocks for one in found)
    return found + [one for one in made if one is not None]


def _in_blocks(operation: Operation, placement: Placement, blocks: int) -> Placement | None:
    """The placement for axes in blocks.

    What treats each place along an axis by itself, or adds them up, does so in any order of them.
    """
    every = [*placement.operands, *placement.results]
    shapes = [*operation.shapes, *(shape or [] for shape in operation.result_shapes)]
    for sharding, shape in zip(every, shapes, strict=True):
        if sharding.axis is not None and int(shape[sharding.axis]) % (blocks * operation.devices):
            return None
    operands, results = (
        tuple(one if one.axis is None else replace(one, blocks=blocks) for one in shardings)
        for shardings in (placement.operands, placement.results)
    )
    return Placement(operands, results)


def _is_number(shape: Sequence[Any]) -> bool:
    return all(map(_is_one, shape))


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def _sharding(axis: int) -> Sharding:
    return REPLICATED if axis < 0 else split(axis)


def _elementwise(operation: Operation) -> Placements:
    for axis, extent in enumerate(operation.result_shapes[0] or []):
        if operation.splits(extent):
            own = operation.with_axis(axis)
            yield Placement(tuple(map(_sharding, own)), (split(axis),))
    sums = (PARTIAL_SUM,)
    if operation.name in ("relax.add", "relax.subtract"):
        same = all(len(shape) == len(operation.shapes[0]) for shape in operation.shapes)
        if same and not any(-1 in operation.with_axis(axis) for axis in _axes(operation)):
            yield Placement(sums * 2, sums)
    elif operation.name == "relax.negative":
        yield Placement(sums, sums)
    elif _is_linear(operation) and _is_number(operation.shapes[1]):
        yield Placement((PARTIAL_SUM, REPLICATED), sums)


def _is_linear(operation: Operation) -> bool:
    """Whether a sum of results is the result of a sum, which a division of integers rounds."""
    is_float = "float" in str(operation.call.ty.dtype)
    return operation.name == "relax.multiply" or (operation.name == "relax.divide" and is_float)


def _axes(operation: Operation) -> range:
    return range(len(operation.result_shapes[0] or []))


def _matmul(operation: Operation) -> Placements:
    left, right = operation.shapes
    rank = len(operation.result_shapes[0] or [])
    if min(len(left), len(right)) < 2:
        return
    for axis in range(rank - 2):
        if operation.splits((operation.result_shapes[0] or [])[axis]):
            own = operation.with_axis(axis)
            yield Placement(tuple(map(_sharding, own)), (split(axis),))
    if operation.splits(left[-2]):
        yield Placement((split(len(left) - 2), REPLICATED), (split(rank - 2),))
    if operation.splits(right[-1]):
        yield Placement((REPLICATED, split(len(right) - 1)), (split(rank - 1),))
    if operation.splits(left[-1]):
        yield Placement((split(len(left) - 1), split(len(right) - 2)), (PARTIAL_SUM,))


def _by_groups() -> Placement:
    return Placement((split(1), split(0)), (split(1),))


def _convolution(operation: Operation) -> Placements:
    attrs = operation.call.attrs
    is_usual = str(attrs.data_layout).startswith("NC") and str(attrs.kernel_layout)[:2] == "OI"
    if not is_usual:
        return
    data, weight = operation.shapes
    groups = int(attrs.groups)
    if operation.splits(data[0]):
        yield Placement((split(0), REPLICATED), (split(0),))
    if groups == 1 and operation.splits(weight[0]):
        yield Placement((REPLICATED, split(0)), (split(1),))
    if groups == 1 and operation.splits(data[1]):
        yield Placement((split(1), split(1)), (PARTIAL_SUM,))
    if groups > 1 and groups % operation.devices == 0:
        yield _by_groups()


def _permute_dims(operation: Operation) -> Placements:
    for axis, source in enumerate(permutation_of(operation.call)):
        if operation.splits(operation.shapes[0][source]):
            yield Placement((split(source),), (split(axis),))
    yield Placement((PARTIAL_SUM,), (PARTIAL_SUM,))


def _reshape(operation: Operation) -> Placements:
    (shape,) = operation.shapes
    result = operation.result_shapes[0] or []
    view = AxisFactors(shape)
    axes = view.reshaped(view.source, result)
    for axis, factors in enumerate(axes or ()):
        source = _slowest_axis(factors)
        if source is not None and operation.splits(result[axis]):
            # Slices of both are the same only where the slowest part itself is cut.
            leading = factors[0].extent
            if not leading.symbols and leading.number % operation.devices == 0:
                yield Placement((split(source),), (split(axis),))
    if all(isinstance(extent, tirx.IntImm) for extent in (*shape, *result)):
        known = [int(extent) for extent in shape], [int(extent) for extent in result]
        for one, other in _blocks_of_slices(*known, operation.devices):
            yield Placement((one,), (other,))
        for one, other in _blocks_of_slices(*known[::-1], operation.devices):
            yield Placement((other,), (one,))
    yield Placement((PARTIAL_SUM,), (PARTIAL_SUM,))


def _blocks_of_slices(
    before: list[int], behind: list[int], devices: int
) -> Iterator[tuple[Sharding, Sharding]]:
    """Splits of a tensor, and those in blocks which are the same of its elements reshaped."""
    for axis, extent in enumerate(before):
        if extent == 0 or extent % devices:
            continue
        ahead = prod(before[:axis])
        for other, size in enumerate(behind):
            blocks, rest = divmod(ahead, prod(behind[:other]) or 1)
            if rest == 0 and blocks > 1 and size % (blocks * devices) == 0:
                yield split(axis), Sharding(other, blocks=blocks)


def _slowest_axis(factors: Sequence[Factor]) -> int | None:
    """The axis of the source whose slices are slices along this axis of the result."""
    if not factors:
        return None
    source, *parts = factors[0].place
    return source if not any(parts) else None


def _normalized(axis: Any, rank: int) -> int:
    return int(axis) % rank if rank else 0


def _axes_of(operation: Operation) -> set[int]:
    """The axes that an operator names in its attributes; all for none."""
    attrs, rank = operation.call.attrs, len(operation.shapes[0])
    named = getattr(attrs, "axis", None) if hasattr(attrs, "axis") else getattr(attrs, "axes", None)
    if named is None:
        return set(range(rank))
    axes = [named] if not hasattr(named, "__len__") else list(named)
    return {_normalized(axis, rank) for axis in axes}


def _along_axes(operation: Operation) -> Placements:
    axes, rank = _axes_of(operation), len(operation.shapes[0])
    results = len(operation.result_shapes)
    for axis in set(range(rank)) - axes:
        if not operation.splits(operation.shapes[0][axis]):
            continue
        # What normalises has factors along its own axes alone.
        own = [split(axis) if len(shape) == rank else REPLICATED for shape in operation.shapes]
        yield Placement(tuple(own), (split(axis),) * results)
    if operation.name in ("relax.concat", "relax.split"):
        yield Placement((PARTIAL_SUM,) * len(operation.shapes), (PARTIAL_SUM,) * results)


def _reduction(operation: Operation) -> Placements:
    axes, shape = _axes_of(operation), operation.shapes[0]
    keeps = bool(getattr(operation.call.attrs, "keepdims", False))
    for axis, extent in enumerate(shape):
        if not operation.splits(extent):
            continue
        if axis in axes:
            kind = _REDUCTIONS.get(operation.name)
            if operation.name == "relax.mean" and "float" in str(operation.call.ty.dtype):
                kind = "sum"
            if kind is not None:
                yield Placement((split(axis),), (Sharding(reduction=kind),))
            continue
        before = 0 if keeps else sum(one < axis for one in axes)
        yield Placement((split(axis),), (split(axis - before),))


def _strided_slice(operation: Operation) -> Placements:
    rank = len(operation.shapes[0])
    axes = {_normalized(axis.value, rank) for axis in operation.call.args[1].fields[:]}
    yield from _keeping(operation, set(range(rank)) - axes)
    yield Placement((PARTIAL_SUM,), (PARTIAL_SUM,))


def _pad(operation: Operation) -> Placements:
    widths = [int(n) for n in operation.call.attrs.pad_width]
    pairs = list(zip(widths[::2], widths[1::2], strict=True))
    yield from _keeping(operation, {axis for axis, pair in enumerate(pairs) if not any(pair)})


def _feature_map(operation: Operation) -> Placements:
    if str(operation.call.attrs.layout).startswith("NC"):
        yield from _keeping(operation, {0, 1})


def _keeping(operation: Operation, axes: set[int]) -> Placements:
    """The axes that an operator of one tensor leaves as they are."""
    for axis in axes:
        if operation.splits(operation.shapes[0][axis]):
            yield Placement((split(axis),), (split(axis),))


def _broadcast_to(operation: Operation) -> Placements:
    for axis, extent in enumerate(operation.result_shapes[0] or []):
        (own,) = operation.with_axis(axis)
        if operation.splits(extent):
            yield Placement((_sharding(own),), (split(axis),))


def _batch_norm(operation: Operation) -> Placements:
    """By known statistics each element is normalised by itself, with the numbers of its channel."""
    attrs, shape = operation.call.attrs, operation.shapes[0]
    if bool(attrs.training):
        return
    for axis, extent in enumerate(shape):
        if operation.splits(extent):
            own = split(0) if axis == _normalized(attrs.axis, len(shape)) else REPLICATED
            yield Placement((split(axis), *[own] * 4), (split(axis), own, own))


def _take(operation: Operation) -> Placements:
    if operation.call.attrs.axis is None or len(operation.shapes) != 2:
        return
    data, indices = operation.shapes
    axis = _normalized(operation.call.attrs.axis, len(data))
    for own, extent in enumerate(indices):
        if operation.splits(extent):
            yield Placement((REPLICATED, split(own)), (split(axis + own),))
    for own, extent in enumerate(data):
        if own != axis and operation.splits(extent):
            place = own if own < axis else own + len(indices) - 1
            yield Placement((split(own), REPLICATED), (split(place),))


def _attention(operation: Operation) -> Placements:
    """Of (batch, length, heads, depth): item by item and head by head."""
    for axis in (0, 2):
        if all(len(s) == 4 and operation.splits(s[axis]) for s in operation.shapes[:3]):
            own = [split(axis)] * 3 + [REPLICATED] * (len(operation.operands) - 3)
            if len(own) == 3:
                yield Placement(tuple(own), (split(axis),))


_RULES: dict[str, Callable[[Operation], Placements]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_ALONG_AXES, _along_axes),
    **dict.fromkeys((*_REDUCTIONS, *_OTHER_REDUCTIONS), _reduction),
    **dict.fromkeys(_ON_FEATURE_MAPS, _feature_map),
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(RESHAPES, _reshape),
    "relax.nn.batch_norm": _batch_norm,
    "relax.matmul": _matmul,
    "relax.permute_dims": _permute_dims,
    "relax.strided_slice": _strided_slice,
    "relax.nn.pad": _pad,
    "relax.broadcast_to": _broadcast_to,
    "relax.take": _take,
    "relax.nn.attention": _attention,
}
