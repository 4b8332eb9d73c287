"""Copies of a grid's tile with neighbours along one direction each, so that no corner is sent.

A copy of all that a star reads is a box, with corners that no point of it is in. TVM's primitives
copy all that a block reads of a buffer, so the loads are told apart first: each direction reads
from a buffer of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import Range
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.wafer.stencil_points import Grid, Offsets

ALL = -1
"""The direction of a copy that has everything."""


def directions(grid: Grid, cut: Sequence[int]) -> dict[Offsets, int | None]:
    """For each point, the loop along which its copy has neighbours: one of ``cut``, or ALL.

    None for a point that is read from where it lies: in the PE itself. Where a point is aside in
    two directions at once, a box is what is needed; and where there are neighbours on one side
    only, whose copy alone would not hold the PE's own tile.
    """
    aside = {
        point: [
            loop
            for loop, offset in zip(grid.loops, point, strict=True)
            if loop in cut and offset != 0
        ]
        for point in grid.points
    }
    used = sorted({loop for loops in aside.values() for loop in loops if loop is not None})
    is_star = all(len(loops) <= 1 for loops in aside.values())
    if used and not (is_star and all(_is_two_sided(grid, loop) for loop in used)):
        return dict.fromkeys(grid.points, ALL)
    if len(used) < 2:
        needed = bool(used) or grid.border is not None
        return dict.fromkeys(grid.points, ALL if needed else None)
    # With a border, even an element at home is one of a copy.
    home = None if grid.border is None else used[0]
    return {point: loops[0] if loops else home for point, loops in aside.items()}


def _is_two_sided(grid: Grid, loop: int) -> bool:
    offsets = [point[grid.loops.index(loop)] for point in grid.points]
    return min(offsets) < 0 < max(offsets)


def copied_words(grid: Grid, cut: Sequence[int], tiles: Sequence[int]) -> int:
    """Elements of all copies of a tile that are not in the tile."""
    found = 0
    for direction in set(directions(grid, cut).values()) - {None}:
        whole, own = 1, 1
        for loop in grid.loops:
            size = 1 if loop is None else tiles[loop]
            own *= size
            far = loop is not None and (direction in (ALL, loop)) and loop in cut
            whole *= size + (2 * grid.reach(loop) if far and loop is not None else 0)
        found += whole - own
    return found


@dataclass(frozen=True)
class _Split:
    """One grid whose loads read from several buffers."""

    grid: Grid
    buffers: Mapping[int, Any]
    by_point: Mapping[Offsets, int | None]


def with_copies(
    func: tirx.PrimFunc,
    name: str,
    grids: Mapping[Grid, Mapping[Offsets, int | None]],
    offsets_of: Callable[[Any], Offsets],
) -> tuple[tirx.PrimFunc, dict[Grid, list[str]]]:
    """``func`` with a copy of the whole grid for each direction, and the names of their blocks.

    ``name`` is that of the block that computes, ``grids`` has what ``directions`` says of each, and
    ``offsets_of`` gives the point that a load reads.
    """
    root = func.body.block
    splits = [_split(grid, by_point) for grid, by_point in grids.items()]

    def moved(load: Any) -> Any:
        for split in splits:
            if split.grid.buffer.same_as(load.source):
                direction = split.by_point[offsets_of(load)]
                if direction is None:
                    return load
                return tirx.BufferLoad(split.buffers[direction], load.indices)
        return load

    def rewritten(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
        block = realize.block
        if str(block.name_hint) != name:
            return realize
        body = structural_map(block.body, (tvm.ir.TensorLoad, moved))
        buffers = {one: one for split in splits for one in split.buffers.values()}
        plain = s_tir.SBlock(block.iter_vars, [], [], name, body)
        known = {one: one for one in (*func.params, *root.alloc_buffers, *buffers)}
        reads, writes, _ = s_tir.analysis.get_sblock_access_region(plain, known)
        full = s_tir.SBlock(
            block.iter_vars, reads, writes, name, body, None, [], [], block.annotations
        )
        return s_tir.SBlockRealize(realize.iter_values, realize.predicate, full)

    statements = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    last = structural_map(statements[-1], (s_tir.SBlockRealize, rewritten))
    copies = [
        _copy(split.grid.buffer, buffer) for split in splits for buffer in split.buffers.values()
    ]
    allocated = [*root.alloc_buffers, *(b for split in splits for b in split.buffers.values())]
    body = tirx.SeqStmt([*statements[:-1], *copies, last])
    block = s_tir.SBlock([], [], [], "root", body, None, allocated, [], root.annotations)
    names = {s.grid: [str(b.name) for b in s.buffers.values()] for s in splits}
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), block)), names


def _split(grid: Grid, by_point: Mapping[Offsets, int | None]) -> _Split:
    used = sorted({one for one in by_point.values() if one is not None})
    buffers = {
        direction: tirx.decl_buffer(
            grid.buffer.shape, str(grid.buffer.dtype), f"{grid.buffer.name}_along_{direction}"
        )
        for direction in used
    }
    return _Split(grid, buffers, by_point)


def _copy(source: Any, target: Any) -> tirx.Stmt:
    """The block, with its loops, that copies a buffer element by element."""
    loops, iter_vars = [], []
    for number, size in enumerate(source.shape):
        dtype = str(size.ty)
        loops.append(tirx.Var(f"i{number}", dtype))
        domain = Range(tirx.const(0, dtype), size)
        iter_vars.append(tirx.IterVar(domain, tirx.Var(f"v{number}", dtype), tirx.IterVar.DataPar))
    indices = [one.var for one in iter_vars]
    store = tirx.BufferStore(target, tirx.BufferLoad(source, indices), indices)
    regions = [_element(one, indices) for one in (source, target)]
    block = s_tir.SBlock(iter_vars, regions[:1], regions[1:], str(target.name), store)
    stmt: tirx.Stmt = s_tir.SBlockRealize(loops, tirx.const(True, "bool"), block)
    for loop, size in reversed(list(zip(loops, source.shape, strict=True))):
        zero = tirx.const(0, str(loop.ty))
        stmt = tirx.For(loop, zero, size, tirx.ForKind.SERIAL, stmt)
    return stmt


def _element(buffer: Any, indices: Sequence[Any]) -> Any:
    return tirx.BufferRegion(
        buffer, [Range.from_min_extent(i, tirx.const(1, str(i.ty))) for i in indices]
    )
