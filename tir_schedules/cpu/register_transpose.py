"""Tiles transposed in registers: which nests want them, of what size, and their code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis, count_calls, nodes, slope
from tvm_ext.tir_schedules.analysis.loop_nest import Nest, load_strides, store_strides, substitute
from tvm_ext.tir_schedules.cpu.nest_code import chunks, loop, new_axis
from tvm_ext.tir_schedules.cpu.parallel_vectorize import branch_comparisons, distinct
from tvm_ext.tir_schedules.statements import bits_of, sequence, stack_array
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Moves elements between the lanes of vectors: transposes and (de)interleaving in registers.


# Gives an expression a name of its own and returns the variable.
Name = Callable[[Any], Any]


def transposed(rows: Sequence[tvm.ir.Expr], size: int, name: Name) -> list[tvm.ir.Expr]:
    """The columns of ``size`` vectors of ``size`` lanes, a power of two.

    Halves of pairs of vectors change places, then quarters, and so on: Eklundh, "A fast computer
    method for matrix transposing", IEEE Transactions on Computers C-21, 1972.
    """
    vectors = list(rows)
    distance = size // 2
    while distance:
        for i in (i for i in range(size) if not i & distance):
            pair = _exchanged(vectors[i], vectors[i + distance], distance, size)
            vectors[i], vectors[i + distance] = map(name, pair)
        distance //= 2
    return vectors


def lane_sums(rows: Sequence[Any], size: int, name: Name) -> Any:
    """A vector of the sums of the lanes of each of the ``rows``, vectors of ``size`` lanes.

    As ``transposed``, with the sums of pairs in their place. There are as many rows as lanes, or a
    smaller power of two.
    """
    vectors = list(rows)
    distance = len(vectors) // 2
    while distance:
        pairs = zip(vectors[:distance], vectors[distance:], strict=True)
        exchanged = [_exchanged(a, b, distance, size) for a, b in pairs]
        vectors = [name(low + high) for low, high in exchanged]
        distance //= 2
    total, lanes = vectors[0], size
    while lanes > len(rows):
        lanes //= 2
        halves = ([*range(lanes)], [*range(lanes, 2 * lanes)])
        low, high = (_shuffle([total], half) for half in halves)
        total = name(low + high)
    return total


def _exchanged(first: Any, second: Any, distance: int, size: int) -> tuple[Any, Any]:
    """Two vectors after lanes of the first have changed places with some of the second."""
    low = [k if not k & distance else size + k - distance for k in range(size)]
    high = [k + distance if not k & distance else size + k for k in range(size)]
    return _shuffle((first, second), low), _shuffle((first, second), high)


def interleaved(rows: Sequence[tvm.ir.Expr], size: int, name: Name) -> list[tvm.ir.Expr]:
    """As many vectors as rows: lane 0 of every row, then lane 1 of every row, and so on."""
    count = len(rows)
    flat = [(number % count, number // count) for number in range(count * size)]
    return [picked(rows, flat[i * size : (i + 1) * size], name) for i in range(count)]


def deinterleaved(rows: Sequence[Any], size: int, name: Name) -> list[Any]:
    """The inverse of ``interleaved``."""
    count = len(rows)
    places = [[divmod(lane * count + i, size) for lane in range(size)] for i in range(count)]
    return [picked(rows, place, name) for place in places]


def strided(rows: Sequence[Any], stride: int, size: int, name: Name) -> Any:
    """Every ``stride``-th element of memory, from loads that ``strided_starts`` has placed."""
    places = []
    for lane in range(size):
        offset = lane * stride
        row = min(offset // (size - 1), len(rows) - 1)
        places.append((row, offset - row * (size - 1)))
    return picked(rows, places, name)


def strided_starts(stride: int, size: int) -> list[int]:
    """Where vectors are to be loaded for ``strided``: none goes beyond the last element."""
    return [number * (size - 1) for number in range(stride)]


def picked(
    rows: Sequence[tvm.ir.Expr], places: Sequence[tuple[int, int]], name: Name
) -> tvm.ir.Expr:
    """A vector of the elements at (row, lane), by exchanges between two vectors at a time."""
    size = len(places)
    result, first = rows[0], [lane if row == 0 else 0 for row, lane in places]
    if len(rows) == 1:
        return name(_shuffle([result], first))
    for number in range(1, len(rows)):
        kept = first if number == 1 else list(range(size))
        lanes = [size + lane if row == number else kept[i] for i, (row, lane) in enumerate(places)]
        result = name(_shuffle([result, rows[number]], lanes))
    return result


def _shuffle(vectors: Sequence[tvm.ir.Expr], lanes: Sequence[int]) -> tvm.ir.Expr:
    return tirx.Shuffle(list(vectors), [tirx.const(lane, "int32") for lane in lanes])


# Above this many nodes, or with a function in it, a value is computed in a loop over the rows of a
# tile, not row by row.
_MAX_NODES_UNROLLED = 24

# Longer strides are read element by element.
MAX_STRIDE = 4


@dataclass(frozen=True)
class TransposeTileDecision:
    """How a nest is cut into tiles.

    Attributes
    ----------
    write_axis : int
        Axis along which the result is contiguous.
    read_axis : int
        Axis along which what is transposed is read.
    size : int
        Lanes of the vectors, and rows of a full tile; a power of two.
    shape : str
        "square"; "interleave" when the result is dense in a short write axis, and whole vectors of
        it are stored; "deinterleave" when what is read is dense in a short read axis.
    transposed : tuple[int, ...]
        Positions among the nest's loads of those that are transposed, while values are computed in
        the order of writing. Empty: values are computed in the order of reading, and transposed.
    swapped : bool
        Whether tiles follow each other along the shorter of the two axes, not the longer one.
    """

    write_axis: int
    read_axis: int
    size: int
    shape: Literal["square", "interleave", "deinterleave"] = "square"
    transposed: tuple[int, ...] = ()
    swapped: bool = False


def tile_count(nest: Nest, decision: TransposeTileDecision) -> int:
    """How many tiles there are."""
    count = 1
    for position, axis in enumerate(nest.axes):
        is_tiled = position in (decision.write_axis, decision.read_axis)
        count *= -(-axis.extent // decision.size) if is_tiled else axis.extent
    return count


def tile_code(nest: Nest, decision: TransposeTileDecision) -> tuple[list[LoopAxis], tirx.Stmt]:
    """The nest in tiles: the loops outside of a tile, and its body."""
    write, read = nest.axes[decision.write_axis], nest.axes[decision.read_axis]
    tile = _TransposeTile(nest, decision)
    outer = [axis for axis in nest.axes if axis is not write and axis is not read]
    write_chunk, write_start = chunks(write.extent, tile.rows, write.var)
    read_chunk, read_start = chunks(read.extent, tile.columns, read.var)
    first_write = tirx.Var("first_row", str(write.var.ty))
    first_read = tirx.Var("first_column", str(read.var.ty))
    binds = [tirx.Bind(first_write, write_start), tirx.Bind(first_read, read_start)]
    body = sequence([*binds, *tile.statements(first_write, first_read)])
    # Along the longer axis inside: fewer stretches of memory are under way at a time.
    pair = [axis for axis in (write_chunk, read_chunk) if not axis.runs_once]
    pair.sort(key=lambda axis: (axis.is_symbolic, 0 if axis.is_symbolic else axis.extent))
    if decision.swapped:
        pair.reverse()
    once = {a.var: tirx.const(0, str(a.var.ty)) for a in (write_chunk, read_chunk)}
    once = {a: v for a, v in once.items() if not any(p.var.same_as(a) for p in pair)}
    return [*outer, *pair], substitute(body, once)


class _TransposeTile:
    """One tile: ``rows`` along the axis that is written, ``columns`` along the one that is read."""

    def __init__(self, nest: Nest, decision: TransposeTileDecision) -> None:
        self.nest = nest
        self.size = decision.size
        self.shape = decision.shape
        self.write = nest.axes[decision.write_axis]
        self.read = nest.axes[decision.read_axis]
        self.rows = self._most(self.write)
        self.columns = self._most(self.read)
        loads = nest.loads()
        self.staged = [loads[i] for i in decision.transposed] or [nest.store.value]

    def _most(self, axis: LoopAxis) -> int:
        """How many of an axis are in a tile; one of symbolic extent is no shorter than that."""
        return self.size if axis.is_symbolic else min(self.size, axis.extent)

    def statements(self, first_write: tirx.Var, first_read: tirx.Var) -> list[tirx.Stmt]:
        """The statements of a tile whose first element is at these two iterations."""
        found: list[tirx.Stmt] = []
        arrays: list[tuple[Any, Any]] = []
        for index, expr in enumerate(self.staged):
            dtype = _carrier(str(expr.ty))
            array, declaration = stack_array(self.size * self.size, dtype, f"tile{index}")
            found.append(declaration)
            found += self._fill(array, expr, first_write, first_read)
            found += self._turn(array)
            arrays.append((expr, array))
        return [*found, *self._write_back(arrays, first_write, first_read)]

    def _fill(
        self,
        array: tirx.Buffer,
        expr: tvm.ir.Expr,
        first_write: tvm.ir.Expr,
        first_read: tvm.ir.Expr,
    ) -> list[tirx.Stmt]:
        def row(number: tvm.ir.Expr) -> tirx.Stmt:
            lane = new_axis("lane", self.columns, self.read.var)
            values = {self.write.var: first_write + number, self.read.var: first_read + lane.var}
            return self._store_row(array, number * self.size, substitute(expr, values), lane)

        def dense(number: Any) -> tirx.Stmt:
            lane = new_axis("lane", self.size, self.read.var)
            values = {self.write.var: first_write, self.read.var: number * self.size + lane.var}
            return self._store_row(array, number * self.size, substitute(expr, values), lane)

        if self.shape == "deinterleave":
            return self._for_each(self.columns, self.read, dense, expr)
        return self._for_each(self.rows, self.write, row, expr)

    def _store_row(
        self, array: tirx.Buffer, start: tvm.ir.Expr, expr: tvm.ir.Expr, lane: LoopAxis
    ) -> tirx.Stmt:
        expr = Analyzer().simplify(expr)
        plain = isinstance(expr, tvm.ir.TensorLoad) and lane.extent == self.size
        step = slope(expr.indices[0], lane.var) if plain else None
        if step is None or not 1 < step <= MAX_STRIDE:
            store = tirx.BufferStore(array, bits_of(expr, array.dtype), [start + lane.var])
            return loop(lane, store, tirx.ForKind.VECTORIZED)
        first = substitute(expr.indices[0], {lane.var: tirx.const(0, str(lane.var.ty))})
        names = _VectorNames(f"{array.dtype}x{self.size}")
        rows = [
            names(bits_of(_vector(expr.source, first + offset, self.size), names.dtype))
            for offset in strided_starts(step, self.size)
        ]
        vector = strided(rows, step, self.size, names)
        ramp = tirx.Ramp(start, tirx.const(1, str(start.ty)), self.size)
        return sequence([*names.statements, tirx.BufferStore(array, vector, [ramp])])

    def _for_each(
        self, count: int, like: LoopAxis, body: Callable[[Any], tirx.Stmt], expr: Any
    ) -> list[tirx.Stmt]:
        small = len(nodes(expr, tvm.ir.Expr)) <= _MAX_NODES_UNROLLED and not count_calls(expr)
        # Which way a branch goes is known only where the row is a number.
        if small or branch_comparisons(expr):
            return [body(tirx.const(number, str(like.var.ty))) for number in range(count)]
        axis = new_axis("row", count, like.var)
        return [loop(axis, body(axis.var))]

    def _turn(self, array: tirx.Buffer) -> list[tirx.Stmt]:
        size, names = self.size, _VectorNames(f"{array.dtype}x{self.size}")
        count = self.columns if self.shape == "deinterleave" else self.rows
        starts = [tirx.const(number * size, "int32") for number in range(size)]
        rows = [names(_vector(array, start, size)) for start in starts[:count]]
        if self.shape == "interleave":
            vectors = interleaved(rows, size, names)
        elif self.shape == "deinterleave":
            vectors = deinterleaved(rows, size, names)
        else:
            # Rows beyond the last are never looked at: any vector will do.
            rows += [rows[0]] * (size - count)
            vectors = transposed(rows, size, names)[: self.columns]
        stores = [
            tirx.BufferStore(array, vector, [tirx.Ramp(start, tirx.const(1, "int32"), size)])
            for vector, start in zip(vectors, starts, strict=False)
        ]
        return [*names.statements, *stores]

    def _write_back(
        self, arrays: list[tuple[Any, Any]], first_write: tvm.ir.Expr, first_read: tvm.ir.Expr
    ) -> list[tirx.Stmt]:
        store = self.nest.store

        def column(number: tvm.ir.Expr) -> tirx.Stmt:
            lane = new_axis("lane", self.rows, self.write.var)
            values = {self.write.var: first_write + lane.var, self.read.var: first_read + number}
            return written(number * self.size + lane.var, values, lane)

        def dense(number: tvm.ir.Expr) -> tirx.Stmt:
            lane = new_axis("lane", self.size, self.write.var)
            values = {self.write.var: number * self.size + lane.var, self.read.var: first_read}
            return written(number * self.size + lane.var, values, lane)

        def written(index: tvm.ir.Expr, values: dict[Any, Any], lane: LoopAxis) -> tirx.Stmt:
            places = [
                (expr, bits_of(tirx.BufferLoad(array, [index]), str(expr.ty)))
                for expr, array in arrays
            ]
            value = substitute(_with_loads(store.value, places), values)
            address = substitute(store.indices[0], values)
            body = tirx.BufferStore(store.buffer, value, [address])
            return loop(lane, body, tirx.ForKind.VECTORIZED)

        if self.shape == "interleave":
            return [dense(tirx.const(i, str(self.write.var.ty))) for i in range(self.rows)]
        value = arrays[0][1] if arrays[0][0].same_as(store.value) else store.value
        return self._for_each(self.columns, self.read, column, value)


class _VectorNames:
    """Collects the statements that name vectors."""

    def __init__(self, dtype: str) -> None:
        self.statements: list[tirx.Stmt] = []
        self.dtype = dtype

    def __call__(self, value: tvm.ir.Expr) -> tvm.ir.Expr:
        var = tirx.Var("vector", self.dtype)
        self.statements.append(tirx.Bind(var, value))
        return var


def _carrier(dtype: str) -> str:
    """The type in which elements are moved.

    TVM turns narrow floats into integers after vectors were named, and then refuses the names.
    """
    if dtype == "bfloat16":
        return "uint16"
    return "uint8" if dtype.startswith("float8") else dtype


def _vector(array: tirx.Buffer, start: tvm.ir.Expr, size: int) -> tvm.ir.Expr:
    return tirx.BufferLoad(array, [tirx.Ramp(start, tirx.const(1, str(start.ty)), size)])


def _with_loads(value: tvm.ir.Expr, places: Sequence[tuple[Any, Any]]) -> tvm.ir.Expr:
    """``value`` with some of what it reads, or all of it, taken from tiles."""
    loads = {tvm_ffi.StructuralKey(expr): load for expr, load in places}
    if tvm_ffi.StructuralKey(value) in loads:
        return loads[tvm_ffi.StructuralKey(value)]

    def replaced(expr: tvm.ir.Expr) -> tvm.ir.Expr:
        return loads.get(tvm_ffi.StructuralKey(expr), expr)

    return tvm_ffi.structural_map(value, (tvm.ir.TensorLoad, replaced))


# Which nests are transposed in registers: along which axes, and what of them.


# Shorter axes give vectors too short to be worth turning.
_MIN_EXTENT = 4

# An innermost axis of so few elements is slower in vectors of its own than transposed.
_SHORT = 4

# Sizes of tiles that are worth trying; smaller ones move single elements.
_SIZES = (4, 8, 16, 32)

# Beyond, turning whole squares takes fewer exchanges.
_MAX_INTERLEAVED = 7

Strides = tuple[int | None, ...]


def decide_tile(
    nest: Nest, machine: CpuDescription, dense: bool = True
) -> TransposeTileDecision | None:
    """The default heuristic: whole vectors both ways, as little as possible transposed.

    None where the result, or what is read across it, is not contiguous along an axis, where nothing
    is read across it, and for booleans, which are not transposed in registers. ``dense``: rows or
    columns too short for vectors are interleaved as they lie in memory.
    """
    write = len(nest.axes) - 1
    written = store_strides(nest)
    if write < 1 or written[write] != 1:
        return None
    loads = load_strides(nest)
    transposed = _transposed(nest, loads)
    if not transposed:
        return None
    dtypes = [str(nest.store.buffer.dtype), *(str(load.source.dtype) for load in nest.loads())]
    if "bool" in dtypes:
        return None
    size = min(machine.vector_lanes("float32"), *(machine.vector_lanes(d) for d in dtypes))
    most = min(size, _MAX_INTERLEAVED)
    short = _dense_short_axis(nest, loads, transposed, most) if dense else None
    if short is not None and nest.axes[write].extent >= size:
        return TransposeTileDecision(write, short, size, "deinterleave", tuple(transposed))
    read = _read_axis(nest, loads, transposed)
    if read is None:
        return None
    rows, columns = nest.axes[write].extent, nest.axes[read].extent
    if not all(_is_short_step(steps[read]) for steps in loads):
        return TransposeTileDecision(
            write, read, _fitting(size, rows, columns), "square", tuple(transposed)
        )
    if dense and written[read] == rows <= most and columns >= size:
        return TransposeTileDecision(write, read, size, "interleave")
    return TransposeTileDecision(write, read, _fitting(size, rows, columns))


def decide_tiles(
    nests: Sequence[Nest],
    machine: CpuDescription,
    once: bool = False,
    decisions: Decisions = DEFAULT_DECISIONS,
) -> dict[int, TransposeTileDecision]:
    """For those nests of a block (by position) that are transposed in registers, how.

    With ``once``, no element may be computed twice: no tile laps over another one.

    Asks for ``square`` tiles where the default heuristic interleaves short rows, for loads that are
    transposed instead of values (``turn_loads``), for the size of a ``tile``, and for the order of
    tiles (``swapped``): all that for all nests at once.
    """
    found: dict[int, TransposeTileDecision] = {}
    for i, nest in enumerate(nests):
        tile = decide_tile(nest, machine)
        if tile is not None and not (once and _laps_over(nest, tile)):
            found[i] = tile
    # Which way a branch goes must be known in each row: those tiles stay as they are.
    free = [i for i in found if not once and not branch_comparisons(nests[i].store.value)]
    squares = {i: other for i in free if (other := _as_square(nests[i], found[i], machine))}
    if squares and decisions.pick("square", (0, 1), 0):
        found |= squares
    turning = {i: other for i in free if (other := _transposing_loads(nests[i], found[i]))}
    if turning and decisions.pick("turn_loads", (0, 1), 0):
        found |= turning
    found |= _of_one_size({i: (nests[i], found[i]) for i in free}, decisions)
    crossing = [i for i, tile in found.items() if _has_rows_and_columns(nests[i], tile)]
    if crossing and decisions.pick("swapped", (0, 1), 0):
        found |= {i: replace(found[i], swapped=True) for i in crossing}
    return found


def _as_square(
    nest: Nest, tile: TransposeTileDecision, machine: CpuDescription
) -> TransposeTileDecision | None:
    """Another tile in the place of one of short rows that are interleaved; None for a square."""
    if tile.shape == "square":
        return None
    return decide_tile(nest, machine, dense=False)


def _transposing_loads(nest: Nest, tile: TransposeTileDecision) -> TransposeTileDecision | None:
    """The same tile with values computed in the order of writing; None where that is the same."""
    if tile.transposed or tile.shape != "square" or isinstance(nest.store.value, tvm.ir.TensorLoad):
        return None
    return replace(tile, transposed=tuple(_transposed(nest, load_strides(nest))))


def _of_one_size(
    tiles: dict[int, tuple[Nest, TransposeTileDecision]], decisions: Decisions
) -> dict[int, TransposeTileDecision]:
    """The tiles no larger than a ``tile`` that is asked for, as far as their shapes allow."""

    def size(option: int, nest: Nest, tile: TransposeTileDecision) -> int:
        return min(tile.size, max(option, _least_size(nest, tile)))

    def sizes(option: int) -> tuple[int, ...]:
        return tuple(size(option, *pair) for pair in tiles.values())

    if not tiles:
        return {}
    largest = max(tile.size for _, tile in tiles.values())
    smallest = min(_least_size(*pair) for pair in tiles.values())
    options = [size for size in _SIZES if smallest <= size <= largest]
    option = decisions.pick("tile", distinct(options, largest, sizes), largest)
    return {i: replace(tile, size=size(option, nest, tile)) for i, (nest, tile) in tiles.items()}


def _least_size(nest: Nest, tile: TransposeTileDecision) -> int:
    """Lanes that a tile must have at least: all of a short row, and never a few."""
    short = {
        "square": 1,
        "interleave": nest.axes[tile.write_axis].extent,
        "deinterleave": nest.axes[tile.read_axis].extent,
    }
    return max(_SIZES[0], 1 << (short[tile.shape] - 1).bit_length())


def _laps_over(nest: Nest, tile: TransposeTileDecision) -> bool:
    """Whether the last tiles of rows or columns repeat what others have done."""
    extents = [nest.axes[axis].extent for axis in (tile.write_axis, tile.read_axis)]
    return any(extent > tile.size and extent % tile.size for extent in extents)


def _has_rows_and_columns(nest: Nest, tile: TransposeTileDecision) -> bool:
    """Whether tiles follow each other along both of their axes."""
    return all(nest.axes[axis].extent > tile.size for axis in (tile.write_axis, tile.read_axis))


def keeps_whole(nest: Nest, axis: int, machine: CpuDescription) -> bool:
    """Whether branches along an axis are left to the rows of a tile, each of which goes one way."""
    if axis != len(nest.axes) - 1:
        return False
    decision = decide_tile(nest, machine)
    if decision is None or decision.transposed:
        return False
    return nest.axes[axis].extent <= decision.size


def _transposed(nest: Nest, loads: list[Strides]) -> list[int]:
    """Loads that are not read as the result is written."""
    across = [i for i, steps in enumerate(loads) if steps[-1] not in (0, 1)]
    if across:
        return across
    if branch_comparisons(nest.store.value):
        # Pieces too short for vectors: each is read along another axis, and they are woven.
        return [i for i, steps in enumerate(loads) if any(steps)]
    if nest.axes[-1].extent <= _SHORT:
        return [i for i, steps in enumerate(loads) if steps[-1] == 0 and any(steps)]
    return []


def _read_axis(nest: Nest, loads: list[Strides], transposed: list[int]) -> int | None:
    fitting = [
        axis
        for axis in range(len(nest.axes) - 1)
        if nest.axes[axis].extent >= _MIN_EXTENT
        and all(_is_short_step(loads[i][axis]) for i in transposed)
        and any(loads[i][axis] == 1 for i in transposed)
    ]
    if fitting:
        return max(fitting, key=lambda axis: nest.axes[axis].extent)
    fitting = [
        axis
        for axis in range(len(nest.axes) - 1)
        if nest.axes[axis].extent >= _MIN_EXTENT
        and all(loads[i][axis] in range(2, MAX_STRIDE + 1) for i in transposed)
    ]
    return max(fitting, key=lambda axis: nest.axes[axis].extent, default=None)


def _dense_short_axis(
    nest: Nest, loads: list[Strides], transposed: list[int], most: int
) -> int | None:
    """An axis of ``most`` elements or fewer, all of which is read at once."""
    for axis in range(len(nest.axes) - 1):
        extent = nest.axes[axis].extent
        dense = all(loads[i][axis] == 1 and loads[i][-1] == extent for i in transposed)
        if dense and extent <= most:
            return axis
    return None


def _is_short_step(step: int | None) -> bool:
    return step is not None and 0 <= step <= 1


def _fitting(size: int, rows: int, columns: int) -> int:
    """The size of tiles that are not larger than both of their axes."""
    return min(size, 1 << (max(rows, columns) - 1).bit_length())
