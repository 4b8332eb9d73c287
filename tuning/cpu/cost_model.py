"""What limits a scheduled kernel: seconds of its instructions, its memory and its threads."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import tvm
from tvm.ir.utils import derived_object

from tvm_ext.hardware.cost_model import Work, cost_model
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tuning.candidate import lowered
from tvm_ext.tuning.cost_models.base import FormulaModel
from tvm_ext.tuning.cpu.cycles import LoopBody, bodies
from tvm_ext.tuning.cpu.loop_tree import Array, ArrayAccess, Kernel, LoopNode, kernel_loops

# How many bytes loops touch: the lines of each array, those that are touched again counted once.
#
# Approximations: places of one access are spread evenly, accesses that other loops move apart
# share nothing, and an array of which accesses overlap is touched once where they do.


LINE_BYTES = 64

# First and last element touched, and bytes of the lines between that are.
_Interval = tuple[float, float, float]


def footprints(node: LoopNode) -> dict[int, tuple[float, float]]:
    """By the loop's number, the bytes that one run of it touches, and one iteration of it.

    Unrolled loops are parts of the loop around them.
    """
    found: dict[int, tuple[float, float]] = {}
    _collect(node, found)
    return found


def _collect(
    node: LoopNode, collected: dict[int, tuple[float, float]]
) -> tuple[dict[ArrayAccess, None], int]:
    """Adds ``node`` and all in it; returns its accesses and its loops."""
    accesses = {access: None for statement in node.statements for access in statement.accesses}
    inner = 0
    for child in node.children:
        more, loops = _collect(child, collected)
        accesses.update(more)
        inner |= loops
    loops = inner | node.bit
    if node.kind != "unrolled":
        collected[node.number] = touched(accesses, loops), touched(accesses, inner)
    return accesses, loops


def touched(accesses: Iterable[ArrayAccess], loops: int) -> float:
    """Bytes that ``accesses`` touch while ``loops`` run, all others standing still."""
    intervals: dict[tuple[Array, object], dict[_Interval, None]] = {}
    for access in accesses:
        key = access.array, access.address.fixed_part(loops)
        intervals.setdefault(key, {})[_interval(access, loops)] = None
    by_array: dict[Array, float] = {}
    for (array, _), found in intervals.items():
        by_array[array] = by_array.get(array, 0.0) + _union(found, array.element_bytes)
    return sum(min(nbytes, array.nbytes) for array, nbytes in by_array.items())


def _interval(access: ArrayAccess, loops: int) -> _Interval:
    """Of one access."""
    address, size = access.address, access.array.element_bytes
    lane_step = address.lane_step
    if lane_step is None:
        # Each lane has a place of its own, anywhere.
        count = address.lanes * address.places_within(loops)
        return 0.0, access.array.nbytes / size, min(count * LINE_BYTES, access.array.nbytes)
    low, run, span = address.offset, 1.0, 1.0
    rows: list[tuple[float, float]] = []
    lanes = (float(lane_step), float(address.lanes if lane_step else 1))
    steps = [(t.step, t.places) for t in address.terms if t.loops & loops]
    for step, places in sorted([lanes, *steps], key=lambda pair: abs(pair[0])):
        low += min(0.0, step * (places - 1))
        reach = abs(step) * (places - 1)
        if not rows and abs(step) <= run:
            run += reach
        elif places > 1:
            _add_rows(rows, abs(step), places)
        span += reach
    count = math.prod(places for _, places in rows)
    lines = count * _lines(run * size) * LINE_BYTES
    return low, low + span, min(lines, _lines(span * size) * LINE_BYTES)


def _add_rows(rows: list[tuple[float, float]], step: float, places: float) -> None:
    """Adds rows ``step`` apart; windows that move by whole rows see some of them again."""
    for position, (own, known) in enumerate(rows):
        apart = step / own
        if apart == int(apart) and apart <= known:
            rows[position] = own, known + apart * (places - 1)
            return
    rows.append((step, places))


def _lines(nbytes: float) -> float:
    return max(1.0, nbytes / LINE_BYTES)


def _union(intervals: Iterable[_Interval], element_bytes: int) -> float:
    total = 0.0
    end, begin, nbytes = float("-inf"), float("-inf"), 0.0
    for low, high, count in sorted(intervals):
        if low < end or low == begin:
            nbytes, end = nbytes + count, max(end, high)
        else:
            total += min(nbytes, _capacity(begin, end, element_bytes))
            begin, end, nbytes = low, high, count
    return total + min(nbytes, _capacity(begin, end, element_bytes))


def _capacity(begin: float, end: float, element_bytes: int) -> float:
    """Bytes of the lines between two elements."""
    if end == float("-inf"):
        return 0.0
    return _lines((end - begin) * element_bytes) * LINE_BYTES


# Bytes that move between the caches and memory, from the bytes that each loop touches.
#
# A loop whose bytes fit into a cache fetches them once. One that does not, but whose iterations
# do, fetches what it touches once, too: what comes again comes in the next iteration. Any other
# fetches what its iterations fetch, each anew.


# L2 is read faster than it is copied, and ahead of its use.
_READ_FROM_L2 = 2.0


@dataclass(frozen=True)
class Traffic:
    """Bytes that one run of the kernel fetches, over all cores.

    Attributes
    ----------
    l1, l2, l3 : float
        Into L1 from L2, into L2 from L3, and into L3 from memory.
    """

    l1: float
    l2: float
    l3: float

    def seconds(self, machine: CpuDescription, cores: int) -> tuple[float, float, float]:
        """Time that each takes with so many cores at work."""
        memory = min(machine.memory_gbs, machine.core_memory_gbs * cores)
        return (
            self.l1 / (_READ_FROM_L2 * machine.core_l2_gbs * cores * 1e9),
            self.l2 / (machine.core_l3_gbs * cores * 1e9),
            self.l3 / (memory * 1e9),
        )


def traffic(root: LoopNode, machine: CpuDescription) -> Traffic:
    """Traffic of a run that finds in the caches what the run before left there.

    As a description's ``bandwidth`` has it, that is spread over the caches of all cores; a loop
    that does not run on threads uses those of one.
    """
    touched = footprints(root)
    sizes = (machine.l1d_bytes, machine.l2_bytes)
    last = max(machine.l3_bytes, machine.l2_bytes * machine.cores)
    own = [0.0 if touched[-1][0] <= size * machine.cores else size for size in sizes]
    l1, l2 = (_fetched(root, size, machine.cores, touched) if size else 0.0 for size in own)
    l3 = 0.0 if touched[-1][0] <= last else _fetched(root, last, 1, touched)
    return Traffic(l1, l2, l3)


def _fetched(
    node: LoopNode, size: float, cores: int, touched: dict[int, tuple[float, float]]
) -> float:
    """Bytes that one run of the loop fetches into caches of ``size`` each, one for each core."""
    whole, iteration = touched.get(node.number, (0.0, float("inf")))
    together = size * cores if node.kind == "parallel" else size
    if node.kind != "unrolled" and (whole <= together or iteration <= size):
        return whole
    inside = 1 if node.kind == "parallel" else cores
    inner = sum(child.share * _fetched(child, size, inside, touched) for child in node.children)
    return max(whole, node.extent * inner)


# Part of the shorter times that does not hide behind the longest.
_EXPOSED = 0.5


@dataclass(frozen=True)
class CpuCost:
    """A kernel's cost, part by part.

    Attributes
    ----------
    kernel : Kernel
        Its loops.
    bodies : tuple[LoopBody, ...]
        What they run.
    traffic : Traffic
        Bytes between the caches.
    machine : CpuDescription
        Where.
    """

    kernel: Kernel
    bodies: tuple[LoopBody, ...]
    traffic: Traffic
    machine: CpuDescription

    @property
    def operations(self) -> float:
        """Arithmetic operations on single elements, padding and repeated work included."""
        return sum(body.operations for body in self.bodies)

    @property
    def roofline_seconds(self) -> float:
        """What the machine needs at least: the same for all schedules that do no extra work."""
        work = Work(self.operations, float(self.kernel.parameter_bytes), self._arithmetic_dtype())
        return cost_model(self.machine).seconds(work)

    @property
    def compute_seconds(self) -> float:
        """Instructions, on the core that has most of them."""
        return sum(body_seconds(body, self.machine) for body in self.bodies)

    @property
    def busy_cores(self) -> int:
        """Cores that work for most of the time."""
        serial = sum(body.cycles for body in self.bodies if parallel_loop(body) is None)
        total = sum(body.cycles for body in self.bodies)
        if serial * 2 > total:
            return 1
        extents = [loop.extent for loop in self.parallel_loops()]
        return max(1, min(self.machine.cores, math.ceil(max(extents, default=1.0))))

    @property
    def memory_seconds(self) -> tuple[float, float, float]:
        """From L2, from L3 and from memory."""
        return self.traffic.seconds(self.machine, self.busy_cores)

    @property
    def launches(self) -> float:
        """How often the threads are started."""
        return _launches(self.kernel.root, 1.0)

    @property
    def seconds(self) -> float:
        """All of it."""
        parts = (self.compute_seconds, *self.memory_seconds)
        longest = max(parts)
        machine = self.machine
        starts = machine.kernel_overhead_us
        if machine.cores > 1:
            starts += self.launches * machine.parallel_overhead_us
        return longest + _EXPOSED * (sum(parts) - longest) + starts * 1e-6

    def parallel_loops(self) -> Iterable[LoopNode]:
        """The loops that run on threads."""
        return (node for node in self.kernel.root.walk() if node.kind == "parallel")

    def _arithmetic_dtype(self) -> str:
        """float64 where nothing narrower is computed; else float32, which narrower ones may beat.

        What a kernel computes addresses with does not count as its arithmetic.
        """
        bits = {s.bits for s in self.kernel.root.all_statements() if s.instructions.operations}
        return "float64" if bits and min(bits) > 32 else "float32"


def kernel_cost(mod: tvm.IRModule, machine: CpuDescription) -> CpuCost:
    """The cost of the scheduled kernel "main" of ``mod``."""
    kernel = kernel_loops(lowered(mod, machine), machine)
    return CpuCost(kernel, tuple(bodies(kernel, machine)), traffic(kernel.root, machine), machine)


def body_seconds(body: LoopBody, machine: CpuDescription) -> float:
    """Time of a body's cycles; on threads, those of the busiest."""
    seconds = body.cycles / (machine.clock_ghz * 1e9)
    loop = parallel_loop(body)
    return seconds if loop is None else seconds * busiest_share(loop, machine)


def parallel_loop(body: LoopBody) -> LoopNode | None:
    """The loop around a body that runs on threads."""
    return next((loop for loop in body.around if loop.kind == "parallel"), None)


def busiest_share(loop: LoopNode, machine: CpuDescription) -> float:
    """Part of a loop's iterations that the busiest thread gets."""
    return math.ceil(loop.extent / machine.cores) / loop.extent if loop.extent > 0 else 1.0


def _launches(node: LoopNode, runs: float) -> float:
    if node.kind == "parallel":
        return runs
    inside = runs * (node.extent if node.number >= 0 else 1.0)
    return sum(_launches(child, inside * child.share) for child in node.children)


# Ranks candidates by a formula: what their loops need of the machine, without any training.


def modelled_seconds(mod: tvm.IRModule, machine: CpuDescription) -> float:
    """Time of one call of the scheduled kernel "main" of ``mod``: modelled, not measured.

    The roofline's question asked of what the schedule really does: instructions on vectors as full
    as they are, loads and stores, sums that wait for themselves, registers that spill, bytes that
    each cache has to fetch, and threads with the work of the busiest one and their start.
    """
    return kernel_cost(mod, machine).seconds


@derived_object
class CpuCostModel(FormulaModel):
    """``modelled_seconds`` as a model that MetaSchedule can ask."""

    def modelled_seconds(self, mod: tvm.IRModule) -> float:
        """See ``FormulaModel``."""
        return modelled_seconds(mod, self.machine)
