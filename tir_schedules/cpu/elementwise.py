"""Elementwise, broadcast and data-movement kernels, transposes among them: one vectorised, parallel
loop nest a block.
"""

from contextlib import suppress
from dataclasses import replace
from functools import reduce

from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    access_of,
    count_calls,
    depends,
    kernel_blocks,
    runs_in_any_order,
)
from tvm_ext.tir_schedules.analysis.loop_nest import (
    Nest,
    in_order_of_writing,
    index_of,
    joined,
    load_strides,
    nest_of,
    restricted,
    store_strides,
    substitute,
    with_own_variables,
    without_divisions,
)
from tvm_ext.tir_schedules.cpu.data_parallel import (
    LoopPartition,
    block_code,
    block_pieces,
    lanes_of,
    leaves,
    plan_block,
    plan_blocks,
    scheduled,
    with_own_loops,
)
from tvm_ext.tir_schedules.cpu.loop_tables import allows_tables, loops_with_tables
from tvm_ext.tir_schedules.cpu.nest_code import chunks, loop, loops_around, new_axis, vector_loops
from tvm_ext.tir_schedules.cpu.parallel_vectorize import (
    MAX_PIECES,
    REGISTERS_PER_VECTOR_LOOP,
    branch_comparisons,
    changes,
    schedule_data_parallel,
    split_at_borders,
)
from tvm_ext.tir_schedules.cpu.register_transpose import TransposeTileDecision, tile_code
from tvm_ext.tir_schedules.cpu.several_results import several_results
from tvm_ext.tir_schedules.inlining import inlined_blocks, inlined_schedule
from tvm_ext.tir_schedules.statements import FlatViews, sequence, where_long
from tvm_ext.tir_schedules.template import Decisions

# Elementwise kernels and transposes of sizes that a run decides: vectors, tiles, or plain loops.
#
# Tiles and vectors have sizes that are numbers; the last of a loop laps over the one before. A
# loop that turns out shorter than one of them has a version of the code without.


# Shorter axes give vectors too short to be worth turning.
_MIN_EXTENT = 4


def symbolic_elementwise(func: tirx.PrimFunc, machine: CpuDescription) -> s_tir.Schedule:
    """The schedule of a kernel without reductions whose loops have any extents."""
    views = FlatViews(symbolic_sizes=True)
    code = []
    for block in inlined_blocks(func):
        nest = nest_of(block, views)
        if nest is None:
            raise NotApplicable("a block is not one assignment")
        if views.may_share_memory(nest.store, func):
            # Nothing may be computed twice. Blocks inside of a kernel are small tables.
            code.append(_plain(nest))
            continue
        statement = _code(joined(in_order_of_writing(without_divisions(nest))), machine)
        if statement is None:
            raise NotApplicable("a block walks what it reads or writes in steps that are not known")
        code.append(statement)
    return s_tir.Schedule(views.kernel(func, code))


def _code(nest: Nest, machine: CpuDescription) -> tirx.Stmt | None:
    """The loops of one block; None where neither vectors nor tiles fit its addresses."""
    if not nest.is_symbolic:
        return block_code(plan_block(block_pieces(nest, machine), machine), machine)
    comparisons = branch_comparisons(nest.store.value)
    pieces = _in_pieces(nest, machine) if comparisons else None
    # Which way a branch goes has to be known for whole vectors.
    if pieces is not None or any(depends(one, nest.axes[-1].var) for one in comparisons):
        return pieces
    if store_strides(nest)[-1] != 1:
        return None
    if any(load.source.same_as(nest.store.buffer) for load in nest.loads()):
        return None
    across = [i for i, steps in enumerate(load_strides(nest)) if steps[-1] not in (0, 1)]
    if not across:
        return _in_vectors(nest, machine)
    if comparisons:
        return None
    return _in_tiles(nest, across, machine) or _in_plain_loops(nest, machine)


def _in_pieces(nest: Nest, machine: CpuDescription) -> tirx.Stmt | None:
    """A piece of a loop of known length for each way of the branches: joined channels.

    None where branches depend on other loops, so that it is not known which way they go for whole
    vectors.
    """
    found = _borders(nest)
    if found is None:
        return None
    position, borders = found
    ends = (*borders, nest.axes[position].extent)
    parts = [
        restricted(nest, position, start, end - start)
        for start, end in zip((0, *borders), ends, strict=True)
    ]
    if any(branch_comparisons(part.store.value) for part in parts):
        return None
    outer = nest.axes[:position]
    inner = [replace(part, axes=part.axes[position:]) for part in parts]
    is_row = position == len(nest.axes) - 1 and all(part.axes[:position] == outer for part in parts)
    if not is_row or not all(map(_walks_straight, inner)):
        code = [_code(part, machine) for part in parts]
        return None if None in code else sequence(code)
    whole = with_own_loops(LoopPartition(outer, tuple(inner)))
    rows = [_row(part, machine) for part in leaves(whole)]
    return loops_around(whole.axes, sequence(rows), machine.cores)


def _borders(nest: Nest) -> tuple[int, tuple[int, ...]] | None:
    """The loop that decides all branches, and where; None where it is not one, or symbolic."""
    comparisons = branch_comparisons(nest.store.value)
    deciding = {
        position
        for position, axis in enumerate(nest.axes)
        if any(depends(comparison, axis.var) for comparison in comparisons)
    }
    if len(deciding) != 1:
        return None
    (position,) = deciding
    axis = nest.axes[position]
    if axis.is_symbolic:
        return None
    changed = [changes(comparison, [(axis.var, axis.extent)]) for comparison in comparisons]
    if None in changed:
        return None
    borders = sorted({border for found in changed if found for border in found[1]})
    return (position, tuple(borders)) if len(borders) < MAX_PIECES else None


def _walks_straight(nest: Nest) -> bool:
    """Whether vectors along the innermost loop load and store what lies together."""
    if any(load.source.same_as(nest.store.buffer) for load in nest.loads()):
        return False
    if not nest.axes:
        return True
    straight = all(steps[-1] in (0, 1) for steps in load_strides(nest))
    return straight and store_strides(nest)[-1] == 1


def _row(nest: Nest, machine: CpuDescription) -> tirx.Stmt:
    """A stretch of one row in vectors."""
    if not nest.axes:
        return nest.store
    parts = vector_loops(with_own_variables(nest), lanes_of(nest, machine), once=False)
    return sequence(
        [reduce(lambda body, axis: loop(axis, body), reversed(axes), body) for axes, body in parts]
    )


def _in_plain_loops(nest: Nest, machine: CpuDescription) -> tirx.Stmt:
    code = loops_with_tables(with_own_variables(nest), machine.cores)
    conditions = allows_tables(nest)
    return tirx.IfThenElse(reduce(tirx.And, conditions), code, _plain(nest)) if conditions else code


def _in_vectors(nest: Nest, machine: CpuDescription) -> tirx.Stmt:
    lanes, cores = lanes_of(nest, machine), machine.cores
    inner = nest.axes[-1]
    if not inner.is_symbolic:
        parts = vector_loops(with_own_variables(nest), lanes, once=False)
        # Each with variables of its own: they are loops of their own, one after the other.
        statements = [loops_around(outer, body, cores) for outer, body in parts]
        return tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]
    length = lanes * REGISTERS_PER_VECTOR_LOOP
    whole = with_own_variables(nest)
    *outer, axis = whole.axes
    chunk, start = chunks(axis.extent, length, axis.var)
    lane = new_axis("lane", length, axis.var)
    moved = whole.with_expressions(lambda e: substitute(e, {axis.var: start + lane.var}))
    vector = loop(lane, moved.store, tirx.ForKind.VECTORIZED)
    vectors = loops_around([*outer, chunk], vector, cores)
    return _where_long([axis], length, vectors, _plain(nest))


def _in_tiles(nest: Nest, across: list[int], machine: CpuDescription) -> tirx.Stmt | None:
    """Tiles transposed in registers, where all of ``across`` are contiguous."""
    strides = load_strides(nest)
    read = [
        axis
        for axis in range(len(nest.axes) - 1)
        if all(strides[i][axis] == 1 for i in across) and _is_long(nest.axes[axis])
    ]
    dtypes = {str(nest.store.buffer.dtype), *(str(load.source.dtype) for load in nest.loads())}
    if not read or not _is_long(nest.axes[-1]) or "bool" in dtypes:
        return None
    size = min(machine.vector_lanes(dtype) for dtype in {"float32", *dtypes})
    own = with_own_variables(nest)
    decision = TransposeTileDecision(len(own.axes) - 1, read[-1], size, transposed=tuple(across))
    outer, body = tile_code(own, decision)
    tiles = loops_around(outer, body, machine.cores)
    return _where_long([own.axes[-1], own.axes[read[-1]]], size, tiles, _plain(nest))


def _is_long(axis: LoopAxis) -> bool:
    return axis.is_symbolic or axis.extent >= _MIN_EXTENT


def _plain(nest: Nest) -> tirx.Stmt:
    """Loops without vectors, for few elements: on one thread."""
    nest = with_own_variables(nest)
    return loops_around(nest.axes, nest.store, 1)


def _where_long(axes: list[LoopAxis], length: int, code: tirx.Stmt, other: tirx.Stmt) -> tirx.Stmt:
    """``code`` where all symbolic ones of ``axes`` have ``length`` iterations."""
    symbolic = [index_of(axis.extent, axis.var) for axis in axes if axis.is_symbolic]
    return where_long(symbolic, length, code, other)


class CpuElementwise:
    """Kernels in which every output element is computed on its own."""

    name = "elementwise"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        if not all(map(runs_in_any_order, inlined_blocks(func))):
            raise NotApplicable("the kernel reduces or scans")
        if len(inlined_blocks(func)) > 1:
            with suppress(NotApplicable):
                return several_results(func, machine, decisions)
        try:
            plan = plan_blocks(func, machine, decisions)
        except NotApplicable:
            return _without_plan(func, machine)
        return scheduled(func, plan, machine)


def _without_plan(func: tirx.PrimFunc, machine: CpuDescription) -> s_tir.Schedule:
    try:
        return _block_by_block(inlined_schedule(func), machine)
    except NotApplicable:
        return symbolic_elementwise(func, machine)


def _block_by_block(sch: s_tir.Schedule, machine: CpuDescription) -> s_tir.Schedule:
    """For blocks that are more than one assignment: their loops stay in one piece."""
    branching = []
    for block in kernel_blocks(sch):
        access = access_of(sch, block)
        if access is None:
            raise NotApplicable("a loop has a symbolic extent or a block writes several buffers")
        dtype = str(sch.get(block).writes[0].source.dtype)
        calls = count_calls(sch.get(block).body)
        branching.append(schedule_data_parallel(sch, access, machine, dtype, calls))
    # Last, since blocks cannot be found by their loops any more.
    for inner in branching:
        if inner is not None:
            split_at_borders(sch, *inner)
    return sch


class CpuTranspose:
    """Kernels without a reduction, part of which is transposed in registers."""

    name = "transpose"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        if not all(map(runs_in_any_order, inlined_blocks(func))):
            raise NotApplicable("the kernel reduces or scans")
        plan = plan_blocks(func, machine, decisions)
        if not any(block.decision.tiles for block in plan.blocks):
            raise NotApplicable(
                "every buffer is read along the axis along which the result is written"
            )
        return scheduled(func, plan, machine)
