"""How many bytes loops touch: the lines of each array, those that are touched again counted once.

Approximations: places of one access are spread evenly, accesses that other loops move apart share
nothing, and an array of which accesses overlap is touched once where they do.
"""

import math
from collections.abc import Iterable

from tvm_ext.tuning.loop_analysis.loop_tree import Access, Array, LoopNode

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
    node: LoopNode, found: dict[int, tuple[float, float]]
) -> tuple[dict[Access, None], int]:
    """Adds ``node`` and all in it; returns its accesses and its loops."""
    accesses = {access: None for statement in node.statements for access in statement.accesses}
    inner = 0
    for child in node.children:
        more, loops = _collect(child, found)
        accesses.update(more)
        inner |= loops
    loops = inner | node.bit
    if node.kind != "unrolled":
        found[node.number] = touched(accesses, loops), touched(accesses, inner)
    return accesses, loops


def touched(accesses: Iterable[Access], loops: int) -> float:
    """Bytes that ``accesses`` touch while ``loops`` run, all others standing still."""
    intervals: dict[tuple[Array, object], dict[_Interval, None]] = {}
    for access in accesses:
        key = access.array, access.address.fixed_part(loops)
        intervals.setdefault(key, {})[_interval(access, loops)] = None
    by_array: dict[Array, float] = {}
    for (array, _), found in intervals.items():
        by_array[array] = by_array.get(array, 0.0) + _union(found, array.element_bytes)
    return sum(min(nbytes, array.nbytes) for array, nbytes in by_array.items())


def _interval(access: Access, loops: int) -> _Interval:
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
