"""What is computed beyond the end of a tensor must not change what lies before it."""

from collections.abc import Mapping, Sequence

from tvm_ext.tuning.mesh_analysis.affine import Affine
from tvm_ext.wafer.csl.errors import NotCovered
from tvm_ext.wafer.csl.kernel import INPUT, Assignment, Item, Tile, assignments_of
from tvm_ext.wafer.csl.values import Load, Operation, Tensor, Value, loads_of


def check_limits(items: Sequence[Item], tiles: Mapping[Tensor, Tile]) -> None:
    """Raises NotCovered unless conditions of the blocks can be left out.

    They can where the element that is written lies beyond the end of its own tensor, in the padding
    of the tile; and where a product is added to a sum, and its factors are zeros of the padding.
    """
    everything = list(assignments_of(tuple(items)))
    zeros = _zero_padded(everything, tiles)
    for item in everything:
        for index, end in item.limits:
            if not _ends(item.target, index, end) and not _adds_zero(item, index, end, zeros):
                raise NotCovered(
                    f"block {item.name} leaves out iterations whose results would count"
                )


def _ends(load: Load, index: Affine, end: int) -> bool:
    """Whether an element lies beyond the end of its tensor wherever ``index`` is not below ``end``.

    TVM writes 2 k + i < 4 as k < 2 where i is 0 or 1: the one is a multiple of the other, plus
    something that is not negative.
    """
    return any(
        _implies(found, size, index, end)
        for found, size in zip(load.indices, load.tensor.shape, strict=True)
    )


def _implies(found: Affine, size: int, index: Affine, end: int) -> bool:
    common = found.factors.keys() & index.factors.keys()
    times = min((found.factors[loop] // index.factors[loop] for loop in common), default=0)
    rest = found.plus(index, -times)
    # All loops begin at 0.
    grows = min(rest.factors.values(), default=0) >= 0
    return times > 0 and grows and rest.constant >= size - times * end


def _adds_zero(item: Assignment, index: Affine, end: int, zeros: set[Tensor]) -> bool:
    value = item.value
    if not isinstance(value, Operation) or value.name != "add" or value.operands[0] != item.target:
        return False
    added = value.operands[1]
    factors = [factor for factor in _factors(added) if isinstance(factor, Load)]
    ended = [load for load in factors if _ends(load, index, end)]
    moving = [load for load in loads_of(added) if index.factors.keys() & _used(load)]
    return bool(ended) and all(load in ended and load.tensor in zeros for load in moving)


def _factors(value: Value) -> list[Value]:
    """The factors of a product: if one of them is 0, it is 0."""
    if isinstance(value, Operation) and value.name in ("mul", "cast"):
        return [factor for operand in value.operands for factor in _factors(operand)]
    return [value]


def _used(load: Load) -> set[int]:
    return {loop for index in load.indices for loop in index.factors}


def _zero_padded(items: Sequence[Assignment], tiles: Mapping[Tensor, Tile]) -> set[Tensor]:
    """Tensors whose tiles hold zeros beyond the end: inputs, and plain copies of them."""
    found = {tensor for tensor, tile in tiles.items() if tile.role == INPUT}
    writers: dict[Tensor, list[Value]] = {}
    for item in items:
        writers.setdefault(item.target.tensor, []).append(item.value)
    for tensor, values in writers.items():
        if all(isinstance(value, Load) and value.tensor in found for value in values):
            found.add(tensor)
    return found
