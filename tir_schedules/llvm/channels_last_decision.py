"""How a depthwise convolution runs whose channels are next to each other."""

import math
from dataclasses import dataclass

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.llvm.depthwise_window import DepthwiseWindow
from tvm_ext.tir_schedules.llvm.knobs import distinct, pick_threads
from tvm_ext.tir_schedules.llvm.loop_nest import worth_threads
from tvm_ext.tir_schedules.llvm.register_tile_decision import vector_registers
from tvm_ext.tir_schedules.windows.sliding_window import Slide

# Registers for what is read while sums and weights stay.
_SPARE_REGISTERS = 5

# Products of a tile for one row of the window. More are code, for all of which LLVM takes time, and
# no faster: these are enough to hide the latency of an addition.
_MOST_PRODUCTS = 64

# Products that are written out: tiles at the ends of rows have their own, with their own taps.
MAX_PRODUCTS = 1024

# Columns and vectors of a tile that are worth trying.
_COLUMNS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_VECTORS = (1, 2, 4)

# A row of results below this needs more vectors of channels to keep the units busy.
_FEW_COLUMNS = 8


@dataclass(frozen=True)
class ChannelsLastDecision:
    """How results are kept in registers.

    Attributes
    ----------
    columns : int
        Neighbouring results of a row in a tile.
    lanes : int
        Channels in a vector.
    vectors : int
        Vectors of channels in a tile.
    parts : int
        Parts into which the rows are cut, for threads.
    row_by_row : bool
        Whether all channels of a tile come before the next tile: what is read is then read in the
        order of memory. If not, all rows of a block of channels come first, and stay in L1.
    threads : bool
        Whether parts of the rows, and images, are handed to threads.
    """

    columns: int
    lanes: int
    vectors: int
    parts: int
    row_by_row: bool
    threads: bool


def decide_channels_last(
    window: DepthwiseWindow,
    channels: int,
    machine: CpuDescription,
    decisions: Decisions = CLOSED_FORM,
) -> ChannelsLastDecision:
    """The closed-form choice: as many columns, in even tiles, as leave registers for weights.

    Asks for ``vectors``, ``columns``, ``threads`` and, with them, ``parts``, and ``row_by_row``.
    """
    lanes = min(machine.vector_lanes(window.dtype), 1 << (channels.bit_length() - 1))
    few = window.columns.output.extent < _FEW_COLUMNS
    fitting = [n for n in _VECTORS if n * lanes <= channels]
    vectors = decisions.pick("vectors", fitting, 2 if few and 2 in fitting else 1)
    columns = _columns(window, vectors, machine, decisions)
    busy = worth_threads(machine, window.results() * window.taps, lanes)
    parts, threads = _parts(window, busy, machine, decisions)
    length = window.rows.length if window.rows is not None else 1
    read = length // parts * window.columns.length * channels * 4
    row_by_row = read > machine.l2_bytes // 2
    if window.rows is not None and channels > vectors * lanes:
        row_by_row = bool(decisions.pick("row_by_row", (0, 1), int(row_by_row)))
    return ChannelsLastDecision(columns, lanes, vectors, parts, row_by_row, threads)


def _columns(
    window: DepthwiseWindow, vectors: int, machine: CpuDescription, decisions: Decisions
) -> int:
    row, taps = window.columns.output.extent, window.columns.position.extent
    registers = vector_registers(machine)
    free = max(registers - vectors * taps - _SPARE_REGISTERS, registers // 2)
    most = max(1, min(free // vectors, _MOST_PRODUCTS // (vectors * taps)))

    def in_even_tiles(most: int) -> int:
        return -(-row // -(-row // most))

    options = {
        columns
        for columns in map(in_even_tiles, _COLUMNS)
        # One weight and one input need a register each, if nothing else stays there.
        if columns * vectors <= registers - 2
        and columns * vectors * taps <= 2 * _MOST_PRODUCTS
        and products_written_out(window, columns, vectors) <= MAX_PRODUCTS
    }
    return decisions.pick("columns", options, in_even_tiles(most))


def _parts(
    window: DepthwiseWindow, busy: bool, machine: CpuDescription, decisions: Decisions
) -> tuple[int, bool]:
    """Into how many parts the rows are cut, and whether threads share these and the images."""
    images = math.prod(axis.extent for axis in window.outer)
    rows = window.rows.output.extent if window.rows is not None else 1
    parts = machine.cores if busy and rows >= 2 * machine.cores else 1
    worth = busy and images * parts > 1
    if not pick_threads(decisions, machine, lambda: images * rows, worth):
        return 1, False
    if not worth:
        parts = min(rows, machine.cores)
    counts = [n * machine.cores for n in (1, 2, 4)]
    fitting = [n for n in counts if n <= rows] + ([1] if images > 1 else [])
    options = distinct(fitting, parts, lambda n: -(-rows // n))
    return decisions.pick("parts", options, parts), True


def products_written_out(window: DepthwiseWindow, columns: int, vectors: int) -> int:
    """Products of a row of the window in the code: each tile at an end of a row has its own."""
    ends, _ = row_tiles(window.columns, columns)
    return (len(ends) + 1) * columns * vectors * window.columns.position.extent


def row_tiles(columns: Slide, size: int) -> tuple[list[int], list[int]]:
    """First columns of tiles that are at an end of a row, or lap over; and of the others.

    The others have no padding under their windows, and follow each other.
    """
    total = columns.output.extent
    firsts = [min(k * size, total - size) for k in range(-(-total // size))]
    start, end = columns.covered()
    whole = [
        first
        for k, first in enumerate(firsts)
        if first == k * size and start <= first and first + size <= end
    ]
    return [first for first in firsts if first not in whole], whole
