"""Buffers with their times, the plan of their offsets, and the check of a plan.

A buffer takes whole multiples of its alignment, so that the sum of the sizes that are alive at a
place is a bound that no plan can go below, also where buffers ask for different alignments.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_ext.configs.errors import PlanError


@dataclass(frozen=True)
class Buffer:
    """Memory that is needed for a time.

    Attributes
    ----------
    name : str
        How messages speak of it. Names need not differ.
    size : int
        In bytes. A buffer of no bytes gets offset 0 and overlaps nothing.
    first, last : int
        The places of the schedule from where to where it is needed, both inclusive.
    alignment : int
        In bytes; its offset is a multiple of it.
    """

    name: str
    size: int
    first: int
    last: int
    alignment: int = 64

    @property
    def padded_size(self) -> int:
        """The size rounded up to the alignment, which is what a plan sets aside."""
        return -(-self.size // self.alignment) * self.alignment


@dataclass(frozen=True)
class MemoryPlan:
    """Where each buffer lies in one arena.

    Attributes
    ----------
    offsets : tuple[int, ...]
        In bytes, in the order of the buffers.
    size : int
        Bytes of the arena.
    lower_bound : int
        The largest sum of padded sizes that are alive at one place. No plan is smaller.
    method : str
        What found the plan, such as "first fit by size" or "branch and bound".
    is_optimal : bool
        Whether it is proved that no arena is smaller: its size is the bound, or a search found
        nothing below it.
    """

    offsets: tuple[int, ...]
    size: int
    lower_bound: int
    method: str
    is_optimal: bool


def check_buffers(buffers: Sequence[Buffer]) -> None:
    """Raises ``PlanError`` for the first buffer with a size, time or alignment that cannot be."""
    for buffer in buffers:
        if buffer.size < 0:
            raise PlanError(
                f"buffer '{buffer.name}' has a size of {buffer.size} bytes; expected 0 or more: "
                "give the bytes that it takes"
            )
        if buffer.alignment < 1:
            raise PlanError(
                f"buffer '{buffer.name}' has an alignment of {buffer.alignment} bytes; expected 1 "
                "or more: give 1 for a buffer that may lie anywhere"
            )
        if buffer.last < buffer.first:
            raise PlanError(
                f"buffer '{buffer.name}' is alive from {buffer.first} to {buffer.last}; expected "
                "an end that is not before the start: give the places in their order"
            )


def check_plan(buffers: Sequence[Buffer], plan: MemoryPlan) -> None:
    """Raises ``PlanError`` if the plan does not hold for the buffers, and returns None if it does.

    It checks that each buffer lies inside of the arena at a multiple of its alignment, and that no
    two buffers that are alive at one place share a byte. The message names the buffers.
    """
    check_buffers(buffers)
    if len(plan.offsets) != len(buffers):
        raise PlanError(
            f"the plan has {len(plan.offsets)} offsets for {len(buffers)} buffers; expected one "
            "for each: plan these buffers again"
        )
    for buffer, offset in zip(buffers, plan.offsets, strict=True):
        if offset % buffer.alignment or not 0 <= offset <= plan.size - buffer.size:
            raise PlanError(
                f"buffer '{buffer.name}' of {buffer.size} bytes has offset {offset} in an arena of "
                f"{plan.size}; expected a multiple of {buffer.alignment} within it: plan the "
                "buffers again"
            )
    _check_overlaps(buffers, plan.offsets)


def _check_overlaps(buffers: Sequence[Buffer], offsets: Sequence[int]) -> None:
    """Looks at the buffers in the order of their starts, against those that are still alive."""
    used = [place for place, buffer in enumerate(buffers) if buffer.size]
    used.sort(key=lambda place: buffers[place].first)
    alive: list[int] = []
    for place in used:
        buffer, offset = buffers[place], offsets[place]
        alive = [other for other in alive if buffers[other].last >= buffer.first]
        for other in alive:
            begin, size = offsets[other], buffers[other].size
            if offset < begin + size and begin < offset + buffer.size:
                raise PlanError(
                    f"buffers '{buffers[other].name}' and '{buffer.name}' are both alive at place "
                    f"{buffer.first} and overlap (bytes {begin} to {begin + size - 1} and {offset} "
                    f"to {offset + buffer.size - 1}); expected no byte in common: plan them again"
                )
        alive.append(place)
