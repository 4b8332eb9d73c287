"""Whether a tree of isl's schedule keeps the dependences of a kernel.

The tree is walked from its root with the pairs of runs whose order is not known yet. A loop puts
some pairs in order and leaves the others to what is inside of it. The schedule is wrong where a
loop puts a pair in the wrong order, where a parallel loop has a pair in two of its iterations, and
where a pair is left that has no order at the end. Lanes of a vector run one statement after the
other, so what they leave is the order of the statements.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import islpy as isl

from tvm_ext.polyhedral.dependences import Dependence
from tvm_ext.polyhedral.generate_loops import PARALLEL, VECTOR
from tvm_ext.polyhedral.legality import Violation, violation


def broken_by_schedule(dependences: Sequence[Dependence], tree: isl.Schedule) -> Violation | None:
    """The first dependence that a schedule is found to break; None for a legal schedule."""
    pairs = [_Pairs(one, one.relation) for one in dependences]
    return next(_broken(tree.get_root(), pairs), None)


@dataclass(frozen=True)
class _Pairs:
    """Runs of a dependence that no loop so far has put in an order.

    Attributes
    ----------
    are_lanes : bool
        Whether they are lanes of one vector.
    """

    dependence: Dependence
    relation: isl.Map
    are_lanes: bool = False

    def within(self, relation: isl.Map) -> "_Pairs":
        """Those of the pairs that are in ``relation``."""
        return replace(self, relation=self.relation.intersect(relation).coalesce())

    @property
    def may_meet(self) -> bool:
        """Whether both runs may take place at one time: lanes are loaded before they are stored."""
        ends = (self.dependence.source.name, self.dependence.sink.name)
        return self.are_lanes and self.dependence.kind == "anti" and ends[0] == ends[1]

    def broken(self, where: str) -> Iterator[Violation]:
        """The violation that these pairs are, if there are any."""
        if not self.relation.is_empty():
            yield violation(f"a schedule with runs {where}", self.dependence, self.relation)


def _broken(node: isl.ScheduleNode, pairs: Sequence[_Pairs], mark: str = "") -> Iterator[Violation]:
    """What a node, and all below it, break of ``pairs``."""
    pairs = [one for one in pairs if not one.relation.is_empty()]
    kind = node.get_type()
    if not pairs:
        return
    if kind == isl.schedule_node_type.leaf:
        for one in pairs:
            if not one.may_meet:
                yield from one.broken("at the same time")
    elif kind == isl.schedule_node_type.band:
        yield from _broken_by_band(node, pairs, mark)
    elif kind in (isl.schedule_node_type.sequence, isl.schedule_node_type.set):
        yield from _broken_by_parts(node, pairs)
    else:
        is_mark = kind == isl.schedule_node_type.mark
        below = str(node.mark_get_id().get_name()).split(":")[0] if is_mark else ""
        yield from _broken(node.child(0), pairs, below)


def _broken_by_band(
    node: isl.ScheduleNode, pairs: Sequence[_Pairs], mark: str
) -> Iterator[Violation]:
    functions = node.band_get_partial_schedule()
    lanes: list[_Pairs] = []
    for number in range(node.band_n_member()):
        times = isl.UnionMap.from_union_pw_aff(functions.get_union_pw_aff(number))
        together = []
        for one in pairs:
            source, sink = _times(times, one)
            yield from one.within(source.lex_gt_map(sink)).broken("the wrong way round")
            together.append(one.within(source.apply_range(sink.reverse())))
            apart = one.within(source.lex_lt_map(sink))
            if mark == PARALLEL:
                yield from apart.broken("in two iterations of a parallel loop")
            elif mark == VECTOR:
                lanes.append(replace(apart, are_lanes=True))
        pairs = together
    yield from _broken(node.child(0), [*pairs, *lanes])


def _times(times: isl.UnionMap, pairs: _Pairs) -> list[isl.Map]:
    space = pairs.relation.get_space()
    ends = [isl.Set.universe(end) for end in (space.domain(), space.range())]
    return [
        isl.Map.from_union_map(times.intersect_domain(isl.UnionSet.from_set(end))) for end in ends
    ]


def _broken_by_parts(node: isl.ScheduleNode, pairs: Sequence[_Pairs]) -> Iterator[Violation]:
    """What is broken by the parts of a sequence, or by those of a set, which have no order."""
    filters = [node.child(number).filter_get_filter() for number in range(node.n_children())]
    is_sequence = node.get_type() == isl.schedule_node_type.sequence
    for number, own in enumerate(filters):
        inside = [_between(one, own, own) for one in pairs]
        yield from _broken(node.child(number), inside)
        others = filters[:number] if is_sequence else filters[:number] + filters[number + 1 :]
        for other in others:
            for one in pairs:
                yield from _between(one, own, other).broken("the wrong way round")


def _between(pairs: _Pairs, first: isl.UnionSet, second: isl.UnionSet) -> _Pairs:
    """The pairs that lead from a run of ``first`` to one of ``second``."""
    ends = (pairs.relation.get_space().domain(), pairs.relation.get_space().range())
    source, sink = (one.extract_set(end) for one, end in zip((first, second), ends, strict=True))
    relation = pairs.relation.intersect_domain(source).intersect_range(sink)
    return replace(pairs, relation=relation)
