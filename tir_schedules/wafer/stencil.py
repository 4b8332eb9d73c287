"""Stencils on a mesh: the grid stays, and edges of its tiles go to the neighbours."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.template import Machine, NotMine
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, COMMUNICATION, ROW, Pattern
from tvm_ext.tir_schedules.wafer.broadcasts import broadcast_pattern
from tvm_ext.tir_schedules.wafer.grid_options import grid_options
from tvm_ext.tir_schedules.wafer.result_tiles import (
    Cut,
    aligned_count,
    axis_pairs,
    copy_tile,
    cut_result,
    innermost_vector,
    longest_loop,
    pe_cycles,
    send_shared,
    state_home,
    tiles_of,
)
from tvm_ext.tir_schedules.wafer.stencil_copies import copied_words, directions, with_copies
from tvm_ext.tir_schedules.wafer.stencil_points import (
    Grid,
    Offsets,
    Stencil,
    load_offsets,
    stencil_of,
)


class MeshStencil:
    """Kernels that compute each element from elements around it, at constant offsets.

    Two dimensions of the grid are cut over rows and columns of PEs; a third one lies in the PE, for
    vector instructions along it, as in M. Jacquelin, M. Araya-Polo, J. Meng, "Scalable distributed
    high-order stencil computations", SC22. A PE takes the edges of its neighbours' tiles: for a
    star, along each direction those that its arms reach, without corners.
    """

    name = "mesh stencil"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``.

        Decisions: ``axes``, which loops are cut, by number in ``axis_pairs``; ``rows`` and
        ``columns``, the pieces; ``vector``, the loop of an instruction.
        """
        if not isinstance(machine, MeshDescription):
            return NotMine("the target is not a mesh")
        sch = s_tir.Schedule(func)
        stencil = stencil_of(sch)
        if isinstance(stencil, NotMine):
            return stencil
        cuts, vector = _decide(stencil, machine, decisions)
        return _schedule(sch, stencil, cuts, vector)


def _decide(
    stencil: Stencil, machine: MeshDescription, decisions: Decisions
) -> tuple[tuple[Cut, Cut], int]:
    """The cuts over rows and columns, and the loop of an instruction."""
    pairs = axis_pairs(stencil.extents)
    ranks = [_rank(stencil, _widest(stencil, pair, machine), machine) for pair in pairs]
    number = decisions.pick("axes", range(len(pairs)), ranks.index(min(ranks)))
    row, column = pairs[number]
    row_options = grid_options(stencil.extents[row], machine.rows)
    column_options = grid_options(stencil.extents[column], machine.columns)
    cuts = (
        Cut(row, ROW, decisions.pick("rows", row_options, row_options[-1])),
        Cut(column, COLUMN, decisions.pick("columns", column_options, column_options[-1])),
    )
    tiles = dict(enumerate(tiles_of(stencil.extents, cuts)))
    lengths = {loop: tile for loop, tile in tiles.items() if tile > 1} or tiles
    return cuts, decisions.pick("vector", lengths, longest_loop(lengths))


def _widest(stencil: Stencil, pair: tuple[int, int], machine: MeshDescription) -> tuple[Cut, Cut]:
    rows = grid_options(stencil.extents[pair[0]], machine.rows)[-1]
    columns = grid_options(stencil.extents[pair[1]], machine.columns)[-1]
    return Cut(pair[0], ROW, rows), Cut(pair[1], COLUMN, columns)


def _rank(stencil: Stencil, cuts: tuple[Cut, Cut], machine: MeshDescription) -> tuple[bool, float]:
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


def _cut_loops(cuts: Iterable[Cut]) -> list[int]:
    return [cut.loop for cut in cuts if cut.count > 1]


def _schedule(
    sch: s_tir.Schedule,
    stencil: Stencil,
    cuts: tuple[Cut, Cut],
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

    def point(load: Any) -> Offsets:
        found = load_offsets(load, variables)
        offsets = found[1] if found is not None else ()
        return tuple(a - b for a, b in zip(offsets, centres[load.source], strict=True))

    borders = [str(sch.get(g.border).name_hint) for g in split if g.border is not None]
    func, copies = with_copies(sch.mod["main"], name, split, point)
    changed = s_tir.Schedule(func)
    for border in borders:
        changed.compute_inline(changed.get_sblock(border))
    return changed, copies


def _bring(
    sch: s_tir.Schedule,
    name: str,
    grid: Grid,
    copies: Sequence[str],
    used: set[int | None],
    cuts: Sequence[Cut],
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
    sch: s_tir.Schedule,
    grid: Grid,
    cuts: Sequence[Cut],
    tiles: Sequence[int],
) -> None:
    shape = [int(size) for size in grid.parameter.shape]
    pieces = {
        dim: (cut.axis, aligned_count(shape[dim], tiles[cut.loop], cut))
        for cut in cuts
        if cut.count > 1
        for dim, loop in enumerate(grid.loops)
        if loop == cut.loop
    }
    state_home(sch, grid.parameter, pieces, len(shape))
