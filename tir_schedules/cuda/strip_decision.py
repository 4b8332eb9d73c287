"""How many results a thread has that slides a window over an input, by default.

Nothing is shared between threads but the caches. A strip of ``columns`` results of ``rows`` rows
shares what its windows overlap in: rows * columns results take fewer loads, until their sums no
longer fit in registers, or until too few threads are left to hide the memory's latency.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.template import Decisions

THREADS = (64, 128, 256)
STRIPS = (1, 2, 4, 8)

# Taps in a row up to which they are written out, and how many of more are at a time.
MAX_TAPS_WRITTEN_OUT = 16
TAPS_AT_A_TIME = 8

# Products in the code of a thread; a window of more is walked row by row.
MAX_MULTIPLY_ADDS = 1600

# Registers for addresses, loop counters and loads on their way, and those that leave a
# multiprocessor three blocks of 128 threads.
_OTHER_REGISTERS = 32
_MAX_REGISTERS = 136

# Weights of all rows of the window stay in registers up to so many of these.
_MAX_KEPT_WEIGHTS = 48

# A quarter of the threads that a multiprocessor can hold (CUDA C++ Programming Guide, technical
# specifications: 2,048) hides the latency of memory when each has several loads on their way.
_OCCUPYING_THREADS = 512

MAX_THREADS = (1024, 1024, 64)
"""Threads along x, y and z of a block: CUDA C++ Programming Guide, technical specifications."""

# Bytes along the innermost axis that the threads of a block cover: a line of L1.
_LINE_BYTES = 128


@dataclass(frozen=True)
class StripShape:
    """Numbers that the decision depends on.

    Attributes
    ----------
    extents : tuple[int, ...]
        Strips' axes of the result, next to each other in memory first.
    column_axis, row_axis : int
        Which of them are columns and rows; -1 where there are no rows.
    lane_axis : bool
        Whether the first is the one along which vectors are.
    width : int
        Elements of a vector.
    steps, spreads, taps : tuple[int, int]
        Strides, dilations and positions of the window, of rows and columns.
    data_words, weight_words, sum_words : int
        Registers for one vector of the input, of the weights (0 without) and of sums.
    element_bytes : int
        Of the result.
    """

    extents: tuple[int, ...]
    column_axis: int
    row_axis: int
    lane_axis: bool
    width: int
    steps: tuple[int, int]
    spreads: tuple[int, int]
    taps: tuple[int, int]
    data_words: int
    weight_words: int
    sum_words: int
    element_bytes: int


@dataclass(frozen=True)
class StripDecision:
    """What a thread computes, and the threads of a block.

    Attributes
    ----------
    width, columns, rows : int
        Results of a thread: neighbouring elements, columns, rows.
    taps : int
        Columns of the window that are written out; more than these are in a loop.
    rows_written_out : bool
        Whether the rows of the window are; only a loop where a thread has a single row.
    kept : bool
        Whether all weights are loaded at the beginning.
    tile : tuple[int, ...]
        Threads along each of the shape's axes.
    """

    width: int
    columns: int
    rows: int
    taps: int
    rows_written_out: bool
    kept: bool
    tile: tuple[int, ...]


def decide_strips(
    shape: StripShape, machine: CudaDescription, decisions: Decisions
) -> StripDecision:
    """The strips of each thread. Decisions: ``strip_columns``, ``strip_rows``, ``threads``."""
    fitting = list(_fitting(shape))
    enough = [s for s in fitting if _strips(shape, *s) >= machine.sms * _OCCUPYING_THREADS]
    best = min(enough or [(1, 1)], key=lambda strip: (_loads(shape, *strip), strip))
    columns = decisions.pick("strip_columns", {c for c, _ in fitting}, best[0])
    deep = {r for c, r in fitting if c == columns}
    rows = decisions.pick("strip_rows", deep, best[1] if best[1] in deep else 1)
    sizes = [size for size in THREADS if size <= machine.max_threads_per_block]
    threads = decisions.pick("threads", sizes, _threads(shape, columns, rows, machine))
    return StripDecision(
        width=shape.width,
        columns=columns,
        rows=rows,
        taps=_taps_at_a_time(shape),
        rows_written_out=_are_rows_written_out(shape, columns, rows),
        kept=_keeps_weights(shape),
        tile=_tile(shape, columns, rows, threads),
    )


def _threads(shape: StripShape, columns: int, rows: int, machine: CudaDescription) -> int:
    """Large blocks share more rows in L1, small ones leave more of them on a multiprocessor."""
    many = _strips(shape, columns, rows) >= 4 * machine.sms * _OCCUPYING_THREADS
    light = _registers(shape, columns, rows) <= _MAX_REGISTERS // 2
    return 256 if many and light else 128


def _fitting(shape: StripShape) -> Iterator[tuple[int, int]]:
    """Columns and rows of a thread that fit in registers; a single one always does."""
    wide = STRIPS if shape.lane_axis else (1,)
    deep = STRIPS if shape.row_axis >= 0 else (1,)
    for columns in wide:
        for rows in deep:
            single = (columns, rows) == (1, 1)
            useful = columns < 2 * shape.extents[shape.column_axis]
            useful &= rows == 1 or rows < 2 * shape.extents[shape.row_axis]
            useful &= rows == 1 or _are_rows_written_out(shape, columns, rows)
            if single or (useful and _registers(shape, columns, rows) <= _MAX_REGISTERS):
                yield columns, rows


def columns_read(shape: StripShape, columns: int) -> list[int]:
    """Columns of the input under a strip, counted from its first."""
    taps = range(_taps_at_a_time(shape))
    step, spread = shape.steps[1], shape.spreads[1]
    return sorted({c * step + tap * spread for c in range(columns) for tap in taps})


def rows_read(shape: StripShape, rows: int) -> dict[int, list[tuple[int, int]]]:
    """Rows of the input under a strip; for each the results' rows and window's rows it is for."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row in range(rows):
        for tap in range(shape.taps[0]):
            place = row * shape.steps[0] + tap * shape.spreads[0]
            found.setdefault(place, []).append((row, tap))
    return dict(sorted(found.items()))


def _taps_at_a_time(shape: StripShape) -> int:
    taps = shape.taps[1]
    return taps if taps <= MAX_TAPS_WRITTEN_OUT else TAPS_AT_A_TIME


def _are_rows_written_out(shape: StripShape, columns: int, rows: int) -> bool:
    results = rows * columns * shape.width
    return shape.taps[0] * _taps_at_a_time(shape) * results <= MAX_MULTIPLY_ADDS


def _keeps_weights(shape: StripShape) -> bool:
    few = shape.taps[0] * shape.taps[1] * shape.weight_words <= _MAX_KEPT_WEIGHTS
    return few and _taps_at_a_time(shape) == shape.taps[1]


def _registers(shape: StripShape, columns: int, rows: int) -> int:
    sums = columns * rows * shape.sum_words
    held = len(columns_read(shape, columns)) * shape.data_words
    weights = shape.weight_words * (
        shape.taps[0] * shape.taps[1] if _keeps_weights(shape) else _taps_at_a_time(shape)
    )
    return sums + held + weights + _OTHER_REGISTERS


def _strips(shape: StripShape, columns: int, rows: int) -> int:
    return math.prod(strip_counts(shape, columns, rows))


def strip_counts(shape: StripShape, columns: int, rows: int) -> list[int]:
    """Strips along each axis."""
    counts = list(shape.extents)
    counts[shape.column_axis] = -(-counts[shape.column_axis] // columns)
    if shape.row_axis >= 0:
        counts[shape.row_axis] = -(-counts[shape.row_axis] // rows)
    if shape.lane_axis:
        counts[0] //= shape.width
    return counts


def _loads(shape: StripShape, columns: int, rows: int) -> float:
    """Vectors that are loaded for each result, those of results past the end included."""
    data = len(rows_read(shape, rows)) * len(columns_read(shape, columns))
    taps = shape.taps[0] * shape.taps[1]
    weights = (taps if _keeps_weights(shape) else rows * taps) * bool(shape.weight_words)
    computed = _strips(shape, columns, rows) * columns * rows
    return (data + weights) / (columns * rows) * computed / _strips(shape, 1, 1)


def _tile(shape: StripShape, columns: int, rows: int, threads: int) -> tuple[int, ...]:
    """Threads along each axis, at most ``threads`` and near a square of rows and columns."""
    counts = strip_counts(shape, columns, rows)
    tile = [1] * len(counts)
    left = threads
    if shape.lane_axis:
        others = math.prod(counts[1:])
        line = max(1, _LINE_BYTES // (shape.width * shape.element_bytes))
        tile[0] = _dealt(counts[0], max(line, threads // max(others, 1)), threads)
        left //= tile[0]
    if shape.lane_axis and shape.row_axis >= 0:
        square = max(1, math.isqrt(max(1, left * rows // columns)))
        wide = max(square, left // counts[shape.row_axis])
    else:
        wide = max(1, min(left, threads // 4))
        if shape.row_axis < 0:
            wide = left
    order = [shape.column_axis, *([shape.row_axis] if shape.row_axis >= 0 else [])]
    fixed = {*order, *([0] if shape.lane_axis else [])}
    order += [axis for axis in range(len(counts)) if axis not in fixed]
    for axis in [axis for axis in order if axis < len(MAX_THREADS)]:
        most = min(left, MAX_THREADS[axis])
        tile[axis] = _dealt(counts[axis], wide if axis == shape.column_axis else most, most)
        left //= tile[axis]
    return tuple(tile)


def _dealt(count: int, most: int, limit: int) -> int:
    """Threads for ``count`` strips: as few blocks as ``most`` allows, all about as full."""
    blocks = -(-count // max(1, min(most, limit)))
    return -(-count // blocks)
