"""How the innermost loops of tiles run where no vectors were made of them.

A row is one run of the innermost loop. Where no statement needs what it, or one behind it, computed
before in the row, the row runs to its end for one statement after the other, and LLVM makes vectors
of each (loop distribution, as in R. Allen and K. Kennedy, "Automatic translation of Fortran
programs to vector form", 1987). Otherwise each iteration waits for the one before it, and diagonals
run instead, one after the other: iterations on one diagonal do not depend on each other, so that
the processor works at several of them at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import islpy as isl

from tvm_ext.polyhedral.vector_loops import Band, Loop, with_loops


def with_rows_or_diagonals(
    below: isl.ScheduleNode, band: Band, loops: Sequence[Loop]
) -> isl.ScheduleNode:
    """The loops of a permutable band that holds no other, above what is ``below`` it.

    Parameters
    ----------
    loops : Sequence[Loop]
        The loops of the band in its own order; the innermost one is last.
    """
    rows = _Rows(band, _parts(below))
    if rows.has_chain:
        return with_loops(below, _diagonals(loops))
    if len(rows.parts) == 1:
        return with_loops(below, loops)
    return with_loops(_distributed(below, rows.groups, loops[-1]), loops[:-1])


def _diagonals(loops: Sequence[Loop]) -> list[Loop]:
    """The loops with one over diagonals in place of the last."""
    if len(loops) < 2:
        return list(loops)
    *outer, row, along = loops
    diagonal = replace(along, function=along.function.add(row.function))
    return [*outer, diagonal, row]


def _parts(below: isl.ScheduleNode) -> list[isl.UnionSet]:
    """The runs of each part of a node, which follow each other in an iteration."""
    if below.get_type() != isl.schedule_node_type.sequence:
        return [below.get_domain()]
    children = [below.child(number) for number in range(below.n_children())]
    if any(not _is_leaf(one.child(0)) for one in children):
        return [below.get_domain()]
    return [one.filter_get_filter() for one in children]


def _is_leaf(node: isl.ScheduleNode) -> bool:
    return bool(node.get_type() == isl.schedule_node_type.leaf)


def _distributed(
    below: isl.ScheduleNode, groups: Sequence[Sequence[isl.UnionSet]], row: Loop
) -> isl.ScheduleNode:
    """A row for each group of parts, one after the other."""
    below = _with_sequence(below.cut(), [_union(group) for group in groups])
    for number, group in enumerate(groups):
        leaf = below.child(number).child(0) if len(groups) > 1 else below
        own = row.function.intersect_domain(_union(group))
        inside = with_loops(_with_sequence(leaf, group), [replace(row, function=own)])
        below = inside.parent().parent() if len(groups) > 1 else inside
    return below


def _with_sequence(leaf: isl.ScheduleNode, parts: Sequence[isl.UnionSet]) -> isl.ScheduleNode:
    if len(parts) < 2:
        return leaf
    filters = isl.UnionSetList.alloc(leaf.get_ctx(), len(parts))
    for part in parts:
        filters = filters.add(part)
    return leaf.insert_sequence(filters)


def _union(sets: Sequence[isl.UnionSet]) -> isl.UnionSet:
    whole = sets[0]
    for one in sets[1:]:
        whole = whole.union(one)
    return whole


@dataclass(frozen=True)
class _Rows:
    """The parts of the innermost iteration, and which of them depend on each other in a row."""

    band: Band
    parts: Sequence[isl.UnionSet]

    @cached_property
    def _edges(self) -> set[tuple[int, int, str]]:
        """Pairs of parts, the second of which depends on the first, and the kinds of that."""
        found: set[tuple[int, int, str]] = set()
        for one in self.band.dependences_in_a_row():
            source, sink = (self._part_of(end.name) for end in (one.source, one.sink))
            found.add((source, sink, one.kind))
        return found

    def _part_of(self, statement: str) -> int:
        for number, part in enumerate(self.parts):
            sets = part.get_set_list()
            names = [sets.get_at(place).get_tuple_name() for place in range(sets.n_set())]
            if statement in names:
                return number
        return 0

    @cached_property
    def has_chain(self) -> bool:
        """Whether an iteration of a row needs what one before it computed.

        What a part overwrites of what it read itself is no such need.
        """
        if any(len(group) > 1 for group in self.groups):
            return True
        return any(source == sink and kind != "anti" for source, sink, kind in self._edges)

    @cached_property
    def groups(self) -> list[list[isl.UnionSet]]:
        """Parts that depend on each other in a circle, each circle behind what it depends on."""
        behind = self._reachable()
        left = list(range(len(self.parts)))
        found = []
        while left:
            first = next(
                n for n in left if all(m in behind[n] for m in left if m != n and n in behind[m])
            )
            circle = [m for m in left if m == first or (m in behind[first] and first in behind[m])]
            found.append([self.parts[number] for number in circle])
            left = [number for number in left if number not in circle]
        return found

    def _reachable(self) -> list[set[int]]:
        """For each part those that depend on it, directly or not."""
        count = range(len(self.parts))
        behind: list[set[int]] = [{b for a, b, _ in self._edges if a == number} for number in count]
        for middle in count:
            for number in count:
                if middle in behind[number]:
                    behind[number] |= behind[middle]
        return behind
