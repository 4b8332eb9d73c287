"""Elements dealt to threads where it is known in the run only how many there are.

Which element a thread computes takes divisions by sizes. They are of 32 bits while the elements can
be counted in them: 64-bit ones take a GPU four times as long. Addresses are of 64 bits.
"""

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.flat_decision import FlatDecision, divides, with_lane
from tvm_ext.tir_schedules.cuda.launch import Arrays, ThreadArray, bound, guarded, repeated
from tvm_ext.tir_schedules.cuda.vector_group import Lanes
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.nest import Nest, substitute
from tvm_ext.tir_schedules.statements import sequence

_MOST = 2**31 - 1

Threads = Sequence[tuple[Any, int]]
Ranges = Sequence[tuple[Any, Any]]


def open_code(decision: FlatDecision, arrays: Arrays) -> tirx.Stmt:
    """The grid of one block: ``vector`` elements for each thread, ``vectors`` times.

    The groups of a block of threads lie one behind another.
    """
    nest, width = decision.nest, decision.vector
    dtype, threads, repeats = arrays.index_dtype, decision.threads, decision.vectors
    inner = nest.axes[-1]
    tail = not divides(width, inner)
    # A rest is left of a single loop only.
    elements = nest.volume()
    groups = _up(elements, width) if tail else tirx.floordiv(elements, _number(width, elements))
    groups = groups.astype(dtype)

    def thread(index: Any, t: Any) -> tirx.Stmt:
        mine = [(t, threads)]

        def one(i: Any) -> tirx.Stmt:
            at = (index * repeats + i) * threads + t
            group = _group(nest, at, groups, width, arrays, mine)
            if tail:
                rest = _rest(nest, at, width, arrays, mine)
                whole = tirx.floordiv(inner.extent, _number(width, inner.extent)).astype(dtype)
                group = tirx.IfThenElse(at < whole, group, rest)
            return guarded(at < groups, group)

        return repeated(repeats, dtype, one)

    blocks = _up(groups, threads * repeats)
    return bound(
        "blockIdx.x",
        blocks,
        dtype,
        lambda index: bound("threadIdx.x", threads, dtype, lambda t: thread(index, t)),
    )


def _group(
    nest: Nest, at: Any, groups: Any, width: int, arrays: Arrays, threads: Threads
) -> tirx.Stmt:
    """Group number ``at``: ``width`` elements of the innermost loop."""
    store, lane, width, ranges = with_lane(nest, width)
    code = Lanes(store, lane, width, ranges).code(arrays, threads)
    if len(ranges) == 1:
        return substitute(code, {ranges[0][0]: at})
    places = arrays.registers("place", len(ranges), arrays.index_dtype, threads)
    few = groups <= tirx.const(_MOST, arrays.index_dtype)
    found = tirx.IfThenElse(
        few,
        _places(at, ranges, places, arrays, threads, "int32"),
        _places(at, ranges, places, arrays, threads, arrays.index_dtype),
    )
    return sequence([found, substitute(code, _values(code, ranges, places, arrays.index_dtype))])


def _rest(nest: Nest, at: Any, width: int, arrays: Arrays, threads: Threads) -> tirx.Stmt:
    """The elements after the last whole vector of a single loop."""
    dtype = arrays.index_dtype
    end = nest.axes[-1].extent.astype(dtype)

    def single(i: Any) -> tirx.Stmt:
        place = at * width + i
        return guarded(place < end, _group(nest, place, end, 1, arrays, threads))

    return repeated(width, dtype, single)


def _places(
    at: Any,
    ranges: Ranges,
    places: ThreadArray,
    arrays: Arrays,
    threads: Threads,
    counted: str,
) -> tirx.Stmt:
    """Stores the loop variables of group ``at``, counted in the type ``counted``.

    What is left to be divided is in registers as well: TVM would put expressions in the place of
    variables, and 64 bits in the place of 32.
    """
    left = arrays.registers("left", len(ranges), counted, threads)
    dtype = arrays.index_dtype

    def number(value: int) -> Any:
        return tirx.const(value, dtype)

    statements = [left.put(number(len(ranges) - 1), at.astype(counted))]
    for position in range(len(ranges) - 1, 0, -1):
        extent = ranges[position][1]
        size = tirx.const(extent, counted) if isinstance(extent, int) else extent.astype(counted)
        here, above = left.at(number(position)), left.at(number(position - 1))
        own = (here - above * size).astype(dtype)
        statements.append(left.put(number(position - 1), tirx.Div(here, size)))
        statements.append(places.put(number(position), own))
    statements.append(places.put(number(0), left.at(number(0)).astype(dtype)))
    return sequence(statements)


def _values(code: tirx.Stmt, ranges: Ranges, places: ThreadArray, dtype: str) -> dict[Any, Any]:
    values = {var: places.at(tirx.const(i, dtype)) for i, (var, _) in enumerate(ranges)}
    if nodes(code, tirx.FloorDiv, tirx.FloorMod):
        # None is negative: said so, TVM divides in one instruction.
        return {var: tirx.Max(value, tirx.const(0, dtype)) for var, value in values.items()}
    return values


def _up(value: Any, step: int) -> Any:
    """How many steps there are in ``value``, the last one perhaps not whole."""
    return tirx.floordiv(value + _number(step - 1, value), _number(step, value))


def _number(value: int, like: Any) -> Any:
    return tirx.const(value, str(like.ty))
