"""Stencils on a mesh: the grid stays, and edges of its tiles go to the neighbours."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import Range
from tvm.s_tir.schedule import LoopRV
from tvm_ffi import structural_map

from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.tir_schedules.analysis.buffer_access import schedule_of
from tvm_ext.tir_schedules.analysis.stencil import Grid, Offsets, Stencil, load_offsets, stencil_of
from tvm_ext.tir_schedules.statements import changed_block, in_root_block
from tvm_ext.tir_schedules.template import Decisions
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, COMMUNICATION, ROW, Pattern
from tvm_ext.tir_schedules.wafer.mesh_partition import broadcast_pattern, state_home
from tvm_ext.tir_schedules.wafer.result_tiles import (
    PartitionedLoop,
    aligned_count,
    copy_tile,
    cut_result,
    decide_grid,
    home_words,
    innermost_vector,
    longest_loop,
    pe_cycles,
    send_shared,
    tiles_of,
    widest_grid,
)

# Copies of a grid's tile with neighbours along one direction each, so that no corner is sent.
#
# A copy of all that a star reads is a box, with corners that no point of it is in. TVM's
# primitives copy all that a block reads of a buffer, so the loads are told apart first: each
# direction reads from a buffer of its own.


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
class _GridSplit:
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

    def moved(load: tvm.ir.TensorLoad) -> Any:
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
        full = changed_block(block, reads=reads, writes=writes, body=body)
        return s_tir.SBlockRealize(realize.iter_values, realize.predicate, full)

    statements = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    last = structural_map(statements[-1], (s_tir.SBlockRealize, rewritten))
    copies = [
        _copy(split.grid.buffer, buffer) for split in splits for buffer in split.buffers.values()
    ]
    allocated = [*root.alloc_buffers, *(b for split in splits for b in split.buffers.values())]
    body = tirx.SeqStmt([*statements[:-1], *copies, last])
    names = {s.grid: [str(b.name) for b in s.buffers.values()] for s in splits}
    return func.with_body(in_root_block(body, allocated, root.annotations)), names


def _split(grid: Grid, by_point: Mapping[Offsets, int | None]) -> _GridSplit:
    used = sorted({one for one in by_point.values() if one is not None})
    buffers = {
        direction: tirx.decl_buffer(
            grid.buffer.shape, str(grid.buffer.dtype), f"{grid.buffer.name}_along_{direction}"
        )
        for direction in used
    }
    return _GridSplit(grid, buffers, by_point)


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


def _element(buffer: tirx.Buffer, indices: Sequence[Any]) -> Any:
    return tirx.BufferRegion(
        buffer, [Range.from_min_extent(i, tirx.const(1, str(i.ty))) for i in indices]
    )


class WaferStencil:
    """Kernels that compute each element from elements around it, at constant offsets.

    Two dimensions of the grid are cut over rows and columns of PEs; a third one lies in the PE, for
    vector instructions along it, as in M. Jacquelin, M. Araya-Polo, J. Meng, "Scalable distributed
    high-order stencil computations", SC22. A PE takes the edges of its neighbours' tiles: for a
    star, along each direction those that its arms reach, without corners.
    """

    name = "wafer stencil"
    machine_type = WaferDescription

    def apply(
        self, func: tirx.PrimFunc, machine: WaferDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``.

        Decisions: ``axes``, which loops are cut, by number in ``axis_pairs``; ``rows`` and
        ``columns``, the pieces; ``vector``, the loop of an instruction.
        """
        sch = schedule_of(func)
        stencil = stencil_of(sch)
        cuts, vector = _decide(stencil, machine, decisions)
        return _schedule(sch, stencil, cuts, vector)


def _decide(
    stencil: Stencil, machine: WaferDescription, decisions: Decisions
) -> tuple[tuple[PartitionedLoop, PartitionedLoop], int]:
    """The cuts over rows and columns, and the loop of an instruction."""

    def rank(pair: tuple[int, int]) -> tuple[bool, float]:
        return _rank(stencil, widest_grid(stencil.extents, pair, machine), machine)

    cuts = decide_grid(stencil.extents, rank, machine, decisions)
    tiles = dict(enumerate(tiles_of(stencil.extents, cuts)))
    lengths = {loop: tile for loop, tile in tiles.items() if tile > 1} or tiles
    return cuts, decisions.pick("vector", lengths, longest_loop(lengths))


def _rank(
    stencil: Stencil, cuts: tuple[PartitionedLoop, PartitionedLoop], machine: WaferDescription
) -> tuple[bool, float]:
    """What fits into SRAM comes first, then what takes the fewest cycles."""
    tiles = tiles_of(stencil.extents, cuts)
    results = math.prod(tiles)
    elements = results * stencil.operations
    words = sum(copied_words(grid, _cut_loops(cuts), tiles) for grid in stencil.grids)
    dtype = str(stencil.grids[0].buffer.dtype)
    width = max(1, tvm.DataType(dtype).bits // 8)
    # The result, and for each grid its shard and a copy with what comes to it.
    needed = (results * (1 + 2 * len(stencil.grids)) + words) * width
    cycles = pe_cycles(machine, dtype, elements / max(tiles), elements)
    return needed > machine.usable_bytes, cycles + words * width / machine.word_bytes


def _cut_loops(cuts: Iterable[PartitionedLoop]) -> list[int]:
    return [cut.loop for cut in cuts if cut.count > 1]


def _schedule(
    sch: s_tir.Schedule,
    stencil: Stencil,
    cuts: tuple[PartitionedLoop, PartitionedLoop],
    vector: int,
) -> s_tir.Schedule:
    apart = {grid: directions(grid, _cut_loops(cuts)) for grid in stencil.grids}
    split = {g: points for g, points in apart.items() if len(set(points.values()) - {None}) > 1}
    name = str(sch.get(stencil.block).name_hint)
    copies: dict[Grid, list[str]] = {}
    if split:
        sch, copies = _with_split_grids(sch, stencil, name, split)
    block = sch.get_sblock(name)
    tiles = tiles_of(stencil.extents, cuts)
    cut = cut_result(sch, block, cuts, tiles)
    innermost_vector(sch, cut.tile, vector)
    place = cut.mesh[-1]
    for grid in stencil.grids:
        _bring(sch, name, grid, copies.get(grid, []), set(apart[grid].values()), cuts, place)
        _state(sch, grid, cuts, tiles)
    send_shared(sch, block, cuts, place)
    return sch


def _with_split_grids(
    sch: s_tir.Schedule, stencil: Stencil, name: str, split: dict[Grid, dict[Offsets, int | None]]
) -> tuple[s_tir.Schedule, dict[Grid, list[str]]]:
    """The kernel with a copy of a grid for each direction, into which its border is inlined."""
    variables = [v.var for v in sch.get(stencil.block).iter_vars]
    centres = {grid.buffer: grid.centre for grid in split}

    def point(load: tvm.ir.TensorLoad) -> Offsets:
        found = load_offsets(load, variables)
        offsets = found[1] if found is not None else ()
        return tuple(a - b for a, b in zip(offsets, centres[load.source], strict=True))

    borders = [str(sch.get(g.border).name_hint) for g in split if g.border is not None]
    func, copies = with_copies(sch.mod["main"], name, split, point)
    changed = schedule_of(func)
    for border in borders:
        changed.compute_inline(changed.get_sblock(border))
    return changed, copies


def _bring(
    sch: s_tir.Schedule,
    name: str,
    grid: Grid,
    copies: Sequence[str],
    used: set[int | None],
    cuts: Sequence[PartitionedLoop],
    under: LoopRV,
) -> None:
    """What a PE needs of a grid beyond its own tile: from its neighbours, or from one for all."""
    axes = {cut.axis for cut in cuts if cut.count > 1 and cut.loop not in grid.loops}
    pattern = broadcast_pattern(ROW in axes, COLUMN in axes) or Pattern.HALO
    if not copies and grid.border is None:
        if used - {None}:
            copy_tile(sch, sch.get_sblock(name), grid.buffer, under, pattern)
        return
    for one in copies or [str(sch.get(grid.border).name_hint)]:
        block = sch.get_sblock(one)
        sch.compute_at(block, under, preserve_unit_loops=True)
        sch.annotate(block, COMMUNICATION, pattern)


def _state(
    sch: s_tir.Schedule, grid: Grid, cuts: Sequence[PartitionedLoop], tiles: Sequence[int]
) -> None:
    shape = [int(size) for size in grid.parameter.shape]
    pieces = {
        dim: (cut.axis, aligned_count(shape[dim], tiles[cut.loop], cut))
        for cut in cuts
        if cut.count > 1
        for dim, loop in enumerate(grid.loops)
        if loop == cut.loop
    }
    state_home(sch, grid.parameter, home_words(pieces, len(shape)))
