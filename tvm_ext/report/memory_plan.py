"""Where the values of a program lie in memory and when they are needed, for people to look at."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from tvm_ext.report.records import MemoryRecord


@dataclass(frozen=True)
class PlannedTensor:
    """A value that has a place in memory.

    Attributes
    ----------
    name : str
        The ONNX nodes that compute it, joined by " + ".
    type : str
        Its sizes and its type, as "1x64x56x56 float32".
    size : int
        Its bytes.
    storage : int
        The number of the piece of memory that it lies in; 0 is the arena where there is one.
    offset : int or None
        In bytes; None where each run computes it.
    first, last : int
        The numbers of the kernel calls that write it first and that need it last.
    in_place_of : str
        The value whose memory it is written over; empty for none.
    """

    name: str
    type: str
    size: int
    storage: int
    offset: int | None
    first: int
    last: int
    in_place_of: str = ""


@dataclass(frozen=True)
class FunctionPlan:
    """The plan of one function: "main", or what a loop or a branch calls.

    Attributes
    ----------
    name : str
        Of the function.
    calls : tuple[str, ...]
        The ONNX nodes of each kernel call, in their order.
    tensors : tuple[PlannedTensor, ...]
        By their first calls.
    arena_bytes : int or None
        Bytes of the arena; None where a run decides all sizes.
    lower_bound_bytes : int or None
        The largest sum of sizes that are alive at one call.
    kernels : tuple[str, ...]
        The kernel of each call.
    workspace_bytes : tuple[int, ...]
        What the kernel of each call allocates for itself while it runs, on all threads. It lies
        beside the arena. Empty where kernels allocate nothing.
    """

    name: str
    calls: tuple[str, ...]
    tensors: tuple[PlannedTensor, ...]
    arena_bytes: int | None
    lower_bound_bytes: int | None
    kernels: tuple[str, ...] = ()
    workspace_bytes: tuple[int, ...] = ()

    @property
    def in_arena(self) -> Iterator[PlannedTensor]:
        """The values at known places of the arena."""
        is_arena = self.arena_bytes is not None
        return (
            one for one in self.tensors if is_arena and not one.storage and one.offset is not None
        )

    @cached_property
    def live_bytes(self) -> list[int]:
        """Bytes in use during each kernel call: of the arena, and what the kernel allocates."""
        used: list[dict[int | None, int]] = [{} for _ in self.calls]
        for one in self.in_arena:
            for call in used[one.first : one.last + 1]:
                # Values in the same place are one, written over another.
                call[one.offset] = max(one.size, call.get(one.offset, 0))
        return [sum(call.values()) + self.workspace_at(n) for n, call in enumerate(used)]

    def workspace_at(self, call: int) -> int:
        """What the kernel of a call allocates for itself."""
        return self.workspace_bytes[call] if self.workspace_bytes else 0

    @property
    def peak_call(self) -> int:
        """The number of the kernel call during which most bytes are in use; 0 without any."""
        live = self.live_bytes
        return live.index(max(live)) if live else 0

    def alive_at(self, call: int) -> list[PlannedTensor]:
        """The values of the arena that a call needs or that are needed later, largest first."""
        found = [one for one in self.in_arena if one.first <= call <= one.last]
        return sorted(found, key=lambda one: -one.size)


@dataclass(frozen=True)
class StoragePlan:
    """The plans of all functions, and the copies that were not made.

    Attributes
    ----------
    functions : tuple[FunctionPlan, ...]
        "main" first.
    views : tuple[str, ...]
        The ONNX nodes of values that are views of others: parts of a concatenation, and slices.
    """

    functions: tuple[FunctionPlan, ...] = ()
    views: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelMemory:
    """The memory of a model's program.

    Attributes
    ----------
    model, opt_level, target : str
        What was planned, with which passes and for which machine.
    memory : MemoryRecord
        Its figures.
    tvm_bytes : int or None
        What TVM's own planner (StaticPlanBlockMemory) makes of the same program, the arrays of
        kernels included; None where a run decides sizes or a function holds an If, of which that
        planner makes nothing.
    plan : StoragePlan
        Where each value lies.
    """

    model: str
    opt_level: str
    target: str
    memory: MemoryRecord
    tvm_bytes: int | None
    plan: StoragePlan

    @property
    def in_place(self) -> list[PlannedTensor]:
        """The values that are written over another one."""
        return [one for func in self.plan.functions for one in func.tensors if one.in_place_of]

    def to_dict(self) -> dict[str, Any]:
        """In values that JSON has."""
        values = asdict(self)
        for function, given in zip(values["plan"]["functions"], self.plan.functions, strict=True):
            function["peak_call"] = given.peak_call
            function["live_bytes"] = given.live_bytes
        return values
