"""How the accesses of a scheduled kernel for a CPU walk through memory, and through its caches."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tvm import tirx

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.memory_access import (
    LoopStride,
    MemoryAccess,
    Reuse,
    distinct_bytes,
    innermost,
    pattern_of,
    stride_of,
)
from tvm_ext.tir_schedules.cpu.cache_traffic import LINE_BYTES, fetched, footprints, touched
from tvm_ext.tir_schedules.cpu.loop_tree import ArrayAccess, LoopNode, Statement, kernel_loops

MEMORY = "memory"

# As ``footprints`` returns them.
_Footprints: TypeAlias = Mapping[int, tuple[float, float]]


@dataclass(frozen=True)
class _Place:
    """Where accesses that differ by where they begin alone stand.

    ``path`` has the loops around them, outermost first, with the root.
    """

    path: tuple[LoopNode, ...]
    strides: tuple[LoopStride, ...]
    is_spread: bool
    accesses: list[ArrayAccess] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    @property
    def runs(self) -> float:
        """How often they are made, all together."""
        return sum(self.shares) * math.prod(node.share * node.extent for node in self.path)


def memory_accesses(func: tirx.PrimFunc, machine: CpuDescription) -> list[MemoryAccess]:
    """The loads and stores of a kernel that ``lowered`` returned, in program order.

    A line of a cache is taken to begin where an access does, and caches to hold any lines that fit
    into them. A run finds nothing in the caches.
    """
    root = kernel_loops(func, machine).root
    touched_by = footprints(root)
    return [_described(place, touched_by, machine) for place in _places(root)]


def cache_levels(machine: CpuDescription) -> dict[str, float]:
    """By name, bytes of the caches that one core can fill, the nearest first."""
    last = max(machine.l3_bytes, machine.l2_bytes * machine.cores)
    levels: dict[str, float] = {"L1": machine.l1d_bytes, "L2": machine.l2_bytes, "L3": last}
    return levels if machine.l3_bytes else {name: levels[name] for name in ("L1", "L2")}


def _places(root: LoopNode) -> list[_Place]:
    found: dict[object, _Place] = {}
    for path, statement in _statements(root, ()):
        for access in statement.accesses:
            strides = _strides(access, path)
            # A scalar that all lanes of a vector take.
            is_spread = access.address.lanes == 1 and statement.lanes > 1
            key = access.array, access.is_store, access.address.lanes, path, strides, is_spread
            place = found.setdefault(key, _Place(path, strides, is_spread))
            if access not in place.accesses:
                place.accesses.append(access)
                place.shares.append(statement.share)
    return list(found.values())


def _statements(
    node: LoopNode, around: tuple[LoopNode, ...]
) -> Iterator[tuple[tuple[LoopNode, ...], Statement]]:
    path = (*around, node)
    for statement in node.statements:
        yield path, statement
    for child in node.children:
        yield from _statements(child, path)


def _strides(access: ArrayAccess, path: Sequence[LoopNode]) -> tuple[LoopStride, ...]:
    address, size = access.address, access.array.element_bytes
    found = []
    for node in path[1:]:
        step = stride_of(address, node.bit)
        nbytes = None if step is None else step * size
        found.append(LoopStride(node.name, node.kind, node.extent, step, nbytes))
    if address.lanes > 1:
        lane = address.lane_step
        nbytes = None if lane is None else float(lane * size)
        found.append(LoopStride("lanes", "vector", address.lanes, lane, nbytes))
    return tuple(found)


def _described(place: _Place, touched_by: _Footprints, machine: CpuDescription) -> MemoryAccess:
    access = place.accesses[0]
    array, address = access.array, access.address
    inner = innermost(place.strides)
    levels = cache_levels(machine).items()
    into = {
        level: fetched(place.path, place.accesses, nbytes, machine.cores, touched_by)
        for level, nbytes in levels
    }
    taken = 1 if address.lane_step == 0 else address.lanes
    distinct = sum(distinct_bytes(one.address, array.element_bytes) for one in place.accesses)
    lines = touched(place.accesses, sum(node.bit for node in place.path))
    return MemoryAccess(
        tensor=array.name,
        memory="local" if array.is_local else "global",
        is_store=access.is_store,
        element_bytes=array.element_bytes,
        lanes=address.lanes,
        pattern=pattern_of(0 if place.is_spread or inner is None else inner.elements),
        strides=place.strides,
        places=len(place.accesses),
        runs=place.runs,
        unit="lines",
        units=touched([access], 0) / LINE_BYTES,
        least_units=max(1.0, taken * array.element_bytes / LINE_BYTES),
        fetched_bytes=into["L1"],
        least_bytes=max(LINE_BYTES, min(distinct, lines)),
        fetched_into=into,
        reuse=_reuse(place, touched_by, machine),
    )


def _reuse(place: _Place, touched_by: _Footprints, machine: CpuDescription) -> tuple[Reuse, ...]:
    """The loops in which lines come again, innermost first; what is unrolled stays in registers."""
    found = []
    for node, stride in reversed(list(zip(place.path[1:], place.strides, strict=False))):
        # Another thread has another cache.
        if node.kind in ("unrolled", "parallel") or node.extent <= 1 or stride.bytes is None:
            continue
        if abs(stride.bytes) < LINE_BYTES:
            distance = touched_by[node.number][1]
            found.append(Reuse(node.name, stride.bytes != 0, distance, _level(distance, machine)))
    return tuple(found)


def _level(nbytes: float, machine: CpuDescription) -> str:
    levels = cache_levels(machine).items()
    return next((name for name, size in levels if nbytes <= size), MEMORY)
