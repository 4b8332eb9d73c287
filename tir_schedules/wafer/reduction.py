"""Reductions of rows on a mesh, and what is computed around them: sums, softmax, norms."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.block_access import operands_of
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.inlining import inline_blocks, kernel_blocks
from tvm_ext.tir_schedules.rows.row_kernel import buffer_key
from tvm_ext.tir_schedules.template import Machine, NotMine
from tvm_ext.tir_schedules.wafer.annotations import COMMUNICATION, GROUP
from tvm_ext.tir_schedules.wafer.block_statements import reduces_or_scans, share_loops
from tvm_ext.tir_schedules.wafer.broadcasts import Broadcasts, state_homes
from tvm_ext.tir_schedules.wafer.dimensions import Dimensions, dimensions_of
from tvm_ext.tir_schedules.wafer.elementwise import transposed
from tvm_ext.tir_schedules.wafer.mesh_cut import Part, Placed, cut_loop, parts_of, place_block
from tvm_ext.tir_schedules.wafer.row_split import Rows, RowSplit, decide_rows
from tvm_ext.tir_schedules.wafer.row_values import with_row_values
from tvm_ext.tir_schedules.wafer.separate_sums import with_separate_sums


class MeshReduction:
    """Kernels that reduce rows, once or several times, and work on the same rows besides.

    A row stays in one PE, or is cut over a line of PEs, which combine their partial results; what
    needs the combined value in every PE gets it by multicast. What one nest leaves for the next
    stays in the memory of the PE.
    """

    name = "mesh reduction"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, MeshDescription):
            return NotMine("the target is not a mesh")
        if not reduces_or_scans(func):
            return NotMine("nothing is reduced")
        if share_loops(func):
            return NotMine("blocks share loops")
        func = with_separate_sums(func)
        sch = s_tir.Schedule(func)
        inline_blocks(sch)
        read = _read(sch)
        if isinstance(read, NotMine):
            return read
        stmts, found, rows = read
        along = {dimension for dimension, _ in rows.along}
        changed = with_row_values(sch.mod["main"], stmts, found, along)
        if not changed.same_as(sch.mod["main"]):
            sch = s_tir.Schedule(changed)
            read = _read(sch)
            if isinstance(read, NotMine):
                return read
            stmts, found, rows = read
        split = decide_rows(rows, machine, decisions)
        refusal = transposed(func, stmts, found, split.cut)
        if refusal is not None:
            return refusal
        _schedule(sch, found, split)
        return sch


def _read(sch: s_tir.Schedule) -> tuple[list[s_tir.SBlock], Dimensions, Rows] | NotMine:
    """The kernel's blocks, their dimensions and its rows."""
    stmts = [sch.get(block) for block in kernel_blocks(sch)]
    found = dimensions_of(stmts)
    if isinstance(found, NotMine):
        return found
    rows = _rows(stmts, found)
    return rows if isinstance(rows, NotMine) else (stmts, found, rows)


def _rows(stmts: Sequence[s_tir.SBlock], found: Dimensions) -> Rows | NotMine:
    """What the rows are, and what goes along them, if that is the same for all reductions."""
    reducing = [i for i in range(len(stmts)) if any(found.reduces[i])]
    if not reducing:
        return NotMine("every reduction is over one element")
    first = reducing[0]
    across, along = set(found.spatial(first)), set(found.reduced(first))
    for number, stmt in enumerate(stmts):
        if number not in reducing:
            if set(found.spatial(number)) - across - along:
                return NotMine("a block works on more than the rows that are reduced")
            continue
        if set(found.spatial(number)) != across or set(found.reduced(number)) != along:
            return NotMine("its reductions are over different rows")
        if _multiplies_rows(stmt):
            return NotMine("it is a product of matrices")
    order = _order(stmts[first], found)
    bits = tvm.DataType(str(stmts[first].writes[0].source.dtype)).bits
    return Rows(
        tuple((one, found.extents[one]) for one in order if one in across),
        tuple((one, found.extents[one]) for one in order if one in along),
        tuple(order),
        max(1, bits // 8),
    )


def _multiplies_rows(stmt: s_tir.SBlock) -> bool:
    """Whether a sum is over products of different rows, so that each row is used many times."""
    moving = [v.var for v in stmt.iter_vars if v.iter_type == tirx.IterVar.CommReduce]
    fixed = [v.var for v in stmt.iter_vars if v.iter_type == tirx.IterVar.DataPar]

    def rows(expr: Any) -> list[frozenset[int]]:
        found = []
        for load in nodes(expr, tvm.ir.TensorLoad):
            used = {buffer_key(var) for index in load.indices for var in nodes(index, tvm.ir.Var)}
            if used & {buffer_key(var) for var in moving}:
                found.append(frozenset(used & {buffer_key(var) for var in fixed}))
        return found

    products = nodes(stmt.body.value, tirx.Mul)
    return any(a != b for one in products for a in rows(one.a) for b in rows(one.b))


def _order(stmt: s_tir.SBlock, found: Dimensions) -> list[int]:
    """Dimensions in the order of the axes of the largest operand, then those it does not have."""
    sizes = [(len(found.of(region.source)), region.source) for region in operands_of(stmt)]
    largest = max(sizes, key=lambda pair: pair[0], default=(0, None))[1]
    axes = found.axes[buffer_key(largest)] if largest is not None else ()
    order = [one for one in axes if one is not None]
    return order + [one for one in range(len(found.extents)) if one not in order]


@dataclass(frozen=True)
class _Step:
    """A block with its loops, and the dimensions that it goes over."""

    block: SBlockRV
    parts: list[Part]
    over: set[int]


def _schedule(sch: s_tir.Schedule, found: Dimensions, split: RowSplit) -> None:
    blocks = kernel_blocks(sch)
    if split.along is not None:
        _give_loops(sch, blocks)
    placed: list[tuple[Placed, set[int]]] = []
    for number, block in enumerate(blocks):
        if split.along is not None and any(found.reduces[number]):
            steps = _in_parts(sch, found, split, block, number)
        else:
            parts = parts_of(sch, block, found.loops[number], found.reduces[number])
            steps = [_Step(block, parts, set(found.spatial(number)))]
        # One block after the other, and copies last: TVM refuses to touch the loops of partial
        # results whose last part is short once it has changed those of other blocks.
        for step in steps:
            one = place_block(sch, step.block, step.parts, split.cut)
            placed.append((one, step.over))
    broadcasts = Broadcasts(sch, found, split.cut)
    for one, over in placed:
        broadcasts.copy_operands(one, over)
    state_homes(sch, found, split.cut)


def _give_loops(sch: s_tir.Schedule, blocks: Sequence[SBlockRV]) -> None:
    """TVM cannot put partial results before a block without a loop."""
    for block in blocks:
        if not sch.get_loops(block):
            sch.add_unit_loop(block)


def _in_parts(
    sch: s_tir.Schedule, found: Dimensions, split: RowSplit, block: SBlockRV, number: int
) -> list[_Step]:
    """The block that makes partial results, one for each PE of a line, and the one behind it."""
    dimensions = list(zip(found.loops[number], found.reduces[number], strict=True))
    position = found.loops[number].index(split.along)
    outer, _ = cut_loop(sch, list(sch.get_loops(block))[position], split.parts)
    partial = sch.rfactor(outer, 0)
    sch.annotate(block, COMMUNICATION, split.pattern)
    if split.group:
        sch.annotate(block, GROUP, split.group)
    over = set(found.spatial(number))

    waiting = iter(sch.get_loops(partial))
    partial_parts: list[Part] = []
    for i, (dimension, reduces) in enumerate(dimensions):
        if i == position:
            # Two loops, the outer one over PEs.
            partial_parts.append(Part(next(waiting), dimension, axis=split.axis))
            dimension = None
        partial_parts.append(Part(next(waiting), dimension, reduces))

    waiting = iter(sch.get_loops(block))
    parts = [
        Part(next(waiting), dimension, axis=split.axis if i == position else "")
        for i, (dimension, reduces) in enumerate(dimensions)
        if i == position or not reduces
    ]
    both = over | set(found.reduced(number))
    return [_Step(partial, partial_parts, both), _Step(block, parts, over)]
