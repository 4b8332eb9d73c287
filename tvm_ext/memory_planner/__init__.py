"""Where each buffer of a program lies in one arena, so that those alive together do not overlap."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Buffer:
    """A buffer that is alive from place ``first`` to place ``last``, both inclusive."""

    name: str
    size: int
    first: int
    last: int
    alignment: int = 64


@dataclass(frozen=True)
class MemoryPlan:
    """Offsets of buffers, in their order, and the bytes of the arena.

    Attributes
    ----------
    offsets : tuple of int
        Of each buffer.
    size : int
        Bytes of the arena.
    lower_bound : int
        Bytes that no plan can be below: the largest sum of what is alive at a place.
    method : str
        How the plan was found.
    is_optimal : bool
        Whether no smaller arena is possible.
    """

    offsets: tuple[int, ...]
    size: int
    lower_bound: int
    method: str
    is_optimal: bool


def plan_offsets(
    buffers: Sequence[Buffer], *, capacity: int | None = None, seconds: float = 1.0
) -> MemoryPlan:
    """Places the largest buffers first, each at the lowest offset that is free while it lives."""
    offsets = [0] * len(buffers)
    placed: list[int] = []
    for index in sorted(range(len(buffers)), key=lambda i: (-buffers[i].size, buffers[i].first)):
        offsets[index] = _lowest(buffers, index, placed, offsets)
        placed.append(index)
    size = max((o + b.size for o, b in zip(offsets, buffers, strict=True)), default=0)
    bound = most_alive(buffers)
    return MemoryPlan(tuple(offsets), size, bound, "largest first", size == bound)


def _lowest(
    buffers: Sequence[Buffer], index: int, placed: Sequence[int], offsets: Sequence[int]
) -> int:
    own = buffers[index]
    taken = sorted(
        (offsets[other], offsets[other] + buffers[other].size)
        for other in placed
        if buffers[other].first <= own.last and own.first <= buffers[other].last
    )
    offset = 0
    for begin, end in taken:
        if offset + own.size <= begin:
            break
        offset = max(offset, -(-end // own.alignment) * own.alignment)
    return offset


def most_alive(buffers: Sequence[Buffer]) -> int:
    """The largest sum of the bytes of buffers that are alive together."""
    events = sorted([(b.first, b.size) for b in buffers] + [(b.last + 1, -b.size) for b in buffers])
    alive = most = 0
    for _, change in events:
        alive += change
        most = max(most, alive)
    return most
