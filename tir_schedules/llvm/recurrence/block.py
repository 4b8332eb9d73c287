"""A block of units in one step of a recurrence: its sums in registers, and what becomes of them."""

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.llvm.stack_arrays import stack_array
from tvm_ext.tir_schedules.recurrence.cell import cell_statements
from tvm_ext.tir_schedules.recurrence.description import (
    SUM_UNROLL,
    Activation,
    Product,
    RecurrenceOperands,
)
from tvm_ext.tir_schedules.recurrence.loops import (
    RecurrenceLoops,
    SequenceTime,
    loop,
    number,
    vectors,
)
from tvm_ext.tir_schedules.statements import sequence


@dataclass(frozen=True)
class Group:
    """Some sequences in one direction.

    Attributes
    ----------
    operands : RecurrenceOperands
        The kernel's arrays.
    loops : RecurrenceLoops
        How loops are written.
    functions : tuple[Activation, ...]
        The direction's activations.
    direction : Expr
        Its number.
    rows : tuple[Expr, ...]
        The sequences' numbers in the batch.
    states : dict[str, Buffer]
        Arrays of ``[rows, padded]`` by the names of ``Recurrence.states``.
    """

    operands: RecurrenceOperands
    loops: RecurrenceLoops
    functions: tuple[Activation, ...]
    direction: Any
    rows: tuple[Any, ...]
    states: dict[str, Any]

    def at(self, row: int, unit: Any) -> Any:
        """Index into an array of states."""
        return number(row * self.operands.recurrence.padded) + unit


class Block:
    """The sums of some units of a block, and what becomes of them."""

    def __init__(
        self,
        group: Group,
        index: int,
        product: Product,
        times: list[SequenceTime],
        block: Any,
        offset: Any,
    ) -> None:
        self.group = group
        self.index = index
        self.product = product
        self.times = times
        self.block = block
        self.offset = offset
        self.units = group.loops.units
        self.recurrence = group.operands.recurrence
        self.operands = group.operands
        # As many sums in a product of few gates as in one of more.
        most = max(len(other.gates) for other in self.recurrence.products())
        self.ways = min(SUM_UNROLL, group.loops.ways * (most // len(product.gates)))
        count = self.ways * len(group.rows) * len(product.gates) * self.units
        self.sums, self.declaration = stack_array(number(count), group.operands.dtype, "sums")

    def statement(self) -> tirx.Stmt:
        """All of it."""
        steps = loop(self.recurrence.summed // SUM_UNROLL, self._multiplied)
        return sequence([self.declaration, *self._started(), steps, *self._added(), *self._used()])

    def sum_index(self, way: int, row: int, place: int, lane: Any) -> Any:
        """Where the partial sum number ``way`` of the product's gate number ``place`` is."""
        before = (way * len(self.times) + row) * len(self.product.gates) + place
        return number(before * self.units) + lane

    def sum_at(self, way: int, row: int, place: int, lane: Any) -> Any:
        """That partial sum."""
        return tirx.BufferLoad(self.sums, [self.sum_index(way, row, place, lane)])

    def projected(self, row: int, gate: int, lane: Any) -> Any:
        """The part of a sum that comes from the input."""
        shape = (self.recurrence.blocks, self.recurrence.gates, self.recurrence.units)
        column = self.group.direction * number(shape[0]) + self.block
        column = (column * number(shape[1]) + number(gate)) * number(shape[2])
        where = self.times[row].position, self.group.rows[row]
        return self.operands.projected(*where, column + self.offset + lane)

    def unit(self, lane: Any) -> Any:
        """The unit's number in the layer."""
        return self.block * number(self.recurrence.units) + self.offset + lane

    def _places(self, ways: int) -> list[tuple[int, int, int]]:
        rows, places = range(len(self.times)), range(len(self.product.gates))
        return [(way, row, place) for way in range(ways) for row in rows for place in places]

    def _started(self) -> list[tirx.Stmt]:
        return [stmt for at in self._places(self.ways) for stmt in self._started_at(at)]

    def _started_at(self, at: tuple[int, int, int]) -> list[tirx.Stmt]:
        way, row, place = at
        gate = self.product.gates[place]

        def start(lane: Any) -> Any:
            if way:
                return tirx.const(0, self.operands.dtype)
            if gate == 2 and "b_candidate" in self.operands.arrays:
                return self.operands.load("b_candidate", self.group.direction, self.unit(lane))
            return self.projected(row, gate, lane)

        return vectors(self.units, lambda lane: self._put(at, start(lane), lane))

    def _put(self, at: tuple[int, int, int], value: Any, lane: Any) -> tirx.Stmt:
        return tirx.BufferStore(self.sums, value, [self.sum_index(*at, lane)])

    def _multiplied(self, four: Any) -> tirx.Stmt:
        """``SUM_UNROLL`` steps of all sums."""
        state = self.group.states[self.product.state]
        found: list[tirx.Stmt] = []
        for part in range(SUM_UNROLL):
            k = four * number(SUM_UNROLL) + number(part)
            way = part % self.ways
            for _, row, place in self._places(1):
                scalar = tirx.BufferLoad(state, [self.group.at(row, k)])
                found += self._multiply_add((way, row, place), k, scalar)
        return sequence(found)

    def _multiply_add(self, at: tuple[int, int, int], k: Any, scalar: Any) -> list[tirx.Stmt]:
        def lanes(lane: Any) -> tirx.Stmt:
            where = (self.group.direction, self.block, k, number(at[2]), self.offset + lane)
            weight = self.operands.load(self.product.weights, *where)
            return self._put(at, self.sum_at(*at, lane) + scalar * weight, lane)

        return vectors(self.units, lanes)

    def _added(self) -> list[tirx.Stmt]:
        """Partial sums added up, two by two."""
        found: list[tirx.Stmt] = []
        ways = self.ways
        while ways > 1:
            ways //= 2
            for at in self._places(ways):
                found += self._added_at(at, ways)
        return found

    def _added_at(self, at: tuple[int, int, int], further: int) -> list[tirx.Stmt]:
        way, row, place = at

        def add(lane: Any) -> tirx.Stmt:
            other = self.sum_at(way + further, row, place, lane)
            return self._put(at, self.sum_at(*at, lane) + other, lane)

        return vectors(self.units, add)

    def _used(self) -> list[tirx.Stmt]:
        """Gates and new state of each sequence."""
        found: list[tirx.Stmt] = []
        for row in range(len(self.times)):

            def cell(lane: Any, row: int = row) -> tirx.Stmt:
                unit = _Unit(self, row, lane)
                functions = self.group.functions
                return sequence(cell_statements(self.recurrence, self.index, functions, unit))

            found += vectors(self.units, cell)
        return found


class _Unit:
    """See ``cell.Unit``."""

    def __init__(self, block: Block, row: int, lane: Any) -> None:
        self.block = block
        self.row = row
        self.lane = lane
        self.active = block.times[row].active

    def gate(self, index: int) -> Any:
        """See ``cell.Unit``."""
        return self.block.sum_at(0, self.row, self.block.product.gates.index(index), self.lane)

    def projected(self, index: int) -> Any:
        """See ``cell.Unit``."""
        return self.block.projected(self.row, index, self.lane)

    def peephole(self, index: int) -> Any:
        """See ``cell.Unit``."""
        where = self.block.group.direction, number(index), self.block.unit(self.lane)
        return self.block.operands.load("peepholes", *where)

    def state(self, name: str) -> Any:
        """See ``cell.Unit``."""
        return tirx.BufferLoad(self.block.group.states[name], [self._index()])

    def put(self, name: str, value: Any) -> tirx.Stmt:
        """See ``cell.Unit``."""
        return tirx.BufferStore(self.block.group.states[name], value, [self._index()])

    def _index(self) -> Any:
        return self.block.group.at(self.row, self.block.unit(self.lane))
