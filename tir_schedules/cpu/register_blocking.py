"""Register tiles of contractions: their shape, and how operands are packed for them.

The shape comes from the machine's registers and caches. Operands are packed in panels of
columns, staged piece by piece, or transposed once.
"""

import math
from dataclasses import dataclass

from tvm import s_tir
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    BlockAccess,
    access_of,
    count_calls,
    is_data_parallel,
    operands_of,
    read_position,
    static_extent,
    writer_of,
)
from tvm_ext.tir_schedules.cpu.parallel_vectorize import (
    REGISTERS_PER_VECTOR_LOOP,
    largest_divisor,
    vector_length,
)
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Accumulators that keep the multiply-add units busy: latency times units, doubled for comfort.
ENOUGH_ACCUMULATORS = 8

# Vectors of columns that a tuner may try, and more of them for a tile of a single row. Never three:
# LLVM keeps such tiles in memory, 4 to 70 times slower.
VECTORS_TRIED, VECTORS_TRIED_IN_ONE_ROW = (1, 2, 4), (8,)

# Bytes after which addresses fall into the same set of L1, and lines that a set holds at least: a
# page, since L1 is looked up while the page is, and eight on all but the oldest CPUs.
L1_PERIOD, L1_WAYS = 4096, 8


@dataclass(frozen=True)
class RegisterTileDecision:
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
    decisions: Decisions = DEFAULT_DECISIONS,
) -> RegisterTileDecision:
    """By default two vectors wide, and as many rows as leave registers for operands.

    Decisions: ``columns``, and ``rows_0``, ``rows_1`` and so on by the loop's position.
    """
    vector_axis = _vector_axis(access)
    if vector_axis is None:
        raise NotApplicable(
            "no data-parallel loop walks the output and the inputs without a stride"
        )
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
    return RegisterTileDecision(vector_axis, columns, rows)


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
    access: BlockAccess, axes: list[int], closed: dict[int, int], limit: int, decisions: Decisions
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
) -> RegisterTileDecision:
    """The tile with so many columns, and by default as many rows as then fit."""
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
        rest = {longest: rows_with_tail(extents[longest], limit)}
        rows = max(rows, rest, key=lambda chosen: math.prod(chosen.values()))
    rows = _with_overlap(access, vector_axis, axes, rows, limit)
    return RegisterTileDecision(vector_axis, columns, rows)


# What a row of vectors of operands takes, in multiply-adds of as many vectors: a tile reads it for
# each step, whatever its rows are.
_ROWS_PER_READ = 3

# Of the time of tiles that have no rest, that which others must save at least.
_LEAST_SAVED = 1 / 16


def _with_overlap(
    access: BlockAccess, vector_axis: int, axes: list[int], rows: dict[int, int], limit: int
) -> dict[int, int]:
    """``rows``, or more rows of one loop, whose last tile repeats some of the one before."""

    def time(chosen: dict[int, int]) -> int:
        tiles = math.prod(-(-access.extents[axis] // chosen.get(axis, 1)) for axis in axes)
        return tiles * (math.prod(chosen.values()) + _ROWS_PER_READ)

    found = [
        {axis: size}
        for axis in axes
        if _may_repeat(access, vector_axis, axis)
        for size in range(2, min(limit, access.extents[axis] - 1) + 1)
    ]
    best = min(found, key=time, default=rows)
    return best if time(best) < (1 - _LEAST_SAVED) * time(rows) else rows


def _may_repeat(access: BlockAccess, vector_axis: int, axis: int) -> bool:
    """Whether rows along a loop share the vectors of operands, and may be computed twice.

    Constants that rows select are packed by rows that leave no rest. Rows next to each other in
    memory are those of a gradient by weights, a sum over the rows of both operands: the new weights
    take the place of the old ones, which must not be read once more then.
    """
    pairs = zip(access.read_strides, access.constant_reads, strict=True)
    steps = [(s[axis], s[vector_axis], constant) for s, constant in pairs]
    return all(step == 0 for step, vector, _ in steps if vector == 1) and not any(
        constant or step == 1 for step, _, constant in steps if step != 0
    )


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


def _accumulators(tile: RegisterTileDecision, lanes: int) -> int:
    return math.prod(tile.rows.values()) * max(1, -(-tile.columns // lanes))


def _dividing_rows(access: BlockAccess, axes: list[int], limit: int) -> dict[int, int]:
    rows: dict[int, int] = {}
    for axis in axes:
        size = largest_divisor(access.extents[axis], limit)
        if size > 1:
            rows[axis] = size
            limit //= size
    return rows


def rows_with_tail(extent: int, limit: int) -> int:
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
    """Spatial loops along which what was loaded once serves several outputs.

    First those that a vector serves, of which the innermost first: its rows are the nearest to each
    other in memory. Where these have fewer rows than keep the multiply-add units busy, as with a
    single output channel, those that a broadcast element serves.
    """
    spatial = [axis for axis in reversed(access.spatial) if axis != vector_axis]
    vectors = [strides for strides in access.read_strides if strides[vector_axis] == 1]
    served = [axis for axis in spatial if any(strides[axis] == 0 for strides in vectors)]
    if math.prod(access.extents[axis] for axis in served) >= ENOUGH_ACCUMULATORS:
        return served
    others = [strides for strides in access.read_strides if strides[vector_axis] == 0]
    more = [axis for axis in spatial if any(strides[axis] == 0 for strides in others)]
    return [*served, *(axis for axis in more if axis not in served)]


# A copy of an operand that is written piece by piece, right before register tiles read it.


@dataclass(frozen=True)
class OperandStage:
    """The block that writes the copy, and what is computed between two pieces of it.

    Attributes
    ----------
    block : SBlockRV
        Writes the copy.
    axis : int
        Spatial loop of the reduction that is cut.
    tiles : int
        Register tiles along it that are computed between two pieces.
    per_column : bool
        Whether a piece holds the columns of one register tile only.
    """

    block: SBlockRV
    axis: int
    tiles: int
    per_column: bool = False


def write_stage(sch: s_tir.Schedule, block: SBlockRV, loop: LoopRV, lanes: int) -> None:
    """Moves the copy into ``loop``, where it writes what one iteration reads, in vectors."""
    sch.compute_at(block, loop, preserve_unit_loops=True)
    innermost = sch.get_loops(block)[-1]
    extent = static_extent(sch.get(innermost).extent) or 1
    length = vector_length(extent, lanes, REGISTERS_PER_VECTOR_LOOP)
    if length > 1:
        _, vector = sch.split(innermost, factors=[None, length])
        sch.vectorize(vector)


# Columns of a matrix that is no constant, packed for one column of register tiles at a time.
#
# A tile reads a few columns of each row: a line here and a line there, each in a page of its own.
# Copied next to each other they stay in L2 while all rows of the other operand pass. This is the
# packing of B in Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
# (2008).


# Tiles that read a panel, at least: below, the copy takes longer than it saves.
LEAST_TILES = 4

# What copying a panel takes, in register tiles that are computed in the same time.
_TILES_PER_COPY = 1


def column_panel(
    sch: s_tir.Schedule,
    access: BlockAccess,
    decision: RegisterTileDecision,
    machine: CpuDescription,
    is_large: bool,
    decisions: Decisions = DEFAULT_DECISIONS,
) -> OperandStage | None:
    """The stage for the operand that the columns select; None where a copy would not pay.

    ``is_large``: the operand does not stay in L2. A smaller one is only copied if it is padded, or
    if its columns leave L1 before the next tile reads them.
    Decisions: ``column_panel``, whether there is one, and ``panel_tiles``, the tiles that read it.
    """
    operand = _matrix(sch, access, decision.vector_axis)
    if operand is None or access.constant_reads[operand]:
        return None
    strides = access.read_strides[operand]
    rows = [a for a in access.spatial if strides[a] == 0 and access.extents[a] > 1]
    matrices = [
        axis
        for axis in access.spatial
        if strides[axis] and access.extents[axis] > 1 and axis != decision.vector_axis
    ]
    if not rows or any(axis > rows[0] for axis in matrices):
        return None
    steps = -(-access.extents[rows[0]] // decision.rows.get(rows[0], 1))
    producer = _producer(sch, access, operand)
    if steps < 2 or (producer is not None and not _is_padding(sch, producer)):
        return None
    is_copied = producer is not None or is_large or _leaves_l1(access, operand)
    pays = steps >= LEAST_TILES and is_copied
    if not decisions.pick("column_panel", (0, 1), int(pays)):
        return None
    panels = math.prod(access.extents[axis] for axis in matrices)
    panels *= -(-access.extents[decision.vector_axis] // decision.columns)
    parts = _parts(steps, machine.cores)
    shares = min(parts, key=lambda n: _makespan(steps, panels, n, machine.cores))
    tiles = decisions.pick("panel_tiles", [steps // n for n in parts], steps // shares)
    if producer is None:
        source = operands_of(sch.get(access.block))[operand].source
        position = read_position(sch.get(access.block), source)
        producer = sch.cache_read(access.block, position, "global")
    return OperandStage(producer, rows[0], tiles, per_column=True)


def _leaves_l1(access: BlockAccess, operand: int) -> bool:
    """Whether a column of an operand has more rows than L1 has places for so far apart."""
    strides = access.read_strides[operand]
    return any(
        access.extents[axis] > rows_in_l1((strides[axis] or 0) * access.element_bytes)
        for axis in access.reduction
    )


def _producer(sch: s_tir.Schedule, access: BlockAccess, operand: int) -> SBlockRV | None:
    """The block that writes the operand; None for a parameter of the kernel."""
    source = operands_of(sch.get(access.block))[operand].source
    return writer_of(sch, access.block, source)


def _is_padding(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether it copies rows, with a border: what turns a matrix reads it across the rows."""
    if not is_data_parallel(sch, block) or len(sch.get_consumers(block)) != 1:
        return False
    access = access_of(sch, block)
    if access is None or count_calls(sch.get(block).body) > 1 or len(access.read_strides) != 1:
        return False
    return access.read_strides[0][-1] == 1


def _matrix(sch: s_tir.Schedule, access: BlockAccess, vector_axis: int) -> int | None:
    """The operand that has one element for each step of the loops along which it moves.

    A convolution's input is none: windows overlap.
    """
    for index, region in enumerate(operands_of(sch.get(access.block))):
        strides = access.read_strides[index]
        if strides[vector_axis] != 1 or None in strides:
            continue
        steps = math.prod(n for n, stride in zip(access.extents, strides, strict=True) if stride)
        if steps == math.prod(static_extent(size) or 0 for size in region.source.shape):
            return index
    return None


def _parts(steps: int, cores: int) -> list[int]:
    """Into how many parts the rows may be cut, each with a copy of the panel."""
    return [n for n in range(1, cores + 1) if steps % n == 0]


def _makespan(steps: int, panels: int, parts: int, cores: int) -> int:
    """Register tiles one after the other on the core that has the most to do."""
    return -(-panels * parts // cores) * (steps // parts + _TILES_PER_COPY)


# Transposes an operand that lies the wrong way for vectors, once, before a product reads it.


# Times that each element is used after it was transposed: below, transposing does not pay.
LEAST_USES = 8


def transpose_operand(sch: s_tir.Schedule, access: BlockAccess) -> BlockAccess | None:
    """The access after a copy of one operand was laid out along the output; None if not done.

    For ``C[i, j] += A[i, k] * B[j, k]``: B is copied as ``[k, j]``, so that vectors run along j.
    """
    columns = [axis for axis in access.spatial if access.write_strides[axis] == 1]
    for axis in columns:
        found = [
            (operand, depth)
            for operand, strides in enumerate(access.read_strides)
            for depth in access.reduction
            if strides[axis] not in (0, 1, None) and strides[depth] == 1
        ]
        if len(found) != 1:
            continue
        operand, depth = found[0]
        if _uses(access, operand) < LEAST_USES:
            continue
        if not swapped_copy(sch, access.block, operand, axis, depth):
            continue
        return access_of(sch, access.block)
    return None


def _uses(access: BlockAccess, operand: int) -> int:
    uses = 1
    for axis in access.spatial:
        if access.read_strides[operand][axis] == 0:
            uses *= access.extents[axis]
    return uses


def swapped_copy(sch: s_tir.Schedule, block: SBlockRV, operand: int, axis: int, depth: int) -> bool:
    """Lets ``block`` read a copy of an operand in which two dimensions have changed places.

    They are those that two iteration variables, by position, walk. False, and nothing is changed,
    where one of them is not the plain index of a dimension.
    """
    stmt = sch.get(block)
    region = operands_of(stmt)[operand]
    variables = stmt.iter_vars
    places = [
        next((p for p, dim in enumerate(region.region) if dim.min.same_as(variables[v].var)), None)
        for v in (axis, depth)
    ]
    if None in places:
        return False
    order = list(range(len(region.region)))
    first, second = (place for place in places if place is not None)
    order[first], order[second] = order[second], order[first]
    position = read_position(stmt, region.source)
    sch.cache_read(block, position, "global")
    sch.transform_layout(
        block, ("read", position), lambda *index: tuple(index[place] for place in order)
    )
    return True
