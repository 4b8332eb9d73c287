"""Where the buffers of a function lie: in one arena, or in storages as large as a run needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import mul
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.sym import Analyzer

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.memory_planner import Buffer, MemoryPlan, plan_offsets
from tvm_ext.relay_passes.dataflow.buffer_lifetimes import BufferLifetimes
from tvm_ext.relay_passes.expressions import value_for

# What TVM allocates itself begins at multiples of 64 bytes, and the code of kernels relies on it.
# On a GPU the driver's memory begins at multiples of 256.
CPU_ALIGNMENT = 64
_DEVICE_ALIGNMENT = 256


@dataclass(frozen=True)
class Home:
    """Where a buffer lies: the number of its storage, the offset there, and its bytes."""

    storage: int
    offset: tirx.Expr | int
    size: tirx.Expr | int

    def is_at_start(self) -> bool:
        """Whether it begins where its storage does."""
        return isinstance(self.offset, int) and self.offset == 0


@dataclass
class Storage:
    """The storages of a function, by number, in bytes; where buffers lie; the arena's plan.

    The arena, where there is one, is the first storage. ``ends`` has what is free in it behind a
    place.
    """

    sizes: list[tirx.Expr | int] = field(default_factory=list)
    homes: dict[relax.Var, Home] = field(default_factory=dict)
    plan: MemoryPlan | None = None
    ends: dict[int, list[Home]] = field(default_factory=dict)

    def add(self, size: tirx.Expr | int) -> int:
        """A storage of so many bytes: its number."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    def place(self, group: "_Group", home: Home) -> None:
        """All buffers of a group in one place."""
        self.homes.update({one: home for one in group.members})
        self.ends.setdefault(group.last, []).append(home)


@dataclass(frozen=True)
class _Group:
    """Buffers in the same memory: one is written where the one before it is read last."""

    members: list[relax.Var]
    first: int
    last: int
    size: tirx.Expr | int

    def overlaps(self, other: "_Group") -> bool:
        """Whether both are needed at one place."""
        return self.first <= other.last and other.first <= self.last


def _groups(
    sizes: Mapping[relax.Var, tirx.Expr | int],
    lives: BufferLifetimes,
    within: Mapping[relax.Var, relax.Var],
) -> list[_Group]:
    members: dict[relax.Var, list[relax.Var]] = {}
    for buffer in sizes:
        first = buffer
        while first in within:
            first = within[first]
        members.setdefault(first, []).append(buffer)
    return [
        _Group(
            buffers,
            min(lives.first[one] for one in buffers),
            max(lives.last[one] for one in buffers),
            sizes[first],
        )
        for first, buffers in members.items()
    ]


def planned_storage(
    sizes: Mapping[relax.Var, tirx.Expr | int],
    lives: BufferLifetimes,
    within: Mapping[relax.Var, relax.Var],
    nominal: Mapping[str, int],
) -> Storage:
    """Where the buffers of a function lie, of which these are the bytes.

    ``within`` has those that take the memory of another one, where that is read last. ``nominal``
    are sizes, by name, for which a choice between plans is made.
    """
    storage = Storage()
    groups = _groups(sizes, lives, within)
    fixed = [group for group in groups if isinstance(group.size, int)]
    if fixed:
        _plan_arena(storage, fixed)
    symbolic = [group for group in groups if not isinstance(group.size, int)]
    if symbolic:
        _plan_symbolic(storage, symbolic, nominal)
    return storage


def _plan_arena(storage: Storage, groups: Sequence[_Group]) -> None:
    storage.plan = _offsets(groups, [group.size for group in groups], alignment())
    number = storage.add(storage.plan.size)
    for group, offset in zip(groups, storage.plan.offsets, strict=True):
        storage.place(group, Home(number, offset, group.size))


def alignment() -> int:
    """Of which number of bytes offsets are multiples on the current machine."""
    return CPU_ALIGNMENT if current_cpu() is not None else _DEVICE_ALIGNMENT


# Greedy placement, which is not limited, reaches the bound for most models.
_SECONDS = 0.25


def _offsets(groups: Sequence[_Group], sizes: Sequence[int], alignment: int) -> MemoryPlan:
    plan = plan_offsets(
        [
            # Some planners take no empty buffers.
            Buffer(str(group.members[0].name), max(size, 1), group.first, group.last, alignment)
            for group, size in zip(groups, sizes, strict=True)
        ],
        seconds=_SECONDS,
    )
    # Nothing lies behind the last buffer, which the planner makes as long as its alignment.
    size = max(offset + max(own, 1) for offset, own in zip(plan.offsets, sizes, strict=True))
    return replace(plan, size=size, lower_bound=min(plan.lower_bound, size))


# Buffers whose sizes a run decides.
#
# The sizes of most are a number of bytes times the same product of symbolic sizes: of a model with
# an open batch, the bytes of an item times the batch. A plan of the numbers is then one for every
# run, with the product as a factor of all offsets. Where sizes differ in more than a number, as
# those of the levels of an image pyramid do, storages are shared whole, each as large as the
# largest of its buffers in the run. What is smaller for nominal sizes is taken, and the second
# where both are nearly alike, for offsets have to be computed in a run.

_WORTH_OFFSETS = 0.98
# More bytes for an item than for whole numbers of bytes, which every item has then.
_FEW_MORE = 1.02


def _plan_symbolic(storage: Storage, groups: Sequence[_Group], nominal: Mapping[str, int]) -> None:
    slots = _sharing(groups, nominal)
    largest = [_largest_of([group.size for group in sharing], nominal) for sharing in slots]
    arenas = _scaled_arenas(groups)
    shared_bytes = sum(value_for(size, nominal) or 0 for size in largest)
    arena_bytes = sum(value_for(arena.size, nominal) or 0 for arena in arenas)
    if arena_bytes < _WORTH_OFFSETS * shared_bytes:
        for arena in arenas:
            number = storage.add(arena.size)
            for group, offset in zip(arena.groups, arena.offsets, strict=True):
                storage.place(group, Home(number, offset, group.size))
        return
    for sharing, size in zip(slots, largest, strict=True):
        number = storage.add(size)
        for group in sharing:
            storage.place(group, Home(number, 0, group.size))


@dataclass(frozen=True)
class _ScaledArena:
    groups: list[_Group]
    offsets: list[tirx.Expr | int]
    size: tirx.Expr


def _scaled_arenas(groups: Sequence[_Group]) -> list[_ScaledArena]:
    """One for the buffers whose sizes are multiples of the same product."""
    found: dict[Any, tuple[tirx.Expr, list[_Group], list[int]]] = {}
    for group in groups:
        number, factor = _number_and_factor(group.size)
        _, own, numbers = found.setdefault(tvm_ffi.StructuralKey(factor), (factor, [], []))
        own.append(group)
        numbers.append(number)
    return [_scaled_arena(*one) for one in found.values()]


def _scaled_arena(factor: tirx.Expr, groups: list[_Group], numbers: Sequence[int]) -> _ScaledArena:
    whole = alignment()
    plan, close = (_offsets(groups, numbers, step) for step in (whole, 1))
    if plan.size > _FEW_MORE * close.size:
        # The factor is made a multiple of the alignment in place of the numbers.
        plan = close
        factor = tirx.floordiv(factor + (whole - 1), whole) * whole
    return _ScaledArena(
        groups, [factor * at if at else 0 for at in plan.offsets], factor * plan.size
    )


def _number_and_factor(size: tirx.Expr) -> tuple[int, tirx.Expr]:
    """A number and a product of sizes that are no numbers, which ``size`` is the product of."""
    number, rest = 1, []
    waiting = [size]
    while waiting:
        one = waiting.pop()
        if isinstance(one, tirx.IntImm):
            number *= int(one)
        elif isinstance(one, tirx.Mul):
            waiting += [one.b, one.a]
        else:
            rest.append(one)
    ordered = sorted(rest, key=str)
    return number, reduce(mul, ordered, tirx.const(1, "int64")) if ordered else size


def _sharing(groups: Sequence[_Group], nominal: Mapping[str, int]) -> list[list[_Group]]:
    """Which buffers share a storage that is as large as the largest of them in a run.

    Who shares follows from when buffers live. Largest first, for nominal sizes, and with one of the
    same size where that is possible.
    """
    keys = [tvm_ffi.StructuralKey(group.size) for group in groups]
    # Models have few sizes that differ.
    different = {key: group.size for key, group in zip(keys, groups, strict=True)}
    values = {key: value_for(size, nominal) or 0 for key, size in different.items()}
    order = sorted(range(len(groups)), key=lambda i: (-values[keys[i]], groups[i].first))
    shared: list[list[int]] = []
    for index in order:
        free = [
            those
            for those in shared
            if not any(groups[index].overlaps(groups[other]) for other in those)
        ]
        alike = [those for those in free if keys[those[0]] == keys[index]]
        if free:
            (alike or free)[0].append(index)
        else:
            shared.append([index])
    return [[groups[index] for index in those] for those in shared]


# Of a dimension, so that products of several can be compared.
_LARGEST_SIZE = 2**40


def _largest_of(sizes: list[tirx.Expr], nominal: Mapping[str, int]) -> tirx.Expr:
    """The largest of ``sizes``, each once, without those that one of them is never less than."""
    analyzer = Analyzer()
    for var in {v for size in sizes for v in tirx.analysis.undefined_vars(size)}:
        analyzer.bind(var, tvm.ir.Range(0, _LARGEST_SIZE))
    distinct = {tvm_ffi.StructuralKey(one): one for one in map(analyzer.simplify, sizes)}
    first, *others = sorted(distinct.values(), key=lambda one: -(value_for(one, nominal) or 0))
    left = [one for one in others if not analyzer.can_prove(first >= one)]
    return reduce(tirx.Max, left, first)
