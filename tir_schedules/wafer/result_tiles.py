"""Tiles of a kernel's result on the PEs of a mesh, and the tiles of its inputs that they need."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    among,
    constant_parameter,
    operands_of,
    read_position,
)
from tvm_ext.tir_schedules.analysis.contraction import moved_by
from tvm_ext.tir_schedules.template import Decisions
from tvm_ext.tir_schedules.wafer.annotations import (
    COLUMN,
    COMMUNICATION,
    MESH_AXIS,
    ROW,
    VECTOR,
    WHOLE,
)
from tvm_ext.tir_schedules.wafer.mesh_partition import broadcast_pattern, grid_options, pick_pieces


@dataclass(frozen=True)
class PartitionedLoop:
    """A loop in pieces, one for each row or column of PEs, or for each group of them.

    Attributes
    ----------
    loop : int
        Position among the loops of the result.
    axis : str
        "row" or "column".
    count : int
        Pieces.
    """

    loop: int
    axis: str
    count: int


@dataclass(frozen=True)
class PartitionedResult:
    """The loops of a result that was cut.

    Attributes
    ----------
    mesh : tuple[LoopRV, ...]
        Loops over the mesh, the outermost first.
    tile : tuple[LoopRV, ...]
        Loops of one PE, in the order of the block's iteration variables.
    """

    mesh: tuple[LoopRV, ...]
    tile: tuple[LoopRV, ...]


def tiles_of(extents: Sequence[int], cuts: Iterable[PartitionedLoop]) -> tuple[int, ...]:
    """Iterations of each loop in one PE."""
    counts = {cut.loop: cut.count for cut in cuts}
    return tuple(-(-extent // counts.get(loop, 1)) for loop, extent in enumerate(extents))


def cut_result(
    sch: s_tir.Schedule, block: SBlockRV, cuts: Sequence[PartitionedLoop], tiles: Sequence[int]
) -> PartitionedResult:
    """Cuts the first loops of ``block`` as ``cuts`` have it, the outermost first, into ``tiles``.

    Loops behind the ones that ``tiles`` are given for (sums) stay inside, in order.
    """
    loops = list(sch.get_loops(block))
    outer: dict[int, LoopRV] = {}
    for cut in cuts:
        pieces = sch.split(loops[cut.loop], factors=[cut.count, tiles[cut.loop]])
        outer[cut.loop], loops[cut.loop] = pieces
        sch.annotate(pieces[0], MESH_AXIS, cut.axis)
    mesh = tuple(outer[cut.loop] for cut in cuts)
    sch.reorder(*mesh, *loops)
    return PartitionedResult(mesh, tuple(loops))


def innermost_vector(sch: s_tir.Schedule, loops: Sequence[LoopRV], vector: int) -> None:
    """One vector instruction for all iterations of ``loops[vector]``, which becomes innermost."""
    others = [loop for position, loop in enumerate(loops) if position != vector]
    sch.reorder(*others, loops[vector])
    sch.annotate(loops[vector], VECTOR, 1)


def longest_loop(tiles: Mapping[int, int]) -> int:
    """The loop with the most iterations, the innermost one of several."""
    return max(tiles, key=lambda loop: (tiles[loop], loop))


def copy_tile(
    sch: s_tir.Schedule, block: SBlockRV, buffer: tirx.Buffer, under: LoopRV, pattern: str
) -> None:
    """Copies what ``block`` reads of ``buffer`` in one iteration of ``under``."""
    position = read_position(sch.get(block), buffer)
    tile = sch.cache_read(block, position, "global", [block])
    sch.compute_at(tile, under, preserve_unit_loops=True)
    sch.annotate(tile, COMMUNICATION, pattern)


def send_shared(
    sch: s_tir.Schedule, block: SBlockRV, cuts: Iterable[PartitionedLoop], under: LoopRV
) -> None:
    """Copies the parameters of which ``block`` needs the same in several PEs, unless constant.

    ``cuts`` are of the loops of ``block``; a copy is what it reads in one iteration of ``under``.
    """
    stmt = sch.get(block)
    func = sch.mod["main"]
    cut_loops = [cut for cut in cuts if cut.count > 1]
    for region in operands_of(stmt):
        is_param = among(region.source, func.params)
        if not is_param or constant_parameter(func, region.source) is not None:
            continue
        moving = moved_by(region, stmt)
        axes = {cut.axis for cut in cut_loops if cut.loop not in moving}
        pattern = broadcast_pattern(ROW in axes, COLUMN in axes)
        if pattern is not None:
            copy_tile(sch, block, region.source, under, pattern)


def aligned_count(size: int, advance: int, cut: PartitionedLoop) -> int:
    """Pieces of a tensor's dimension, of which each PE needs ``advance`` elements beyond the last.

    As many as there are PEs, unless other pieces begin where the PEs' needs do: a padded tensor has
    more elements than its PEs advance by. What lies beyond them is a piece of its own.
    """
    count = -(-size // max(1, advance))
    return count if -(-size // count) == advance else min(cut.count, size)


def home_words(pieces: Mapping[int, tuple[str, int]], rank: int) -> list[str]:
    """How a home is stated: ``pieces`` has the axis and the number of pieces by dimension."""
    words = {dimension: f"{axis}/{count}" for dimension, (axis, count) in pieces.items()}
    return [words.get(dimension, WHOLE) for dimension in range(rank)]


def axis_pairs(extents: Sequence[int]) -> list[tuple[int, int]]:
    """Which loops may go over rows and columns of PEs: all that have something to cut.

    A result with fewer than two such loops has others with them, of one iteration.
    """
    long = [loop for loop, extent in enumerate(extents) if extent > 1]
    short = [loop for loop, extent in enumerate(extents) if extent == 1]
    chosen = sorted([*long, *short[: max(0, 2 - len(long))]])
    return [(row, column) for row in chosen for column in chosen if row != column]


def widest_grid(
    extents: Sequence[int], pair: tuple[int, int], machine: WaferDescription
) -> tuple[PartitionedLoop, PartitionedLoop]:
    """As many PEs as a pair of loops fills."""
    rows = grid_options(extents[pair[0]], machine.rows)[-1]
    columns = grid_options(extents[pair[1]], machine.columns)[-1]
    return PartitionedLoop(pair[0], ROW, rows), PartitionedLoop(pair[1], COLUMN, columns)


def decide_grid(
    extents: Sequence[int],
    rank: Callable[[tuple[int, int]], Any],
    machine: WaferDescription,
    decisions: Decisions,
) -> tuple[PartitionedLoop, PartitionedLoop]:
    """Which loops go over rows and columns, by default those of the least ``rank``, and how far.

    Decisions: ``axes``, by number in ``axis_pairs``; ``rows`` and ``columns``, the pieces.
    """
    pairs = axis_pairs(extents)
    ranks = [rank(pair) for pair in pairs]
    row, column = pairs[decisions.pick("axes", range(len(pairs)), ranks.index(min(ranks)))]
    rows = pick_pieces("rows", extents[row], machine.rows, decisions)
    columns = pick_pieces("columns", extents[column], machine.columns, decisions)
    return PartitionedLoop(row, ROW, rows), PartitionedLoop(column, COLUMN, columns)


def pe_cycles(machine: WaferDescription, dtype: str, instructions: float, elements: float) -> float:
    """Cycles of plain vector code of one PE: starts and loops, and the elements."""
    starts = machine.issue_cycles + machine.loop_cycles
    return instructions * starts + elements * machine.element_cycles(dtype)
