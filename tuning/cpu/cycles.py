"""Cycles that the innermost loops of a kernel take on one core, by what limits them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.cpu.loop_tree import (
    Array,
    ArrayAccess,
    Kernel,
    LoopNode,
    Statement,
    is_odd,
    pieces,
)
from tvm_ext.tir_schedules.cpu.register_blocking import L1_PERIOD, L1_WAYS, vector_registers

# What a core does in a cycle, and how long a sum waits for itself. A. Fog, "Instruction tables":
# current cores differ little.
_LOADS, _STORES, _ISSUED, _LATENCY = 2.0, 1.0, 6.0, 4.0

# Instructions of an iteration of a loop, and cycles of its end: a guess that went wrong.
_ITERATION, _LOOP_END = 2.0, 4.0

# Instructions that are under way together: sums of the next iterations of the loops around begin
# while those of this one wait.
_WINDOW = 448.0

# Vectors longer than a register that are no power of two long: LLVM keeps a tile of them in memory,
# and takes them apart at every use. Measured on 48 float32 with AVX-512: 4 to 70.
_ODD_VECTORS = 8.0

# Cycles of a load that waits for L2 behind others.
_LOAD_FROM_L2 = 4.0

_OPERAND_REGISTERS = 2


@dataclass
class LoopBody:
    """All statements of one loop that is not unrolled, over one run of the kernel.

    Attributes
    ----------
    around : tuple[LoopNode, ...]
        The loops around them that are not unrolled, outermost first, without the root.
    runs : float
        How often the loop's body runs.
    arithmetic, slow, loads, stores, waiting, iterations : float
        Cycles that each would take alone: instructions of the vector units, divisions and calls,
        loads, stores, sums that wait for themselves, and the ends of loops.
    issued : float
        All instructions.
    registers : float
        Vector registers that it needs.
    accumulators : float
        Those of them that hold sums.
    size : float
        Instructions of the unrolled body.
    conflicts : float
        Lines in use together that share places in L1, over the places there are.
    operations : float
        Arithmetic operations on single elements.
    """

    around: tuple[LoopNode, ...]
    runs: float
    arithmetic: float = 0.0
    slow: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    waiting: float = 0.0
    iterations: float = 0.0
    issued: float = 0.0
    registers: float = 0.0
    accumulators: float = 0.0
    size: float = 0.0
    conflicts: float = 0.0
    operations: float = 0.0

    @property
    def cycles(self) -> float:
        """Of all its runs, on one core: what overlaps does."""
        units = self.arithmetic + self.slow
        issued = self.issued / _ISSUED
        return max(units, self.loads, self.stores, issued, self.waiting) + self.iterations

    @property
    def extents(self) -> list[float]:
        """Iterations of the loops around, innermost first."""
        return [node.extent for node in reversed(self.around)]


@dataclass
class _Use:
    """One place of a body: how many vectors it is, and how often each is loaded or stored."""

    vectors: float
    runs: float
    is_vector: bool = True
    updates: float = 0.0


@dataclass
class _ArrayUses:
    loads: dict[ArrayAccess, _Use] = field(default_factory=dict)
    sums: dict[ArrayAccess, _Use] = field(default_factory=dict)
    stores: dict[ArrayAccess, _Use] = field(default_factory=dict)


def bodies(kernel: Kernel, machine: CpuDescription) -> list[LoopBody]:
    """The bodies of a kernel's loops, in program order."""
    code = list(_straight_code(kernel.root, (), 1.0))
    counter = _CycleCounter(kernel, machine, code)
    return [counter.body(*found) for found in code]


_Copies = list[tuple[Statement, float]]
_Code = tuple[tuple[LoopNode, ...], float, _Copies]


def _straight_code(node: LoopNode, around: tuple[LoopNode, ...], runs: float) -> Iterator[_Code]:
    """Loops that are not unrolled with their statements and how often these are there."""
    copies: _Copies = []
    loops: list[LoopNode] = []
    _gather(node, 1.0, copies, loops)
    if copies:
        yield around, runs, copies
    for child in loops:
        inside = runs * child.share * child.extent
        yield from _straight_code(child, (*around, child), inside)


def _gather(node: LoopNode, copies: float, gathered: _Copies, loops: list[LoopNode]) -> None:
    gathered += [(statement, copies * statement.share) for statement in node.statements]
    for child in node.children:
        if child.kind == "unrolled":
            _gather(child, copies * child.share * child.extent, gathered, loops)
        else:
            loops.append(child)


def _begun(code: list[_Code]) -> dict[Array, float]:
    """How often each array gets values that do not depend on those before."""
    found: dict[Array, float] = {}
    for _, runs, copies in code:
        for statement, _ in copies:
            store = statement.store
            if store is not None and not statement.accumulates():
                known = found.get(store.array, 0.0)
                found[store.array] = max(known, runs * statement.share)
    return found


class _CycleCounter:
    def __init__(self, kernel: Kernel, machine: CpuDescription, code: list[_Code]) -> None:
        self._machine = machine
        self._begun = _begun(code)
        self._unrolled = 0
        for node in kernel.root.walk():
            if node.kind == "unrolled":
                self._unrolled |= node.bit
        moved = {
            access.array
            for statement in kernel.root.all_statements()
            for access in statement.accesses
            if access.address.lane_step is None
            or any(term.loops & ~self._unrolled for term in access.address.terms)
        }
        # Small arrays at places that are known when the loops are unrolled live in registers.
        limit = 2 * vector_registers(machine) * machine.vector_bits // 8
        self._in_registers = {
            array
            for array in kernel.arrays
            if array.is_local and array not in moved and array.nbytes <= limit
        }

    def body(self, around: tuple[LoopNode, ...], runs: float, copies: _Copies) -> LoopBody:
        """Counts one body."""
        body = LoopBody(around, runs)
        uses = _ArrayUses()
        for statement, count in copies:
            self._instructions(body, statement, count)
            self._uses(uses, body, statement, count)
        units = self._machine.fma_units
        body.issued = runs * (body.arithmetic + _ITERATION * bool(around))
        body.arithmetic *= runs / units
        body.slow *= runs / units
        body.operations *= runs
        if around:
            body.iterations = runs / max(1.0, around[-1].extent) * _LOOP_END
        self._memory(body, uses)
        return body

    def _instructions(self, body: LoopBody, statement: Statement, count: float) -> None:
        found = statement.instructions
        body.arithmetic += count * found.arithmetic * self._oddness(statement)
        body.slow += count * found.slow_cycles
        body.operations += count * found.operations
        body.size += count * (found.arithmetic + found.slow_cycles + len(statement.accesses))

    def _oddness(self, statement: Statement) -> float:
        """How many times as many instructions vectors of a length that is no power of two take."""
        if not is_odd(statement.lanes, statement.bits, self._machine):
            return 1.0
        is_tile = any(access.array.is_local for access in statement.accesses)
        return _ODD_VECTORS if is_tile else 1.0

    def _uses(self, uses: _ArrayUses, body: LoopBody, statement: Statement, count: float) -> None:
        store = statement.store
        sums = store if store is not None and statement.accumulates() else None
        for access in statement.accesses:
            vectors = self._vectors(access, count)
            if sums is not None and access.address == sums.address and access.array is sums.array:
                if access.is_store:
                    # A sum is carried on from where it was begun.
                    runs = max(self._runs(access, body), self._begun.get(access.array, 0.0))
                    use = uses.sums.setdefault(access, _Use(vectors, min(runs, body.runs)))
                    use.updates += count * self._pieces(access) / vectors if vectors else 0.0
                continue
            kept = uses.stores if access.is_store else uses.loads
            use = kept.setdefault(access, _Use(vectors, self._runs(access, body)))
            use.vectors = max(use.vectors, vectors)
            use.is_vector = access.address.lanes > 1

    def _vectors(self, access: ArrayAccess, count: float) -> float:
        """Vectors of all its places in the unrolled body."""
        return min(count, access.address.places_within(self._unrolled)) * self._pieces(access)

    def _pieces(self, access: ArrayAccess) -> float:
        address = access.address
        if address.lane_step is None or address.lane_step > 1 or address.lane_step < 0:
            # One by one, each put into its lane.
            return 2.0 * address.lanes
        return pieces(address.lanes, access.array.element_bytes * 8, self._machine)

    def _runs(self, access: ArrayAccess, body: LoopBody) -> float:
        """How often it is done: before the innermost loops that do not move it."""
        runs = body.runs
        for node in reversed(body.around):
            if access.address.moves_with(node.bit) or node.kind == "parallel" or runs <= 0:
                break
            runs /= max(1.0, node.extent * node.share)
        return runs

    def _memory(self, body: LoopBody, uses: _ArrayUses) -> None:
        """Loads, stores and waiting, with what does not fit into the registers."""
        free = vector_registers(self._machine) - _OPERAND_REGISTERS
        body.accumulators = sum(u.vectors for u in uses.sums.values() if u.runs < body.runs)
        steady = sum(u.vectors for u in uses.loads.values() if u.runs < body.runs and u.is_vector)
        body.registers = body.accumulators + steady + _OPERAND_REGISTERS
        spilled = max(0.0, body.accumulators - free)
        reloaded = max(0.0, min(steady, body.registers - _OPERAND_REGISTERS - free))
        loads = body.runs * (reloaded + spilled)
        stores = body.runs * spilled
        for access, use in uses.loads.items():
            if access.array not in self._in_registers:
                loads += use.vectors * use.runs
        for kind in (uses.sums, uses.stores):
            for access, use in kind.items():
                if access.array not in self._in_registers:
                    stores += use.vectors * use.runs
                    loads += use.vectors * use.runs if kind is uses.sums else 0.0
        body.issued += loads + stores
        body.waiting = max((self._waiting(body, use) for use in uses.sums.values()), default=0.0)
        body.conflicts = max((self._conflicts(access) for access in uses.loads), default=0.0)
        body.loads, body.stores = loads / _LOADS, stores / _STORES
        if body.conflicts > 1:
            body.loads += body.loads * _LOAD_FROM_L2

    def _waiting(self, body: LoopBody, use: _Use) -> float:
        """Cycles in which a sum waits for itself, as far as no other is under way meanwhile."""
        if use.runs >= body.runs or use.runs <= 0:
            return 0.0
        in_a_row = body.issued / use.runs
        return body.runs * _LATENCY * use.updates / (1.0 + _WINDOW / in_a_row)

    def _conflicts(self, access: ArrayAccess) -> float:
        """Lines that the places of an unrolled access need of the few that L1 has for them."""
        worst = 0.0
        for term in access.address.terms:
            nbytes = abs(term.step) * access.array.element_bytes
            if term.loops & self._unrolled and nbytes >= L1_PERIOD / 8 and nbytes == int(nbytes):
                sets = L1_PERIOD // math.gcd(int(nbytes), L1_PERIOD)
                worst = max(worst, term.places / (L1_WAYS * sets))
        return worst
