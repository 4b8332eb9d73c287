"""Matmuls and convolutions in the tile registers of AMX: 32 rows of 32 sums at a time.

A panel of rows is copied next to each other first, all that their sums need, as GotoBLAS does: a
tile register takes rows at one distance, of 64 bytes, and pixels of an image are neither at a
border, with a stride, nor where a line is shorter than a tile. Weights are packed while compiling.
The sums go through a small array, from which the epilogue reads them in vectors. See Intel 64 and
IA-32 Architectures Optimization Reference Manual, chapter "Intel AMX".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV, ScheduleError
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.system import TILE_PERMISSION
from tvm_ext.hardware.matrix_instructions import LEAST_TILE_DEPTH, MatrixInstruction
from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    constant_parameter,
    count_calls,
    depends,
    is_data_parallel,
    nodes,
    slope,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.cpu.blockwise import schedule_others
from tvm_ext.tir_schedules.cpu.dot_product_tile import factors, weight_axis
from tvm_ext.tir_schedules.cpu.symbolic_contraction import (
    SymbolicContraction,
    require_parameter_of,
    symbolic_contraction,
    with_code,
)
from tvm_ext.tir_schedules.cpu.symbolic_tile import epilogue_block, single_sum
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.packing import PaddedOperand
from tvm_ext.tir_schedules.statements import bits_of, sequence, stack_array
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Of a tile register.
_ROWS, _ROW_BYTES = 16, 64

# Rows of a block of four registers of sums.
_BLOCK_ROWS = 2 * _ROWS

# Panels for each thread, at least, where there are rows for them.
_PANELS = 4

# Blocks of rows in a panel, and the most by default: of more, the rows leave L1.
_BLOCKS = frozenset({1, 2, 4, 8, 16})
_MOST_BLOCKS = 2


class AmxTile:
    """Sums of products of uint8 or int8 and constant int8, or of bfloat16 and constant bfloat16."""

    name = "amx tile"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        require_parameter_of(func, ("int8", "bfloat16"))
        sch = inlined_schedule(func)
        anchor = single_sum(sch)
        _inline_padding(sch, anchor)
        epilogue = epilogue_block(sch, anchor)
        found = symbolic_contraction(sch, anchor, epilogue)
        operands = _operands(found, sch.mod["main"], machine)
        operand, weights = _packed(operands, sch.mod["main"])
        blocks = decisions.pick("row_blocks", _BLOCKS, _row_blocks(operands, machine))
        code = _Code(found, operands, weights, blocks, machine.cores).kernel()
        done = [block for block in (anchor, epilogue) if block is not None]
        schedule_others(sch, done, machine)
        return with_code(sch, code, done, found.views, (operand, weights))


@dataclass(frozen=True)
class _Operands:
    """What is multiplied.

    Attributes
    ----------
    data : Expr
        An element of the data, as the sum reads it.
    weights : TensorLoad
        An element of a constant parameter.
    columns : LoopAxis
        The loop over sums that the weights go along.
    rows : tuple[LoopAxis, ...]
        The other loops over sums, the outermost first.
    taps : tuple[LoopAxis, ...]
        The loops that are summed up, but for ``depth``, in the order of the weights.
    depth : LoopAxis
        The loop along which data are neighbours.
    order : tuple[int, ...]
        Axes of the weights: columns, taps, depth; those of one element before them.
    steps : int
        Products of a sum.
    """

    data: Any
    weights: tvm.ir.TensorLoad
    columns: LoopAxis
    rows: tuple[LoopAxis, ...]
    taps: tuple[LoopAxis, ...]
    depth: LoopAxis
    order: tuple[int, ...]
    steps: int
    instruction: MatrixInstruction

    @property
    def row_elements(self) -> int:
        """Of a panel: all products of a sum, in an odd number of lines of a cache."""
        lines = self.padded_steps // self.width
        return (lines + (lines > 1 and lines % 2 == 0)) * self.width

    @property
    def padded_steps(self) -> int:
        """Products of a sum in whole registers."""
        return -(-self.steps // self.width) * self.width

    @property
    def element_bytes(self) -> int:
        """Of an operand."""
        return tvm.DataType(self.instruction.a).bits // 8

    @property
    def width(self) -> int:
        """Elements of a row of a register."""
        return _ROW_BYTES // self.element_bytes

    @property
    def sums(self) -> int:
        """Along the columns, wanted or not: there may be more weights than are used."""
        return static_extent(self.weights.source.shape[self.order[-len(self.taps) - 2]]) or 1

    @property
    def block(self) -> int:
        """Sums of a block along the columns."""
        return 2 * _ROWS if self.sums > _ROWS else _ROWS


def _inline_padding(sch: s_tir.Schedule, anchor: SBlockRV) -> None:
    """Padding becomes part of what the sum reads: it is written once, into the panel."""
    for block in sch.get_producers(anchor):
        if is_data_parallel(sch, block) and count_calls(sch.get(block).body) <= 1:
            try:
                sch.compute_inline(block)
            except ScheduleError:
                continue


def _operands(
    contraction: SymbolicContraction, func: tirx.PrimFunc, machine: CpuDescription
) -> _Operands:
    data, weights = factors(contraction, func)
    types = str(data.ty), str(weights.source.dtype)
    instruction = machine.tile_instruction(*types)
    if instruction is None or instruction.accumulator != str(contraction.start.ty):
        raise NotApplicable(f"no tile registers for products of {types[0]} and {types[1]}")
    if contraction.start.value != 0:
        raise NotApplicable("its sums do not start with zero")
    order = [weight_axis(contraction, index) for index in weights.indices]
    spatial = [axis for axis in contraction.spatial if any(axis is one for one in order)]
    depths = [axis for axis in contraction.reduction if _walks(data, axis)]
    only = len(spatial) == 1 and len(depths) == 1
    if not only or contraction.step(contraction.store, spatial[0]) != 1:
        raise NotApplicable("no loop walks the output and the weights alone")
    (columns,), (depth,) = spatial, depths
    if (depth.length or 0) < LEAST_TILE_DEPTH or depends(data, columns.var):
        raise NotApplicable("the data have few neighbours, or move with the columns")
    taps = tuple(a for a in order if a is not depth and any(a is r for r in contraction.reduction))
    if len(taps) + 1 != len(contraction.reduction):
        raise NotApplicable("a loop of the sum does not move the weights")
    whole = (columns, *taps, depth)
    places = [next(i for i, one in enumerate(order) if one is axis) for axis in whole]
    once = [i for i in range(len(order)) if i not in places]
    sizes = [static_extent(weights.source.shape[place]) for place in places[1:]]
    if sizes != [axis.length for axis in whole[1:]]:
        raise NotApplicable("some weights are not used")
    rows = tuple(axis for axis in contraction.spatial if axis is not columns)
    steps = math.prod(axis.length or 1 for axis in whole[1:])
    return _Operands(
        data, weights, columns, rows, taps, depth, (*once, *places), steps, instruction
    )


def _walks(data: Any, axis: LoopAxis) -> bool:
    """Whether neighbours along ``axis`` are neighbours in memory, and all of them data or none."""
    loads = nodes(data, tvm.ir.TensorLoad)
    moving = [load for load in loads if depends(load, axis.var)]
    return bool(moving) and all(
        slope(load.indices[-1], axis.var) == 1 and not depends(load.indices[:-1], axis.var)
        for load in moving
    )


def _packed(operands: _Operands, func: tirx.PrimFunc) -> tuple[PaddedOperand, tirx.Buffer]:
    """Weights as ``[columns / block, steps / k, block * k]``."""
    own, k, block = operands.weights.source, operands.instruction.packed, operands.block
    padded = (-(-operands.sums // block) * block, operands.padded_steps)
    parameter = int(constant_parameter(func, own) or 0)
    shape = (operands.sums, operands.steps)
    operand = PaddedOperand(parameter, operands.order, shape, padded, (block, k))
    return operand, tirx.decl_buffer(operand.packed_shape, str(own.dtype), own.name)


def _row_blocks(operands: _Operands, machine: CpuDescription) -> int:
    """Blocks of rows in a panel: a share of L2, and several panels for each thread."""
    nbytes = _BLOCK_ROWS * operands.row_elements * operands.element_bytes
    fitting = max(1, min(_MOST_BLOCKS, machine.l2_bytes // 4 // nbytes))
    lengths = [axis.length for axis in operands.rows]
    known = [length for length in lengths if length is not None]
    if len(known) == len(lengths):
        blocks = -(-math.prod(known) // _BLOCK_ROWS)
        fitting = min(fitting, max(1, blocks // (_PANELS * machine.cores)))
    return max(n for n in _BLOCKS if n <= fitting)


class _Code:
    """The statements of a kernel."""

    def __init__(
        self,
        contraction: SymbolicContraction,
        operands: _Operands,
        weights: tirx.Buffer,
        blocks: int,
        cores: int,
    ) -> None:
        self.contraction = contraction
        self.operands = operands
        self.weights = weights
        self.panel_rows = blocks * _BLOCK_ROWS
        self.cores = cores
        self.index = str(operands.columns.var.ty)
        self.sums_type = operands.instruction.accumulator
        shape = (self.panel_rows * operands.row_elements,)
        self.by_registers = (operands.depth.length or 1) % operands.width == 0
        # Of the same bits as integers: TVM makes float32 of an array of narrow floats.
        self.bits = f"uint{8 * operands.element_bytes}"
        self.panel = tirx.decl_buffer(shape, self.bits, "panel", scope="local")
        elements = _BLOCK_ROWS * operands.block
        self.sums = tirx.decl_buffer((elements,), self.sums_type, "sums", scope="local")
        # Where each row of a panel lies, by loop; the one loop of rows in a line needs no array.
        self.places = {
            axis.var: stack_array(self.panel_rows, self.index, axis.var.name)
            for axis in (operands.rows if len(operands.rows) > 1 else ())
        }

    def kernel(self) -> tirx.Stmt:
        """All of it: panels, shared by the threads; parts of the columns where panels are few."""
        rows = self._product([axis.extent for axis in self.operands.rows])
        panels = self._quotient(rows + (self.panel_rows - 1), self.panel_rows)
        blocks = self._number(-(-self.operands.sums // self.operands.block))
        few = panels < self._number(_PANELS * self.cores)
        most = self._number(min(self.cores, int(blocks)))
        parts = self._simple(tirx.Select(few, most, self._number(1)))
        every = tirx.Var("tile", self.index)
        panel, part, first, count, here = (
            tirx.Var(name, self.index) for name in ("part_panel", "part", "first", "count", "here")
        )
        share = self._quotient(blocks + parts - 1, parts)
        binds = [
            tirx.Bind(panel, self._simple(tirx.truncdiv(every, parts))),
            tirx.Bind(part, self._simple(tirx.truncmod(every, parts))),
            tirx.Bind(first, panel * self.panel_rows),
            tirx.Bind(count, self._simple(tirx.min(self._number(self.panel_rows), rows - first))),
            tirx.Bind(here, self._simple(tirx.min(share, blocks - part * share))),
        ]
        body = sequence(
            [
                *binds,
                *self._configure(),
                tirx.AllocBuffer(self.panel),
                tirx.AllocBuffer(self.sums),
                *(declared for _, declared in self.places.values()),
                *self._row_places(first, count),
                self._copy(first, count),
                self._blocks(part * share, here, first, count),
                self._intrinsic("llvm.x86.tilerelease"),
            ]
        )
        kind = tirx.ForKind.PARALLEL if self.cores > 1 else tirx.ForKind.SERIAL
        arguments = [tirx.const(number, "int64") for number in TILE_PERMISSION]
        # In each kernel: a program may run in another process than the one that loaded it.
        permission = tirx.Evaluate(tirx.call_extern("int64", "syscall", *arguments))
        return sequence([permission, self._loop(every, self._simple(panels * parts), body, kind)])

    def _configure(self) -> list[tirx.Stmt]:
        """All registers of 16 rows of 64 bytes: palette 1, bytes a row from byte 16 on, rows from
        byte 48 on.
        """
        array, declared = stack_array(8, "int64", "registers")
        widths = sum(_ROW_BYTES << 16 * n for n in range(4))
        heights = sum(_ROWS << 8 * n for n in range(8))
        numbers = (1, 0, widths, widths, 0, 0, heights, 0)
        stores = [
            tirx.BufferStore(array, tirx.const(number, "int64"), [self._number(n)])
            for n, number in enumerate(numbers)
        ]
        place = tirx.address_of(tirx.BufferLoad(array, [self._number(0)]))
        return [declared, *stores, self._intrinsic("llvm.x86.ldtilecfg", place)]

    def _row_places(self, first: Any, count: Any) -> list[tirx.Stmt]:
        """Fills the arrays: the first row's by divisions, each other from the one before."""
        if not self.places:
            return []
        outermost, *others = self.operands.rows
        statements: list[tirx.Stmt] = []
        rest: Any = first
        for axis in reversed(others):
            lines = tirx.Var(f"{axis.var.name}_lines", self.index)
            statements.append(tirx.Bind(lines, self._quotient(rest, axis.extent)))
            statements.append(self._place(axis, 0, rest - lines * axis.extent))
            rest = lines
        statements.append(self._place(outermost, 0, rest))
        row = tirx.Var("row", self.index)
        following: list[tirx.Stmt] = []
        advance: Any = self._number(1)
        for axis in reversed(others):
            value = self._place_of(axis, row) + advance
            ends = tirx.Var(f"{axis.var.name}_ends", self.index)
            following.append(tirx.Bind(ends, tirx.Cast(self.index, tirx.EQ(value, axis.extent))))
            start = tirx.Select(tirx.EQ(ends, self._number(1)), self._number(0), value)
            following.append(self._place(axis, row + 1, start))
            advance = ends
        value = self._place_of(outermost, row) + advance
        following.append(self._place(outermost, row + 1, value))
        return [*statements, self._loop(row, count - 1, sequence(following))]

    def _place(self, axis: LoopAxis, row: Any, value: Any) -> tirx.Stmt:
        array, _ = self.places[axis.var]
        row = self._number(row) if isinstance(row, int) else row
        return tirx.BufferStore(array, value, [row])

    def _place_of(self, axis: LoopAxis, row: Any) -> Any:
        array, _ = self.places[axis.var]
        return tirx.BufferLoad(array, [row])

    def _at_row(self, first: Any, row: Any) -> dict[Any, Any]:
        """The loops' variables in a row of the panel."""
        if not self.places:
            return {axis.var: first + row for axis in self.operands.rows}
        return {axis.var: self._place_of(axis, row) for axis in self.operands.rows}

    def _copy(self, first: Any, count: Any) -> tirx.Stmt:
        """Fills the panel, row by row."""
        operands = self.operands
        row = tirx.Var("row", self.index)
        values = self._at_row(first, row)
        taps = {axis.var: tirx.Var(axis.var.name, self.index) for axis in operands.taps}
        tap: Any = self._number(0)
        for axis in operands.taps:
            tap = tap * axis.extent + taps[axis.var]
        element = bits_of(self._at(operands.data, {**values, **taps}), self.bits)
        depth = operands.depth.length or 1

        def copy(start: Any, lane: Any) -> tirx.Stmt:
            value = substitute(element, {operands.depth.var: start + lane})
            return tirx.BufferStore(self.panel, value, [self._place_in(row, tap, start, lane)])

        body = self._in_vectors(depth, copy)
        for axis in reversed(operands.taps):
            body = self._loop(taps[axis.var], axis.extent, body)

        def clear(start: Any, lane: Any) -> tirx.Stmt:
            at = row * operands.row_elements + operands.steps + start + lane
            return tirx.BufferStore(self.panel, tirx.const(0, self.bits), [at])

        # What is multiplied by weights of zero may be anything but NaN.
        rest = operands.padded_steps - operands.steps
        cleared = [self._in_vectors(rest, clear)] if rest else []
        return self._loop(row, count, sequence([body, *cleared]))

    def _place_in(self, row: Any, tap: Any, start: Any, lane: Any) -> Any:
        """Of an element in the panel: register by register where taps fill whole ones, so that a
        register is loaded from one stretch; else row by row.
        """
        width = self.operands.width
        if not self.by_registers:
            row = row * self.operands.row_elements
            return row + tap * self.operands.depth.extent + start + lane
        steps = self._quotient(self.operands.depth.extent, self._number(width))
        step = tap * steps + self._quotient(start, self._number(width))
        return (step * self.panel_rows + row) * width + lane

    def _in_vectors(self, length: int, statement: Any) -> tirx.Stmt:
        """``statement`` for each element of a row, in vectors of a register and smaller ones."""
        lanes = self.operands.width
        statements: list[tirx.Stmt] = []
        if length // lanes:
            chunk, lane = tirx.Var("chunk", self.index), tirx.Var("lane", self.index)
            body = statement(chunk * lanes, lane)
            body = self._loop(lane, lanes, body, tirx.ForKind.VECTORIZED)
            statements.append(self._loop(chunk, length // lanes, body))
        done = length // lanes * lanes
        while done < length:
            lanes = 1 << ((length - done).bit_length() - 1)
            lane = tirx.Var("lane", self.index)
            if lanes == 1:
                statements.append(statement(self._number(done), self._number(0)))
            else:
                body = statement(self._number(done), lane)
                statements.append(self._loop(lane, lanes, body, tirx.ForKind.VECTORIZED))
            done += lanes
        return sequence(statements)

    def _blocks(self, start: Any, columns: Any, first: Any, count: Any) -> tirx.Stmt:
        """The results of a panel's rows for some blocks of columns, from the block ``start`` on."""
        column, block = (tirx.Var(name, self.index) for name in ("column", "block"))
        statements = [
            *self._tiles("llvm.x86.tilezero"),
            self._products(block, start + column),
            *self._tiles("llvm.x86.tilestored64", is_stored=True),
            self._finish(block, start + column, first, count),
        ]
        blocks = self._quotient(count + (_BLOCK_ROWS - 1), _BLOCK_ROWS)
        return self._loop(column, columns, self._loop(block, blocks, sequence(statements)))

    def _tiles(self, name: str, is_stored: bool = False) -> list[tirx.Stmt]:
        """``name`` for each register of sums, and its part of the array where it is stored."""
        block, pairs = self.operands.block, self.operands.block // _ROWS
        if not is_stored:
            return [self._tile(name, n) for n in range(2 * pairs)]
        distance = tirx.const(block * 4, "int64")
        statements = []
        for n in range(2 * pairs):
            at = self._number((n // pairs) * _ROWS * block + n % pairs * _ROWS)
            place = tirx.address_of(tirx.BufferLoad(self.sums, [at]))
            statements.append(self._tile(name, n, place, distance))
        return statements

    def _products(self, block: Any, column: Any) -> tirx.Stmt:
        """Adds all steps of a sum, each of a register, to the registers 0 to 3."""
        operands, k = self.operands, self.operands.instruction.packed
        pairs = operands.block // _ROWS
        step, width = tirx.Var("step", self.index), operands.width
        body: list[tirx.Stmt] = []
        for n in range(2):
            row = (block * 2 + n) * _ROWS
            if self.by_registers:
                place, distance = (step * self.panel_rows + row) * width, _ROW_BYTES
            else:
                place = row * operands.row_elements + step * width
                distance = operands.row_elements * operands.element_bytes
            body.append(self._load(4 + n, tirx.BufferLoad(self.panel, [place]), distance))
        for n in range(pairs):
            places = [column, step * (width // k), self._number(n * _ROWS * k)]
            distance = operands.block * k * operands.element_bytes
            body.append(self._load(6 + n, tirx.BufferLoad(self.weights, places), distance))
        name = operands.instruction.intrinsic
        body += [self._tile(name, n, 4 + n // pairs, 6 + n % pairs) for n in range(2 * pairs)]
        return self._loop(step, operands.padded_steps // width, sequence(body))

    def _load(self, register: int, element: Any, distance: int) -> tirx.Stmt:
        place = tirx.address_of(element)
        return self._tile("llvm.x86.tileloadd64", register, place, tirx.const(distance, "int64"))

    def _tile(self, name: str, *arguments: Any) -> tirx.Stmt:
        """A call of what takes numbers of registers."""
        made = [tirx.const(a, "int8") if isinstance(a, int) else a for a in arguments]
        return self._intrinsic(name, *made)

    def _intrinsic(self, name: str, *arguments: Any) -> tirx.Stmt:
        return tirx.Evaluate(tirx.call_llvm_intrin("void", name, *arguments))

    def _finish(self, block: Any, column: Any, first: Any, count: Any) -> tirx.Stmt:
        """The results of a block, of the rows and columns that are wanted."""
        operands, store = self.operands, self.contraction.store
        row, lane = tirx.Var("row", self.index), tirx.Var("lane", self.index)
        values = self._at_row(first, block * _BLOCK_ROWS + row)
        values[operands.columns.var] = column * operands.block + lane
        total = tirx.BufferLoad(self.sums, [row * operands.block + lane])
        values[self.contraction.total] = total
        indices = [self._at(index, values) for index in store.indices]
        body = tirx.BufferStore(store.buffer, self._at(store.value, values), indices)

        def rows(lanes: int) -> tirx.Stmt:
            own = tirx.Var("lane", self.index)
            each = self._loop(own, lanes, substitute(body, {lane: own}), tirx.ForKind.VECTORIZED)
            here = tirx.min(self._number(_BLOCK_ROWS), count - block * _BLOCK_ROWS)
            again = tirx.Var("row", self.index)
            return self._loop(again, self._simple(here), substitute(each, {row: again}))

        wanted = operands.columns.length or 1
        whole, left = divmod(wanted, operands.block)
        if not left:
            return rows(operands.block)
        if not whole:
            return rows(left)
        return tirx.IfThenElse(column < self._number(whole), rows(operands.block), rows(left))

    def _product(self, factors: Sequence[Any]) -> Any:
        return self._simple(math.prod(factors, start=self._number(1)))

    def _quotient(self, value: Any, divisor: Any) -> Any:
        return self._simple(tirx.truncdiv(value, divisor))

    def _simple(self, expr: Any) -> Any:
        return Analyzer().simplify(expr)

    def _number(self, value: int) -> Any:
        return tirx.const(value, self.index)

    def _at(self, expr: Any, values: dict[Any, Any]) -> Any:
        return self._simple(substitute(expr, values))

    def _loop(
        self, var: tirx.Var, extent: Any, body: tirx.Stmt, kind: tirx.ForKind = tirx.ForKind.SERIAL
    ) -> tirx.Stmt:
        extent = self._number(extent) if isinstance(extent, int) else extent
        return tirx.For(var, self._number(0), extent, kind, body)
