"""The shape of a register tile, in closed form from the machine's registers and caches."""

import math
from dataclasses import dataclass

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import BlockAccess
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.llvm.loop_nest import largest_divisor, vector_length
from tvm_ext.tir_schedules.template import NotMine

# Accumulators that keep the multiply-add units busy: latency times units, doubled for comfort.
ENOUGH_ACCUMULATORS = 8

# Vectors of columns that a tuner may try, and more of them for a tile of a single row. Never three:
# LLVM keeps such tiles in memory, 4 to 70 times slower.
VECTORS_TRIED, VECTORS_TRIED_IN_ONE_ROW = (1, 2, 4), (8,)

# Bytes after which addresses fall into the same set of L1, and lines that a set holds at least: a
# page, since L1 is looked up while the page is, and eight on all but the oldest CPUs.
L1_PERIOD, L1_WAYS = 4096, 8


@dataclass(frozen=True)
class TileDecision:
    """Shape of the register tile.

    Attributes
    ----------
    vector_axis : int
        Loop of the reduction block whose elements fill the vectors.
    columns : int
        Elements of the tile along it.
    rows : dict[int, int]
        Other spatial loops and how many of their iterations the tile holds.
    """

    vector_axis: int
    columns: int
    rows: dict[int, int]


def decide_tile(
    access: BlockAccess,
    machine: CpuDescription,
    dtype: str,
    decisions: Decisions = CLOSED_FORM,
) -> TileDecision | NotMine:
    """In closed form two vectors wide, and as many rows as leave registers for operands.

    Decisions: ``columns``, and ``rows_0``, ``rows_1`` and so on by the loop's position.
    """
    vector_axis = _vector_axis(access)
    if vector_axis is None:
        return NotMine("no data-parallel loop walks the output and the inputs without a stride")
    lanes = machine.vector_lanes(dtype)
    extent = access.extents[vector_axis]
    wide = [
        _tile_of(access, machine, vector_axis, lanes, vector_length(extent, lanes, vectors))
        for vectors in (2, 4)
    ]
    # Few rows (small batches, a single vector): more columns, so that no sum waits for itself.
    enough = (tile for tile in wide if _accumulators(tile, lanes) >= ENOUGH_ACCUMULATORS)
    closed = next(enough, wide[-1])
    axes = [axis for axis in _row_axes(access, vector_axis) if access.extents[axis] > 1]
    tried = column_options(extent, lanes, one_row=not axes)
    columns = decisions.pick("columns", tried, closed.columns)
    tile = _tile_of(access, machine, vector_axis, lanes, columns)
    rows = _picked_rows(access, axes, tile.rows, row_limit(machine, columns, lanes, 0), decisions)
    return TileDecision(vector_axis, columns, rows)


def column_options(extent: int, lanes: int, one_row: bool = False) -> set[int]:
    """Columns worth a try: those that leave no rest, in whole vectors where that is possible.

    Where it is not, and the best that fits into a vector is a poor one, longer odd lengths.
    """
    counts = (*VECTORS_TRIED, *VECTORS_TRIED_IN_ONE_ROW) if one_row else VECTORS_TRIED
    options = {vector_length(extent, lanes, count) for count in counts}
    longest = min(extent, VECTORS_TRIED[-1] * lanes)
    if 2 * max(options) < lanes:
        options |= {n for n in range(lanes + 1, longest + 1) if extent % n == 0}
    return options


def row_limit(machine: CpuDescription, columns: int, lanes: int, broadcasts: int) -> int:
    """Rows that fit into the registers beside one row of operands and ``broadcasts`` vectors."""
    vectors = max(1, -(-columns // lanes))
    return max(1, (vector_registers(machine) - vectors - broadcasts) // vectors)


def row_options(extent: int, limit: int) -> set[int]:
    """Sizes worth a try: divisors, and among the large ones even parts that leave a rest."""
    dividing = {size for size in range(1, min(extent, limit) + 1) if extent % size == 0}
    large = range(limit // 2 + 1, min(extent, limit) + 1)
    return dividing | {size for size in large if size == -(-extent // -(-extent // size))}


def _picked_rows(
    access: BlockAccess,
    axes: list[int],
    closed: dict[int, int],
    limit: int,
    decisions: Decisions,
) -> dict[int, int]:
    """``closed``, or other rows of which at most ``limit`` are in the tile."""
    rows: dict[int, int] = {}
    is_closed = True
    for axis in axes:
        extent, own = access.extents[axis], closed.get(axis, 1)
        default = own if is_closed else largest_divisor(extent, limit)
        size = decisions.pick(f"rows_{axis}", row_options(extent, limit), default)
        is_closed = is_closed and size == own
        limit //= size
        if size > 1:
            rows[axis] = size
    return rows


def _tile_of(
    access: BlockAccess, machine: CpuDescription, vector_axis: int, lanes: int, columns: int
) -> TileDecision:
    """The tile with so many columns, and in closed form as many rows as then fit."""
    vectors = max(1, -(-columns // lanes))
    # One vector for the broadcast value of a row.
    limit = row_limit(machine, columns, lanes, 1)
    axes = _row_axes(access, vector_axis)
    dividing = limit
    if axes:
        dividing = min(limit, _rows_in_l1(access, vector_axis, axes, packed=True))
        limit = min(limit, _rows_in_l1(access, vector_axis, axes, packed=False))
    rows = _dividing_rows(access, axes, dividing)
    if axes and math.prod(rows.values()) * vectors < ENOUGH_ACCUMULATORS:
        extents = {axis: access.extents[axis] for axis in axes}
        longest = max(axes, key=lambda axis: min(extents[axis], limit))
        rest = {longest: rows_with_rest(extents[longest], limit)}
        rows = max(rows, rest, key=lambda chosen: math.prod(chosen.values()))
    return TileDecision(vector_axis, columns, rows)


def _rows_in_l1(access: BlockAccess, vector_axis: int, axes: list[int], packed: bool) -> int:
    """``rows_in_l1`` for the operand that is broadcast along the columns.

    ``packed``: constants are packed by rows that divide their number, and have no such limit.
    """
    steps = [
        strides[axes[0]] or 0
        for strides, constant in zip(access.read_strides, access.constant_reads, strict=True)
        if strides[vector_axis] == 0 and not (packed and constant)
    ]
    return rows_in_l1(max((abs(step) for step in steps), default=0) * access.element_bytes)


def rows_in_l1(nbytes: int) -> int:
    """How many rows that are ``nbytes`` apart can stay in L1 at the same column.

    Addresses with the same low bits share the few places of one set. Measured on products with
    rows of 1024 float32: 97 % of the peak with 8 rows, 75 % with 14, 20 % with 28.
    """
    return L1_WAYS * (L1_PERIOD // math.gcd(nbytes, L1_PERIOD)) if nbytes else L1_PERIOD


def _accumulators(tile: TileDecision, lanes: int) -> int:
    return math.prod(tile.rows.values()) * max(1, -(-tile.columns // lanes))


def _dividing_rows(access: BlockAccess, axes: list[int], limit: int) -> dict[int, int]:
    rows: dict[int, int] = {}
    for axis in axes:
        size = largest_divisor(access.extents[axis], limit)
        if size > 1:
            rows[axis] = size
            limit //= size
    return rows


def rows_with_rest(extent: int, limit: int) -> int:
    """Rows of the tile along a loop whose ``extent`` has no good divisor: even parts.

    Unlike columns, rows may leave a rest: the branch that skips them is the same for a whole
    vector and costs little. It takes registers, though: with two rows fewer than ``limit``, tiles
    of 38 and 161 ran at full speed, and at 45 and 70 % of it without.
    """
    tiles = -(-extent // max(limit - 2, 1))
    return -(-extent // tiles)


def vector_registers(machine: CpuDescription) -> int:
    """Vector registers of the instruction set: 32 with AVX-512 and NEON, 16 below."""
    if machine.vector_bits >= 512 or machine.architecture == "aarch64":
        return 32
    return 16


def _vector_axis(access: BlockAccess) -> int | None:
    """The longest spatial loop with unit stride in the output and stride 0 or 1 in all inputs."""
    fitting = [
        axis
        for axis in access.spatial
        if access.write_strides[axis] == 1
        and access.extents[axis] > 1
        and all(strides[axis] in (0, 1) for strides in access.read_strides)
    ]
    return max(fitting, key=lambda axis: access.extents[axis], default=None)


def _row_axes(access: BlockAccess, vector_axis: int) -> list[int]:
    """Spatial loops along which a vector that was loaded once serves several outputs.

    The innermost first: its rows are the nearest to each other in memory.
    """
    vectors = [strides for strides in access.read_strides if strides[vector_axis] == 1]
    return [
        axis
        for axis in reversed(access.spatial)
        if axis != vector_axis and any(strides[axis] == 0 for strides in vectors)
    ]
