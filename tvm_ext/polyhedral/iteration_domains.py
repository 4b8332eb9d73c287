"""The statements of a kernel with their iteration domains and access relations.

A statement is one store. Its domain has a point for each time that it runs, its access relations
say which elements that run reads and writes, and its position says where it stands among the
loops. ``kernel_domain`` reads them from a kernel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import islpy as isl
import tvm
from tvm import tirx
from tvm_ffi import structural_equal

from tvm_ext.polyhedral.array_layouts import Layout, NotedAccess
from tvm_ext.polyhedral.symbolic_sizes import Parameters
from tvm_ext.polyhedral.uninterpreted_values import multiples_agree, with_multiples
from tvm_ext.tir_schedules.analysis.buffer_access import nodes


@dataclass(frozen=True)
class Access:
    """One array that a statement reads or writes.

    Attributes
    ----------
    buffer : str
        The array's name in the relations, unique in the kernel.
    is_write : bool
        Whether the element is written.
    text : str
        The access as the kernel has it.
    noted : NotedAccess
        Its indices, of which the relation is made.
    """

    buffer: str
    is_write: bool
    text: str
    noted: NotedAccess

    @cached_property
    def _found(self) -> tuple[isl.Map, bool]:
        # Of what is only read, nobody may ask.
        return self.noted.placed()

    @property
    def relation(self) -> isl.Map:
        """From the statement's runs to the elements.

        An array that is allocated within loops has one copy for each iteration of these, so the
        first indices are those loops.
        """
        return self._found[0]

    @property
    def is_exact(self) -> bool:
        """Whether every element of the relation is accessed; if not, it may be."""
        return self._found[1]


@dataclass(frozen=True)
class Statement:
    """One store of a kernel.

    Attributes
    ----------
    name : str
        Its name in the sets: "S0" for the first.
    store : tirx.BufferStore
        The store, over the variables of the loops.
    loops : tuple[tirx.For, ...]
        The loops around it, outermost first.
    position : tuple[int, ...]
        Where it stands: its number among what each loop holds, the outermost level first.
    domain : isl.Set
        Its runs.
    is_exact : bool
        Whether it runs for every point of the domain; if not, it may.
    accesses : tuple[Access, ...]
        What it reads and writes.
    """

    name: str
    store: Any
    loops: tuple[Any, ...]
    position: tuple[int, ...]
    domain: isl.Set
    is_exact: bool
    accesses: tuple[Access, ...]

    @cached_property
    def text(self) -> str:
        """The store as the kernel has it, in one line."""
        indices = ", ".join(str(index) for index in self.store.indices)
        text = " ".join(f"{self.store.buffer.name}[{indices}] = {self.store.value}".split())
        return text if len(text) <= 70 else text[:67] + "..."

    @cached_property
    def loop_names(self) -> tuple[str, ...]:
        """The names of the loops' variables."""
        return tuple(str(loop.loop_var.name) for loop in self.loops)

    @cached_property
    def is_reduction(self) -> bool:
        """Whether the store combines its element with a value that does not depend on it."""
        return _combines(self.store)


@dataclass(frozen=True)
class LocalArray:
    """An array that a kernel allocates, and the loops around the allocation."""

    buffer: Any
    name: str
    loops: tuple[Any, ...]


@dataclass
class KernelDomain:
    """A kernel as isl sees it; ``kernel_domain`` makes it.

    Attributes
    ----------
    func : tirx.PrimFunc
        The kernel.
    statements : list[Statement]
        In program order.
    parameters : Parameters
        The symbolic sizes.
    local_arrays : list[LocalArray]
        What it allocates, in program order.
    not_affine : list[str]
        What was found that is not affine, and is kept as "may", one text each.
    not_rewritable : list[str]
        Why the statements cannot be written anew in another order, one text each: what a kernel
        says besides its stores would be lost, or a value is loaded before it is used.
    layouts : dict[str, Layout]
        Which axes of each array count as one; see ``Layout``.
    """

    func: tirx.PrimFunc
    context: isl.Context
    statements: list[Statement] = field(default_factory=list)
    parameters: Parameters = field(default_factory=Parameters)
    local_arrays: list[LocalArray] = field(default_factory=list)
    not_affine: list[str] = field(default_factory=list)
    not_rewritable: list[str] = field(default_factory=list)
    layouts: dict[str, Layout] = field(default_factory=dict)

    def statement(self, name: str) -> Statement:
        """The statement of that name."""
        return next(one for one in self.statements if one.name == name)

    @cached_property
    def domain(self) -> isl.UnionSet:
        """The runs of all statements."""
        found = isl.UnionSet.read_from_str(self.context, "{ }")
        for statement in self.statements:
            found = found.union(isl.UnionSet.from_set(statement.domain))
        return found

    @cached_property
    def depth(self) -> int:
        """How many loops are around the statement that has most."""
        return max((len(one.loops) for one in self.statements), default=0)

    @cached_property
    def schedule(self) -> isl.UnionMap:
        """When each run takes place: positions and loops in turn, compared from the left."""
        found = isl.UnionMap.read_from_str(self.context, "{ }")
        for one in self.statements:
            found = found.union(isl.UnionMap.from_map(self.placed(one, place_of(one))))
        return found

    def dimensions(self, loops: Sequence[Any]) -> list[str]:
        """The names of the dimensions that a statement in these loops has."""
        return [*(f"c{number}" for number in range(len(loops))), *self.parameters.values.names]

    def placed(self, statement: Statement, place: "Place") -> isl.Map:
        """The time that ``place`` gives to each run of ``statement``."""
        dims = ", ".join(self.dimensions(statement.loops))
        padding = ["0"] * (2 * self.depth + 1 - len(place))
        times = ", ".join([*place, *padding])
        text = f"{{ {statement.name}[{dims}] -> [{times}] }}"
        return isl.Map.read_from_str(self.context, text).intersect_domain(statement.domain)

    def runs_with_values(self, statement: Statement, loops: int) -> isl.Map:
        """From runs to the first loops of them, and to the multiples that are not interpreted."""
        text = ", ".join(self.dimensions(statement.loops))
        shown = ", ".join(f"c{number}" for number in range(loops))
        runs = isl.Map.read_from_str(self.context, f"{{ [{text}] -> [{shown}] }}")
        own = statement.accesses[-1].noted.reader.multiples
        runs = with_multiples(runs, [own.get(one) for one in self.parameters.values.products])
        return runs.set_tuple_name(isl.dim_type.in_, statement.name)

    def agreeing(self, source: Statement, sink: Statement) -> isl.Map:
        """The pairs of runs that agree on the values that are not interpreted."""
        first, second, holds = multiples_agree(len(self.parameters.values.products))
        text = f"{{ [{', '.join(first)}] -> [{', '.join(second)}] : {holds} }}"
        pairs = isl.Map.read_from_str(self.context, text)
        ends = [self.runs_with_values(one, 0) for one in (source, sink)]
        return ends[0].apply_range(pairs).apply_range(ends[1].reverse())

    def accesses(self, *, writes: bool, exact: bool | None = None) -> isl.UnionMap:
        """All reads or all writes; ``exact``: only those that surely, or that only may, happen."""
        found = isl.UnionMap.read_from_str(self.context, "{ }")
        for statement in self.statements:
            for access in statement.accesses:
                sure = access.is_exact and statement.is_exact
                if access.is_write == writes and exact in (None, sure):
                    found = found.union(isl.UnionMap.from_map(access.relation))
        return found


Place = list[str]
"""The time of a statement's runs, each part an expression over its loops c0, c1, and so on."""


def place_of(statement: Statement) -> Place:
    """When the runs of a statement take place in the kernel as it is written."""
    place = [str(statement.position[0])]
    for number, position in enumerate(statement.position[1:]):
        place += [f"c{number}", str(position)]
    return place


def _combines(store: Any) -> bool:
    """Whether one term of the value is the element itself, and the others do not load the array."""
    kinds = _CHAINS.get(type(store.value))
    if kinds is None:
        return False
    terms = list(_terms(store.value, kinds))
    own = [term for term, is_added in terms if is_added and _is_element(term, store)]
    others = [term for term, _ in terms if not any(term is one for one in own)]
    loads = [load for term in others for load in nodes(term, tvm.ir.TensorLoad)]
    return len(own) == 1 and not any(load.source.same_as(store.buffer) for load in loads)


_CHAINS: dict[type, tuple[type, ...]] = {
    tirx.Add: (tirx.Add, tirx.Sub),
    tirx.Sub: (tirx.Add, tirx.Sub),
    tirx.Mul: (tirx.Mul,),
    tirx.Min: (tirx.Min,),
    tirx.Max: (tirx.Max,),
}


def _terms(expr: Any, kinds: tuple[type, ...], is_added: bool = True) -> Iterator[tuple[Any, bool]]:
    """What a sum or product combines, each with whether it is added and not taken away."""
    if type(expr) not in kinds:
        yield expr, is_added
        return
    yield from _terms(expr.a, kinds, is_added)
    yield from _terms(expr.b, kinds, is_added != isinstance(expr, tirx.Sub))


def _is_element(expr: Any, store: Any) -> bool:
    if not isinstance(expr, tvm.ir.TensorLoad) or not expr.source.same_as(store.buffer):
        return False
    pairs = zip(expr.indices, store.indices, strict=True)
    return all(structural_equal(one, other) for one, other in pairs)
