"""Products of rows that are rounded in blocks and 4-bit weights, by dot products of bytes.

All rows are rounded first: each block to bytes, with their step and their sum. Then each task takes
a panel of columns. The integers of a word of weights are bytes after a mask and a shift: those at
even places and those at odd places, for which the bytes of a row lie in that order. An instruction
adds the products of four bytes to each lane. What the zero point takes off follows from the sum of
a row's block, and a sum of integers becomes a float once for each block. This is how llama.cpp and
MLAS multiply by 4-bit weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.matrix_instructions import SATURATING_INSTRUCTION, MatrixInstruction
from tvm_ext.tir_schedules.analysis.buffer_access import elements, is_compact
from tvm_ext.tir_schedules.cpu.attention.attention_tiles import at, halved, ramp, store_of, vector
from tvm_ext.tir_schedules.cpu.dot_product import DotProductCode
from tvm_ext.tir_schedules.operators.block_integers import (
    ATTRIBUTE,
    IN_WORD,
    LARGEST,
    SMALLEST,
    BlockIntegers,
)
from tvm_ext.tir_schedules.operators.recurrence import loop, number
from tvm_ext.tir_schedules.statements import FlatViews, sequence, stack_array
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

_FLOAT, _SUM, _BYTE, _WORD = "float32", "int32", "int8", "uint32"

# Rows that pass with a panel together, by the vectors of sums that registers hold.
_ROWS_OF_TILE = 4
_VECTORS_OF_PANEL = 2

# Of fewer rows, threads would take longer to start than to round them.
_ROWS_FOR_THREADS = 16

# Of the integers of a word, those at even places first.
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class BlockIntegerMatmul:
    """The functions that FuseBlockIntegerMatmul makes."""

    name = "block integer matmul"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        if func.attrs is None or ATTRIBUTE not in func.attrs:
            raise NotApplicable("it is no product with rows that are rounded in blocks")
        compute = BlockIntegers.from_attribute(str(func.attrs[ATTRIBUTE]))
        instruction = dot_product_of_bytes(machine)
        if instruction is None:
            raise NotApplicable("no instruction adds products of bytes")
        if len(func.params) != 3 or not all(is_compact(one, True) for one in func.params):
            raise NotApplicable("its parameters are not those of such a product")
        views = FlatViews(symbolic_sizes=True)
        rows, _, _ = func.params
        count = elements(rows) // compute.depth
        kernel = _Kernel(
            compute,
            DotProductCode.on(instruction, machine),
            tuple(views.of(param) for param in func.params),
            count.astype("int64") if isinstance(count, tirx.Expr) else number(int(count)),
            machine.cores > 1,
        )
        return s_tir.Schedule(views.kernel(func, [kernel.code()]))


def dot_product_of_bytes(machine: CpuDescription) -> MatrixInstruction | None:
    """What adds four products of bytes to each lane; None where the machine has nothing such.

    What saturates will do: weights have 4 bits.
    """
    for kind in ("uint8", "int8"):
        for row in machine.instructions(kind):
            if row.m == 1 and row.k == 4 and (row.b, row.accumulator) == (_BYTE, _SUM):
                return row
    saturating = SATURATING_INSTRUCTION
    return saturating if saturating.needs in machine.features else None


def panel_of(machine: CpuDescription) -> int:
    """Columns of a panel of weights for a machine."""
    instruction = dot_product_of_bytes(machine)
    if instruction is None:
        return _VECTORS_OF_PANEL * machine.vector_lanes(_FLOAT)
    return _VECTORS_OF_PANEL * DotProductCode.on(instruction, machine).lanes


@dataclass(frozen=True)
class _Kernel:
    """The code for one function; ``views`` are those of rows, words and the result."""

    compute: BlockIntegers
    dot: DotProductCode
    views: tuple[tirx.Buffer, ...]
    rows: Any
    threads: bool

    def code(self) -> tirx.Stmt:
        """All of it."""
        compute = self.compute
        arrays = [
            tirx.decl_buffer([self.rows * number(size)], kind, name)
            for size, kind, name in (
                (compute.depth, _BYTE, "bytes"),
                (compute.blocks, _FLOAT, "steps"),
                (compute.blocks, _SUM, "totals"),
            )
        ]
        rounded = _Rounded(self, *arrays)
        parallel = tirx.ForKind.PARALLEL if self.threads else tirx.ForKind.SERIAL
        panels = loop(compute.panels, lambda panel: self._panel(rounded, panel), parallel)
        declared = [tirx.AllocBuffer(array) for array in arrays]
        return sequence([*declared, rounded.statement(), panels])

    def _panel(self, rounded: "_Rounded", panel: Any) -> tirx.Stmt:
        """The columns of a panel, of some rows after the others."""
        tiles = tirx.truncdiv(self.rows, number(_ROWS_OF_TILE))

        def several(tile: Any) -> tirx.Stmt:
            first = tile * number(_ROWS_OF_TILE)
            return _Tile(self, rounded, panel, first, _ROWS_OF_TILE).statement()

        def single(row: Any) -> tirx.Stmt:
            first = tiles * number(_ROWS_OF_TILE) + row
            return _Tile(self, rounded, panel, first, 1).statement()

        return sequence(
            [loop(tiles, several), loop(self.rows - tiles * number(_ROWS_OF_TILE), single)]
        )


@dataclass(frozen=True)
class _Rounded:
    """The rows as bytes, and of each block its step and its sum."""

    kernel: _Kernel
    bytes: tirx.Buffer
    steps: tirx.Buffer
    totals: tirx.Buffer

    def statement(self) -> tirx.Stmt:
        """What fills them; on threads where there are many rows."""
        rows = self.kernel.rows

        def row(place: Any) -> tirx.Stmt:
            blocks = self.kernel.compute.blocks
            return loop(blocks, lambda block: self._block(place * number(blocks) + block))

        alone = loop(rows, row)
        if not self.kernel.threads:
            return alone
        shared = loop(rows, row, tirx.ForKind.PARALLEL)
        return tirx.IfThenElse(rows >= number(_ROWS_FOR_THREADS), shared, alone)

    def _block(self, place: Any) -> tirx.Stmt:
        """One block of one row, of which ``place`` counts all."""
        block, source = self.kernel.compute.block, self.kernel.views[0]
        lanes = next(n for n in (16, 8) if block % n == 0)
        start = place * number(block)
        largest, of_largest = stack_array(number(lanes), _FLOAT, "largest")
        total, of_total = stack_array(number(lanes), _SUM, "total")

        def vectors(body: Any) -> list[tirx.Stmt]:
            return [body(number(first)) for first in range(0, block, lanes)]

        def compared(first: Any) -> tirx.Stmt:
            def most(n: Any) -> Any:
                return tirx.max(at(largest, n), tirx.abs(at(source, start + first + n)))

            return vector(lanes, store_of(largest, most))

        factor = tirx.Var("factor", _FLOAT)
        most = tirx.max(at(largest, number(0)), tirx.const(SMALLEST, _FLOAT))
        order = [8 * group + n for group in range(lanes // IN_WORD) for n in _ORDER]

        def rounded(first: Any) -> tirx.Stmt:
            loaded = at(source, ramp(start + first, lanes))
            whole = tirx.nearbyint(loaded * tirx.Broadcast(factor, lanes))
            numbers = tirx.Var("numbers", f"{_SUM}x{lanes}")
            narrow = tirx.Shuffle([tirx.Cast(f"{_BYTE}x{lanes}", numbers)], order)
            everywhere = ramp(number(0), lanes)
            return sequence(
                [
                    tirx.Bind(numbers, tirx.Cast(f"{_SUM}x{lanes}", whole)),
                    tirx.BufferStore(total, at(total, everywhere) + numbers, [everywhere]),
                    tirx.BufferStore(self.bytes, narrow, [ramp(start + first, lanes)]),
                ]
            )

        step = at(largest, number(0)) * tirx.const(1 / LARGEST, _FLOAT)
        return sequence(
            [
                *(of_largest, of_total),
                vector(lanes, store_of(largest, tirx.const(0, _FLOAT))),
                vector(lanes, store_of(total, tirx.const(0, _SUM))),
                *vectors(compared),
                *halved(largest, lanes, tirx.max),
                tirx.BufferStore(self.steps, step, [place]),
                tirx.Bind(factor, tirx.const(LARGEST, _FLOAT) / most),
                *vectors(rounded),
                *halved(total, lanes, lambda a, b: a + b),
                tirx.BufferStore(self.totals, at(total, number(0)), [place]),
            ]
        )

    def word(self, row: Any, block: Any, word: int, half: int) -> tirx.Expr:
        """The bytes of a row for half of a word of weights, as one integer."""
        compute = self.kernel.compute
        first = row * number(compute.depth) + block * number(compute.block)
        first = first + number(word * IN_WORD + half * IN_WORD // 2)
        return tirx.reinterpret(_SUM, at(self.bytes, ramp(first, IN_WORD // 2)))


@dataclass(frozen=True)
class _Tile:
    """The sums of ``count`` rows and all columns of a panel."""

    kernel: _Kernel
    rounded: _Rounded
    panel: Any
    first: Any
    count: int

    def statement(self) -> tirx.Stmt:
        """All of it."""
        compute = self.kernel.compute
        width = compute.panel
        arrays = [stack_array(number(width), _FLOAT, "sums") for _ in range(self.count)]
        sums = [array for array, _ in arrays]
        found = [declared for _, declared in arrays]
        found += [vector(width, store_of(array, tirx.const(0, _FLOAT))) for array in sums]
        found.append(loop(compute.blocks, lambda block: self._block(block, sums)))
        found += [self._stored(self.first + number(row), array) for row, array in enumerate(sums)]
        return sequence(found)

    def _block(self, block: Any, sums: Sequence[Any]) -> tirx.Stmt:
        """The products of one block, added to all sums."""
        compute, dot = self.kernel.compute, self.kernel.dot
        width, lanes = compute.panel, dot.lanes
        start = self.panel * number(compute.blocks) + block
        start = start * number(compute.words * width)
        # Without prefetches of what is pages ahead: with them it was a third slower on Zen 4.
        found: list[tirx.Stmt] = []

        def bound(name: str, value: Any) -> Any:
            found.append(tirx.Bind(tirx.Var(name, value.ty), value))
            return found[-1].var

        def stored(word: int, column: int) -> Any:
            place = start + number(word * width + column)
            return at(self.kernel.views[1], ramp(place, lanes))

        columns = range(0, width, lanes)
        places = [(self.first + number(row)) for row in range(self.count)]
        blocks = [place * number(compute.blocks) + block for place in places]
        products = [
            [bound("product", one) for one in self._without_zeros(place, stored)]
            for place in blocks
        ]
        mask = tirx.Broadcast(tirx.const(0x0F0F0F0F, _WORD), lanes)
        four = tirx.Broadcast(tirx.const(4, _WORD), lanes)
        for word in range(compute.block // IN_WORD):
            read = [bound("word", stored(compute.first_word + word, column)) for column in columns]
            for half in range(2):
                moved = [tirx.shift_right(one, four) for one in read] if half else read
                weights = [bound("weights", tirx.reinterpret(dot.operand, m & mask)) for m in moved]
                for row, place in enumerate(places):
                    word_of_row = self.rounded.word(place, block, word, half)
                    data = bound("data", self._everywhere(word_of_row))
                    products[row] = [
                        bound("product", dot.added(total, weight, data))
                        for total, weight in zip(products[row], weights, strict=True)
                    ]
        floats = f"{_FLOAT}x{lanes}"
        scales = [bound("scale", tirx.reinterpret(floats, stored(0, column))) for column in columns]
        for row, array in enumerate(sums):
            step = tirx.Broadcast(at(self.rounded.steps, blocks[row]), lanes)
            for column, product, scale in zip(columns, products[row], scales, strict=True):
                here = ramp(number(column), lanes)
                value = product.astype(floats) * (step * scale)
                found.append(tirx.BufferStore(array, at(array, here) + value, [here]))
        return sequence(found)

    def _without_zeros(self, place: Any, stored: Callable[[int, int], Any]) -> list[Any]:
        """What the sums of a row's block start with: less the zero point for each element."""
        compute, lanes = self.kernel.compute, self.kernel.dot.lanes
        columns = range(0, compute.panel, lanes)
        total = at(self.rounded.totals, place)
        if compute.zero is not None:
            start = tirx.Broadcast(total * tirx.const(-compute.zero, _SUM), lanes)
            return [start for _ in columns]
        taken = tirx.Broadcast(tirx.const(0, _SUM) - total, lanes)
        return [stored(1, column).astype(f"{_SUM}x{lanes}") * taken for column in columns]

    def _everywhere(self, word: Any) -> tirx.Expr:
        dot = self.kernel.dot
        return tirx.reinterpret(dot.operand, tirx.Broadcast(word, dot.lanes))

    def _stored(self, row: Any, sums: Any) -> tirx.Stmt:
        """The results of a row; of the last panel those that are columns."""
        compute, result = self.kernel.compute, self.kernel.views[2]
        column = self.panel * number(compute.panel)
        start = row * number(compute.columns) + column

        def store(n: Any) -> tirx.Stmt:
            return tirx.BufferStore(result, at(sums, n), [start + n])

        whole = vector(compute.panel, store)
        left = compute.columns % compute.panel
        if not left:
            return whole
        is_last = tirx.EQ(self.panel, number(compute.panels - 1))
        return tirx.IfThenElse(is_last, sequence([store(number(n)) for n in range(left)]), whole)
