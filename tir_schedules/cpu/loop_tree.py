"""A kernel as a tree of loops with its loads, stores and instructions."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.addresses import Address, Scope, address_of
from tvm_ext.tir_schedules.analysis.buffer_access import buffer_bytes, nodes, static_extent
from tvm_ext.tir_schedules.analysis.index_values import POINTS, spread_points, values_of
from tvm_ext.tir_schedules.cpu.parallel_vectorize import CYCLES_PER_CALL

# Instructions that an expression takes on a machine's vectors, its loads apart.


# Cycles of a division or a square root of a whole vector. A. Fog, "Instruction tables".
_CYCLES_PER_DIVISION = 8.0

_SIMPLE = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max, tirx.Select, tirx.Cast, tirx.Shuffle),
    *(tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.And, tirx.Or, tirx.Not),
)
_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
_DIVIDING_CALLS = {"tirx.sqrt", "tirx.rsqrt"}
_CHEAP_CALLS = {
    *("prim.if_then_else", "tirx.floor", "tirx.ceil", "tirx.round", "tirx.nearbyint", "tirx.fabs"),
    *("tirx.trunc", "tirx.fma", "tirx.bitwise_and", "tirx.bitwise_or", "tirx.bitwise_xor"),
    *("tirx.shift_left", "tirx.shift_right", "tirx.reinterpret", "tirx.bitwise_not"),
    *("tirx.call_llvm_pure_intrin", "tirx.call_llvm_intrin"),
}
_FREE_CALLS = {"tirx.masked_load", "tirx.masked_store", "tirx.likely", "tirx.buffer_data"}


@dataclass
class Instructions:
    """What one execution of a statement takes.

    Attributes
    ----------
    arithmetic : float
        Instructions that one of the vector units does in a cycle.
    slow_cycles : float
        Cycles of divisions, roots and calls (exp, erf ...), which keep a unit busy.
    calls : float
        How many of these are calls.
    operations : float
        Arithmetic operations on single elements; a multiply-add is two.
    """

    arithmetic: float = 0.0
    slow_cycles: float = 0.0
    calls: float = 0.0
    operations: float = 0.0


def pieces(lanes: int, bits: int, machine: CpuDescription) -> int:
    """Registers that a vector takes: LLVM takes 11 elements as 8, 2 and 1."""
    whole, rest = divmod(lanes * bits, max(machine.vector_bits, bits))
    return whole + (rest // bits).bit_count()


def is_odd(lanes: int, bits: int, machine: CpuDescription) -> bool:
    """Whether a vector is longer than a register and no power of two long."""
    return lanes * bits > machine.vector_bits and bool(lanes & (lanes - 1))


@cache
def parse(dtype: str) -> tuple[int, int]:
    """Lanes and bits of a type's name."""
    parsed = tvm.DataType(dtype)
    return int(parsed.lanes), max(8, int(parsed.bits))


def instructions_of(value: tirx.Expr, machine: CpuDescription) -> tuple[Instructions, list[Any]]:
    """The instructions of ``value``, what is shared taken once, and its loads (TensorLoad, Call).

    Addresses are not counted: they advance with their loops.
    """
    counter = _Counter(machine)
    counter.visit(value)
    return counter.total, counter.loads


class _Counter:
    def __init__(self, machine: CpuDescription) -> None:
        self.total = Instructions()
        self.loads: list[Any] = []
        self._machine = machine
        self._seen: set[int] = set()

    def visit(self, expr: tirx.Expr) -> None:
        key = hash(expr)
        if key in self._seen:
            return
        self._seen.add(key)
        kind = type(expr)
        if kind is tvm.ir.TensorLoad:
            self.loads.append(expr)
            for index in expr.indices:
                self.loads += nodes(index, tvm.ir.TensorLoad)
            return
        if kind is tvm.ir.Call:
            self._call(expr)
        elif kind in _SIMPLE:
            self._simple(expr)
        elif kind in _DIVISIONS:
            self._division(expr)
        for child in _children(expr):
            self.visit(child)

    def _simple(self, expr: tirx.Expr) -> None:
        lanes, bits = parse(expr.ty.dtype)
        if type(expr) in (tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max):
            self.total.operations += lanes
        if not _is_contracted(expr):
            self.total.arithmetic += pieces(lanes, bits, self._machine)

    def _division(self, expr: tirx.Expr) -> None:
        if static_extent(expr.b) is None:
            self._slow(expr, _CYCLES_PER_DIVISION)
        else:
            # By a number: a product and shifts.
            lanes, bits = parse(expr.ty.dtype)
            self.total.arithmetic += 3 * pieces(lanes, bits, self._machine)

    def _slow(self, expr: tirx.Expr, cycles: float) -> None:
        lanes, bits = parse(expr.ty.dtype)
        self.total.operations += lanes
        self.total.slow_cycles += cycles * pieces(lanes, bits, self._machine)

    def _call(self, call: tvm.ir.Call) -> None:
        name = getattr(call.op, "name", "")
        if name == "tirx.masked_load":
            self.loads.append(call)
        if name in _FREE_CALLS or not hasattr(call.ty, "dtype"):
            return
        lanes, bits = parse(call.ty.dtype)
        count = pieces(lanes, bits, self._machine)
        if name in _CHEAP_CALLS:
            self.total.arithmetic += count
            return
        is_call = name not in _DIVIDING_CALLS
        self._slow(call, CYCLES_PER_CALL if is_call else _CYCLES_PER_DIVISION)
        self.total.calls += count if is_call else 0


def _is_contracted(expr: tirx.Expr) -> bool:
    """Whether an addition takes a product along: a multiply-add is one instruction.

    It is counted with the multiplication.
    """
    if type(expr) not in (tirx.Add, tirx.Sub):
        return False
    return any(type(side) is tirx.Mul for side in (expr.a, expr.b))


def _children(expr: tirx.Expr) -> Iterator[Any]:
    kind = type(expr)
    if kind is tvm.ir.Call:
        # The address and the mask of a masked load are no arithmetic.
        masked = getattr(expr.op, "name", "") == "tirx.masked_load"
        yield from () if masked else expr.args
    elif kind in (tirx.Cast, tirx.Broadcast):
        yield expr.value
    elif kind is tirx.Not:
        yield expr.a
    elif kind is tirx.Select:
        yield from (expr.condition, expr.true_value, expr.false_value)
    elif kind is tirx.Shuffle:
        yield from expr.vectors
    elif kind is tirx.Let:
        yield from (expr.value, expr.body)
    elif hasattr(expr, "a") and hasattr(expr, "b"):
        yield from (expr.a, expr.b)


@dataclass(frozen=True, eq=False)
class Array:
    """A tensor or an array inside of the kernel."""

    name: str
    nbytes: int
    element_bytes: int
    is_local: bool


@dataclass(frozen=True)
class ArrayAccess:
    """A load or a store of one statement."""

    array: Array
    address: Address
    is_store: bool


@dataclass(frozen=True, eq=False)
class Statement:
    """One assignment.

    Attributes
    ----------
    share : float
        Part of the iterations around it in which its conditions hold.
    accesses : tuple[ArrayAccess, ...]
        Its loads, each place once, and its store.
    instructions : Instructions
        All other work of one execution.
    lanes, bits : int
        Of the value.
    """

    share: float
    accesses: tuple[ArrayAccess, ...]
    instructions: Instructions
    lanes: int
    bits: int

    @property
    def store(self) -> ArrayAccess | None:
        """Its store; None for a value that only gets a name."""
        return next((access for access in self.accesses if access.is_store), None)

    def accumulates(self) -> bool:
        """Whether it reads the place that it writes."""
        store = self.store
        return store is not None and any(
            not access.is_store and access.array is store.array and access.address == store.address
            for access in self.accesses
        )


@dataclass(eq=False)
class LoopNode:
    """A loop with what is in it; the root of the tree is a loop of one iteration.

    Attributes
    ----------
    number : int
        Its own number; that of the root is -1.
    kind : str
        "root", "serial", "parallel" or "unrolled".
    extent : float
        Iterations; their mean where they vary.
    share : float
        Part of the iterations around it in which it is reached.
    name : str
        That of its variable.
    statements, children
        What is in it.
    """

    number: int
    kind: str
    extent: float
    share: float = 1.0
    name: str = ""
    statements: list[Statement] = field(default_factory=list)
    children: list["LoopNode"] = field(default_factory=list)

    @property
    def bit(self) -> int:
        """Its loop as a set."""
        return 0 if self.number < 0 else 1 << self.number

    def loops(self) -> int:
        """It and all loops in it, as a set."""
        found = self.bit
        for child in self.children:
            found |= child.loops()
        return found

    def walk(self) -> Iterator["LoopNode"]:
        """It and all loops in it, outer ones first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def all_statements(self) -> Iterator[Statement]:
        """The statements in it, at any depth."""
        for node in self.walk():
            yield from node.statements


@dataclass(frozen=True)
class Kernel:
    """A kernel's loops and arrays."""

    root: LoopNode
    arrays: tuple[Array, ...]

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(array.nbytes for array in self.arrays if not array.is_local)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all arrays inside of the kernel."""
        return sum(array.nbytes for array in self.arrays if array.is_local)


# Reads a lowered kernel into a tree of loops.


_KINDS = {tirx.ForKind.PARALLEL: "parallel", tirx.ForKind.UNROLLED: "unrolled"}
# Statements up to which LLVM unrolls a short loop.
_LONGEST_UNROLLED = 64

_MASKED_STORE = tvm.ir.Op.get("tirx.masked_store")


def kernel_loops(func: tirx.PrimFunc, machine: CpuDescription) -> Kernel:
    """The loops of a kernel that ``lowered`` returned."""
    reader = _LoopTreeReader(machine)
    for param in func.params:
        if hasattr(param, "shape"):
            reader.arrays[param] = _array(param, is_local=False)
    root = LoopNode(-1, "root", 1.0)
    reader.read(func.body, root)
    return Kernel(root, tuple(dict.fromkeys(reader.arrays.values())))


def _array(buffer: tirx.Buffer, is_local: bool) -> Array:
    bits = parse(str(buffer.dtype))[1]
    return Array(str(buffer.name), buffer_bytes(buffer), bits // 8, is_local)


def _is_short(loop: LoopNode) -> bool:
    """Whether LLVM unrolls a serial loop, so that small arrays in it can live in registers."""
    return loop.extent <= 8 and _statements(loop) <= _LONGEST_UNROLLED


def _statements(loop: LoopNode) -> float:
    """Of a loop, unrolled; endless if that cannot be done to one in it."""
    if any(child.kind != "unrolled" for child in loop.children):
        return float("inf")
    return loop.extent * (len(loop.statements) + sum(map(_statements, loop.children)))


class _LoopTreeReader:
    def __init__(self, machine: CpuDescription) -> None:
        self.arrays: dict[Any, Array] = {}
        self._machine = machine
        self._scope = Scope()
        self._count = 0
        self._depth = 0
        # The sampled points that get here, and how many of them got into the loop around.
        self._active = np.ones(POINTS, dtype=bool)
        self._entered = POINTS
        self._readers = {
            tirx.SeqStmt: self._sequence,
            tirx.For: self._loop,
            tirx.BufferStore: self._store,
            tirx.IfThenElse: self._branch,
            tirx.AllocBuffer: self._allocate,
            tirx.DeclBuffer: self._declare,
            tirx.Bind: self._bind,
            tirx.Evaluate: self._evaluate,
        }

    def read(self, stmt: tirx.Stmt, node: LoopNode) -> None:
        """Adds a statement to the loop that it is in."""
        reader = self._readers.get(type(stmt))
        if reader is not None:
            reader(stmt, node)
        elif hasattr(stmt, "body"):
            self.read(stmt.body, node)

    def _sequence(self, stmt: tirx.SeqStmt, node: LoopNode) -> None:
        for part in stmt.seq:
            self.read(part, node)

    def _loop(self, loop: tirx.For, node: LoopNode) -> None:
        extents = self._at_points(loop.extent, static_extent(loop.extent) or 1)
        reached = int(self._active.sum())
        extent = float(extents[self._active].mean()) if reached else 0.0
        kind = _KINDS.get(loop.kind, "serial")
        inner = LoopNode(self._count, kind, extent, self._share(), str(loop.loop_var.name))
        node.children.append(inner)
        self._scope.loops[loop.loop_var] = (self._count, extent)
        steps = np.floor(spread_points(self._depth) * np.maximum(extents, 1))
        first = self._at_points(loop.min, 0)
        self._scope.points[hash(loop.loop_var)] = first + steps.astype(np.int64)
        self._count += 1
        self._depth += 1
        entered, self._entered = self._entered, reached
        self.read(loop.body, inner)
        self._entered = entered
        self._depth -= 1
        if kind == "serial" and static_extent(loop.extent) is not None and _is_short(inner):
            inner.kind = "unrolled"

    def _at_points(self, expr: tirx.Expr, otherwise: int) -> np.ndarray:
        values = values_of(expr, self._scope.points)
        return np.broadcast_to(np.asarray(otherwise if values is None else values), POINTS)

    def _share(self) -> float:
        return float(self._active.sum()) / self._entered if self._entered else 0.0

    def _branch(self, stmt: tirx.IfThenElse, node: LoopNode) -> None:
        around = self._active
        holds = values_of(stmt.condition, self._scope.points)
        # Conditions on data: half of the time.
        known = np.arange(POINTS) % 2 == 0 if holds is None else np.broadcast_to(holds, POINTS)
        for taken, case in ((known, stmt.then_case), (~known.astype(bool), stmt.else_case)):
            if case is not None:
                self._active = around & taken.astype(bool)
                self.read(case, node)
        self._active = around

    def _allocate(self, stmt: tirx.AllocBuffer, node: LoopNode) -> None:
        self.arrays[stmt.buffer] = _array(stmt.buffer, is_local=True)

    def _declare(self, stmt: tirx.DeclBuffer, node: LoopNode) -> None:
        data = stmt.data
        viewed = data.args[0] if isinstance(data, tvm.ir.Call) and len(data.args) else None
        if viewed in self.arrays:
            self.arrays[stmt.buffer] = self.arrays[viewed]
        else:
            self.arrays[stmt.buffer] = _array(stmt.buffer, is_local=True)

    def _bind(self, stmt: tirx.Bind, node: LoopNode) -> None:
        self._scope.bound[stmt.var] = stmt.value
        values = values_of(stmt.value, self._scope.points)
        if values is not None:
            self._scope.points[hash(stmt.var)] = np.broadcast_to(values, POINTS)
        self._assignment(stmt.value, None, node)

    def _evaluate(self, stmt: tirx.Evaluate, node: LoopNode) -> None:
        call = stmt.value
        if isinstance(call, tvm.ir.Call) and call.op.same_as(_MASKED_STORE):
            buffer, value, *indices, _ = call.args
            self._assignment(value, self._access(buffer, indices, is_store=True), node)

    def _store(self, stmt: tirx.BufferStore, node: LoopNode) -> None:
        self._assignment(stmt.value, self._access(stmt.buffer, stmt.indices, True), node)

    def _assignment(self, value: Any, store: ArrayAccess | None, node: LoopNode) -> None:
        instructions, loads = instructions_of(value, self._machine)
        accesses = [self._loaded(load) for load in loads]
        if store is not None:
            accesses.append(store)
        lanes, bits = parse(str(value.ty.dtype)) if hasattr(value.ty, "dtype") else (1, 32)
        unique = tuple(dict.fromkeys(accesses))
        node.statements.append(Statement(self._share(), unique, instructions, lanes, bits))

    def _loaded(self, load: Any) -> ArrayAccess:
        if isinstance(load, tvm.ir.Call):
            buffer, *indices, _ = load.args
            return self._access(buffer, indices, is_store=False)
        return self._access(load.source, load.indices, is_store=False)

    def _access(self, buffer: Any, indices: Any, is_store: bool) -> ArrayAccess:
        if buffer not in self.arrays:
            self.arrays[buffer] = _array(buffer, is_local=False)
        address = address_of(indices[-1], self._scope)
        return ArrayAccess(self.arrays[buffer], address, is_store)
