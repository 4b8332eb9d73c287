"""Where the threads of a recurrent layer stand, and where its values are."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.cuda.launch import Arrays, bound, guarded
from tvm_ext.tir_schedules.recurrence.description import (
    SUM_UNROLL,
    Product,
    Recurrence,
    RecurrenceOperands,
)
from tvm_ext.tir_schedules.recurrence.loops import INDEX, number
from tvm_ext.tir_schedules.statements import sequence


@dataclass(frozen=True)
class RecurrenceLaunch:
    """How a block of threads works on its sequences.

    Attributes
    ----------
    rows : int
        Sequences of a block.
    units : int
        Units at a time, threads along x; a thread takes every ``units``-th one.
    ways : int
        Threads along y, which share the sum of a unit.
    held : bool
        Whether a thread keeps its weights in registers over all steps.
    blocks : int
        Blocks that share the units of a layer; with more than one, each step is a launch.
    """

    rows: int
    units: int
    ways: int
    held: bool
    blocks: int = 1

    def depth(self, recurrence: Recurrence) -> int:
        """Elements of the state over which a thread sums."""
        return -(-recurrence.summed // (SUM_UNROLL * self.ways)) * SUM_UNROLL


class RecurrencePlaces:
    """The threads of a recurrence under a launch, and the places of its values."""

    def __init__(self, operands: RecurrenceOperands, launch: RecurrenceLaunch) -> None:
        self.operands, self.launch = operands, launch
        self.recurrence = operands.recurrence
        self.arrays = Arrays(INDEX)
        self.parts = range(-(-self.recurrence.padded // (launch.units * launch.blocks)))
        self.rows = range(launch.rows)
        self.x = self.y = self.direction = self.first = self.first_unit = number(0)
        size = launch.rows * self.recurrence.padded
        shared = ("h", "rh") if len(self.recurrence.products()) > 1 else ("h",)
        self.shared = {name: self._allocated(name, [size], "shared") for name in shared}
        # A thread has the state of its own units in registers as well.
        own = [name for name in self.recurrence.states() if name != "rh"]
        count = launch.rows * len(self.parts)
        self.own = {name: self._of_threads(name, count) for name in own}
        self.projected = self._of_threads("projected", count * self.recurrence.gates)
        self.sums = [self._sums(product) for product in self.recurrence.products()]
        self.weights: list[Any] = []
        if launch.held:
            self.weights = [self._held(product) for product in self.recurrence.products()]
        self.partial = self._partial() if launch.ways > 1 else None

    def _allocated(self, name: str, shape: list[int], scope: str) -> Any:
        return self.arrays.allocated(name, shape, self.operands.dtype, scope)

    def _of_threads(self, name: str, count: int) -> Any:
        return self._allocated(name, [self.launch.ways, self.launch.units, count], "local")

    def _sums(self, product: Product) -> Any:
        count = self.launch.rows * len(self.parts) * len(product.gates)
        return self._of_threads(f"sums_{product.weights}", count)

    def _held(self, product: Product) -> Any:
        count = len(self.parts) * self.depth * len(product.gates)
        return self._of_threads(f"held_{product.weights}", count)

    def _partial(self) -> Any:
        # One for all products, which is in use all the time: TVM would put a state into the memory
        # of one that has been read, and a barrier between the read and the store, in a branch.
        gates = max(len(product.gates) for product in self.recurrence.products())
        count = self.launch.ways * self.launch.rows * gates * self.units_of_block
        return self._allocated("partial", [count], "shared")

    @property
    def units_of_block(self) -> int:
        """Units whose sums one block has."""
        return self.recurrence.padded // self.launch.blocks

    def threads(self, body: Callable[[], tirx.Stmt]) -> tirx.Stmt:
        """``body`` for all threads: what stands between two barriers."""

        def unit(x: Any) -> tirx.Stmt:
            self.x = x
            return body()

        def way(y: Any) -> tirx.Stmt:
            self.y = y
            return bound("threadIdx.x", self.launch.units, INDEX, unit)

        return bound("threadIdx.y", self.launch.ways, INDEX, way)

    def of_units(self, body: Callable[[int, Any], tirx.Stmt], end: int) -> tirx.Stmt:
        """``body`` for each of the thread's units below ``end``, by its number and its place."""
        found = []
        for part in self.parts:
            unit = self.first_unit + self.x + number(part * self.launch.units)
            whole = (part + 1) * self.launch.units * self.launch.blocks <= end
            found.append(guarded(None if whole else unit < number(end), body(part, unit)))
        return sequence(found)

    def by_first_way(self, body: Callable[[int, Any], tirx.Stmt], end: int) -> tirx.Stmt:
        """The same, by one of the threads that share a unit."""

        def first() -> tirx.Stmt:
            condition = None if self.launch.ways == 1 else self.y.equal(number(0))
            return guarded(condition, self.of_units(body, end))

        return self.threads(first)

    def row(self, row: int) -> Any:
        """The sequence's number in the batch; behind the last one it is the last."""
        place = self.first + number(row)
        if self.all_inside:
            return place
        return tirx.Min(place, self.operands.batch - number(1))

    @property
    def all_inside(self) -> bool:
        batch = static_extent(self.operands.batch)
        return self.launch.rows == 1 or (batch is not None and batch % self.launch.rows == 0)

    def inside(self, row: int) -> Any:
        """Whether there is the sequence; None where there are all."""
        return None if self.all_inside else self.first + number(row) < self.operands.batch

    def element(self, name: str, row: int, part: int, unit: Any) -> tuple[Any, list[Any]]:
        """A state of a unit, of which the thread that computes the cell knows."""
        if name == "rh":
            return self.published(name, row, unit)
        index = number(row * len(self.parts) + part)
        return self.own[name], [self.y, self.x, index]

    def published(self, name: str, row: int, unit: Any) -> tuple[Any, list[Any]]:
        """A state of a unit where all threads see it."""
        return self.shared[name], [number(row * self.recurrence.padded) + unit]

    def sum_at(self, index: int, row: int, part: int, place: int) -> list[Any]:
        """Where a thread has the sum of a gate."""
        gates = len(self.recurrence.products()[index].gates)
        at = (row * len(self.parts) + part) * gates + place
        return [self.y, self.x, number(at)]

    def projected_at(self, row: int, part: int, gate: int) -> list[Any]:
        """Where a thread has the part of a gate's sum that comes from the input."""
        at = (row * len(self.parts) + part) * self.recurrence.gates + gate
        return [self.y, self.x, number(at)]

    @property
    def depth(self) -> int:
        """Elements of the state over which a thread sums, the last ``ways`` over fewer."""
        return self.launch.depth(self.recurrence)

    def in_depth(self, k: Any) -> Any:
        """Whether the state has element ``k`` of the thread's part; None where it always has."""
        summed = self.recurrence.summed
        if self.depth * self.launch.ways == summed:
            return None
        return self.depth_start() + k < number(summed)

    def depth_start(self) -> Any:
        return self.y * number(self.depth)

    def held_at(self, product: Product, part: int, k: Any, place: int) -> list[Any]:
        gates = number(len(product.gates))
        return [self.y, self.x, (number(part * self.depth) + k) * gates + number(place)]

    def weight(self, product: Product, unit: Any, k: Any, place: int) -> Any:
        units = number(self.recurrence.units)
        block, lane = tirx.FloorDiv(unit, units), tirx.FloorMod(unit, units)
        return self.operands.load(product.weights, self.direction, block, k, number(place), lane)


class UnitPlaces:
    """See ``cell.Unit``."""

    def __init__(
        self, kernel: RecurrencePlaces, index: int, row: int, part: int, unit: Any, active: Any
    ) -> None:
        self.kernel, self.index, self.active = kernel, index, active
        self.place = (row, part, unit)

    def gate(self, index: int) -> Any:
        """See ``cell.Unit``."""
        row, part, _ = self.place
        kernel = self.kernel
        place = kernel.recurrence.products()[self.index].gates.index(index)
        return tirx.BufferLoad(kernel.sums[self.index], kernel.sum_at(self.index, row, part, place))

    def projected(self, index: int) -> Any:
        """See ``cell.Unit``."""
        row, part, _ = self.place
        return tirx.BufferLoad(self.kernel.projected, self.kernel.projected_at(row, part, index))

    def peephole(self, index: int) -> Any:
        """See ``cell.Unit``."""
        where = self.kernel.direction, number(index), self.place[2]
        return self.kernel.operands.load("peepholes", *where)

    def state(self, name: str) -> Any:
        """See ``cell.Unit``."""
        return tirx.BufferLoad(*self.kernel.element(name, *self.place))

    def put(self, name: str, value: Any) -> tirx.Stmt:
        """See ``cell.Unit``."""
        buffer, at = self.kernel.element(name, *self.place)
        return tirx.BufferStore(buffer, value, at)
