"""How the loads and stores of a scheduled kernel walk through memory, whatever the machine.

Each machine reads its own kernels (``tir_schedules/cpu/memory_access.py`` and beside it); here is
what is said of an access: the stride of each loop, the pattern, what it fetches and what is left of
that when it comes again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm_ext.tir_schedules.analysis.addresses import Address

CONTIGUOUS = "contiguous"
STRIDED = "strided"
GATHERED = "gathered"
BROADCAST = "broadcast"

PATTERNS = (CONTIGUOUS, STRIDED, GATHERED, BROADCAST)
"""Neighbours in memory; at one distance; each anywhere; all at one place."""


@dataclass(frozen=True)
class LoopStride:
    """A loop around an access, and how the access moves with it.

    Attributes
    ----------
    name : str
        The loop's variable; "threadIdx.x" and the like for threads, "lanes" for those of a vector.
    kind : str
        "serial", "unrolled", "parallel", "vector", "block" or "thread".
    extent : float
        Iterations; their mean where they vary.
    elements : float or None
        From one iteration to the next; None where that is not one number.
    bytes : float or None
        The same in bytes.
    """

    name: str
    kind: str
    extent: float
    elements: float | None
    bytes: float | None


@dataclass(frozen=True)
class Reuse:
    """A loop in which an access comes to bytes that it, or its lines, had before.

    Attributes
    ----------
    loop : str
        The loop's variable.
    is_spatial : bool
        Whether it comes to other bytes of the same line; else to the same ones.
    distance_bytes : float
        What the whole kernel touches from one use to the next.
    level : str
        The nearest memory that holds so many bytes: "L1", "L2", "L3" or "memory".
    """

    loop: str
    is_spatial: bool
    distance_bytes: float
    level: str


@dataclass(frozen=True)
class MemoryAccess:
    """A load or a store of a scheduled kernel.

    Attributes
    ----------
    tensor : str
        The buffer's name.
    memory : str
        "global" for tensors; "local" for arrays of a CPU's kernel, and "shared" of a GPU's.
    is_store : bool
        Whether it writes.
    element_bytes : int
        Bytes of an element.
    lanes : int
        Elements that one instruction, or one thread, takes at a time.
    pattern : str
        One of ``PATTERNS``, in the innermost loop: the lanes of a vector, the threads of a warp.
    strides : tuple[LoopStride, ...]
        Of the loops around it, outermost first.
    places : int
        How many accesses of this kind stand side by side in the code, each beginning elsewhere.
    runs : float
        How often they are made: by a CPU's cores, or by the warps of a GPU.
    unit : str
        What the next two count: "lines" of a cache, "sectors", or "cycles" of shared memory's
        banks.
    units : float
        How many one access takes.
    least_units : float
        How few would do for the bytes that it asks for.
    fetched_bytes : float
        Bytes that all runs fetch from beyond the nearest cache, or that warps ask for.
    least_bytes : float
        Bytes that would do: each element that the access touches once, or what warps ask for in
        sectors that are all used.
    fetched_into : dict[str, float]
        The same bytes by the cache that they are fetched into, where caches are modelled.
    reuse : tuple[Reuse, ...]
        The loops in which its lines come again, innermost first.
    """

    tensor: str
    memory: str
    is_store: bool
    element_bytes: int
    lanes: int
    pattern: str
    strides: tuple[LoopStride, ...]
    places: int
    runs: float
    unit: str
    units: float
    least_units: float
    fetched_bytes: float
    least_bytes: float
    fetched_into: dict[str, float] = field(default_factory=dict)
    reuse: tuple[Reuse, ...] = ()

    @property
    def overfetch(self) -> float:
        """Bytes fetched over the least that would do; 1 where nothing is wasted."""
        return self.fetched_bytes / self.least_bytes if self.least_bytes else 1.0

    @property
    def overfetched_bytes(self) -> float:
        """Bytes that it fetches beyond the least that would do."""
        return max(0.0, self.fetched_bytes - self.least_bytes)

    def to_dict(self) -> dict[str, Any]:
        """In values that JSON has."""
        found = {**vars(self), "overfetch": self.overfetch}
        found["strides"] = [vars(stride) for stride in self.strides]
        found["reuse"] = [vars(reuse) for reuse in self.reuse]
        return found


def stride_of(address: Address, loop: int) -> float | None:
    """By how many elements an address moves with a loop, given as a bit; None if by no one number.

    A loop that moves a term together with others (``(i + j) // 4``) has none.
    """
    total = 0.0
    for term in address.terms:
        if not term.loops & loop:
            continue
        if term.loops != loop or not term.is_linear:
            return None
        total += term.step
    return total


def pattern_of(step: float | None, width: int = 1) -> str:
    """The pattern of an access that moves by ``step`` elements, and takes ``width`` each time."""
    if step is None:
        return GATHERED
    if step == 0:
        return BROADCAST
    return CONTIGUOUS if abs(step) == width else STRIDED


def innermost(strides: Sequence[LoopStride]) -> LoopStride | None:
    """The innermost loop that runs more than once."""
    return next((stride for stride in reversed(strides) if stride.extent > 1), None)


def distinct_bytes(address: Address, element_bytes: int) -> float:
    """Bytes of all elements that an address goes to."""
    lanes = 1 if address.lane_step == 0 else address.lanes
    return lanes * math.prod(term.places for term in address.terms) * element_bytes
