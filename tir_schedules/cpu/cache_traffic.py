"""Bytes that the loops of a kernel touch, and that each cache of a CPU fetches for them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.cpu.loop_tree import Array, ArrayAccess, LoopNode

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


def fetched(
    path: Sequence[LoopNode],
    accesses: Sequence[ArrayAccess],
    size: float,
    cores: int,
    touched_by: Mapping[int, tuple[float, float]],
) -> float:
    """Bytes that some accesses fetch into caches of ``size`` each in a run, by the same rules.

    ``path`` has the loops around them, outermost first, and ``touched_by`` the ``footprints`` of
    the whole kernel.
    """
    node, *inside = path
    own = touched(accesses, sum(one.bit for one in path))
    whole, iteration = touched_by.get(node.number, (0.0, float("inf")))
    together = size * cores if node.kind == "parallel" else size
    if node.kind != "unrolled" and (whole <= together or iteration <= size):
        return own
    if not inside:
        return node.extent * touched(accesses, 0)
    within = 1 if node.kind == "parallel" else cores
    inner = inside[0].share * fetched(inside, accesses, size, within, touched_by)
    return max(own, node.extent * inner)
