"""The innermost loops of a band: which one vectors run along, and what stays in registers.

Vectors run along a loop whose iterations may be lanes, best of all one along which all accesses
are to neighbours. Where a loop adds to one element, it is put inside of the loop over vectors, so
that the sums stay in registers, and a few rows of another loop are unrolled in it, so that what is
loaded for one row serves all.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import islpy as isl

from tvm_ext.polyhedral.dependences import Dependence
from tvm_ext.polyhedral.generate_loops import PARALLEL, UNROLLED, VECTOR
from tvm_ext.polyhedral.kernel_domain import KernelDomain, Statement

__all__ = [
    "PARALLEL",
    "VECTOR",
    "Band",
    "Loop",
    "box_size",
    "vector_loops",
    "with_loops",
]

# Rows whose sums are in registers at a time.
ROWS = 4


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
        partial = node.band_get_partial_schedule()
        self.members = [
            Loop(partial.get_union_pw_aff(number), bool(node.band_member_get_coincident(number)))
            for number in range(node.band_n_member())
        ]
        self._below = node.child(0).get_subtree_schedule_union_map()

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
        runs = isl.UnionSet.from_set(statement.domain)
        times = self._prefix.intersect_domain(runs)
        for one in self.members:
            step = isl.UnionMap.from_union_pw_aff(one.function).intersect_domain(runs)
            times = times.flat_range_product(step)
        return isl.Map.from_union_map(times)

    def strides(self, number: int) -> list[tuple[bool, int | None]]:
        """For each access whether it writes, and by how many elements a step moves it.

        None where that is not 0 or 1.
        """
        found: list[tuple[bool, int | None]] = []
        for statement in self.statements:
            time = self.time(statement)
            at = time.dim(isl.dim_type.out) - len(self.members) + number
            for access in statement.accesses:
                found.append((access.is_write, _stride(time, access.relation, at)))
        return found

    def reused_bytes(self) -> float:
        """The bytes of the largest array of which a loop of the band accesses elements again."""
        sizes = [0.0]
        for number in range(len(self.members)):
            accesses = [a for statement in self.statements for a in statement.accesses]
            for access, (_, stride) in zip(accesses, self.strides(number), strict=True):
                if stride == 0:
                    sizes.append(box_size(access.relation.range()) * _ELEMENT_BYTES)
        return max(sizes)

    def may_be_lanes(self, number: int) -> bool:
        """Whether a loop, put innermost, may run as lanes, one statement after the other."""
        if self.members[number].coincident:
            return True
        at = self._node.get_schedule_depth() + number
        for one in self._dependences:
            source, sink = self.time(one.source), self.time(one.sink)
            together = _without(source, at).apply_range(_without(sink, at).reverse())
            pairs = one.relation.intersect(together)
            first, second = (self._below_of(end) for end in (one.source, one.sink))
            is_kept_in_place = one.kind == "anti" and one.source.name == one.sink.name
            pairs = pairs.intersect(_behind(first, second, is_kept_in_place))
            if not pairs.subtract(_equal(source, sink)).is_empty():
                return False
        return True

    def dependences_in_a_row(self) -> list[Dependence]:
        """Those of which both ends may be in one run of the innermost loop."""
        at = self._node.get_schedule_depth() + len(self.members) - 1
        found = []
        for one in self._dependences:
            source, sink = self.time(one.source), self.time(one.sink)
            together = _without(source, at).apply_range(_without(sink, at).reverse())
            if not one.relation.intersect(together).is_empty():
                found.append(one)
        return found

    def _below_of(self, statement: Statement) -> isl.Map:
        runs = isl.UnionSet.from_set(statement.domain)
        return isl.Map.from_union_map(self._below.intersect_domain(runs))


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


def _equal(source: isl.Map, sink: isl.Map) -> isl.Map:
    return source.apply_range(sink.reverse())


def _behind(source: isl.Map, sink: isl.Map, or_together: bool) -> isl.Map:
    """Pairs whose sink comes no later than the source in one iteration.

    ``or_together``: a statement loads all lanes before it stores any.
    """
    return source.lex_gt_map(sink) if or_together else source.lex_ge_map(sink)


def vector_loops(band: Band, lanes: int) -> list[Loop]:
    """The loops of a band that holds no other, innermost last, with vectors where they may be."""
    # Along a skewed loop every row begins elsewhere: whole vectors are few, LLVM's own are better.
    vector = _vector_member(band) if lanes > 1 and not band.is_skewed else None
    if vector is None:
        return list(band.members)
    along = band.members[vector]
    rest = [n for n in range(len(band.members)) if n != vector]
    strip = replace(along.tiled(lanes), is_over_registers=True)
    lane = replace(along, mark=VECTOR, tile=lanes)
    sums = _sum_member(band, rest) if band.is_permutable else None
    if sums is None:
        return [*(band.members[n] for n in rest), strip, lane]
    rest.remove(sums)
    rows = next((n for n in reversed(rest) if band.members[n].coincident), None)
    if rows is None:
        return [*(band.members[n] for n in rest), strip, band.members[sums], lane]
    rest.remove(rows)
    row_tile = replace(band.members[rows].tiled(ROWS), is_over_registers=True)
    row = replace(band.members[rows], mark=UNROLLED, tile=ROWS)
    outer = [band.members[n] for n in rest]
    return [*outer, row_tile, strip, band.members[sums], row, lane]


def _vector_member(band: Band) -> int | None:
    """The loop that vectors run along; None where none may be lanes."""
    count = len(band.members)
    allowed = range(count) if band.is_permutable else range(count - 1, count)
    fitting = [number for number in allowed if band.may_be_lanes(number)]

    def cost(number: int) -> tuple[int, int, int]:
        strides = band.strides(number)
        scattered = sum(is_write and stride != 1 for is_write, stride in strides)
        gathered = sum(not is_write and stride is None for is_write, stride in strides)
        return scattered, gathered, -number

    return min(fitting, key=cost, default=None)


def _sum_member(band: Band, members: Sequence[int]) -> int | None:
    """A loop along which each store is to one element, so that it may stay in a register."""
    for number in reversed(members):
        strides = band.strides(number)
        if all(stride == 0 for is_write, stride in strides if is_write):
            return number
    return None


# Into the tree.


def with_loops(below: isl.ScheduleNode, loops: Sequence[Loop]) -> isl.ScheduleNode:
    """A band for each of ``loops`` above a node, under its mark; one for those over registers."""
    registers = [one for one in loops if one.is_over_registers]
    for number in range(len(loops) - 1, -1, -1):
        if not loops[number].is_over_registers:
            below = _with_loop(below, loops[number])
        elif loops[number] is registers[0]:
            below = _with_register_tiles(below, registers, [one.tile for one in loops if one.tile])
    return below


def _with_loop(below: isl.ScheduleNode, one: Loop) -> isl.ScheduleNode:
    below = below.insert_partial_schedule(isl.MultiUnionPwAff.from_union_pw_aff(one.function))
    if one.is_separated:
        below = below.band_member_set_ast_loop_type(0, isl.ast_loop_type.separate)
    return _marked(below, one.mark) if one.mark else below


def _marked(below: isl.ScheduleNode, mark: str) -> isl.ScheduleNode:
    name = f"{mark}:{next(_NUMBERS)}"
    return below.insert_mark(isl.Id(name, context=below.get_ctx()))


def _with_register_tiles(
    below: isl.ScheduleNode, loops: Sequence[Loop], tile: Sequence[int]
) -> isl.ScheduleNode:
    """A band over tiles of registers; its mark says how long a whole tile is along each loop."""
    functions = isl.UnionPwAffList.alloc(below.get_ctx(), len(loops))
    for one in loops:
        functions = functions.add(one.function)
    space = isl.Space.set_alloc(below.get_ctx(), 0, len(loops))
    partial = isl.MultiUnionPwAff.from_union_pw_aff_list(space, functions)
    sizes = "x".join(str(size) for size in tile)
    return _marked(below.insert_partial_schedule(partial), f"{REGISTERS}{sizes}")


_NUMBERS = itertools.count()

# Begins the mark of a band over tiles of registers.
REGISTERS = "registers "


def with_whole_tiles(tree: isl.Schedule) -> isl.Schedule:
    """``tree`` with code of its own for whole tiles of registers, whose loops are fixed."""

    def isolated(node: isl.ScheduleNode) -> isl.ScheduleNode:
        if node.get_type() != isl.schedule_node_type.mark:
            return node
        name = str(node.mark_get_id().get_name())
        if not name.startswith(REGISTERS):
            return node
        sizes = [int(size) for size in name[len(REGISTERS) :].split(":")[0].split("x")]
        band = node.child(0)
        whole = _whole_tiles(band, sizes)
        wrapped = whole.wrap().set_tuple_name("isolate")
        return band.band_set_ast_build_options(isl.UnionSet.from_set(wrapped)).parent()

    return tree.map_schedule_node_bottom_up(isolated)


def _whole_tiles(band: isl.ScheduleNode, sizes: Sequence[int]) -> isl.Map:
    """From the iteration of the loops around a band to those of the band that are whole tiles."""
    around, over = band.get_schedule_depth(), len(sizes)
    inner = band
    while inner.get_type() in (isl.schedule_node_type.band, isl.schedule_node_type.mark):
        inner = inner.child(0)
    times = inner.get_prefix_schedule_union_map().intersect_domain(band.get_domain())
    points = isl.Set.from_union_set(times.range())
    depth = points.dim(isl.dim_type.set)
    within = depth - over
    extended = points.project_out(isl.dim_type.set, within, over)
    extended = extended.add_dims(isl.dim_type.set, over)
    for number, size in enumerate(sizes):
        extended = extended.intersect(_tile_of(extended, around + number, within + number, size))
    partial = extended.subtract(points)
    first = around + over
    tiles, partial = (
        one.project_out(isl.dim_type.set, first, depth - first) for one in (points, partial)
    )
    whole = isl.Map.from_range(tiles.subtract(partial))
    return whole.move_dims(isl.dim_type.in_, 0, isl.dim_type.out, 0, around)


def _tile_of(points: isl.Set, over: int, within: int, size: int) -> isl.Set:
    """Points whose coordinate ``within`` lies in the tile of number ``over``."""
    names = [f"d{number}" for number in range(points.dim(isl.dim_type.set))]
    tile, inside = names[over], names[within]
    text = f"{{ [{', '.join(names)}] : {size}{tile} <= {inside} < {size}{tile} + {size} }}"
    return isl.Set.read_from_str(points.get_ctx(), text)


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
