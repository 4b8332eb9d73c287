"""The innermost loops of a band: which one vectors run along, and what stays in registers.

Vectors run along a loop whose iterations may be lanes, best of all one along which all accesses
are to neighbours. Where a loop adds to one element, it is put inside of the loop over vectors, so
that the sums stay in registers, and a few rows of another loop are unrolled in it, so that what is
loaded for one row serves all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.polyhedral.bands import Band, Loop
from tvm_ext.polyhedral.generate_loops import UNROLLED, VECTOR, VECTORS
from tvm_ext.polyhedral.row_order import RowOrder
from tvm_ext.tir_schedules.analysis.buffer_access import nodes

# Rows whose sums are in registers at a time.
ROWS = 4


@dataclass(frozen=True)
class InnerLoops:
    """The loops of a band that holds no other, innermost last.

    Attributes
    ----------
    vector : int | None
        The place in the band of the loop that vectors run along; None where there are none.
    """

    loops: list[Loop]
    vector: int | None = None


def vector_loops(band: Band, lanes: int, is_tiled: bool) -> InnerLoops:
    """The loops of a band that holds no other, with vectors where they may be."""
    # Along a skewed loop every row begins elsewhere: whole vectors are few, LLVM's own are better.
    vector = _vector_member(band, lanes) if lanes > 1 and not band.is_skewed else None
    if vector is None:
        return InnerLoops(list(band.members))
    return InnerLoops(_lanes(band, vector, lanes, is_tiled), vector)


def _lanes(band: Band, vector: int, lanes: int, is_tiled: bool) -> list[Loop]:
    along = band.members[vector]
    rest = [n for n in range(len(band.members)) if n != vector]
    strip, lane = _strips(along, lanes)
    sums = _sum_member(band, rest) if band.is_permutable else None
    if sums is None:
        return [*(band.members[n] for n in rest), strip, lane]
    rest.remove(sums)
    rows = next((n for n in reversed(rest) if band.members[n].coincident), None)
    if rows is None:
        around = [band.members[n] for n in rest]
        if not is_tiled and _jumps(band, sums)[1]:
            # What is read once is read in its order; the sums come from a cache each time.
            return [*around, band.members[sums], strip, lane]
        strip, lane = _registers(band, vector, lanes)
        return [*around, strip, band.members[sums], lane]
    rest.remove(rows)
    strip, lane = _registers(band, vector, lanes)
    row_tile = replace(band.members[rows].tiled(ROWS), is_over_registers=True)
    row = replace(band.members[rows], mark=UNROLLED, tile=ROWS)
    outer = [band.members[n] for n in rest]
    return [*outer, row_tile, strip, band.members[sums], row, lane]


def _strips(along: Loop, length: int) -> tuple[Loop, Loop]:
    """A loop over strips of a row, and the one over the lanes of a strip."""
    strip = replace(along.tiled(length), is_over_registers=True)
    return strip, replace(along, mark=VECTOR, tile=length)


def _registers(band: Band, vector: int, lanes: int) -> tuple[Loop, Loop]:
    """Strips of several vectors where a row has some of these: a sum waits for its last term."""
    length = VECTORS * lanes
    if band.extent_amid(vector) < _LEAST_VECTORS * length:
        length = lanes
    return _strips(band.members[vector], length)


def _jumps(band: Band, number: int) -> tuple[int, int]:
    """How many stores along a loop, and how many loads, are not to neighbours.

    A load may be of one element all the time.
    """
    strides = band.strides[number]
    scattered = sum(is_write and stride != 1 for is_write, stride in strides)
    gathered = sum(not is_write and stride is None for is_write, stride in strides)
    return scattered, gathered


def _vector_member(band: Band, lanes: int) -> int | None:
    """The loop that vectors run along; None where none may be lanes, or none is worth it."""
    count = len(band.members)
    allowed = range(count) if band.is_permutable else range(count - 1, count)
    fitting = [
        number
        for number in allowed
        if band.extent_amid(number) >= _LEAST_VECTORS * lanes and _may_be_lanes(band, number)
    ]
    best = min(fitting, key=lambda number: (*_jumps(band, number), -number), default=None)
    return best if best is None or _is_worth_lanes(band, best) else None


def _is_worth_lanes(band: Band, number: int) -> bool:
    """Whether lanes that store to elements apart are faster than one iteration after the other."""
    scattered, gathered = _jumps(band, number)
    if not scattered:
        return True
    operations = sum(_operations(one.store.value) for one in band.statements)
    return _APART * (scattered + gathered) < _OPERATION * operations


def _operations(value: Any) -> int:
    """How long the operations of a value take, one after the other, without those of indices."""
    indices = [index for load in nodes(value, tvm.ir.TensorLoad) for index in load.indices]
    found = 0
    for sign, exprs in ((1, [value]), (-1, indices)):
        for one in exprs:
            found += sign * len(nodes(one, *_OPERATIONS))
            found += sign * _DIVISION * len(nodes(one, tirx.Div))
    return found


# A loop that is shorter than so many vectors gets none.
_LEAST_VECTORS = 2

# Cycles for an element of a gathered or scattered vector, and for an operation whose result the
# next one waits for; a division is as long as so many operations.
_APART, _OPERATION, _DIVISION = 1.3, 2.0, 4
_OPERATIONS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min)


def _may_be_lanes(band: Band, number: int) -> bool:
    """Whether a loop, put innermost, may run as lanes, one statement after the other."""
    return band.members[number].coincident or not RowOrder(band, number).has_chain


def _sum_member(band: Band, members: Sequence[int]) -> int | None:
    """A loop along which each store is to one element, so that it may stay in a register."""
    for number in reversed(members):
        strides = band.strides[number]
        if all(stride == 0 for is_write, stride in strides if is_write):
            return number
    return None
