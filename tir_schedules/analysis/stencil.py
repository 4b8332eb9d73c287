"""Recognises stencils: results computed from neighbouring elements, at constant offsets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import (
    among,
    depends,
    is_conditional,
    is_data_parallel,
    kernel_blocks,
    nodes,
    static_extent,
    writer_of,
)
from tvm_ext.tir_schedules.inlining import inline_blocks

Offsets = tuple[int, ...]
"""By dimension of a buffer, how far from the loop that it follows an element is read."""


@dataclass(frozen=True, eq=False)
class Grid:
    """A buffer that is read at several offsets.

    Attributes
    ----------
    buffer : Any
        The buffer.
    loops : tuple[int | None, ...]
        The result's loop that each dimension follows; None for one whose index is fixed.
    points : frozenset[Offsets]
        Where it is read, relative to ``centre``.
    centre : Offsets
        The offset of a result's own element.
    border : SBlockRV or None
        The block that copies it with a border.
    parameter : Any
        The kernel's parameter behind it.
    """

    buffer: tirx.Buffer
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
    operations : int
        Elements that one result is computed from, each with an operation at least.
    """

    block: SBlockRV
    extents: tuple[int, ...]
    grids: tuple[Grid, ...]
    operations: int


def stencil_of(sch: s_tir.Schedule) -> Stencil:
    """What ``sch`` holds, all but borders inlined. Raises NotApplicable where it is no stencil."""
    inline_blocks(sch, keep=lambda block: _is_border(sch, block))
    blocks = kernel_blocks(sch)
    block = blocks[-1]
    if not all(is_data_parallel(sch, one) for one in blocks):
        raise NotApplicable("a block sums")
    if not all(_is_border(sch, one) for one in blocks[:-1]):
        raise NotApplicable("it has several stages")
    stmt = sch.get(block)
    extents = [static_extent(v.dom.extent) for v in stmt.iter_vars]
    if not all(extents) or len(sch.get_loops(block)) != len(extents) or len(extents) < 2:
        raise NotApplicable("an extent is not known, or it has fewer than two dimensions")
    variables = [v.var for v in stmt.iter_vars]
    written = stmt.writes[0].region
    same = len(written) == len(variables)
    if not same or not all(d.min.same_as(v) for d, v in zip(written, variables, strict=True)):
        raise NotApplicable("a result is not written in the order of its loops")
    loads = nodes(stmt.body.value, tvm.ir.TensorLoad)
    found = _grids(sch, block, loads, variables, [e or 0 for e in extents])
    return Stencil(block, tuple(e or 0 for e in extents), tuple(found), len(loads))


def load_offsets(
    load: tvm.ir.TensorLoad, variables: Sequence[tirx.Var]
) -> tuple[tuple[int | None, ...], Offsets] | None:
    """The loops that a load follows, and its offset from them; None if it is of another kind."""
    pairs = [_followed(index, variables) for index in load.indices]
    if None in pairs:
        return None
    known = [pair for pair in pairs if pair is not None]
    return tuple(loop for loop, _ in known), tuple(offset for _, offset in known)


def _followed(index: tvm.ir.Expr, variables: Sequence[tirx.Var]) -> tuple[int | None, int] | None:
    """The loop that an index follows, and the offset from it."""
    loops = [p for p, var in enumerate(variables) if depends(index, var)]
    if not loops and not nodes(index, tvm.ir.Var):
        fixed = static_extent(index)
        return None if fixed is None else (None, fixed)
    if len(loops) != 1:
        return None
    (loop,) = loops
    offset = static_extent(Analyzer().simplify(index - variables[loop]))
    return None if offset is None else (loop, offset)


def _is_border(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether a block copies one buffer, with branches, for a block that reads it repeatedly."""
    stmt = sch.get(block)
    consumers = sch.get_consumers(block)
    if len(consumers) != 1 or not is_data_parallel(sch, block):
        return False
    value = getattr(stmt.body, "value", None)
    if not is_conditional(value):
        return False
    _, inside, outside = value.args
    if not isinstance(inside, tvm.ir.TensorLoad) or nodes(outside, tvm.ir.TensorLoad):
        return False
    loads = nodes(sch.get(consumers[0]).body, tvm.ir.TensorLoad)
    return sum(load.source.same_as(stmt.writes[0].source) for load in loads) > 1


def _grids(
    sch: s_tir.Schedule,
    block: SBlockRV,
    loads: Sequence[tvm.ir.TensorLoad],
    variables: Sequence[tirx.Var],
    extents: Sequence[int],
) -> list[Grid]:
    """Every buffer that is read at several offsets."""
    points: dict[Any, set[Offsets]] = {}
    loops: dict[Any, tuple[int | None, ...]] = {}
    for load in loads:
        found = load_offsets(load, variables)
        if found is None:
            raise NotApplicable("an element is not read at a constant offset")
        if loops.setdefault(load.source, found[0]) != found[0]:
            raise NotApplicable("a tensor is read in two directions")
        points.setdefault(load.source, set()).add(found[1])
    total = sum(len(offsets) for offsets in points.values())
    grids = []
    for buffer, offsets in points.items():
        border = writer_of(sch, block, buffer)
        moved = [dim for dim, loop in enumerate(loops[buffer]) if loop is not None]
        neighbours = {tuple(offset[dim] for dim in moved) for offset in offsets}
        if len(neighbours) < 2 and border is not None:
            raise NotApplicable("a tensor with a border is read at one place")
        if len(neighbours) < 2:
            continue
        place = _GridLoops(loops[buffer], extents, border)
        grid = _grid(sch, buffer, offsets, place)
        if any(grid.reach(loop) > total for loop in range(len(extents))):
            raise NotApplicable("what it reads is not near the result")
        grids.append(grid)
    if not grids:
        raise NotApplicable("no tensor is read at several offsets")
    return grids


@dataclass(frozen=True)
class _GridLoops:
    """The result's loop that each dimension of a buffer follows, their extents, and its border."""

    loops: tuple[int | None, ...]
    extents: Sequence[int]
    border: SBlockRV | None

    def centre(self, dim: int, size: int, low: int, high: int) -> int:
        """The offset of a result's own element: a grid may be larger than the result all around."""
        loop = self.loops[dim]
        around = 0 if loop is None else (size - self.extents[loop]) // 2
        return min(max(around, low), high)


def _grid(
    sch: s_tir.Schedule, buffer: tirx.Buffer, offsets: set[Offsets], place: _GridLoops
) -> Grid:
    loops, border = place.loops, place.border
    moved = [loop for loop in loops if loop is not None]
    if len(set(moved)) != len(moved):
        raise NotApplicable("two dimensions of a tensor follow one loop")
    sizes = [static_extent(size) for size in buffer.shape]
    if None in sizes:
        raise NotApplicable("an extent is not known")
    centre = tuple(
        place.centre(dim, size or 0, min(p[dim] for p in offsets), max(p[dim] for p in offsets))
        for dim, size in enumerate(sizes)
    )
    around = frozenset(
        tuple(one - middle for one, middle in zip(point, centre, strict=True)) for point in offsets
    )
    parameter = buffer
    if border is not None:
        (load,) = nodes(sch.get(border).body, tvm.ir.TensorLoad)
        parameter = load.source
        if not _is_dimension_wise(load.indices, sch.get(border)):
            raise NotApplicable(
                "the axes of a border are in another order than those of its tensor"
            )
    if not among(parameter, sch.mod["main"].params):
        raise NotApplicable("a tensor with a border is computed from another one")
    return Grid(buffer, loops, around, centre, border, parameter)


def _is_dimension_wise(indices: Sequence[Any], stmt: Any) -> bool:
    """Whether each index depends on the loop of its own dimension only."""
    variables = [v.var for v in stmt.iter_vars]
    return len(indices) == len(variables) and all(
        var.same_as(own)
        for index, own in zip(indices, variables, strict=True)
        for var in nodes(index, tvm.ir.Var)
    )
