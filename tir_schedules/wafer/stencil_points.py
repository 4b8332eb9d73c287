"""Recognises stencils: results computed from neighbouring elements, at constant offsets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import Analyzer

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.llvm.flat_views import nodes
from tvm_ext.tir_schedules.llvm.inlining import (
    count_calls,
    inline_blocks,
    is_data_parallel,
    kernel_blocks,
)
from tvm_ext.tir_schedules.llvm.nest import substitute
from tvm_ext.tir_schedules.template import NotMine

Offsets = tuple[int, ...]
"""By dimension of a buffer, how far from the loop that it follows an element is read."""


@dataclass(frozen=True)
class Grid:
    """A buffer that is read at several offsets.

    Attributes
    ----------
    buffer : Any
        The buffer.
    loops : tuple[int | None, ...]
        The result's loop that each dimension follows; None for one whose index is fixed.
    points : frozenset[Offsets]
        Where it is read, relative to the middle of all points.
    centre : Offsets
        The middle: a result reads around it.
    border : SBlockRV or None
        The block that copies it with a border.
    parameter : Any
        The kernel's parameter behind it.
    """

    buffer: Any
    loops: tuple[int | None, ...]
    points: frozenset[Offsets]
    centre: Offsets
    border: SBlockRV | None
    parameter: Any

    def reach(self, loop: int) -> int:
        """How many elements beyond the first and the last result along a loop are read."""
        dims = [dim for dim, one in enumerate(self.loops) if one == loop]
        return max((abs(point[dim]) for point in self.points for dim in dims), default=0)


@dataclass(frozen=True)
class Stencil:
    """A kernel that computes each result from elements around it.

    Attributes
    ----------
    block : SBlockRV
        The block that computes the result.
    extents : tuple[int, ...]
        Of its loops.
    grids : tuple[Grid, ...]
        The buffers that are read at several offsets.
    loads : int
        Elements that one result is computed from.
    """

    block: SBlockRV
    extents: tuple[int, ...]
    grids: tuple[Grid, ...]
    loads: int


def stencil_of(sch: s_tir.Schedule) -> Stencil | NotMine:
    """What ``sch`` holds, after everything but borders was inlined."""
    inline_blocks(sch, keep=lambda block: _is_border(sch, block))
    blocks = kernel_blocks(sch)
    block = blocks[-1]
    if not all(is_data_parallel(sch, one) for one in blocks):
        return NotMine("a block sums")
    if not all(_is_border(sch, one) for one in blocks[:-1]):
        return NotMine("it has several stages")
    stmt = sch.get(block)
    extents = [static_extent(v.dom.extent) for v in stmt.iter_vars]
    if not all(extents) or len(sch.get_loops(block)) != len(extents) or len(extents) < 2:
        return NotMine("an extent is not known, or it has fewer than two dimensions")
    variables = [v.var for v in stmt.iter_vars]
    written = stmt.writes[0].region
    same = len(written) == len(variables)
    if not same or not all(d.min.same_as(v) for d, v in zip(written, variables, strict=True)):
        return NotMine("a result is not written in the order of its loops")
    loads = nodes(stmt.body.value, tvm.ir.TensorLoad)
    found = _grids(sch, block, loads, variables, [e or 0 for e in extents])
    if isinstance(found, NotMine):
        return found
    return Stencil(block, tuple(e or 0 for e in extents), tuple(found), len(loads))


def load_offsets(
    load: Any, variables: Sequence[Any], extents: Sequence[int]
) -> tuple[tuple[int | None, ...], Offsets] | None:
    """The loops that a load follows, and its offset from them; None if it is of another kind."""
    pairs = [_followed(index, variables, extents) for index in load.indices]
    if None in pairs:
        return None
    known = [pair for pair in pairs if pair is not None]
    return tuple(loop for loop, _ in known), tuple(offset for _, offset in known)


def _followed(
    index: Any, variables: Sequence[Any], extents: Sequence[int]
) -> tuple[int | None, int] | None:
    """The loop and the offset from it, which holds in the middle; borders may come nearer."""
    used = nodes(index, tvm.ir.Var)
    loops = [p for p, var in enumerate(variables) if any(var.same_as(one) for one in used)]
    if not loops and not used:
        fixed = static_extent(index)
        return None if fixed is None else (None, fixed)
    if len(loops) != 1 or nodes(index, tvm.ir.TensorLoad):
        return None
    (loop,) = loops
    at = [0, extents[loop] // 2, extents[loop] - 1]
    values = [_value(index, variables[loop], place) for place in at]
    if None in values:
        return None
    first, middle, last = (
        (value or 0) - place for value, place in zip(values, at, strict=True)
    )
    # A border may hold an index back, but not send it to the other side.
    nearer = abs(first) <= abs(middle) and abs(last) <= abs(middle)
    straight = first == middle == last
    if not straight and (not nearer or isinstance(index, tirx.Mul)):
        return None
    return loop, middle


def _value(index: Any, var: Any, at: int) -> int | None:
    return static_extent(
        Analyzer().simplify(substitute(index, {var: tirx.const(at, str(var.ty))}))
    )


def _is_border(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether a block copies one buffer, with branches, for a block that reads it repeatedly."""
    stmt = sch.get(block)
    consumers = sch.get_consumers(block)
    if len(consumers) != 1 or not is_data_parallel(sch, block) or not count_calls(stmt.body):
        return False
    if len(nodes(stmt.body, tvm.ir.TensorLoad)) != 1:
        return False
    loads = nodes(sch.get(consumers[0]).body, tvm.ir.TensorLoad)
    return sum(load.source.same_as(stmt.writes[0].source) for load in loads) > 1


def _grids(
    sch: s_tir.Schedule,
    block: SBlockRV,
    loads: Sequence[Any],
    variables: Sequence[Any],
    extents: Sequence[int],
) -> list[Grid] | NotMine:
    """Every buffer that is read at several offsets."""
    points: dict[Any, set[Offsets]] = {}
    loops: dict[Any, tuple[int | None, ...]] = {}
    for load in loads:
        found = load_offsets(load, variables, extents)
        if found is None:
            return NotMine("an element is not read at a constant offset")
        if loops.setdefault(load.source, found[0]) != found[0]:
            return NotMine("a tensor is read in two directions")
        points.setdefault(load.source, set()).add(found[1])
    total = sum(len(offsets) for offsets in points.values())
    grids = []
    for buffer, offsets in points.items():
        borders = [
            one for one in sch.get_producers(block) if sch.get(one).writes[0].source.same_as(buffer)
        ]
        if len(offsets) < 2 and not borders:
            continue
        grid = _grid(sch, buffer, loops[buffer], offsets, borders[0] if borders else None)
        if isinstance(grid, NotMine):
            return grid
        if any(grid.reach(loop) > total for loop in range(len(extents))):
            return NotMine("what it reads is not near the result")
        grids.append(grid)
    return grids or NotMine("no tensor is read at several offsets")


def _grid(
    sch: s_tir.Schedule,
    buffer: Any,
    loops: tuple[int | None, ...],
    offsets: set[Offsets],
    border: SBlockRV | None,
) -> Grid | NotMine:
    moved = [loop for loop in loops if loop is not None]
    if len(set(moved)) != len(moved):
        return NotMine("two dimensions of a tensor follow one loop")
    bounds = [
        (min(point[dim] for point in offsets), max(point[dim] for point in offsets))
        for dim in range(len(loops))
    ]
    centre = tuple((low + high) // 2 for low, high in bounds)
    around = frozenset(
        tuple(one - middle for one, middle in zip(point, centre, strict=True)) for point in offsets
    )
    parameter = buffer
    if border is not None:
        parameter = nodes(sch.get(border).body, tvm.ir.TensorLoad)[0].source
    if not any(parameter.same_as(one) for one in sch.mod["main"].params):
        return NotMine("a tensor with a border is computed from another one")
    return Grid(buffer, loops, around, centre, border, parameter)


