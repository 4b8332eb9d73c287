"""Bytes of the buffers that live in one PE while a kernel runs."""

import math
from collections.abc import Sequence
from typing import Any

from tvm_ext.tir_schedules.block_access import element_bytes
from tvm_ext.tir_schedules.wafer.annotations import Pattern
from tvm_ext.tuning.mesh_analysis.loops import Access, Loop, NotReadable, Place


class Footprint:
    """Sizes of buffers, from the regions that one PE touches.

    A buffer that is filled anew in every step needs the region of one step; with the messages of
    the next step under way, twice that. A resident copy of a tensor is the tensor's own shard.
    """

    def __init__(self, places: Sequence[tuple[Place, str]], params: Sequence[Any]) -> None:
        self._places = places
        self._params = list(params)

    def buffers(self) -> dict[str, int]:
        """By name, bytes in the PE that needs the most."""
        uses: dict[Any, list[tuple[Place, Access]]] = {}
        patterns: dict[Any, str] = {}
        for place, pattern in self._places:
            for access in (*place.reads, *place.writes):
                if not any(access.source.same_as(one) for one in self._params):
                    uses.setdefault(access.source, []).append((place, access))
            if pattern:
                patterns[place.writes[0].source] = pattern
        sizes: dict[str, int] = {}
        for buffer, found in uses.items():
            if patterns.get(buffer) != Pattern.RESIDENT:
                # Two of them may have one name.
                name = str(buffer.name)
                size = _bytes(buffer, found, patterns.get(buffer, ""))
                sizes[name] = sizes.get(name, 0) + size
        return sizes


def _bytes(buffer: Any, uses: Sequence[tuple[Place, Access]], pattern: str) -> int:
    shared = _shared_loops([place for place, _ in uses])
    sizes = [1] * len(buffer.shape)
    for place, access in uses:
        moving = place.inner(shared)
        for position, (index, extent) in enumerate(
            zip(access.indices, access.extents, strict=True)
        ):
            sizes[position] = max(sizes[position], _span(place, index, extent, moving))
    width = element_bytes(buffer)
    overlapped = pattern and any(one.pipeline > 1 for one in shared)
    return math.prod(sizes) * width * (2 if overlapped else 1)


def _shared_loops(places: Sequence[Place]) -> tuple[Loop, ...]:
    """The loops around all of ``places``."""
    shared = places[0].loops
    for place in places[1:]:
        count = 0
        for mine, other in zip(shared, place.loops, strict=False):
            if mine.number != other.number:
                break
            count += 1
        shared = shared[:count]
    return shared


def _span(place: Place, index: Any, extent: int, moving: Sequence[Loop]) -> int:
    try:
        return place.span(index, moving) + extent - 1
    except NotReadable:
        # Wherever the data say: all of it, to be safe.
        return extent if not moving else math.prod(one.extent for one in moving)
