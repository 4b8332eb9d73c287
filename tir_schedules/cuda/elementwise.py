"""Elementwise, broadcast and data-movement kernels: each thread computes 16 bytes of the result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    among,
    is_data_parallel,
    kernel_blocks,
    nodes,
    schedule_of,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.loop_nest import (
    Nest,
    in_order_of_writing,
    joined,
    nest_of,
    split_axis,
    substitute,
    with_own_variables,
)
from tvm_ext.tir_schedules.cuda.elementwise_decision import (
    FlatDecision,
    decide_flat,
    digits,
    divides,
    with_lane,
)
from tvm_ext.tir_schedules.cuda.index_width import in_32_bits
from tvm_ext.tir_schedules.cuda.launch import Arrays, ThreadArray, bound, guarded, repeated
from tvm_ext.tir_schedules.cuda.vector_group import Lanes
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.statements import FlatViews, sequence
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions, NumberedDecisions

# Elementwise kernels with more than an assignment for an element: one thread for each.


_THREADS = (64, 128, 256, 512, 1024)


def element_blocks(
    sch: s_tir.Schedule, machine: CudaDescription, decisions: Decisions
) -> s_tir.Schedule:
    """One thread for each element, whatever is computed for it.

    ``sch`` holds data-parallel blocks only; it is scheduled in place.
    """
    blocks = kernel_blocks(sch)
    for number, block in enumerate(blocks):
        if any(static_extent(v.dom.extent) == 0 for v in sch.get(block).iter_vars):
            raise NotApplicable("a loop has no iterations")
        if not sch.get(block).iter_vars or _deals_with_threads(sch.get(block)):
            raise NotApplicable("a block brings loops of its own that are not over elements")
        asked = decisions if number == 0 and len(blocks) == 1 else DEFAULT_DECISIONS
        _schedule(sch, block, machine, asked)
    return sch


def _schedule(
    sch: s_tir.Schedule, block: SBlockRV, machine: CudaDescription, decisions: Decisions
) -> None:
    sizes = [size for size in _THREADS if size <= machine.max_threads_per_block]
    threads = decisions.pick("threads", sizes, 256)
    loops = list(sch.get_loops(block)) or [sch.add_unit_loop(block)]
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    grid, thread = sch.split(fused, factors=[None, threads])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


def _deals_with_threads(block: s_tir.SBlock) -> bool:
    """Whether a block binds loops itself, or has memory that not every thread can allocate."""
    loops = nodes(block.body, tirx.For)
    bound = any(tirx.ForKind(loop.kind) == tirx.ForKind.THREAD_BINDING for loop in loops)
    inner = nodes(block.body, s_tir.SBlock)
    memory = any(nested.alloc_buffers for nested in [block, *inner])
    return bound or memory or bool(nodes(block.body, tirx.AttrStmt))


# Elements dealt to threads where it is known in the run only how many there are.
#
# Which element a thread computes takes divisions by sizes. They are of 32 bits while the elements
# can be counted in them: 64-bit ones take a GPU four times as long. Addresses are of 64 bits.


_MOST = 2**31 - 1

Threads = Sequence[tuple[Any, int]]
Ranges = Sequence[tuple[Any, Any]]


def symbolic_code(decision: FlatDecision, arrays: Arrays) -> tirx.Stmt:
    """The grid of one block: ``vector`` elements for each thread, ``vectors`` times.

    The groups of a block of threads lie one behind another.
    """
    nest, width = decision.nest, decision.vector
    dtype, threads, repeats = arrays.index_dtype, decision.threads, decision.vectors
    inner = nest.axes[-1]
    tail = not divides(width, inner)
    # A rest is left of a single loop only.
    elements = nest.volume()
    groups = _up(elements, width) if tail else tirx.floordiv(elements, _number(width, elements))
    groups = groups.astype(dtype)

    def thread(index: tvm.ir.Expr, t: tvm.ir.Expr) -> tirx.Stmt:
        mine = [(t, threads)]

        def iteration(i: tvm.ir.Expr) -> tirx.Stmt:
            at = (index * repeats + i) * threads + t
            group = _symbolic_group(nest, at, groups, width, arrays, mine)
            if tail:
                rest = _rest(nest, at, width, arrays, mine)
                whole = tirx.floordiv(inner.extent, _number(width, inner.extent)).astype(dtype)
                group = tirx.IfThenElse(at < whole, group, rest)
            return guarded(at < groups, group)

        return repeated(repeats, dtype, iteration)

    blocks = _up(groups, threads * repeats)
    return bound(
        "blockIdx.x",
        blocks,
        dtype,
        lambda index: bound("threadIdx.x", threads, dtype, lambda t: thread(index, t)),
    )


def _symbolic_group(
    nest: Nest, at: tvm.ir.Expr, groups: tvm.ir.Expr, width: int, arrays: Arrays, threads: Threads
) -> tirx.Stmt:
    """Group number ``at``: ``width`` elements of the innermost loop."""
    store, lane, width, ranges = with_lane(nest, width)
    code = Lanes(store, lane, width, ranges).code(arrays, threads)
    if len(ranges) == 1:
        return substitute(code, {ranges[0][0]: at})
    places = arrays.registers("place", len(ranges), arrays.index_dtype, threads)
    few = groups <= tirx.const(_MOST, arrays.index_dtype)
    found = tirx.IfThenElse(
        few,
        _places(at, ranges, places, arrays, threads, "int32"),
        _places(at, ranges, places, arrays, threads, arrays.index_dtype),
    )
    return sequence([found, substitute(code, _values(code, ranges, places, arrays.index_dtype))])


def _rest(nest: Nest, at: tvm.ir.Expr, width: int, arrays: Arrays, threads: Threads) -> tirx.Stmt:
    """The elements after the last whole vector of a single loop."""
    dtype = arrays.index_dtype
    end = nest.axes[-1].extent.astype(dtype)

    def single(i: tvm.ir.Expr) -> tirx.Stmt:
        place = at * width + i
        return guarded(place < end, _symbolic_group(nest, place, end, 1, arrays, threads))

    return repeated(width, dtype, single)


def _places(
    at: tvm.ir.Expr,
    ranges: Ranges,
    places: ThreadArray,
    arrays: Arrays,
    threads: Threads,
    counted: str,
) -> tirx.Stmt:
    """Stores the loop variables of group ``at``, counted in the type ``counted``.

    What is left to be divided is in registers as well: TVM would put expressions in the place of
    variables, and 64 bits in the place of 32.
    """
    left = arrays.registers("left", len(ranges), counted, threads)
    dtype = arrays.index_dtype

    def number(value: int) -> tvm.ir.Expr:
        return tirx.const(value, dtype)

    statements = [left.put(number(len(ranges) - 1), at.astype(counted))]
    for position in range(len(ranges) - 1, 0, -1):
        extent = ranges[position][1]
        size = tirx.const(extent, counted) if isinstance(extent, int) else extent.astype(counted)
        here, above = left.at(number(position)), left.at(number(position - 1))
        own = (here - above * size).astype(dtype)
        statements.append(left.put(number(position - 1), tirx.Div(here, size)))
        statements.append(places.put(number(position), own))
    statements.append(places.put(number(0), left.at(number(0)).astype(dtype)))
    return sequence(statements)


def _values(code: tirx.Stmt, ranges: Ranges, places: ThreadArray, dtype: str) -> dict[Any, Any]:
    values = {var: places.at(tirx.const(i, dtype)) for i, (var, _) in enumerate(ranges)}
    if nodes(code, tirx.FloorDiv, tirx.FloorMod):
        # None is negative: said so, TVM divides in one instruction.
        return {var: tirx.Max(value, tirx.const(0, dtype)) for var, value in values.items()}
    return values


def _up(value: tvm.ir.Expr, step: int) -> tvm.ir.Expr:
    """How many steps there are in ``value``, the last one perhaps not whole."""
    return tirx.floordiv(value + _number(step - 1, value), _number(step, value))


def _number(value: int, like: tvm.ir.Expr) -> tvm.ir.Expr:
    return tirx.const(value, str(like.ty))


# Kernels with more blocks than this are asked nothing: their space would be too large.
_MOST_ASKED = 3


class CudaElementwise:
    """Kernels in which every output element is computed on its own."""

    name = "elementwise"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        read = read_nests(func)
        if read.nests is None:
            return element_blocks(read.schedule, machine, decisions)
        arrays = Arrays(read.index_dtype)
        asked = asked_by_block(read.nests, decisions)
        code = [
            flat_code(decide_flat(nest, machine, ask), arrays)
            for nest, ask in zip(read.nests, asked, strict=True)
        ]
        return s_tir.Schedule(read.views.kernel(func, code, arrays.buffers))


@dataclass(frozen=True)
class KernelNests:
    """A kernel without reductions, read.

    Attributes
    ----------
    schedule : s_tir.Schedule
        The kernel with its blocks inlined.
    nests : list[Nest] or None
        One for each block that is left, the loops in the order of the result; None when one has
        no such form: several assignments, for one.
    views : FlatViews
        Of the buffers that the nests use.
    """

    schedule: s_tir.Schedule
    nests: list[Nest] | None
    views: FlatViews

    @property
    def index_dtype(self) -> str:
        """The type that loops count in."""
        axes = [axis for nest in self.nests or () for axis in nest.axes]
        return str(axes[0].var.ty) if axes else "int32"


def read_nests(func: tirx.PrimFunc) -> KernelNests:
    """The nests of a kernel without reductions. Raises NotApplicable for any other."""
    sch = schedule_of(func)
    if not all(is_data_parallel(sch, block) for block in kernel_blocks(sch)):
        raise NotApplicable("the kernel reduces or scans")
    sch = inlined_schedule(func, repeat=True)
    views = FlatViews(symbolic_sizes=True)
    nests: list[Nest] = []
    for block in kernel_blocks(sch):
        if any(static_extent(v.dom.extent) == 0 for v in sch.get(block).iter_vars):
            # Nothing to compute, and a grid without threads cannot be launched.
            continue
        nest = nest_of(sch.get(block), views)
        if nest is None:
            return KernelNests(sch, None, views)
        nests.append(with_own_variables(joined(in_order_of_writing(nest))))
    return KernelNests(sch, in_32_bits(nests), views)


def asked_by_block(nests: Sequence[Nest], decisions: Decisions) -> list[Decisions]:
    """Who decides for each block: numbered decisions, and the default heuristic for many."""
    if len(nests) == 1:
        return [decisions]
    if len(nests) > _MOST_ASKED:
        return [DEFAULT_DECISIONS] * len(nests)
    return [NumberedDecisions(decisions, number + 1) for number in range(len(nests))]


def flat_code(decision: FlatDecision, arrays: Arrays) -> tirx.Stmt:
    """The grid of one block: ``vectors`` groups of ``vector`` elements for each thread.

    The groups of a thread lie along an outer loop where one divides: they share the arithmetic for
    the other loops, and their addresses differ by constants.
    """
    nest, repeats = decision.nest, decision.vectors
    if nest.is_symbolic:
        return symbolic_code(decision, arrays)
    if not nest.axes:
        return _grid(decision, 1, 1, arrays, lambda at, mine: nest.store)
    outer = next((p for p, a in enumerate(nest.axes[:-1]) if a.extent % repeats == 0), None)
    if repeats == 1 or outer is None:
        groups = -(-nest.volume() // decision.vector)

        def single(at: tvm.ir.Expr, mine: Threads) -> tirx.Stmt:
            return _with_tail(nest, at, decision.vector, arrays, mine)

        return _grid(decision, groups, repeats, arrays, single)
    split = split_axis(nest, outer, repeats)
    # Of an outer loop that is all repeated, only the repetition is left.
    again = outer + (nest.axes[outer].extent > repeats)
    groups = nest.volume() // (decision.vector * repeats)

    def several(at: tvm.ir.Expr, mine: Threads) -> tirx.Stmt:
        def iteration(i: tvm.ir.Expr) -> tirx.Stmt:
            known = {split.axes[again].var: i}
            return _group(split, at, decision.vector, arrays, mine, known)

        return repeated(repeats, arrays.index_dtype, iteration)

    return _grid(decision, groups, 1, arrays, several)


def _grid(
    decision: FlatDecision,
    groups: int,
    repeats: int,
    arrays: Arrays,
    body: Callable[[Any, Threads], tirx.Stmt],
) -> tirx.Stmt:
    """``body`` for every group, ``repeats`` of them for each thread."""
    dtype, threads = arrays.index_dtype, decision.threads
    blocks = -(-groups // (threads * repeats))

    def block(index: tvm.ir.Expr) -> tirx.Stmt:
        def thread(t: tvm.ir.Expr) -> tirx.Stmt:
            def iteration(i: tvm.ir.Expr) -> tirx.Stmt:
                at = (index * repeats + i) * threads + t
                whole = blocks * threads * repeats == groups
                inside = None if whole else at < tirx.const(groups, dtype)
                return guarded(inside, body(at, [(t, threads)]))

            return repeated(repeats, dtype, iteration)

        return bound("threadIdx.x", threads, dtype, thread)

    return bound("blockIdx.x", blocks, dtype, block)


def _with_tail(
    nest: Nest, at: tvm.ir.Expr, width: int, arrays: Arrays, threads: Threads
) -> tirx.Stmt:
    """Group number ``at``; the last one of a single loop may be a few elements only."""
    vector = _group(nest, at, width, arrays, threads, {})
    tail = nest.axes[-1].extent % width
    if not tail:
        return vector
    dtype = arrays.index_dtype
    last = nest.volume() // width

    def single(i: tvm.ir.Expr) -> tirx.Stmt:
        return _group(nest, i + tirx.const(last * width, dtype), 1, arrays, threads, {})

    rest = repeated(tail, dtype, single)
    return tirx.IfThenElse(at < tirx.const(last, dtype), vector, rest)


def _group(
    nest: Nest, at: tvm.ir.Expr, width: int, arrays: Arrays, threads: Threads, known: dict[Any, Any]
) -> tirx.Stmt:
    """Group number ``at`` of the loops without a ``known`` value: ``width`` of the innermost."""
    store, lane, width, ranges = with_lane(nest, width)
    code = Lanes(store, lane, width, ranges).code(arrays, threads)
    symbolic_ranges = [(v, n) for v, n in ranges if not among(v, list(known))]
    return substitute(code, {**digits(at, symbolic_ranges), **known})
