"""Which run of a statement has to take place after which other one, and why.

Exact: isl finds, for each access, the last one before it that wrote the same element. What only
may happen counts as happening. After P. Feautrier, "Dataflow analysis of array and scalar
references", 1991; isl's ``union_access_info`` computes it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import islpy as isl

from tvm_ext.polyhedral.iteration_domains import Access, KernelDomain, Statement, place_of

Kind = Literal["flow", "anti", "output"]


@dataclass(frozen=True)
class Dependence:
    """One statement's runs that have to follow those of another.

    Attributes
    ----------
    kind : str
        "flow": the sink reads what the source wrote. "anti": the sink overwrites what the source
        read. "output": both write.
    buffer : str
        The array with the element that both access.
    source, sink : Statement
        The statement that comes first, and the one that follows.
    relation : isl.Map
        From runs of the source to runs of the sink.
    """

    kind: Kind
    buffer: str
    source: Statement
    sink: Statement
    relation: isl.Map

    @property
    def is_reordered_by_reduction(self) -> bool:
        """Whether both runs add to one element, or combine it, so that either may be first."""
        same = self.source.name == self.sink.name
        return same and self.source.is_reduction and self.buffer == written_array(self.source)


def written_array(statement: Statement) -> str:
    """The array that a statement stores to."""
    return next(access.buffer for access in statement.accesses if access.is_write)


def dependences_of(kernel: KernelDomain, *, reorder_reductions: bool = False) -> list[Dependence]:
    """The dependences of a kernel.

    Parameters
    ----------
    reorder_reductions : bool
        Whether sums, products and extrema may be combined in another order, which changes the
        rounding of floats. Then runs of one reduction do not depend on each other, and what comes
        before or after it depends on all of them.
    """
    if reorder_reductions:
        pairs = dependences_of_all_pairs(kernel)
        return [one for one in pairs if not one.is_reordered_by_reduction]
    found: list[Dependence] = []
    for buffer in _written(kernel):
        found += _direct(kernel, buffer)
    return found


def _written(kernel: KernelDomain) -> list[str]:
    names = [a.buffer for s in kernel.statements for a in s.accesses if a.is_write]
    return list(dict.fromkeys(names))


def _direct(kernel: KernelDomain, buffer: str) -> list[Dependence]:
    """The dependences that no write between the two covers."""
    reads = _union(kernel, buffer, writes=False)
    sure = _union(kernel, buffer, writes=True, exact=True)
    maybe = _union(kernel, buffer, writes=True, exact=False)
    writes = sure.union(maybe)

    def flow_to(sinks: isl.UnionMap) -> isl.UnionAccessInfo:
        return isl.UnionAccessInfo.from_sink(sinks).set_schedule_map(kernel.schedule)

    flow = flow_to(reads).set_must_source(sure).set_may_source(maybe)
    anti = flow_to(writes).set_kill(sure).set_may_source(reads)
    output = flow_to(writes).set_must_source(sure).set_may_source(maybe)
    found: list[Dependence] = []
    infos: list[tuple[Kind, isl.UnionAccessInfo]] = [
        ("flow", flow),
        ("anti", anti),
        ("output", output),
    ]
    for kind, info in infos:
        found += _split(kernel, kind, buffer, info.compute_flow().get_may_dependence())
    return found


def _union(
    kernel: KernelDomain, buffer: str, *, writes: bool, exact: bool | None = None
) -> isl.UnionMap:
    found = isl.UnionMap.read_from_str(kernel.context, "{ }")
    for statement in kernel.statements:
        for access in statement.accesses:
            if access.buffer != buffer or access.is_write != writes:
                continue
            if exact in (None, access.is_exact and statement.is_exact):
                found = found.union(isl.UnionMap.from_map(access.relation))
    return found


def _split(
    kernel: KernelDomain, kind: Kind, buffer: str, relations: isl.UnionMap
) -> Iterable[Dependence]:
    """One dependence for each pair of statements."""
    names = {one.name: one for one in kernel.statements}
    maps = relations.get_map_list()
    for number in range(maps.n_map()):
        relation = maps.get_at(number)
        if relation.is_empty():
            continue
        source = names[relation.get_tuple_name(isl.dim_type.in_)]
        sink = names[relation.get_tuple_name(isl.dim_type.out)]
        yield Dependence(kind, buffer, source, sink, relation)


def dependences_of_all_pairs(kernel: KernelDomain) -> list[Dependence]:
    """Also those that a write between the two covers: any two accesses of an element, one a write.

    More than ``dependences_of`` finds, but nothing has to be known of what lies between.
    """
    found: list[Dependence] = []
    accesses = [(statement, a) for statement in kernel.statements for a in statement.accesses]
    for source, first in accesses:
        for sink, second in accesses:
            if first.buffer != second.buffer or not (first.is_write or second.is_write):
                continue
            one = dependence_between(kernel, (source, first), (sink, second))
            if one is not None:
                found.append(one)
    return found


def dependence_between(
    kernel: KernelDomain, source: tuple[Statement, Access], sink: tuple[Statement, Access]
) -> Dependence | None:
    """The dependence of one access on another that comes before it; None where there is none."""
    relation = same_element(source[1], sink[1])
    relation = relation.intersect(kernel_order(kernel, source[0], sink[0]))
    if kernel.parameters.values.products:
        relation = relation.intersect(kernel.agreeing(source[0], sink[0]))
    if relation.is_empty():
        return None
    return Dependence(_kind(source[1], sink[1]), source[1].buffer, source[0], sink[0], relation)


def same_element(first: Access, second: Access) -> isl.Map:
    """Runs of two statements in which two accesses meet at one element."""
    return first.relation.apply_range(second.relation.reverse())


def kernel_order(kernel: KernelDomain, source: Statement, sink: Statement) -> isl.Map:
    """From runs of ``source`` to the runs of ``sink`` behind them."""
    # A statement that never runs is in no union of maps, but has an empty map.
    first, second = (kernel.placed(one, place_of(one)) for one in (source, sink))
    return first.lex_lt_map(second)


def _kind(first: Access, second: Access) -> Kind:
    if first.is_write:
        return "output" if second.is_write else "flow"
    return "anti"
