"""Kernels that only move their operands, each as a whole and without changing it.

A concatenation along the outermost axis that has more than one entry writes its operands one behind
the other; a slice of that axis reads a range. Whether a kernel does no more than that follows from
its addresses: for every statement that writes the result, the address there and the address that is
read have the same distance, whatever the loops do.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.analysis.array_views import ArrayViews
from tvm_ext.tir_schedules.analysis.buffer_access import is_compact, is_conditional, nodes


@dataclass(frozen=True)
class Copies:
    """What a kernel with one result moves.

    Attributes
    ----------
    result : int
        The place of the result among the parameters.
    distances : dict of int to int
        By the place of an operand, in elements: its element 0 is this one of the result. Of a slice
        the distance is negative, for the result begins behind the operand's beginning.
    """

    result: int
    distances: dict[int, int] = field(default_factory=dict)


# As many kernels as a large model has: each plan of its storage asks.
@lru_cache(maxsize=512)
def copies(func: tirx.PrimFunc) -> Copies | None:
    """What a kernel moves, of known sizes; None where it does something else."""
    stores = nodes(func.body, tirx.BufferStore)
    if not stores or not all(_is_array(param) for param in func.params):
        return None
    if any(load is None for store in stores for load in _leaves(store.value)):
        return None
    arrays = ArrayViews(func)
    results = {arrays.place_of(store.buffer) for store in stores}
    result = results.pop()
    if results or result is None:
        return None
    found = Copies(result)
    for store in stores:
        for load in _leaves(store.value):
            place = None if load is None else arrays.place_of(load.source)
            if load is None or place is None or place == result:
                return None
            distance = arrays.distance(store, load)
            if distance is None or found.distances.setdefault(place, distance) != distance:
                return None
    return found


def _is_array(param: tvm.ir.Var) -> bool:
    return isinstance(param.ty, tirx.BufferType) and is_compact(param)


def _leaves(value: Any) -> Iterator[tvm.ir.TensorLoad | None]:
    """The elements that a value is one of; None for anything that is no element."""
    if is_conditional(value):
        for side in value.args[1:]:
            yield from _leaves(side)
    elif isinstance(value, tirx.Select):
        yield from _leaves(value.true_value)
        yield from _leaves(value.false_value)
    else:
        yield value if isinstance(value, tvm.ir.TensorLoad) else None
