"""A band of isl's schedule: its loops, and what they do to accesses and dependences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import islpy as isl

from tvm_ext.polyhedral.dependences import Dependence
from tvm_ext.polyhedral.iteration_domains import Access, KernelDomain, Statement

# Of the widest elements.
_ELEMENT_BYTES = 8


@dataclass
class Loop:
    """One loop of a schedule.

    Attributes
    ----------
    function : isl.UnionPwAff
        The iteration in which each run takes place.
    coincident : bool
        Whether the loop carries no dependence.
    mark : str
        How it runs; see ``generate_loops``.
    is_separated : bool
        Whether it is cut where the first or last run of a statement is.
    tile : int
        Of a loop over what one tile of registers holds: how many iterations that is; else 0.
    is_over_registers : bool
        Whether it is a loop over tiles of registers.
    """

    function: isl.UnionPwAff
    coincident: bool
    mark: str = ""
    is_separated: bool = False
    tile: int = 0
    is_over_registers: bool = False

    def tiled(self, size: int) -> "Loop":
        """The loop over tiles of ``size``."""
        number = isl.Val.int_from_si(self.function.get_ctx(), size)
        return Loop(self.function.scale_down_val(number).floor(), self.coincident)


class Band:
    """A band of isl's schedule, and what its loops do to the accesses below it."""

    def __init__(
        self, kernel: KernelDomain, dependences: Sequence[Dependence], node: isl.ScheduleNode
    ) -> None:
        self._kernel = kernel
        self._node = node
        self._domain = node.get_domain()
        self._prefix = node.get_prefix_schedule_union_map()
        self._dependences = [one for one in dependences if self._is_inside(one)]
        self.is_permutable = bool(node.band_get_permutable())
        self.is_last = _is_last(node)
        self._in_a_row: dict[int, list[tuple[Dependence, bool]]] = {}
        partial = node.band_get_partial_schedule()
        self.members = [
            Loop(partial.get_union_pw_aff(number), bool(node.band_member_get_coincident(number)))
            for number in range(node.band_n_member())
        ]

    def _is_inside(self, one: Dependence) -> bool:
        ends = (one.source, one.sink)
        return all(any(e.name == s.name for s in self.statements) for e in ends)

    @cached_property
    def statements(self) -> list[Statement]:
        """The statements that run in the band."""
        return [
            one
            for one in self._kernel.statements
            if not self._domain.intersect(isl.UnionSet.from_set(one.domain)).is_empty()
        ]

    @property
    def has_parallel_loop(self) -> bool:
        """Whether a loop that may be outermost carries no dependence."""
        allowed = self.members if self.is_permutable else self.members[:1]
        return any(one.coincident for one in allowed)

    @cached_property
    def is_skewed(self) -> bool:
        """Whether a loop runs along the sum of several loops of a statement."""
        return any(_is_skewed(one.function) for one in self.members)

    def time(self, statement: Statement) -> isl.Map:
        """When a statement runs: the loops around the band, and those of the band."""
        return self._times[statement.name]

    @cached_property
    def _times(self) -> dict[str, isl.Map]:
        return {one.name: self._time(one) for one in self.statements}

    def _time(self, statement: Statement) -> isl.Map:
        runs = isl.UnionSet.from_set(statement.domain)
        times = self._prefix.intersect_domain(runs)
        for one in self.members:
            step = isl.UnionMap.from_union_pw_aff(one.function).intersect_domain(runs)
            times = times.flat_range_product(step)
        return isl.Map.from_union_map(times)

    @cached_property
    def strides(self) -> list[list[tuple[bool, int | None]]]:
        """For each loop, by how many elements a step of it moves each access.

        With whether the access writes; None where the distance is neither 0 nor 1.
        """
        return [self._strides_along(number) for number in range(len(self.members))]

    def _strides_along(self, number: int) -> list[tuple[bool, int | None]]:
        found: list[tuple[bool, int | None]] = []
        for statement in self.statements:
            time = self.time(statement)
            at = time.dim(isl.dim_type.out) - len(self.members) + number
            for access in statement.accesses:
                found.append((access.is_write, _stride(time, access.relation, at)))
        return found

    def reused_bytes(self) -> float:
        """The bytes of the largest array that is to stay in a cache until it is accessed again.

        Of an array of which a loop of the band accesses the same elements in each iteration, these
        are the elements of one iteration.
        """
        sizes = [0.0]
        for number in range(len(self.members)):
            accesses = [(s, a) for s in self.statements for a in s.accesses]
            for (statement, access), (_, stride) in zip(
                accesses, self.strides[number], strict=True
            ):
                if stride == 0:
                    sizes.append(self._bytes_of(statement, access, number))
        return max(sizes)

    def bytes_of_an_iteration(self) -> float:
        """The bytes that one iteration of the outermost loop accesses, array by array."""
        sizes: dict[str, float] = {}
        for statement in self.statements:
            for access in statement.accesses:
                size = self._bytes_of(statement, access, 0)
                sizes[access.buffer] = max(size, sizes.get(access.buffer, 0.0))
        return sum(sizes.values())

    def _bytes_of(self, statement: Statement, access: Access, number: int) -> float:
        """The bytes that an access touches in one iteration of a loop, amid those around it."""
        time = self.time(statement)
        fixed = time.dim(isl.dim_type.out) - len(self.members) + number + 1
        runs = time.intersect_range(middle(time.range(), range(fixed))).domain()
        elements = access.relation.intersect_domain(runs).range()
        return box_size(elements) * _ELEMENT_BYTES

    def extent_amid(self, number: int) -> float:
        """How many iterations a loop has in the middle of all other loops, at most."""
        extents = [0.0]
        for statement in self.statements:
            times = self.time(statement).range()
            depth = times.dim(isl.dim_type.set)
            at = depth - len(self.members) + number
            others = [dim for dim in range(depth) if dim != at]
            extents.append(box_size(middle(times, others)))
        return max(extents)

    def extent(self, number: int) -> float:
        """How many iterations a loop has at most, over all runs of it."""
        runs = isl.UnionMap.from_union_pw_aff(self.members[number].function)
        points = runs.intersect_domain(self._domain).range()
        return box_size(isl.Set.from_union_set(points))

    def in_a_row(self, number: int) -> list[tuple[Dependence, bool]]:
        """The dependences, between runs that only a loop tells apart, or not even that.

        And whether there are such runs in two iterations of the loop.
        """
        if number not in self._in_a_row:
            self._in_a_row[number] = list(self._pairs_in_a_row(number))
        return self._in_a_row[number]

    def _pairs_in_a_row(self, number: int) -> Iterator[tuple[Dependence, bool]]:
        at = self._node.get_schedule_depth() + number
        for one in self._dependences:
            source, sink = self.time(one.source), self.time(one.sink)
            together = _without(source, at).apply_range(_without(sink, at).reverse())
            pairs = one.relation.intersect(together)
            if not pairs.is_empty():
                is_apart = not pairs.is_subset(source.apply_range(sink.reverse()))
                yield replace(one, relation=pairs), is_apart

    @cached_property
    def parts(self) -> list[isl.UnionSet]:
        """The runs of each part of an iteration, in an order in which these may follow each other.

        Only of a band that holds no other.
        """
        return list(_leaves(self._node.child(0)))


def _leaves(node: isl.ScheduleNode) -> Iterator[isl.UnionSet]:
    if node.get_type() == isl.schedule_node_type.leaf:
        yield node.get_domain()
        return
    for number in range(node.n_children()):
        yield from _leaves(node.child(number))


def middle(points: isl.Set, dims: Sequence[int]) -> isl.Set:
    """Points whose coordinates along ``dims`` are in the middle, one after the other."""
    for dim in dims:
        low, high = points.dim_min_val(dim), points.dim_max_val(dim)
        if low.is_int() and high.is_int():
            half = (low.to_python() + high.to_python()) // 2
            points = points.fix_val(
                isl.dim_type.set, dim, isl.Val.int_from_si(points.get_ctx(), half)
            )
    return points


def box_size(points: isl.Set) -> float:
    """The points of the box around a set; each axis without a known end counts as long."""
    size = 1.0
    for dim in range(points.dim(isl.dim_type.set)):
        low, high = points.dim_min_val(dim), points.dim_max_val(dim)
        known = low.is_int() and high.is_int()
        size *= high.to_python() - low.to_python() + 1 if known else 1e3
    return size


def _without(time: isl.Map, at: int) -> isl.Map:
    return time.project_out(isl.dim_type.out, at, 1)


def _is_last(node: isl.ScheduleNode) -> bool:
    """Whether no band is below a band."""
    found = []

    def look(below: isl.ScheduleNode) -> bool:
        found.append(below.get_type() == isl.schedule_node_type.band)
        return True

    node.child(0).foreach_descendant_top_down(look)
    return not any(found)


def _is_skewed(function: isl.UnionPwAff) -> bool:
    pieces = function.get_pw_aff_list()
    for number in range(pieces.n_pw_aff()):
        for _, aff in pieces.get_at(number).get_pieces():
            used = sum(
                aff.get_coefficient_val(isl.dim_type.in_, dim).to_python() != 0
                for dim in range(aff.dim(isl.dim_type.in_))
            )
            if used > 1:
                return True
    return False


def _stride(time: isl.Map, access: isl.Map, at: int) -> int | None:
    """The distance, along the last axis, of the elements at two times that differ by a step."""
    elements = time.reverse().apply_range(access)
    space = time.get_space().range()
    one = isl.Val.int_from_si(time.get_ctx(), 1)
    shift = isl.MultiAff.identity(space.map_from_set())
    moved = shift.get_at(at).add_constant_val(one)
    step = isl.Map.from_multi_aff(shift.set_at(at, moved))
    moves = elements.reverse().apply_range(step).apply_range(elements).deltas()
    if moves.is_empty():
        return 0
    rank = moves.dim(isl.dim_type.set)
    if any(not _always(moves, axis, 0) for axis in range(rank - 1)):
        return None
    if not rank:
        return 0
    return next((stride for stride in (0, 1) if _always(moves, rank - 1, stride)), None)


def _always(moves: isl.Set, axis: int, value: int) -> bool:
    number = isl.Val.int_from_si(moves.get_ctx(), value)
    return moves.is_subset(moves.fix_val(isl.dim_type.set, axis, number))
