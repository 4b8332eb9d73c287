"""Whether the parallel loops and the vectors of scheduled kernels are free of races.

What can be proved of a scheduled kernel alone: no two iterations of a parallel loop access the
same element, one of them writing it, and no lane of a vector needs what another lane computes.

Where tiles do not divide an array, templates move the last tile back to where it ends with the
array. It then computes some elements of the tile before once more, which is no race: nothing reads
them in the parallel loop, and both write the value that the element has.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import islpy as isl
import tvm
from tvm import s_tir, tirx

from tvm_ext.polyhedral.affine_expressions import NotAffine
from tvm_ext.polyhedral.dependences import Dependence, dependence_between, same_element
from tvm_ext.polyhedral.fused_loops import split_fused_loops
from tvm_ext.polyhedral.iteration_domains import Access, KernelDomain, Statement
from tvm_ext.polyhedral.kernel_domain import kernel_domain
from tvm_ext.polyhedral.legality import Violation, broken_by_lanes, carried_by, violation
from tvm_ext.polyhedral.size_polynomials import total
from tvm_ext.polyhedral.symbolic_sizes import SAMPLES, SampledSizes
from tvm_ext.polyhedral.uninterpreted_values import UninterpretedValues, multiples_agree
from tvm_ext.tir_schedules.analysis.buffer_access import nodes


@dataclass
class ScheduleCheck:
    """What was found of one kernel.

    Attributes
    ----------
    proved : list[str]
        Parallel loops and vectors that carry no dependence.
    races : list[Violation]
        Dependences that a parallel loop or a vector breaks.
    moved_back : list[Violation]
        Elements that two iterations of a parallel loop write, since its last tile is moved back:
        the loop is proved but for these, which both write with what they are computed from alike.
    not_proved : list[str]
        What could not be decided, and why: accesses or conditions that are not affine.
    checked_at : list[dict[str, int]]
        Numbers for the symbolic sizes with which all loops and vectors were proved, where they were
        not with any size. Empty where that was not needed, or did not help.
    proved_loops : list[tirx.For]
        The loops of ``proved``.
    """

    proved: list[str] = field(default_factory=list)
    races: list[Violation] = field(default_factory=list)
    moved_back: list[Violation] = field(default_factory=list)
    not_proved: list[str] = field(default_factory=list)
    checked_at: list[dict[str, int]] = field(default_factory=list)
    proved_loops: list[Any] = field(default_factory=list, repr=False)


def check_module(mod: tvm.IRModule) -> dict[str, ScheduleCheck]:
    """The check of every kernel of a module, by the kernel's name."""
    return {
        str(var.name_hint): check_schedule(func)
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


def check_schedule(func: tirx.PrimFunc) -> ScheduleCheck:
    """The check of one kernel for a CPU.

    What is not affine with symbolic sizes is checked with numbers for these, which says nothing of
    other numbers: see ``ScheduleCheck.checked_at``.
    """
    loops = [loop for loop in nodes(func.body, tirx.For) if loop.kind in _AT_ONCE]
    if not loops:
        return ScheduleCheck()
    placed = split_fused_loops(_with_placed_arrays(func))
    found = _check_at(placed, None)
    if found.not_proved and not found.races:
        proved = _check_with_values(placed, found)
        if proved is not None:
            return proved
        _check_with_numbers(placed, found)
    return found


def _check_with_values(func: tirx.PrimFunc, known: ScheduleCheck) -> ScheduleCheck | None:
    """The check where what is not affine has dimensions of its own; None if it does not prove.

    Loops that are proved without these are so with them.
    """
    values: UninterpretedValues | None = UninterpretedValues()
    kernel: KernelDomain | None = None
    while values is not None:
        try:
            kernel = kernel_domain(func, values=values)
        except NotAffine:
            return None
        values = values.extended()
    if kernel is None or not kernel.parameters.values.dimensions:
        return None
    found = replace(known, not_proved=[])
    _check_loops(func, kernel, found)
    return None if found.not_proved else found


def _check_with_numbers(func: tirx.PrimFunc, found: ScheduleCheck) -> None:
    """Notes in ``found`` at which sizes a kernel is proved, or the race at one of them."""
    checked: list[dict[str, int]] = []
    for sample in range(len(SAMPLES)):
        sizes = SampledSizes(sample)
        one = _check_at(func, sizes)
        if one.races:
            found.races += one.races
            return
        if one.not_proved or not sizes.given:
            return
        checked.append(sizes.given)
    found.checked_at = checked


def _check_at(func: tirx.PrimFunc, sizes: SampledSizes | None) -> ScheduleCheck:
    """The check with these numbers for symbolic sizes."""
    found = ScheduleCheck()
    try:
        kernel = kernel_domain(func, sizes)
    except NotAffine as error:
        found.not_proved.append(error.reason)
        return found
    _check_loops(func, kernel, found)
    return found


def _check_loops(func: tirx.PrimFunc, kernel: KernelDomain, found: ScheduleCheck) -> None:
    """Notes what is found of each loop that is not proved yet."""
    tiles = _MovedBackTiles(func, kernel)
    for loop in _loops_at_once(kernel):
        if not any(loop.same_as(one) for one in found.proved_loops):
            _check_loop(kernel, loop, tiles, found)


_AT_ONCE = (tirx.ForKind.PARALLEL, tirx.ForKind.VECTORIZED)


def _with_placed_arrays(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with each array allocated where TVM's lowering will: each thread has its own."""
    lowered = s_tir.transform.LowerInitBlock()(tvm.IRModule({"main": func}))
    return s_tir.transform.PlanAndUpdateBufferAllocationLocation()(lowered)["main"]


def _loops_at_once(kernel: KernelDomain) -> list[tirx.For]:
    found: list[tirx.For] = []
    for statement in kernel.statements:
        for loop in statement.loops:
            if loop.kind in _AT_ONCE and not any(loop.same_as(other) for other in found):
                found.append(loop)
    return found


class _MovedBackTiles:
    """Tells whether iterations write an element twice only because a tile was moved back."""

    def __init__(self, func: tirx.PrimFunc, kernel: KernelDomain) -> None:
        self._func = func
        self._kernel = kernel

    @cached_property
    def _apart(self) -> KernelDomain:
        """The kernel with the tiles that were moved back in a place of their own."""
        known = self._kernel.parameters
        return kernel_domain(self._func, known.sizes, self._kernel.layouts, known.values)

    def explain(self, one: Dependence, broken: isl.Map, loop: tirx.For) -> bool | None:
        """Whether these pairs of a dependence, which a parallel loop carries, are harmless.

        None where it is not known whether both read the same.
        """
        # What is behind the loop waits until all iterations have written.
        inside = [s for s in self._kernel.statements if any(loop.same_as(x) for x in s.loops)]
        accesses = [a for statement in inside for a in statement.accesses]
        is_read = any(a.buffer == one.buffer and not a.is_write for a in accesses)
        if one.kind != "output" or is_read:
            return False
        number = next(n for n, around in enumerate(one.source.loops) if around.same_as(loop))
        source, sink = (self._apart.statement(s.name) for s in (one.source, one.sink))
        ends = [(s, next(a for a in s.accesses if a.is_write)) for s in (source, sink)]
        same = dependence_between(self._apart, ends[0], ends[1])
        is_moved = same is None or carried_by(self._apart, same, source.loops[number]).is_empty()
        return self._read_alike(one, broken, number) if is_moved else False

    def _read_alike(self, one: Dependence, broken: isl.Map, depth: int) -> bool | None:
        """Whether both runs load the same elements of arrays that are not an iteration's own."""
        local = {array.name for array in self._kernel.local_arrays if array.loops}
        ends = (one.source, one.sink)
        loads = [
            [a for a in end.accesses if not a.is_write and a.buffer not in local] for end in ends
        ]
        if [a.buffer for a in loads[0]] != [a.buffer for a in loads[1]]:
            return False
        stores = [next(a for a in end.accesses if a.is_write) for end in ends]
        alike: bool | None = True
        for first, second in zip(*loads, strict=True):
            if _is_beside(first, stores[0], second, stores[1], depth):
                continue
            if not first.is_exact or not second.is_exact:
                alike = None
            elif not broken.is_subset(same_element(first, second)):
                return False
        return alike


def _is_beside(
    first: Access, first_store: Access, second: Access, second_store: Access, depth: int
) -> bool:
    """Whether two loads lie at one distance from what is stored, the same in all iterations."""
    ends = ((first, first_store), (second, second_store))
    if any(load.noted.lanes != store.noted.lanes for load, store in ends):
        return False
    distances = [total(load.noted.address, store.noted.address, -1) for load, store in ends]
    reader = first_store.noted.reader
    return distances[0] == distances[1] and not reader.depends_on(distances[0], depth)


def _check_loop(
    kernel: KernelDomain, loop: tirx.For, tiles: _MovedBackTiles, found: ScheduleCheck
) -> None:
    is_vector = loop.kind == tirx.ForKind.VECTORIZED
    what = f"{'a vectorised' if is_vector else 'a parallel'} loop {loop.loop_var.name}"
    inside = [one for one in kernel.statements if any(loop.same_as(around) for around in one.loops)]
    is_proved = True
    moved: list[Violation] = []
    for one, is_exact in _pairs(kernel, _meetings(kernel, inside, loop)):
        broken = (broken_by_lanes if is_vector else carried_by)(kernel, one, loop)
        if broken.is_empty():
            continue
        is_harmless = is_exact and not is_vector and tiles.explain(one, broken, loop)
        if is_harmless:
            moved.append(violation(what, one, broken))
            continue
        is_proved = False
        if is_exact and is_harmless is not None and not kernel.parameters.values.dimensions:
            found.races.append(violation(what, one, broken))
            return
        found.not_proved.append(f"{what}: {_reason(kernel, one)}")
        return
    if is_proved:
        found.proved.append(what)
        found.proved_loops.append(loop)
        found.moved_back += moved[:1]


def _reason(kernel: KernelDomain, one: Dependence) -> str:
    reasons = "; ".join(kernel.not_affine) or "an access that may not happen"
    return f"what {one.source.name} and {one.sink.name} access of {one.buffer}: {reasons}"


@dataclass(frozen=True)
class _Meeting:
    """Two statements that access an element of an array in two iterations of a loop."""

    buffer: str
    source: Statement
    sink: Statement


def _meetings(
    kernel: KernelDomain, statements: Sequence[Statement], loop: tirx.For
) -> Iterator[_Meeting]:
    """The statements of which one writes what the other accesses, each pair in both orders.

    First all statements are taken together and then all accesses of each, so that the many pairs of
    accesses are looked at only where there is something to be found.
    """
    own = {array.name for array in kernel.local_arrays if any(loop.same_as(x) for x in array.loops)}
    depth = next(n for n, one in enumerate(statements[0].loops) if one.same_as(loop))
    apart = _apart(kernel, depth)
    for buffer in dict.fromkeys(a.buffer for s in statements for a in s.accesses if a.is_write):
        if buffer in own:
            continue
        accesses = [(s, a) for s in statements for a in s.accesses if a.buffer == buffer]
        writes = [one for one in accesses if one[1].is_write]
        if not _meet(
            _elements_of(kernel, writes, depth), _elements_of(kernel, accesses, depth), apart
        ):
            continue
        by_statement = [_by_statement(kernel, one, depth) for one in (writes, accesses)]
        names = [one.name for one in statements if one.name in by_statement[1]]
        for source in names:
            for sink in names:
                if _one_writes_what_the_other_accesses(source, sink, by_statement, apart):
                    yield _Meeting(buffer, kernel.statement(source), kernel.statement(sink))


def _meet(first: isl.UnionMap, second: isl.UnionMap, apart: isl.UnionMap) -> bool:
    return not first.apply_range(second.reverse()).intersect(apart).is_empty()


def _by_statement(
    kernel: KernelDomain, accesses: Sequence[tuple[Statement, Access]], depth: int
) -> dict[str, isl.UnionMap]:
    names = dict.fromkeys(statement.name for statement, _ in accesses)
    return {
        name: _elements_of(kernel, [one for one in accesses if one[0].name == name], depth)
        for name in names
    }


def _one_writes_what_the_other_accesses(
    source: str, sink: str, by_statement: Sequence[dict[str, isl.UnionMap]], apart: isl.UnionMap
) -> bool:
    writes, accesses = by_statement
    if source in writes and _meet(writes[source], accesses[sink], apart):
        return True
    return sink in writes and _meet(accesses[source], writes[sink], apart)


def _elements_of(
    kernel: KernelDomain, accesses: Sequence[tuple[Statement, Access]], depth: int
) -> isl.UnionMap:
    """From the iterations of a loop, and of those around it, to the elements that they access."""
    union = isl.UnionMap.read_from_str(kernel.context, "{ }")
    for statement, access in accesses:
        # The relation first: what is not affine of it is then known.
        relation = access.relation
        relation = relation.apply_domain(kernel.runs_with_values(statement, depth + 1))
        named = relation.set_tuple_name(isl.dim_type.in_, _ITERATION)
        union = union.union(isl.UnionMap.from_map(named))
    return union.coalesce()


_ITERATION = "iteration"


def _apart(kernel: KernelDomain, depth: int) -> isl.UnionMap:
    """Pairs of iterations of a loop in one iteration of those around it."""
    around = [f"c{number}" for number in range(depth)]
    *ends, holds = multiples_agree(len(kernel.parameters.values.products))
    first, second = (
        f"{_ITERATION}[{', '.join([*around, name, *own])}]"
        for name, own in zip(("a", "b"), ends, strict=True)
    )
    text = f"{{ {first} -> {second} : a != b and {holds} }}"
    return isl.UnionMap.read_from_str(kernel.context, text)


def _pairs(kernel: KernelDomain, meetings: Iterable[_Meeting]) -> Iterator[tuple[Dependence, bool]]:
    """Any two accesses of an element, one a write, and whether both surely take place."""
    known: dict[tuple[str, str], list[Access]] = {}

    def accesses_of(end: Statement, buffer: str) -> list[Access]:
        if (end.name, buffer) not in known:
            known[end.name, buffer] = _distinct([a for a in end.accesses if a.buffer == buffer])
        return known[end.name, buffer]

    for one in meetings:
        first_ones, second_ones = (accesses_of(end, one.buffer) for end in (one.source, one.sink))
        for first in first_ones:
            for second in second_ones:
                if not (first.is_write or second.is_write):
                    continue
                found = dependence_between(kernel, (one.source, first), (one.sink, second))
                ends = (first, second, one.source, one.sink)
                if found is not None:
                    yield found, all(end.is_exact for end in ends)


def _distinct(accesses: Sequence[Access]) -> list[Access]:
    found: list[Access] = []
    for one in accesses:
        if not any(_is_same(one, other) for other in found):
            found.append(one)
    return found


def _is_same(one: Access, other: Access) -> Any:
    return (
        one.buffer == other.buffer
        and one.is_write == other.is_write
        and one.relation.is_equal(other.relation)
    )
