"""Reductions of rows on a mesh, and what is computed around them: sums, softmax, norms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer import reduces
from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    kernel_blocks,
    nodes,
    operands_of,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.dimensions import Dimensions, dimensions_of
from tvm_ext.tir_schedules.analysis.row_kernel import (
    RowBlock,
    RowKernel,
    Store,
    buffer_key,
    substituted,
)
from tvm_ext.tir_schedules.analysis.row_reader import hoisted
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.reducers import rfactor
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, COMMUNICATION, GROUP, ROW, Pattern
from tvm_ext.tir_schedules.wafer.block_statements import (
    Change,
    Stage,
    reduces_or_scans,
    share_loops,
    with_changes,
    with_separate_sums,
)
from tvm_ext.tir_schedules.wafer.elementwise import refuse_transposed
from tvm_ext.tir_schedules.wafer.mesh_partition import (
    Broadcasts,
    LoopShare,
    MeshPartition,
    Placed,
    cut_loop,
    decide_cut,
    grid_options,
    parts_of,
    pick_pieces,
    place_block,
    state_homes,
)

# Computes once for each row what a block would compute again for every element of the row.


def with_row_values(
    func: tirx.PrimFunc, stmts: Sequence[s_tir.SBlock], dimensions: Dimensions, along: set[int]
) -> tirx.PrimFunc:
    """``func`` with roots and divisions that only depend on the row in blocks of their own.

    ``stmts`` are its blocks, and ``along`` the dimensions that a row goes over. On a mesh these
    operations are done element by element, so that once a row is worth a nest; see ``hoisted``
    for what becomes of divisions.
    """
    changes = {}
    for number, stmt in enumerate(stmts):
        if set(dimensions.spatial(number)) & along and not any(dimensions.reduces[number]):
            change = _change(stmt, dimensions, number, along)
            if change is not None:
                changes[number] = change
    return with_changes(func, changes)


def _change(
    stmt: s_tir.SBlock, dimensions: Dimensions, number: int, along: set[int]
) -> Change | None:
    loops = list(zip(stmt.iter_vars, dimensions.loops[number], strict=True))
    rows = tuple(one for one, dimension in loops if dimension not in along)
    columns = tuple(one for one, dimension in loops if dimension in along)
    block = RowBlock(
        _axes(columns), (Store(stmt.body.buffer, tuple(stmt.body.indices), stmt.body.value),), ()
    )
    kernel = RowKernel(_axes(rows), (block,), {}, str(stmt.iter_vars[0].var.ty))
    *once, rest = hoisted(kernel).blocks
    if not once:
        return None
    stages: list[Stage] = []
    loads: dict[int, Any] = {}
    for order, one in enumerate(once):
        (store,) = one.stores
        if not _is_slow(store.value):
            loads[buffer_key(store.buffer)] = store.value
            continue
        shape = [v.dom.extent for v in rows]
        name = f"{stmt.name_hint}_row{order}"
        stage = Stage(tirx.decl_buffer(shape, str(store.value.ty), name), rows, store.value)
        stages.append(stage)
        loads[buffer_key(store.buffer)] = stage.load()
    if not stages:
        return None
    value = substituted(
        rest.stores[0].value, {}, lambda load: loads.get(buffer_key(load.source), load)
    )
    return Change(tuple(stages), value)


def _is_slow(value: tvm.ir.Expr) -> bool:
    """Whether no vector instruction computes it: a quotient by a constant is a product."""
    quotients = nodes(value, tirx.Div)
    return bool(nodes(value, tvm.ir.Call)) or any(
        not isinstance(one.b, tirx.FloatImm) for one in quotients
    )


def _axes(variables: Sequence[tvm.ir.Expr]) -> tuple[LoopAxis, ...]:
    return tuple(LoopAxis(one.var, static_extent(one.dom.extent) or 1) for one in variables)


# Decides how rows that are reduced lie on a mesh: each in one PE, or cut over a line of PEs.


# By number, as decisions are.
COMBINATIONS = (Pattern.CHAIN, Pattern.TREE, Pattern.TWO_PHASE)
_TWO_PHASE = COMBINATIONS.index(Pattern.TWO_PHASE)


@dataclass(frozen=True)
class Rows:
    """Rows that are reduced.

    Attributes
    ----------
    across : tuple[tuple[int, int], ...]
        Dimensions by which rows are told apart, with their extents.
    along : tuple[tuple[int, int], ...]
        Those that are reduced.
    order : tuple[int, ...]
        All of them in the order in which the largest operand has them.
    element_bytes : int
        Of one result.
    """

    across: tuple[tuple[int, int], ...]
    along: tuple[tuple[int, int], ...]
    order: tuple[int, ...]
    element_bytes: int


@dataclass(frozen=True)
class RowSplit:
    """What was decided.

    Attributes
    ----------
    cut : MeshPartition
        Of rows over the mesh; with ``along``, of rows and of that dimension.
    along : int or None
        The dimension that is reduced in parts, one for each PE of a line.
    parts : int
        How many.
    axis : str
        "row" or "column": what of the mesh each part is.
    pattern : str
        How partial results are combined, as annotations say it.
    group : int
        PEs of a group, 0 for patterns without groups.
    """

    cut: MeshPartition
    along: int | None = None
    parts: int = 1
    axis: str = ""
    pattern: str = ""
    group: int = 0


def decide_rows(rows: Rows, machine: WaferDescription, decisions: Decisions) -> RowSplit:
    """Rows stay whole where they fill half of the mesh at least; else all of it is used.

    By default, a row that is cut goes to as many PEs as the mesh has in a line.
    """
    along = max(rows.along, key=lambda pair: pair[1], default=None)
    row = max(rows.across, key=lambda pair: pair[1], default=None)
    parts = 1
    lies_first = False
    if along is not None:
        # A tensor lies with its first large axis over the rows of the mesh, the other one over
        # the columns.
        lies_first = row is not None and rows.order.index(along[0]) < rows.order.index(row[0])
        line = machine.rows if lies_first else machine.columns
        options = grid_options(along[1], line)
        whole = decide_cut(rows.across, machine, DEFAULT_DECISIONS)
        fills = 2 * whole.rows * whole.columns >= machine.processing_elements
        parts = decisions.pick("split", options, 1 if fills else options[-1])
    if along is None or parts == 1:
        return RowSplit(decide_cut(rows.across, machine, decisions))
    return _cut_rows(rows, row, (along[0], parts), lies_first, machine, decisions)


def _cut_rows(
    rows: Rows,
    row: tuple[int, int] | None,
    along: tuple[int, int],
    lies_first: bool,
    machine: WaferDescription,
    decisions: Decisions,
) -> RowSplit:
    """``along`` is the dimension that is cut and the number of its pieces."""
    dimension, parts = along
    name, most = ("columns", machine.columns) if lies_first else ("rows", machine.rows)
    number, pieces = None, 1
    if row is not None:
        number, pieces = row[0], pick_pieces(name, row[1], most, decisions)
    results = math.prod(extent for _, extent in rows.across)
    words = -(-results // pieces) * rows.element_bytes / machine.word_bytes
    pattern, group = _combination(words, parts, machine, decisions)
    if lies_first:
        cut, axis, line = MeshPartition(dimension, number, parts, pieces), ROW, COLUMN
    else:
        cut, axis, line = MeshPartition(number, dimension, pieces, parts), COLUMN, ROW
    return RowSplit(cut, dimension, parts, axis, f"{pattern}_{line}", group)


def _combination(
    words: float, parts: int, machine: WaferDescription, decisions: Decisions
) -> tuple[str, int]:
    """The pattern that takes the fewest cycles by default, and the size of its groups."""
    best = reduces.best_group(parts)
    cycles = [
        reduces.chain(machine, words, parts).cycles,
        reduces.tree(machine, words, parts).cycles,
        reduces.two_phase(machine, words, parts, best).cycles,
    ]
    number = decisions.pick("combination", range(len(COMBINATIONS)), cycles.index(min(cycles)))
    if number != _TWO_PHASE:
        return COMBINATIONS[number], 0
    sizes = {best // 2, best, 2 * best}
    group = decisions.pick("group", sorted(one for one in sizes if 1 < one < parts), best)
    return COMBINATIONS[number], group


class WaferReduction:
    """Kernels that reduce rows, once or several times, and work on the same rows besides.

    A row stays in one PE, or is cut over a line of PEs, which combine their partial results; what
    needs the combined value in every PE gets it by multicast. What one nest leaves for the next
    stays in the memory of the PE.
    """

    name = "wafer reduction"
    machine_type = WaferDescription

    def apply(
        self, func: tirx.PrimFunc, machine: WaferDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        if not reduces_or_scans(func):
            raise NotApplicable("nothing is reduced")
        if share_loops(func):
            raise NotApplicable("blocks share loops")
        func = with_separate_sums(func)
        sch = inlined_schedule(func)
        stmts, found, rows = _read(sch)
        along = {dimension for dimension, _ in rows.along}
        changed = with_row_values(sch.mod["main"], stmts, found, along)
        if not changed.same_as(sch.mod["main"]):
            sch = s_tir.Schedule(changed)
            stmts, found, rows = _read(sch)
        split = decide_rows(rows, machine, decisions)
        refuse_transposed(func, stmts, found, split.cut)
        _schedule(sch, found, split)
        return sch


def _read(sch: s_tir.Schedule) -> tuple[list[s_tir.SBlock], Dimensions, Rows]:
    """The kernel's blocks, their dimensions and its rows."""
    stmts = [sch.get(block) for block in kernel_blocks(sch)]
    found = dimensions_of(stmts)
    return stmts, found, _rows(stmts, found)


def _rows(stmts: Sequence[s_tir.SBlock], dimensions: Dimensions) -> Rows:
    """What the rows are, and what goes along them, if that is the same for all reductions."""
    reducing = [i for i in range(len(stmts)) if any(dimensions.reduces[i])]
    if not reducing:
        raise NotApplicable("every reduction is over one element")
    first = reducing[0]
    across, along = set(dimensions.spatial(first)), set(dimensions.reduced(first))
    for number, stmt in enumerate(stmts):
        if number not in reducing:
            if set(dimensions.spatial(number)) - across - along:
                raise NotApplicable("a block works on more than the rows that are reduced")
            continue
        if set(dimensions.spatial(number)) != across or set(dimensions.reduced(number)) != along:
            raise NotApplicable("its reductions are over different rows")
        if _multiplies_rows(stmt):
            raise NotApplicable("it is a matmul")
    order = _order(stmts[first], dimensions)
    bits = tvm.DataType(str(stmts[first].writes[0].source.dtype)).bits
    return Rows(
        tuple((one, dimensions.extents[one]) for one in order if one in across),
        tuple((one, dimensions.extents[one]) for one in order if one in along),
        tuple(order),
        max(1, bits // 8),
    )


def _multiplies_rows(stmt: s_tir.SBlock) -> bool:
    """Whether a sum is over products of different rows, so that each row is used many times."""
    moving = [v.var for v in stmt.iter_vars if v.iter_type == tirx.IterVar.CommReduce]
    fixed = [v.var for v in stmt.iter_vars if v.iter_type == tirx.IterVar.DataPar]

    def rows(expr: tvm.ir.Expr) -> list[frozenset[int]]:
        found = []
        for load in nodes(expr, tvm.ir.TensorLoad):
            used = {buffer_key(var) for index in load.indices for var in nodes(index, tvm.ir.Var)}
            if used & {buffer_key(var) for var in moving}:
                found.append(frozenset(used & {buffer_key(var) for var in fixed}))
        return found

    products = nodes(stmt.body.value, tirx.Mul)
    return any(a != b for one in products for a in rows(one.a) for b in rows(one.b))


def _order(stmt: s_tir.SBlock, dimensions: Dimensions) -> list[int]:
    """Dimensions in the order of the axes of the largest operand, then those it does not have."""
    sizes = [(len(dimensions.of(region.source)), region.source) for region in operands_of(stmt)]
    largest = max(sizes, key=lambda pair: pair[0], default=(0, None))[1]
    axes = dimensions.axes[buffer_key(largest)] if largest is not None else ()
    order = [one for one in axes if one is not None]
    return order + [one for one in range(len(dimensions.extents)) if one not in order]


@dataclass(frozen=True)
class _Step:
    """A block with its loops, and the dimensions that it goes over."""

    block: SBlockRV
    parts: list[LoopShare]
    over: set[int]


def _schedule(sch: s_tir.Schedule, dimensions: Dimensions, split: RowSplit) -> None:
    blocks = kernel_blocks(sch)
    if split.along is not None:
        _give_loops(sch, blocks)
    placed: list[tuple[Placed, set[int]]] = []
    for number, block in enumerate(blocks):
        if split.along is not None and any(dimensions.reduces[number]):
            steps = _in_parts(sch, dimensions, split, block, number)
        else:
            parts = parts_of(sch, block, dimensions.loops[number], dimensions.reduces[number])
            steps = [_Step(block, parts, set(dimensions.spatial(number)))]
        # One block after the other, and copies last: TVM refuses to touch the loops of partial
        # results whose last part is short once it has changed those of other blocks.
        for step in steps:
            one = place_block(sch, step.block, step.parts, split.cut)
            placed.append((one, step.over))
    broadcasts = Broadcasts(sch, dimensions, split.cut)
    for one, over in placed:
        broadcasts.copy_operands(one, over)
    state_homes(sch, dimensions, split.cut)


def _give_loops(sch: s_tir.Schedule, blocks: Sequence[SBlockRV]) -> None:
    """TVM cannot put partial results before a block without a loop."""
    for block in blocks:
        if not sch.get_loops(block):
            sch.add_unit_loop(block)


def _in_parts(
    sch: s_tir.Schedule, dimensions: Dimensions, split: RowSplit, block: SBlockRV, number: int
) -> list[_Step]:
    """The block that makes partial results, one for each PE of a line, and the one behind it."""
    loops = list(zip(dimensions.loops[number], dimensions.reduces[number], strict=True))
    position = dimensions.loops[number].index(split.along)
    outer, _ = cut_loop(sch, list(sch.get_loops(block))[position], split.parts)
    partial = rfactor(sch, block, outer, 0)
    sch.annotate(block, COMMUNICATION, split.pattern)
    if split.group:
        sch.annotate(block, GROUP, split.group)
    over = set(dimensions.spatial(number))

    waiting = iter(sch.get_loops(partial))
    partial_parts: list[LoopShare] = []
    for i, (dimension, is_reduced) in enumerate(loops):
        if i == position:
            # Two loops, the outer one over PEs.
            partial_parts.append(LoopShare(next(waiting), dimension, axis=split.axis))
            dimension = None
        partial_parts.append(LoopShare(next(waiting), dimension, is_reduced))

    waiting = iter(sch.get_loops(block))
    parts = [
        LoopShare(next(waiting), dimension, axis=split.axis if i == position else "")
        for i, (dimension, is_reduced) in enumerate(loops)
        if i == position or not is_reduced
    ]
    both = over | set(dimensions.reduced(number))
    return [_Step(partial, partial_parts, both), _Step(block, parts, over)]
