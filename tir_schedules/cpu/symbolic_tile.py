"""Contractions with symbolic extents (matmul, convolution): tiles of sums in registers.

The sizes of the tiles are numbers, only how many there are is known when the kernel runs. What the
tile code says about loops that are shorter than a tile, or no multiple of it, holds here as well.
"""

import math
from dataclasses import replace

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV, ScheduleError
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    buffer_bytes,
    constant_parameter,
    depends,
    element_bytes,
    linear_form,
    only_reduction,
    operands_of,
    scans,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.cpu.blockwise import schedule_others
from tvm_ext.tir_schedules.cpu.implicit_padding import implicit_padding
from tvm_ext.tir_schedules.cpu.nest_code import vector_chunk
from tvm_ext.tir_schedules.cpu.register_blocking import (
    L1_PERIOD,
    LEAST_TILES,
    LEAST_USES,
    row_limit,
    swapped_copy,
    vector_registers,
)
from tvm_ext.tir_schedules.cpu.row_blocking import LONG_RUN
from tvm_ext.tir_schedules.cpu.symbolic_contraction import (
    SymbolicContraction,
    epilogue_of,
    joined,
    may_repeat,
    symbolic_contraction,
    with_code,
)
from tvm_ext.tir_schedules.cpu.symbolic_tile_code import symbolic_tile_code
from tvm_ext.tir_schedules.cpu.symbolic_tile_cut import FarRows, Panel, SymbolicTile
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.packing import pack_operand
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Rows of a tile, at most: with two vectors enough sums to keep the multiply-add units busy, and
# few that are computed twice at the end of a loop.
_MOST_ROWS = 8

# Rows of further tiles where rows may be few and what all of them read takes long to read: a loop
# shorter than the largest tile would read it once for each row.
_FEW_ROWS = (4, 3, 2)

# Steps of a sum, at least, whose operand is copied: the rows that fewer steps read stay in L1.
_LEAST_PANEL = 64

# Tiles along the columns whose columns are copied together, at most.
_MOST_TILES = 8

# Vectors of sums in L1 that are added to at a time: lines of an operand before its next row.
_FAR_VECTORS = 4

# Tiles of a block of rows, at least: weights are read for each block.
_LEAST_BLOCK = 8

# Sums next to each other where a loop over them is shorter than a vector.
_FEW_COLUMNS = 4


class SymbolicTiles:
    """Kernels with one contraction, of which a loop has an extent that is not known."""

    name = "symbolic tile"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> s_tir.Schedule:
        """See ``Template.apply``. It asks for no decision: there are no sizes to measure with."""
        sch = inlined_schedule(func)
        anchor = _anchor(sch)
        epilogue = epilogue_block(sch, anchor)
        found = symbolic_contraction(sch, anchor, epilogue, conditional=True)
        columns = vector_axis(found)
        if columns is None and _transpose_operand(sch, anchor, found):
            found = symbolic_contraction(sch, anchor, epilogue, conditional=True)
            columns = vector_axis(found)
        if columns is None:
            raise NotApplicable("no loop walks the output and the operands without a stride")
        computed = static_extent(sch.get(anchor).iter_vars[columns.position].dom.extent)
        tile = _decide(found, columns, computed, machine)
        inner = (columns, tile.rows, *found.reduction[-1:])
        if found.condition is not None and (not found.reduction or found.is_decided_by(*inner)):
            raise NotApplicable("whether an iteration adds anything is no matter of outer loops")
        sch = _packed(sch, anchor, tile)
        packed = symbolic_contraction(sch, anchor, epilogue, conditional=True)
        func = sch.mod["main"]
        found, tile = with_joined_rows(packed, _moved(tile, found, packed), func)
        found, tile = _with_joined_columns(found, tile, func, machine)
        if found.condition is None:
            tile = replace(tile, panel=_panel(found, tile, func, machine))
        found, tile = with_flattened_rows(found, tile)
        tile = replace(tile, row_block=_row_block(found, tile, machine))
        if tile.panel is None:
            lanes = machine.vector_lanes(str(found.start.ty))
            padding = implicit_padding(sch, anchor, found, tile.rows, tile.columns, lanes)
            tile = replace(tile, implicit_padding=padding)
        if tile.implicit_padding is None and found.condition is None:
            tile = replace(tile, far_rows=far_rows(found, tile, func, machine))
        code = symbolic_tile_code(found, tile, machine.cores > 1)
        pad = tile.implicit_padding.block if tile.implicit_padding is not None else None
        done = [block for block in (pad, anchor, epilogue) if block is not None]
        schedule_others(sch, done, machine)
        return with_code(sch, code, done, found.views)


def _anchor(sch: s_tir.Schedule) -> SBlockRV:
    """The kernel's only reduction, where a loop of it is symbolic."""
    anchor = single_sum(sch)
    if None not in [static_extent(v.dom.extent) for v in sch.get(anchor).iter_vars]:
        raise NotApplicable("all extents are known, or a loop has no iterations")
    return anchor


def single_sum(sch: s_tir.Schedule) -> SBlockRV:
    """The kernel's only reduction, of one result and with iterations."""
    anchor = only_reduction(sch)
    stmt = sch.get(anchor)
    if len(stmt.writes) != 1:
        raise NotApplicable("its reduction has several results")
    if scans(stmt):
        raise NotApplicable("a loop scans")
    if 0 in [static_extent(v.dom.extent) for v in stmt.iter_vars]:
        raise NotApplicable("a loop has no iterations")
    return anchor


def epilogue_block(sch: s_tir.Schedule, anchor: SBlockRV) -> SBlockRV | None:
    """The block that is computed for each tile."""
    block = epilogue_of(sch, anchor)
    if block is None:
        return None
    try:
        symbolic_contraction(sch, anchor, block, conditional=True)
    except NotApplicable:
        return None
    return block if may_repeat(sch, anchor, block) else None


def vector_axis(contraction: SymbolicContraction) -> LoopAxis | None:
    """The loop that steps through the result, and through operands or not along them."""
    for axis in contraction.spatial:
        steps = [contraction.step(load, axis) for load in contraction.operands()]
        if contraction.step(contraction.store, axis) == 1 and None not in steps and 1 in steps:
            return axis
    return None


def _transpose_operand(
    sch: s_tir.Schedule, anchor: SBlockRV, contraction: SymbolicContraction
) -> bool:
    """Whether an operand that lies along the sum is now read from a copy along the columns."""
    stmt = sch.get(anchor)
    operands = [read.source for read in operands_of(stmt)]
    for axis in contraction.spatial:
        if contraction.step(contraction.store, axis) != 1:
            continue
        for load in contraction.operands():
            deep = [r for r in contraction.reduction if contraction.step(load, r) == 1]
            reused = any(
                contraction.step(load, other) == 0 and _is_long(other)
                for other in contraction.spatial
            )
            if contraction.step(load, axis) is not None or len(deep) != 1 or not reused:
                continue
            operand = next(i for i, own in enumerate(operands) if own.same_as(load.source))
            return swapped_copy(sch, anchor, operand, axis.position, deep[0].position)
    return False


def _is_long(axis: LoopAxis) -> bool:
    return axis.length is None or axis.length >= LEAST_USES


def _column_sizes(columns: LoopAxis, lanes: int) -> tuple[int, ...]:
    if columns.length is not None:
        return (vector_chunk(columns.length, lanes, 2),)
    few = (size for size in (_FEW_COLUMNS, 1) if size == 1 or size < lanes)
    return (2 * lanes, lanes, *few) if lanes > 1 else (1,)


def _packed(sch: s_tir.Schedule, anchor: SBlockRV, tile: SymbolicTile) -> s_tir.Schedule:
    """``sch``, or a copy of it with a constant packed by the columns of a tile, or by its rows.

    With channels first the columns are pixels, and the rows select weights.
    """
    packed = sch.copy()
    func = packed.mod["main"]
    sizes = [(tile.columns, tile.column_sizes), (tile.rows, tile.row_sizes)]
    for axis, (size, *_) in sizes:
        if axis is None or axis.length is None:
            continue
        if axis.length % size and not (tile.padded and axis is tile.columns):
            continue
        for index, read in enumerate(operands_of(packed.get(anchor))):
            if constant_parameter(func, read.source) is None:
                continue
            try:
                if pack_operand(packed, anchor, index, axis.position, size):
                    return packed
            except ScheduleError:
                return sch
    return sch


def _decide(
    contraction: SymbolicContraction,
    columns: LoopAxis,
    computed: int | None,
    machine: CpuDescription,
) -> SymbolicTile:
    """How the loops are cut, where ``computed`` sums lie along the columns, wanted or not."""
    lanes = machine.vector_lanes(str(contraction.start.ty))
    sizes = _column_sizes(columns, lanes)
    wide, wanted = 2 * lanes, columns.length or 0
    padded = wanted % wide > 0 and (computed or 0) >= -(-wanted // wide) * wide
    if padded:
        sizes = (wide,)
    return replace(with_rows(contraction, columns, sizes, machine), padded=padded)


def with_rows(
    contraction: SymbolicContraction,
    columns: LoopAxis,
    sizes: tuple[int, ...],
    machine: CpuDescription,
) -> SymbolicTile:
    """A tile of ``sizes`` sums along the columns, and as many rows as registers are left for."""
    lanes = machine.vector_lanes(str(contraction.start.ty))
    most = min(_MOST_ROWS, row_limit(machine, sizes[0], lanes, 1))
    rows = _row_axis(contraction, columns, most)
    if rows is None:
        return SymbolicTile(columns, sizes, None, (1,))
    large = _vector_bytes(contraction, columns, rows) > machine.l2_bytes // 2
    row_sizes = _row_sizes(rows, most, _may_have_few_rows(contraction, large))
    return SymbolicTile(columns, sizes, rows, row_sizes, large, vector_sums=lanes)


def _moved(tile: SymbolicTile, old: SymbolicContraction, new: SymbolicContraction) -> SymbolicTile:
    """The same tile of a contraction with the same loops."""
    columns = new.spatial[old.spatial.index(tile.columns)]
    rows = new.spatial[old.spatial.index(tile.rows)] if tile.rows is not None else None
    return replace(tile, columns=columns, rows=rows)


def _with_joined_outer(
    contraction: SymbolicContraction, loop: LoopAxis, end: LoopAxis | None, func: tirx.PrimFunc
) -> tuple[SymbolicContraction, LoopAxis]:
    """``loop`` made one with the loops around it, as far as they can be and up to ``end``."""
    while (position := contraction.spatial.index(loop)) > 0:
        outer = contraction.spatial[position - 1]
        one = joined(contraction, outer, loop, func.params) if outer is not end else None
        if one is None:
            break
        contraction, loop = one
    return contraction, loop


def with_joined_rows(
    contraction: SymbolicContraction, tile: SymbolicTile, func: tirx.PrimFunc
) -> tuple[SymbolicContraction, SymbolicTile]:
    """The rows of a tile across all the loops that can be one: rows of several short sequences."""
    if tile.rows is None:
        return contraction, tile
    contraction, rows = _with_joined_outer(contraction, tile.rows, tile.columns, func)
    if rows is tile.rows:
        return contraction, tile
    with_few = _may_have_few_rows(contraction, tile.columns_first)
    sizes = _row_sizes(rows, max(tile.row_sizes), with_few)
    return contraction, replace(tile, rows=rows, row_sizes=sizes)


def with_flattened_rows(
    contraction: SymbolicContraction, tile: SymbolicTile
) -> tuple[SymbolicContraction, SymbolicTile]:
    """The rows of a tile across loops that cannot be one: pixels of all lines of a padded image.

    Lines are often shorter than a tile or no multiple of it, and a tile of few rows reads the
    weights as often as one of many.
    """
    rows = tile.rows
    if rows is None or tile.panel is not None or _has_whole_tiles(rows, tile.row_sizes):
        return contraction, tile
    before = contraction.spatial[: contraction.spatial.index(rows)]
    others = [
        axis
        for axis in before
        if axis is not tile.columns and _serves_all(contraction, tile.columns, axis)
    ]
    if not others:
        return contraction, tile
    parts = (*others, rows)
    extent = math.prod((part.extent for part in parts[1:]), start=parts[0].extent)
    flat = LoopAxis(tirx.Var("row", rows.var.ty), extent)
    left = [axis for axis in contraction.spatial if not any(axis is part for part in others)]
    spatial = tuple(flat if axis is rows else axis for axis in left)
    sizes = _row_sizes(flat, max(tile.row_sizes), tile.columns_first)
    tile = replace(tile, rows=flat, row_sizes=sizes, row_parts=parts)
    return replace(contraction, spatial=spatial), tile


def _serves_all(contraction: SymbolicContraction, columns: LoopAxis, axis: LoopAxis) -> bool:
    """Whether all vectors of operands, packed or not, are the same along ``axis``."""
    loads = [load for load in contraction.operands() if contraction.step(load, columns) != 0]
    same = all(contraction.step(load, axis) == 0 for load in loads)
    return same and not contraction.is_decided_by(axis)


def _with_joined_columns(
    contraction: SymbolicContraction,
    tile: SymbolicTile,
    func: tirx.PrimFunc,
    machine: CpuDescription,
) -> tuple[SymbolicContraction, SymbolicTile]:
    """The columns of a tile across all the loops that can be one: pixels of all lines."""
    if tile.padded:
        return contraction, tile
    contraction, columns = _with_joined_outer(contraction, tile.columns, tile.rows, func)
    if columns is tile.columns:
        return contraction, tile
    sizes = _column_sizes(columns, machine.vector_lanes(str(contraction.start.ty)))
    return contraction, replace(tile, columns=columns, column_sizes=sizes)


def _panel(
    contraction: SymbolicContraction,
    tile: SymbolicTile,
    func: tirx.PrimFunc,
    machine: CpuDescription,
) -> Panel | None:
    """The operand whose columns are to be copied for tiles; None where a copy would not pay."""
    rows, columns = tile.rows, tile.columns
    steps = math.prod(axis.length or 0 for axis in contraction.reduction)
    few_rows = rows is not None and rows.length and rows.length < LEAST_TILES * tile.row_sizes[0]
    if rows is None or few_rows or steps < _LEAST_PANEL:
        return None
    for load in contraction.operands():
        nbytes = element_bytes(load.source)
        moves = contraction.step(load, columns) == 1 and contraction.step(load, rows) == 0
        is_far = columns.length is None or columns.length * nbytes >= L1_PERIOD
        tiles = machine.l2_bytes // 2 // (steps * tile.column_sizes[0] * nbytes)
        if moves and is_far and tiles and constant_parameter(func, load.source) is None:
            least = 1 if rows.length else LEAST_TILES * tile.row_sizes[0]
            return Panel(load, rows, min(tiles, _MOST_TILES), least)
    return None


def _row_block(
    contraction: SymbolicContraction, tile: SymbolicTile, machine: CpuDescription
) -> int:
    """Tiles whose windows of an input half of L2 holds, where all columns pass for each: windows
    come in pieces that no prefetcher follows. 0 without blocks, as where a sum is of any length.
    """
    lengths = [axis.length or 0 for axis in contraction.reduction]
    nbytes = element_bytes(contraction.store.buffer)
    is_window = len(lengths) > 1 and all(lengths) and math.prod(lengths[-2:]) * nbytes < LONG_RUN
    if not (is_window and tile.columns_first and tile.rows is not None) or tile.panel is not None:
        return 0
    tiles = machine.l2_bytes // 2 // (tile.row_sizes[0] * math.prod(lengths) * nbytes)
    return tiles if tiles >= _LEAST_BLOCK else 0


def far_rows(
    contraction: SymbolicContraction,
    tile: SymbolicTile,
    func: tirx.PrimFunc,
    machine: CpuDescription,
) -> FarRows | None:
    """The operand that fills the vectors, where a run gives it and it is too large for L2."""
    columns, loads = tile.columns, contraction.operands()
    along = [load for load in loads if contraction.step(load, columns) == 1]
    stays = [load for load in loads if contraction.step(load, columns) == 0]
    if len(along) != 1 or len(along) + len(stays) < len(loads) or tile.padded:
        return None
    (load,), dtype = along, str(contraction.start.ty)
    if dtype != "float32" or str(load.source.dtype) != dtype:
        return None
    moves = contraction.reduction and depends(load, contraction.reduction[-1].var)
    shared = tile.rows is None or contraction.step(load, tile.rows) == 0
    is_large = buffer_bytes(load.source) > machine.l2_bytes // 2
    if not (moves and shared and is_large) or constant_parameter(func, load.source) is not None:
        return None
    lanes = machine.vector_lanes(dtype)
    return FarRows(
        load,
        in_l1=machine.l1d_bytes // 4 // element_bytes(load.source),
        in_registers=vector_registers(machine) // 2 * lanes,
        lanes=_FAR_VECTORS * lanes,
        least_tiles=machine.cores,
    )


def _row_axis(contraction: SymbolicContraction, columns: LoopAxis, most: int) -> LoopAxis | None:
    """The innermost loop that a vector of an operand serves all of, or the longest such loop."""
    fitting = [
        axis
        for axis in reversed(contraction.spatial)
        if axis is not columns
        and _reuses(contraction, columns, axis)
        and _is_linear(contraction, axis)
    ]
    long = (axis for axis in fitting if axis.length is None or axis.length >= most)
    return next(long, max(fitting, key=lambda axis: axis.length or 0, default=None))


def _reuses(contraction: SymbolicContraction, columns: LoopAxis, axis: LoopAxis) -> bool:
    return any(
        contraction.step(load, columns) == 1 and contraction.step(load, axis) == 0
        for load in contraction.operands()
    )


def _is_linear(contraction: SymbolicContraction, axis: LoopAxis) -> bool:
    """Whether rows follow each other at one distance: no address takes a division."""
    indices = [index for load in contraction.operands() for index in load.indices]
    moved = [index for index in indices if depends(index, axis.var)]
    return all(linear_form(index, [axis.var]) for index in moved)


def _may_have_few_rows(contraction: SymbolicContraction, large: bool) -> bool:
    """Whether ``_FEW_ROWS`` are for a contraction: a product of matrices, or one whose operand is
    ``large``. The rows of a convolution are pixels, which are many.
    """
    return large or len(contraction.reduction) == 1


def _row_sizes(rows: LoopAxis, most: int, with_few: bool) -> tuple[int, ...]:
    """Rows of tiles, the largest first; ``with_few``: see ``_FEW_ROWS``."""
    if rows.length is None:
        few = (size for size in _FEW_ROWS if with_few and size < most)
        sizes = (most, *few, 1) if most > 1 else (1,)
        # A loop of seven by seven pixels for each image is never shorter than the largest tile.
        least = _least_length(rows)
        larger = (math.inf, *sizes)
        return tuple(n for n, next_size in zip(sizes, larger, strict=False) if next_size > least)
    tiles = -(-rows.length // most)
    even = -(-rows.length // tiles)
    # Rows that leave no rest need not be computed twice, and their constants can be packed.
    whole = (n for n in range(even, most * 3 // 4 - 1, -1) if rows.length % n == 0)
    return (next(whole, even),)


def _least_length(axis: LoopAxis) -> int:
    """Iterations of a loop at least, where it has any: sizes may be zero, but for factors."""
    analyzer = Analyzer()
    for var in tirx.analysis.undefined_vars(axis.extent):
        zero, end = (tirx.const(n, str(var.ty)) for n in (0, (1 << 31) - 1))
        is_factor = analyzer.can_prove_equal(substitute(axis.extent, {var: zero}), 0)
        analyzer.bind(var, tvm.ir.Range(int(is_factor), end))
    return int(analyzer.const_int_bound(axis.extent).min_value)


def _has_whole_tiles(rows: LoopAxis, sizes: tuple[int, ...]) -> bool:
    return rows.length is not None and rows.length % sizes[0] == 0


def _vector_bytes(contraction: SymbolicContraction, columns: LoopAxis, rows: LoopAxis) -> int:
    """Bytes of what all rows read in vectors: the weights."""
    return sum(
        buffer_bytes(load.source)
        for load in contraction.operands()
        if contraction.step(load, columns) == 1 and contraction.step(load, rows) == 0
    )
