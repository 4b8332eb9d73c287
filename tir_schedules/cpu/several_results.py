"""Several results of equal loops in one loop nest: what they read in common is loaded once."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis, among, count_calls, depends
from tvm_ext.tir_schedules.analysis.loop_nest import (
    Nest,
    in_order_of_writing,
    joined_together,
    nest_of,
    renamed,
    substitute,
    without_divisions,
)
from tvm_ext.tir_schedules.cpu.data_parallel import moved_bytes
from tvm_ext.tir_schedules.cpu.nest_code import (
    chunks,
    loop,
    loops_around,
    new_axis,
    vector_chunk,
    walks_in_steps_of_one,
)
from tvm_ext.tir_schedules.cpu.parallel_vectorize import (
    CYCLES_PER_CALL,
    REGISTERS_PER_VECTOR_LOOP,
    VECTORS,
    branch_comparisons,
    distinct,
    pick_threads,
    worth_threads,
)
from tvm_ext.tir_schedules.inlining import inlined_blocks
from tvm_ext.tir_schedules.statements import FlatViews, sequence, where_long
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Results for each of which a stream of stores goes to memory.
_MOST_RESULTS = 4


def several_results(
    func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
) -> s_tir.Schedule:
    """``func`` with all of its results stored in the body of one loop over vectors.

    Asks for ``vectors`` and ``threads``, as the schedule of one result does.

    Raises
    ------
    NotApplicable
        A result reduces, branches, is read along another axis than it is written, is computed from
        another one, has loops of other extents, or reads nothing that another one reads.
    """
    views = FlatViews(symbolic_sizes=True)
    nests = with_equal_loops(_nests(func, views))
    if not all(map(walks_in_steps_of_one, nests)):
        raise NotApplicable("a tensor is read along another axis than a result is written")
    if not _read_the_same(nests):
        raise NotApplicable("the results are computed from different elements")
    code = _vectors(nests, machine, decisions)
    return s_tir.Schedule(views.kernel(func, [code]))


def _nests(func: tirx.PrimFunc, views: FlatViews) -> list[Nest]:
    """One for each result, none of which depends on another one."""
    blocks = inlined_blocks(func)
    if not 1 < len(blocks) <= _MOST_RESULTS:
        raise NotApplicable(f"{len(blocks)} loop nests; expected 2 to {_MOST_RESULTS} results")
    found = [nest_of(block, views) for block in blocks]
    nests = [nest for nest in found if nest is not None]
    if len(nests) < len(found):
        raise NotApplicable("a result is not one assignment in loops that run in any order")
    inside = views.allocated(func)
    if any(among(nest.store.buffer, inside) for nest in nests):
        raise NotApplicable("a value that is no result stays in memory")
    stored = [nest.store.buffer for nest in nests]
    if any(among(load.source, stored) for nest in nests for load in nest.loads()):
        raise NotApplicable("a result is computed from another one")
    if any(branch_comparisons(nest.store.value) for nest in nests):
        raise NotApplicable("a result is computed in branches, which are loops of their own")
    return nests


def with_equal_loops(nests: Sequence[Nest]) -> list[Nest]:
    """The nests over one set of loops, joined where all of their tensors allow it.

    Raises NotApplicable where the extents of the loops are not proved to be equal.
    """
    ordered = [in_order_of_writing(without_divisions(nest)) for nest in nests]
    if not _have_equal_extents(ordered):
        # Shapes may differ where the elements are the same ones, in the same order.
        ordered = [joined_together([nest])[0] for nest in ordered]
    if not _have_equal_extents(ordered):
        raise NotApplicable("the loops of two results have different extents")
    axes, _ = renamed(ordered[0].axes)
    return joined_together([_over(nest, axes) for nest in ordered])


def _read_the_same(nests: Sequence[Nest]) -> bool:
    """Whether each nest reads, in every iteration, an element that another one reads there too.

    Measured on halves of a split: one loop over distant parts of a tensor takes up to 1.4 times as
    long as a loop for each of them.
    """
    moving = [
        {
            tvm_ffi.StructuralKey(load)
            for load in nest.loads()
            if depends(load.indices[0], *(axis.var for axis in nest.axes))
        }
        for nest in nests
    ]
    return all(
        any(own & other for place, other in enumerate(moving) if place != i)
        for i, own in enumerate(moving)
    )


def _have_equal_extents(nests: Sequence[Nest]) -> bool:
    first, *others = [nest.axes for nest in nests]
    analyzer = Analyzer()
    return all(
        len(axes) == len(first)
        and all(
            str(a.var.ty) == str(b.var.ty) and analyzer.can_prove_equal(a.extent, b.extent)
            for a, b in zip(first, axes, strict=True)
        )
        for axes in others
    )


def _over(nest: Nest, axes: tuple[LoopAxis, ...]) -> Nest:
    """The same nest with the variables of ``axes`` for its own."""
    names = {old.var: new.var for old, new in zip(nest.axes, axes, strict=True)}
    return replace(nest.with_expressions(lambda e: substitute(e, names)), axes=axes)


def _vectors(nests: Sequence[Nest], machine: CpuDescription, decisions: Decisions) -> tirx.Stmt:
    """The loops of all nests, which are the same, around vectors of each."""
    axes = nests[0].axes
    *outer, axis = axes
    lanes = min(machine.vector_lanes(dtype) for nest in nests for dtype in _dtypes(nest))

    def length_of(registers: int) -> int:
        known = axis.length
        return lanes * registers if known is None else vector_chunk(known, lanes, registers)

    options = distinct(VECTORS, REGISTERS_PER_VECTOR_LOOP, length_of)
    length = length_of(decisions.pick("vectors", options, REGISTERS_PER_VECTOR_LOOP))
    chunk, start = chunks(axis.extent, length, axis.var)
    lane = new_axis("lane", length, axis.var)
    stores = [_stored_at(nest, axis, start + lane.var) for nest in nests]
    body = loop(lane, sequence(stores), tirx.ForKind.VECTORIZED)
    if not nests[0].is_symbolic:
        cores = machine.cores if _on_threads(nests, lanes, machine, decisions) else 1
        return loops_around([*outer, chunk], body, cores)
    code = loops_around([*outer, chunk], body, machine.cores)
    return where_long([axis.extent], length, code, _plain(nests)) if axis.is_symbolic else code


def _stored_at(nest: Nest, axis: LoopAxis, place: tvm.ir.Expr) -> tirx.BufferStore:
    return nest.with_expressions(lambda e: substitute(e, {axis.var: place})).store


def _dtypes(nest: Nest) -> set[str]:
    return {str(nest.store.buffer.dtype), *(str(load.source.dtype) for load in nest.loads())}


def _on_threads(
    nests: Sequence[Nest], lanes: int, machine: CpuDescription, decisions: Decisions
) -> bool:
    operations = sum(n.volume() * (1 + CYCLES_PER_CALL * count_calls(n.store.value)) for n in nests)
    worth = worth_threads(machine, operations, lanes, sum(map(moved_bytes, nests)))
    return pick_threads(decisions, machine, lambda: nests[0].volume() // lanes, worth)


def _plain(nests: Sequence[Nest]) -> tirx.Stmt:
    """Loops without vectors, for few elements: on one thread."""
    axes, names = renamed(nests[0].axes)
    moved = [nest.with_expressions(lambda e: substitute(e, names)).store for nest in nests]
    return reduce(lambda body, axis: loop(axis, body), reversed(axes), sequence(moved))
