"""Finds an order of a kernel's runs with parallel loops and tiles.

isl's scheduler finds bands of loops that may be interchanged and tiled, skewed and shifted where
that is needed (U. Bondhugula et al., "A practical automatic polyhedral parallelizer and locality
optimizer", PLDI 2008). Here each band becomes tiles; a loop that carries no dependence becomes
parallel, and where a band has none, its tiles run in wavefronts: tiles of an equal sum of
coordinates do not depend on each other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import islpy as isl

from tvm_ext.polyhedral.bands import Band, Loop, box_size, middle
from tvm_ext.polyhedral.dependences import Dependence
from tvm_ext.polyhedral.generate_loops import PARALLEL, VECTOR, VECTORS
from tvm_ext.polyhedral.iteration_domains import KernelDomain
from tvm_ext.polyhedral.row_order import RowOrder, in_row_order, with_rows_or_diagonals
from tvm_ext.polyhedral.schedule_legality import broken_by_schedule
from tvm_ext.polyhedral.schedule_tree import with_loops, with_whole_tiles
from tvm_ext.polyhedral.vector_loops import InnerLoops, vector_loops


@dataclass(frozen=True)
class SchedulerOptions:
    """What the scheduler is asked for.

    Attributes
    ----------
    tile : int
        Length of tiles; 1 for none.
    inner_tile : int
        Length of tiles along the innermost loop, which vectors run along.
    lanes : int
        Elements of a vector; 1 for no vectors.
    fuses : bool
        Whether statements that do not depend on each other in a circle may share loops.
    cache_bytes : int
        Loops that may be parallel are tiled where an array that they access again is larger.
    separates : bool
        Whether loops are cut where the first or last run of a statement is, so that no condition is
        left in them.
    threads : int
        Among how many threads parallel loops are shared out.
    """

    tile: int = 32
    inner_tile: int = 64
    lanes: int = 1
    fuses: bool = False
    cache_bytes: int = 0
    separates: bool = True
    threads: int = 1


@dataclass
class LoopSchedule:
    """An order of runs, and what was found on the way.

    Attributes
    ----------
    tree : isl.Schedule
        The order, with marks on the loops that are parallel or vectors.
    parallel : set[str]
        The statements that run in a parallel loop.
    tiled : list[int]
        How many loops each band with tiles has.
    skewed, wavefront, vectors : int
        How many bands have a skewed loop, tiles that run in wavefronts, vectors.
    cost : float
        About how many cycles the innermost loops take on one core, to compare schedules with.
    """

    tree: isl.Schedule
    parallel: set[str] = field(default_factory=set)
    tiled: list[int] = field(default_factory=list)
    skewed: int = 0
    wavefront: int = 0
    vectors: int = 0
    cost: float = 0.0

    @property
    def gains(self) -> bool:
        """Whether loops were tiled, or some are parallel that run long enough.

        Skewed loops without tiles only walk through memory in a worse order.
        """
        return bool(self.tiled) or (bool(self.parallel) and not self.skewed)

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
    """The schedule of a kernel that keeps its dependences. Raises NoSchedule."""
    options = options or SchedulerOptions()
    trees = _trees(kernel, _validity(kernel, dependences), options)
    if not trees:
        raise NoSchedule("isl finds no order of its loops")
    found = [_optimised(kernel, dependences, options, tree) for tree in trees]
    broken = None
    for one in sorted(found, key=lambda one: one.cost):
        broken = broken_by_schedule(dependences, one.tree)
        if broken is None:
            return one
    raise NoSchedule(f"its loops were put in a wrong order: {broken}")


def _trees(
    kernel: KernelDomain, relation: isl.UnionMap, options: SchedulerOptions
) -> list[isl.Schedule]:
    """isl's bands, different ones where it depends on what is to be near each other."""
    found: list[isl.Schedule] = []
    for near in (_near(relation), relation):
        tree = _within_limit(kernel, relation, near, options)
        if tree is not None and not any(tree.plain_is_equal(other) for other in found):
            found.append(tree)
        if near.is_equal(relation):
            break
    return found


def _optimised(
    kernel: KernelDomain,
    dependences: Sequence[Dependence],
    options: SchedulerOptions,
    tree: isl.Schedule,
) -> LoopSchedule:
    """Tiles, parallel loops and vectors for isl's bands."""
    found = LoopSchedule(tree)
    bands = _Bands(kernel, dependences, options, found)
    root = bands.optimised(tree.get_root().child(0), False)
    found.tree = with_whole_tiles(root.get_schedule())
    return found


# How much isl may compute for one schedule.
_OPERATIONS = 200_000


class NoSchedule(Exception):
    """No legal order of the runs was found in the time that isl is given; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _validity(kernel: KernelDomain, dependences: Sequence[Dependence]) -> isl.UnionMap:
    """What isl's schedule has to keep."""
    relation = isl.UnionMap.read_from_str(kernel.context, "{ }")
    for one in dependences:
        relation = relation.union(isl.UnionMap.from_map(one.relation))
    boxes = isl.UnionSet.read_from_str(kernel.context, "{ }")
    for statement in kernel.statements:
        boxes = boxes.union(isl.UnionSet.from_set(_box(statement.domain)))
    # Each bound is a variable of isl's programs. Those that are numbers say little of the order of
    # runs; those of triangles do.
    if not boxes.is_empty():
        relation = relation.gist_domain(boxes).gist_range(boxes)
    return relation.coalesce()


def _near(relation: isl.UnionMap) -> isl.UnionMap:
    """The dependences whose runs may be brought near each other: their distance is bounded.

    isl asks for one bound on the distances of all that it is to bring near. Sizes are mostly
    numbers here and not parameters, so distances that grow with a size have none, and isl finds no
    loop that they are carried by, such as those of rows and columns in an LU decomposition.
    """
    found = isl.UnionMap.read_from_str(relation.get_ctx(), "{ }")
    maps = relation.get_map_list()
    for number in range(maps.n_map()):
        one = maps.get_at(number)
        if _distances(one).is_bounded():
            found = found.union(isl.UnionMap.from_map(one))
    return found


def _distances(relation: isl.Map) -> isl.Set:
    """How far apart both runs are along the loops that both statements have."""
    ends = (isl.dim_type.in_, isl.dim_type.out)
    common = min(relation.dim(end) for end in ends)
    for end in ends:
        relation = relation.project_out(end, common, relation.dim(end) - common)
        relation = relation.set_tuple_name(end, "")
    return relation.deltas()


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


def _within_limit(
    kernel: KernelDomain, relation: isl.UnionMap, near: isl.UnionMap, options: SchedulerOptions
) -> isl.Schedule | None:
    """isl's bands of permutable loops; None where it takes too long or finds none."""
    _set_options(kernel.context, options)
    constraints = isl.ScheduleConstraints.on_domain(kernel.domain)
    constraints = constraints.set_validity(relation).set_coincidence(relation)
    constraints = constraints.set_proximity(near)
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
        self,
        kernel: KernelDomain,
        dependences: Sequence[Dependence],
        options: SchedulerOptions,
        found: LoopSchedule,
    ) -> None:
        self._kernel = kernel
        self._dependences = dependences
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
        band = Band(self._kernel, self._dependences, node)
        self._found.skewed += band.is_skewed
        in_parallel = in_parallel or not self._is_worth_threads(node)
        tiles = self._is_tiled(band)
        inside = in_parallel or tiles or band.has_parallel_loop
        # The band goes last: what is below asks which loops are around it.
        below = self.optimised(node.child(0), inside).parent().delete()
        inner = InnerLoops(list(band.members))
        if band.is_last:
            inner = vector_loops(band, self._options.lanes, tiles)
            self._found.vectors += any(one.mark == VECTOR for one in inner.loops)
            self._found.cost += self._cost(band, inner, tiles)
        for one in inner.loops:
            one.is_separated = self._options.separates and not one.tile
        if inner.vector is not None:
            below = in_row_order(below, band, inner.vector)
        if not tiles:
            return self._untiled(below, band, inner, in_parallel)
        if band.is_last and inner.vector is None:
            below = with_rows_or_diagonals(below, band)
        else:
            below = with_loops(below, inner.loops)
        return self._tiles(below, band, in_parallel)

    def _cost(self, band: Band, inner: InnerLoops, is_tiled: bool) -> float:
        """About how many cycles the statements of a band that holds no other take."""
        number = len(band.members) - 1 if inner.vector is None else inner.vector
        is_chain = inner.vector is None and RowOrder(band, number).has_chain
        from_memory = not is_tiled and band.reused_bytes() > self._options.cache_bytes
        strides = iter(band.strides[number])
        cycles = 0.0
        for statement in band.statements:
            own = [next(strides) for _ in statement.accesses]
            jumps = sum(stride is None or (is_write and stride != 1) for is_write, stride in own)
            each = jumps + from_memory + 1 / self._options.lanes
            if is_chain:
                each += _CHAIN if len(band.members) == 1 or not is_tiled else _DIAGONAL
            cycles += each * box_size(statement.domain)
        return cycles

    def _is_tiled(self, band: Band) -> bool:
        """Whether tiles keep what a band accesses again in a cache, or let it run side by side."""
        if not band.is_permutable or len(band.members) < 2 or self._options.tile <= 1:
            return False
        if band.has_parallel_loop:
            return band.reused_bytes() > self._options.cache_bytes
        if band.bytes_of_an_iteration() > self._options.cache_bytes:
            return True
        # Diagonals of tiles are faster where each iteration waits for the one before.
        return band.is_last and RowOrder(band, len(band.members) - 1).has_long_chain

    def _is_worth_threads(self, node: isl.ScheduleNode) -> bool:
        """Whether one run of the loops of a band is long enough to wake threads for."""
        prefix = node.get_prefix_schedule_union_map().intersect_domain(node.get_domain())
        runs = 0.0
        for times in _maps(prefix):
            once = middle(times.range(), range(times.dim(isl.dim_type.out)))
            runs += box_size(times.intersect_range(once).domain())
        return runs >= _WORTH_THREADS

    # Bands without tiles.

    def _untiled(
        self, below: isl.ScheduleNode, band: Band, inner: InnerLoops, in_parallel: bool
    ) -> isl.ScheduleNode:
        allowed = band.members if band.is_permutable else band.members[:1]
        chosen = next((one for one in allowed if one.coincident), None)
        loops = inner.loops
        if in_parallel or chosen is None:
            return with_loops(below, loops)
        self._found.parallel.update(one.name for one in band.statements)
        if chosen.function is loops[0].function and not loops[0].mark:
            return with_loops(below, [replace(loops[0], mark=PARALLEL), *loops[1:]])
        # Threads share out pieces, in which vectors and rows are whole.
        size = self._piece(band, band.members.index(chosen), inner)
        outer = replace(chosen.tiled(size), mark=PARALLEL)
        return with_loops(with_loops(below, loops), [outer])

    def _piece(self, band: Band, number: int, inner: InnerLoops) -> int:
        """How much of a loop a thread takes at a time; more where vectors run along it."""
        if number != inner.vector:
            return _PIECE
        most = self._options.inner_tile * 8
        # In the middle of a triangle, rows are half as long: later ones would go to one thread.
        share = band.extent_amid(number) / self._options.threads
        strip = VECTORS * self._options.lanes
        return int(min(most, max(_PIECE, strip * math.ceil(share / strip))))

    # Tiles.

    def _tiles(self, below: isl.ScheduleNode, band: "Band", in_parallel: bool) -> isl.ScheduleNode:
        members = band.members
        self._found.tiled.append(len(members))
        # The rows of skewed tiles are cut at both ends, and have to be longer to be worth it. With
        # two loops each row is a wavefront of its own, which wakes the threads.
        longer = _SKEWED_ROWS if len(members) > 2 else _SKEWED_LINES
        last = self._options.inner_tile * (longer if band.is_skewed else 1)
        if any(one.coincident for one in members):
            last = self._options.inner_tile
        sizes = [self._options.tile] * (len(members) - 1) + [last]
        if not any(one.coincident for one in members):
            sizes[0] = self._even(band.extent(0), sizes[0])
        tiles = [one.tiled(size) for one, size in zip(members, sizes, strict=True)]
        if in_parallel:
            return with_loops(below, tiles)
        self._found.parallel.update(one.name for one in band.statements)
        chosen = next((n for n, one in enumerate(tiles) if one.coincident), None)
        if chosen is not None:
            first = replace(tiles[chosen], mark=PARALLEL)
            return with_loops(below, [first, *tiles[:chosen], *tiles[chosen + 1 :]])
        self._found.wavefront += 1
        front = Loop(tiles[0].function.add(tiles[1].function), False)
        return with_loops(below, [front, replace(tiles[1], mark=PARALLEL), *tiles[2:]])

    def _even(self, extent: float, tile: int) -> int:
        """The length of tiles of which a front has as many, and as long ones, for each thread."""
        rounds = math.ceil(extent / (self._options.threads * tile))
        even = math.ceil(extent / (self._options.threads * rounds))
        return max(even, tile // 4)


# How many times as long the rows of skewed tiles are.
_SKEWED_ROWS = 4
_SKEWED_LINES = 32

# Iterations of an outer loop that a thread takes at a time.
_PIECE = 32

# Cycles for each iteration that waits for the one before, and where diagonals run instead.
_CHAIN, _DIAGONAL = 5.0, 2.0

# Runs of statements that take longer than waking threads, about 10 us.
_WORTH_THREADS = 20000


def _maps(union: isl.UnionMap) -> list[isl.Map]:
    found = union.get_map_list()
    return [found.get_at(number) for number in range(found.n_map())]
