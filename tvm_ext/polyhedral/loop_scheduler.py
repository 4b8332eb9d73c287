"""Finds an order of a kernel's runs with parallel loops and tiles.

isl's scheduler finds bands of loops that may be interchanged and tiled, skewed and shifted where
that is needed (U. Bondhugula et al., "A practical automatic polyhedral parallelizer and locality
optimizer", PLDI 2008). Here each band becomes tiles; a loop that carries no dependence becomes
parallel, and where a band has none, its tiles run in wavefronts: tiles of an equal sum of
coordinates do not depend on each other.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import islpy as isl

from tvm_ext.polyhedral.dependences import Dependence
from tvm_ext.polyhedral.generate_loops import PARALLEL, VECTOR
from tvm_ext.polyhedral.kernel_domain import KernelDomain


@dataclass(frozen=True)
class SchedulerOptions:
    """What the scheduler is asked for.

    Attributes
    ----------
    tile : int
        Length of tiles; 1 for none.
    inner_tile : int
        Length of tiles along the innermost loop, which vectors run along.
    fuses : bool
        Whether statements that do not depend on each other in a circle may share loops.
    separates : bool
        Whether loops are cut where the first or last run of a statement is, so that no condition is
        left in them.
    """

    tile: int = 32
    inner_tile: int = 64
    fuses: bool = False
    separates: bool = True


@dataclass
class LoopSchedule:
    """An order of runs, and what was found on the way.

    Attributes
    ----------
    tree : isl.Schedule
        The order, with marks on the loops that are parallel or vectors.
    parallel, tiled, skewed, wavefront, vectors : int
        How many bands have a parallel loop, tiles, a skewed loop, tiles that run in wavefronts,
        vectors.
    """

    tree: isl.Schedule
    parallel: int = 0
    tiled: list[int] = field(default_factory=list)
    skewed: int = 0
    wavefront: int = 0
    vectors: int = 0

    def __str__(self) -> str:
        """What was found, in words."""
        parts = []
        if self.parallel:
            parts.append("parallel")
        if self.tiled:
            parts.append("tiled " + "+".join(f"{depth}-d" for depth in self.tiled))
        if self.skewed:
            parts.append("skewed")
        if self.wavefront:
            parts.append("wavefront")
        if self.vectors:
            parts.append("vectors")
        return ", ".join(parts) or "as written"


def schedule_loops(
    kernel: KernelDomain,
    dependences: Sequence[Dependence],
    options: SchedulerOptions | None = None,
) -> LoopSchedule:
    """The schedule of a kernel that keeps its dependences."""
    options = options or SchedulerOptions()
    tree = _bands(kernel, dependences, options)
    found = LoopSchedule(tree)
    root = _Bands(kernel, options, found).optimised(tree.get_root().child(0), False)
    found.tree = root.get_schedule()
    return found


# How much isl may compute for one schedule.
_OPERATIONS = 200_000


class NoSchedule(Exception):
    """isl found no order of the runs within the time that it is given."""


def _bands(
    kernel: KernelDomain, dependences: Sequence[Dependence], options: SchedulerOptions
) -> isl.Schedule:
    """isl's schedule: bands of permutable loops. Raises NoSchedule."""
    relation = isl.UnionMap.read_from_str(kernel.context, "{ }")
    for one in dependences:
        relation = relation.union(isl.UnionMap.from_map(one.relation))
    boxes = isl.UnionSet.read_from_str(kernel.context, "{ }")
    for statement in kernel.statements:
        boxes = boxes.union(isl.UnionSet.from_set(_box(statement.domain)))
    _set_options(kernel.context, options)
    # Each bound is a variable of isl's programs. Those that are numbers say little of the order of
    # runs; those of triangles do.
    for known in (boxes, isl.UnionSet.read_from_str(kernel.context, "{ }")):
        constraints = relation
        if not known.is_empty():
            constraints = relation.gist_domain(known).gist_range(known)
        found = _within_limit(kernel, constraints.coalesce())
        if found is not None:
            return found
    raise NoSchedule


def _box(domain: isl.Set) -> isl.Set:
    """The least and the largest value of each loop, where they are numbers."""
    box = isl.Set.universe(domain.get_space())
    for dim in range(domain.dim(isl.dim_type.set)):
        low, high = domain.dim_min_val(dim), domain.dim_max_val(dim)
        if low.is_int():
            box = box.lower_bound_val(isl.dim_type.set, dim, low)
        if high.is_int():
            box = box.upper_bound_val(isl.dim_type.set, dim, high)
    return box


def _set_options(context: isl.Context, options: SchedulerOptions) -> None:
    context.set_schedule_serialize_sccs(int(not options.fuses))
    context.set_schedule_maximize_band_depth(1)
    context.set_schedule_max_constant_term(20)
    context.set_schedule_max_coefficient(20)
    context.set_tile_scale_tile_loops(0)
    context.set_tile_shift_point_loops(0)
    context.set_ast_build_detect_min_max(1)


def _within_limit(kernel: KernelDomain, relation: isl.UnionMap) -> isl.Schedule | None:
    """isl's schedule, or None where it takes too long or finds none."""
    constraints = isl.ScheduleConstraints.on_domain(kernel.domain)
    constraints = constraints.set_validity(relation).set_coincidence(relation)
    constraints = constraints.set_proximity(relation)
    kernel.context.reset_operations()
    kernel.context.set_max_operations(_OPERATIONS)
    try:
        return constraints.compute_schedule()
    except isl.Error:
        return None
    finally:
        kernel.context.set_max_operations(0)


class _Bands:
    """Makes tiles, parallel loops and vectors of the bands below a node."""

    def __init__(
        self, kernel: KernelDomain, options: SchedulerOptions, found: LoopSchedule
    ) -> None:
        self._kernel = kernel
        self._options = options
        self._found = found

    def optimised(self, node: isl.ScheduleNode, in_parallel: bool) -> isl.ScheduleNode:
        """``node`` with all below it; it is at the same place in the tree it returns."""
        if node.get_type() == isl.schedule_node_type.band:
            return self._band(node, in_parallel)
        for number in range(node.n_children()):
            node = self.optimised(node.child(number), in_parallel).parent()
        return node

    def _band(self, node: isl.ScheduleNode, in_parallel: bool) -> isl.ScheduleNode:
        members = _members(node)
        self._found.skewed += any(_is_skewed(one.function) for one in members)
        last = _is_last_band(node)
        if last:
            members = self._vectors_last(node, members)
        if not node.band_get_permutable() or not self._is_worth_tiling(node, len(members)):
            return self._untiled(node, members, in_parallel, last)
        return self._tiled(node, members, in_parallel, last)

    # Bands without tiles.

    def _untiled(
        self, node: isl.ScheduleNode, members: list["_Member"], in_parallel: bool, last: bool
    ) -> isl.ScheduleNode:
        permutable = bool(node.band_get_permutable())
        below = node.delete()
        chosen = None
        if not in_parallel:
            allowed = range(len(members)) if permutable else range(1)
            chosen = next((n for n in allowed if members[n].coincident), None)
        if chosen is not None:
            members = [members[chosen], *members[:chosen], *members[chosen + 1 :]]
            self._found.parallel += 1
        marks = [PARALLEL if n == 0 and chosen is not None else "" for n in range(len(members))]
        if last and members[-1].is_vector and not marks[-1]:
            marks[-1] = VECTOR
            self._found.vectors += 1
        below = self.optimised(below, in_parallel or chosen is not None)
        return _with_loops(below, members, marks)

    # Bands with tiles.

    def _is_worth_tiling(self, node: isl.ScheduleNode, depth: int) -> bool:
        return depth > 1 and self._options.tile > 1

    def _tiled(
        self, node: isl.ScheduleNode, members: list["_Member"], in_parallel: bool, last: bool
    ) -> isl.ScheduleNode:
        self._found.tiled.append(len(members))
        below = self.optimised(node.delete(), True)
        for one in members:
            one.is_separated = self._options.separates
        marks = [""] * len(members)
        if last and members[-1].is_vector:
            marks[-1] = VECTOR
            self._found.vectors += 1
        below = _with_loops(below, members, marks)
        tiles = [
            one.tiled(self._options.inner_tile if n == len(members) - 1 else self._options.tile)
            for n, one in enumerate(members)
        ]
        return self._ordered_tiles(below, tiles, in_parallel)

    def _ordered_tiles(
        self, below: isl.ScheduleNode, tiles: list["_Member"], in_parallel: bool
    ) -> isl.ScheduleNode:
        if in_parallel:
            return _with_loops(below, tiles, [""] * len(tiles))
        self._found.parallel += 1
        chosen = next((n for n, one in enumerate(tiles) if one.coincident), None)
        if chosen is not None:
            tiles = [tiles[chosen], *tiles[:chosen], *tiles[chosen + 1 :]]
            return _with_loops(below, tiles, [PARALLEL, *[""] * (len(tiles) - 1)])
        self._found.wavefront += 1
        front = _Member(tiles[0].function.add(tiles[1].function), False)
        marks = ["", PARALLEL, *[""] * (len(tiles) - 2)]
        return _with_loops(below, [front, *tiles[1:]], marks)

    # Vectors.

    def _vectors_last(
        self, node: isl.ScheduleNode, members: list["_Member"]
    ) -> list["_Member"]:
        """``members`` with the one last along which accesses are to neighbours."""
        permutable = bool(node.band_get_permutable())
        strides = [self._strides(node, members, number) for number in range(len(members))]
        allowed = range(len(members)) if permutable else range(len(members) - 1, len(members))

        def cost(number: int) -> tuple[int, int, int]:
            gathers = sum(stride not in (0, 1) for stride in strides[number])
            return gathers, int(not members[number].coincident), -strides[number].count(1)

        best = min(allowed, key=cost)
        gathers, serial, _ = cost(best)
        members = [*members[:best], *members[best + 1 :], members[best]]
        members[-1].is_vector = not gathers and not serial
        return members

    def _strides(
        self, node: isl.ScheduleNode, members: list["_Member"], number: int
    ) -> list[int | None]:
        """By how many elements each access moves with a step along a member; None if unknown."""
        domain = node.get_domain()
        prefix = node.get_prefix_schedule_union_map()
        found: list[int | None] = []
        for statement in self._kernel.statements:
            runs = isl.UnionSet.from_set(statement.domain)
            if domain.intersect(runs).is_empty():
                continue
            times = prefix.intersect_domain(runs)
            for one in members:
                times = times.flat_range_product(
                    isl.UnionMap.from_union_pw_aff(one.function).intersect_domain(runs)
                )
            time = isl.Map.from_union_map(times)
            at = time.dim(isl.dim_type.out) - len(members) + number
            for access in statement.accesses:
                found.append(_stride(time, access.relation, at))
        return found


@dataclass
class _Member:
    """One loop of a band."""

    function: isl.UnionPwAff
    coincident: bool
    is_vector: bool = False
    is_separated: bool = False

    def tiled(self, size: int) -> "_Member":
        """The loop over tiles of ``size``."""
        number = isl.Val.int_from_si(self.function.get_ctx(), size)
        return _Member(self.function.scale_down_val(number).floor(), self.coincident)


def _members(node: isl.ScheduleNode) -> list[_Member]:
    partial = node.band_get_partial_schedule()
    return [
        _Member(partial.get_union_pw_aff(number), bool(node.band_member_get_coincident(number)))
        for number in range(node.band_n_member())
    ]


def _is_skewed(function: isl.UnionPwAff) -> bool:
    """Whether a loop runs along the sum of several loops of a statement."""
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


def _is_last_band(node: isl.ScheduleNode) -> bool:
    """Whether no band is below a band."""
    found = []

    def look(below: isl.ScheduleNode) -> bool:
        found.append(below.get_type() == isl.schedule_node_type.band)
        return True

    node.child(0).foreach_descendant_top_down(look)
    return not any(found)


def _with_loops(
    below: isl.ScheduleNode, members: Sequence[_Member], marks: Sequence[str]
) -> isl.ScheduleNode:
    """A band for each of ``members`` above a node, under its mark."""
    for one, mark in zip(reversed(members), reversed(marks), strict=True):
        below = below.insert_partial_schedule(isl.MultiUnionPwAff.from_union_pw_aff(one.function))
        if one.is_separated:
            below = below.band_member_set_ast_loop_type(0, isl.ast_loop_type.separate)
        if mark:
            name = f"{mark}:{next(_NUMBERS)}"
            below = below.insert_mark(isl.Id(name, context=below.get_ctx()))
    return below


_NUMBERS = itertools.count()


def _stride(time: isl.Map, access: isl.Map, at: int) -> int | None:
    """The distance, along the last axis, of the elements at two times that differ by a step."""
    elements = time.reverse().apply_range(access)
    space = time.get_space().range()
    step = isl.Map.identity(space.map_from_set())
    one = isl.Val.int_from_si(time.get_ctx(), 1)
    shift = isl.MultiAff.identity(space.map_from_set())
    moved = shift.get_at(at).add_constant_val(one)
    step = isl.Map.from_multi_aff(shift.set_at(at, moved))
    moves = elements.reverse().apply_range(step).apply_range(elements).deltas()
    if moves.is_empty():
        return 0
    rank = moves.dim(isl.dim_type.set)
    for axis in range(rank - 1):
        if not _always(moves, axis, 0):
            return None
    if not rank:
        return 0
    return next((stride for stride in (0, 1) if _always(moves, rank - 1, stride)), None)


def _always(moves: isl.Set, axis: int, value: int) -> bool:
    return moves.is_subset(moves.fix_val(
        isl.dim_type.set, axis, isl.Val.int_from_si(moves.get_ctx(), value)
    ))
