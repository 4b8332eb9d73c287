"""A kernel as a tree of loops with its loads, stores and instructions."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tvm_ext.tuning.loop_analysis.address import Address
from tvm_ext.tuning.loop_analysis.instructions import Instructions


@dataclass(frozen=True, eq=False)
class Array:
    """A tensor or an array inside of the kernel."""

    name: str
    nbytes: int
    element_bytes: int
    is_local: bool


@dataclass(frozen=True)
class Access:
    """A load or a store of one statement."""

    array: Array
    address: Address
    is_store: bool


@dataclass(frozen=True, eq=False)
class Statement:
    """One assignment.

    Attributes
    ----------
    share : float
        Part of the iterations around it in which its conditions hold.
    accesses : tuple[Access, ...]
        Its loads, each place once, and its store.
    instructions : Instructions
        All other work of one execution.
    lanes, bits : int
        Of the value.
    """

    share: float
    accesses: tuple[Access, ...]
    instructions: Instructions
    lanes: int
    bits: int

    @property
    def store(self) -> Access | None:
        """Its store; None for a value that only gets a name."""
        return next((access for access in self.accesses if access.is_store), None)

    def accumulates(self) -> bool:
        """Whether it reads the place that it writes."""
        store = self.store
        return store is not None and any(
            not access.is_store and access.array is store.array and access.address == store.address
            for access in self.accesses
        )


@dataclass(eq=False)
class LoopNode:
    """A loop with what is in it; the root of the tree is a loop of one iteration.

    Attributes
    ----------
    number : int
        Its own number; that of the root is -1.
    kind : str
        "root", "serial", "parallel" or "unrolled".
    extent : float
        Iterations; their mean where they vary.
    share : float
        Part of the iterations around it in which it is reached.
    statements, children
        What is in it.
    """

    number: int
    kind: str
    extent: float
    share: float = 1.0
    statements: list[Statement] = field(default_factory=list)
    children: list["LoopNode"] = field(default_factory=list)

    @property
    def bit(self) -> int:
        """Its loop as a set."""
        return 0 if self.number < 0 else 1 << self.number

    def loops(self) -> int:
        """It and all loops in it, as a set."""
        found = self.bit
        for child in self.children:
            found |= child.loops()
        return found

    def walk(self) -> Iterator["LoopNode"]:
        """It and all loops in it, outer ones first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def all_statements(self) -> Iterator[Statement]:
        """The statements in it, at any depth."""
        for node in self.walk():
            yield from node.statements


@dataclass(frozen=True)
class Kernel:
    """A kernel's loops and arrays."""

    root: LoopNode
    arrays: tuple[Array, ...]

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(array.nbytes for array in self.arrays if not array.is_local)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all arrays inside of the kernel."""
        return sum(array.nbytes for array in self.arrays if array.is_local)
