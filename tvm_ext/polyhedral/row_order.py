"""The order of the parts of an innermost iteration in a row, which is one run of a loop.

Where no part needs what it, or one behind it, computed before in the row, the row may run to its
end for one part after the other, as vectors do (loop distribution, as in R. Allen and K. Kennedy,
"Automatic translation of Fortran programs to vector form", 1987). LLVM makes vectors of each such
row as well. Otherwise each iteration waits for the one before it, and diagonals run instead, one
after the other: iterations on one diagonal do not depend on each other, so that the processor
works at several of them at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import islpy as isl

from tvm_ext.polyhedral.bands import Band, Loop, box_size, middle
from tvm_ext.polyhedral.dependences import Dependence
from tvm_ext.polyhedral.schedule_tree import with_loops


def with_rows_or_diagonals(below: isl.ScheduleNode, band: Band) -> isl.ScheduleNode:
    """The loops of a permutable band that holds no other, above what is ``below`` it."""
    loops = band.members
    rows = RowOrder(band, len(loops) - 1)
    if rows.has_chain:
        return with_loops(below, _diagonals(loops))
    if len(rows.in_order) == 1:
        return with_loops(below, loops)
    return with_loops(_distributed(below, rows.in_order, loops[-1]), loops[:-1])


def in_row_order(below: isl.ScheduleNode, band: Band, number: int) -> isl.ScheduleNode:
    """The parts ``below`` a band in the order in which rows of one of its loops may run."""
    return _with_sequence(below.cut(), RowOrder(band, number).in_order)


def _diagonals(loops: Sequence[Loop]) -> list[Loop]:
    """The loops with one over diagonals in place of the last."""
    if len(loops) < 2:
        return list(loops)
    *outer, row, along = loops
    diagonal = replace(along, function=along.function.add(row.function))
    return [*outer, diagonal, row]


def _distributed(
    below: isl.ScheduleNode, parts: Sequence[isl.UnionSet], row: Loop
) -> isl.ScheduleNode:
    """A row for each part, one after the other."""
    below = _with_sequence(below.cut(), parts)
    for number, part in enumerate(parts):
        own = row.function.intersect_domain(part)
        inside = with_loops(below.child(number).child(0), [replace(row, function=own)])
        below = inside.parent().parent()
    return below


def _with_sequence(leaf: isl.ScheduleNode, parts: Sequence[isl.UnionSet]) -> isl.ScheduleNode:
    if len(parts) < 2:
        return leaf
    filters = isl.UnionSetList.alloc(leaf.get_ctx(), len(parts))
    for part in parts:
        filters = filters.add(part)
    return leaf.insert_sequence(filters)


@dataclass(frozen=True)
class RowOrder:
    """The parts of an iteration, and how they depend on each other in a row of a loop.

    Attributes
    ----------
    number : int
        The place of the loop in the band.
    """

    band: Band
    number: int

    @cached_property
    def _edges(self) -> set[tuple[int, int]]:
        """Pairs of parts, the second of which depends on the first."""
        return {
            (self._part_of(one.source.name), self._part_of(one.sink.name))
            for one, _ in self.band.in_a_row(self.number)
        }

    def _part_of(self, statement: str) -> int:
        for number, part in enumerate(self.band.parts):
            sets = part.get_set_list()
            names = [sets.get_at(place).get_tuple_name() for place in range(sets.n_set())]
            if statement in names:
                return number
        return 0

    @cached_property
    def has_chain(self) -> bool:
        """Whether an iteration of a row needs what one before it computed.

        What a statement overwrites of what it read itself is no such need.
        """
        return any(len(group) > 1 for group in self.groups) or bool(self._chains())

    @cached_property
    def has_long_chain(self) -> bool:
        """Whether that is so all along a row, and not for a single iteration that others need."""
        if any(len(group) > 1 for group in self.groups):
            return True
        return any(self._is_all_along(one) for one in self._chains())

    def _chains(self) -> list[Dependence]:
        """The dependences of parts on themselves in other iterations of a row."""
        found = []
        for one, is_apart in self.band.in_a_row(self.number):
            is_kept_in_place = one.kind == "anti" and one.source.name == one.sink.name
            is_within = self._part_of(one.source.name) == self._part_of(one.sink.name)
            if is_apart and is_within and not is_kept_in_place:
                found.append(one)
        return found

    def _is_all_along(self, one: Dependence) -> bool:
        """Whether more than one iteration of a row is needed, in the middle of the other loops."""
        times = self.band.time(one.source).intersect_domain(one.relation.domain()).range()
        depth = times.dim(isl.dim_type.set)
        at = depth - len(self.band.members) + self.number
        return box_size(middle(times, [dim for dim in range(depth) if dim != at])) > 1

    @property
    def in_order(self) -> list[isl.UnionSet]:
        """The parts, each behind what it depends on where there is no chain."""
        return [part for group in self.groups for part in group]

    @cached_property
    def groups(self) -> list[list[isl.UnionSet]]:
        """Parts that depend on each other in a circle, each circle behind what it depends on."""
        behind = self._reachable()
        left = list(range(len(self.band.parts)))
        found = []
        while left:
            first = next(
                n for n in left if all(m in behind[n] for m in left if m != n and n in behind[m])
            )
            circle = [m for m in left if m == first or (m in behind[first] and first in behind[m])]
            found.append([self.band.parts[number] for number in circle])
            left = [number for number in left if number not in circle]
        return found

    def _reachable(self) -> list[set[int]]:
        """For each part those that depend on it, directly or not."""
        count = range(len(self.band.parts))
        behind: list[set[int]] = [{b for a, b in self._edges if a == number} for number in count]
        for via in count:
            for number in count:
                if via in behind[number]:
                    behind[number] |= behind[via]
        return behind
