"""A matrix times a vector on a mesh: the matrix stays, columns of PEs add up partial results."""

import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.tir_schedules.inlining import schedule_of
from tvm_ext.tir_schedules.template import Decisions
from tvm_ext.tir_schedules.wafer.annotations import (
    COLUMN,
    COMMUNICATION,
    GROUP,
    HOME,
    MESH_AXIS,
    ROW,
    VECTOR,
    WHOLE,
    Pattern,
)
from tvm_ext.tir_schedules.wafer.contraction import WaferContraction
from tvm_ext.tir_schedules.wafer.mesh_partition import grid_options

# By number, as decisions are.
COMBINATIONS = (Pattern.CHAIN, Pattern.TREE, Pattern.TWO_PHASE, Pattern.K_TREE)
_TWO_PHASE = COMBINATIONS.index(Pattern.TWO_PHASE)


class WaferGemv:
    """GEMV, with what is computed from the result.

    The matrix is cut over rows (what is summed) and columns (the result). Each PE multiplies its
    tile by its part of the vector, which a row of PEs gets by multicast, and each column of PEs
    adds up: the distributed GEMV of C. He et al., "WaferLLM", OSDI 2025, with the pattern of the
    reduction as a decision.
    """

    name = "wafer gemv"
    machine_type = WaferDescription

    def apply(
        self, func: tirx.PrimFunc, machine: WaferDescription, decisions: Decisions
    ) -> s_tir.Schedule | NotApplicable:
        """See ``Template.apply``."""
        sch = schedule_of(func)
        found = WaferContraction.of(sch)
        if isinstance(found, NotApplicable):
            return found
        left, right = found.longest(found.m), found.longest(found.n)
        summed = found.longest(found.k)
        if found.size(found.batch) > 1:
            return NotApplicable("it is a batch of matmuls")
        if (left is None) == (right is None) or summed is None:
            return NotApplicable("neither operand is a vector, or nothing is summed")
        if any(None in _cut_dims(found, dims) for dims in found.dims):
            return NotApplicable("an operand is read by windows")
        result = left if left is not None else right
        _schedule(sch, found, result or 0, summed, int(left is not None), machine, decisions)
        return sch


def _cut_dims(contraction: WaferContraction, dims: tuple[int | None, ...]) -> list[int | None]:
    return [dim for dim in dims if dim is None or contraction.extents[dim] > 1]


def _schedule(
    sch: s_tir.Schedule,
    contraction: WaferContraction,
    result: int,
    summed: int,
    vector: int,
    machine: WaferDescription,
    decisions: Decisions,
) -> None:
    """``vector`` is the position of the operand that is the vector."""
    row_options = grid_options(contraction.extents[summed], machine.rows)
    column_options = grid_options(contraction.extents[result], machine.columns)
    rows = decisions.pick("rows", row_options, row_options[-1])
    columns = decisions.pick("columns", column_options, column_options[-1])
    pattern = decisions.pick("combination", range(len(COMBINATIONS)), _TWO_PHASE)
    groups = _group_options(rows) if COMBINATIONS[pattern] == Pattern.TWO_PHASE else [0]
    group = decisions.pick("group", groups, min(groups, key=lambda g: abs(g - math.isqrt(rows))))
    along_result = decisions.pick("vector_on_result", (0, 1), 1)

    loops = list(sch.get_loops(contraction.block))
    k0, _ = sch.split(loops[summed], factors=[rows, -(-contraction.extents[summed] // rows)])
    partial = sch.rfactor(k0, 0)
    every = list(sch.get_loops(partial))
    # The loop of the rows of PEs stands where the summed loop was, before the rest of it.
    k0, k1 = every[summed], every[summed + 1]
    n = every[result] if result < summed else every[result + 1]
    others = [one for i, one in enumerate(every) if not _is_among(one, (k0, k1, n))]
    n0, n1 = sch.split(n, factors=[columns, -(-contraction.extents[result] // columns)])
    inner = (k1, n1) if along_result else (n1, k1)
    sch.reorder(k0, n0, *others, *inner)
    sch.annotate(k0, MESH_AXIS, ROW)
    sch.annotate(n0, MESH_AXIS, COLUMN)
    sch.annotate(inner[1], VECTOR, 1)
    part = sch.cache_read(partial, vector, "local")
    sch.compute_at(part, n0)
    sch.annotate(part, COMMUNICATION, Pattern.MULTICAST_ROW)
    sch.decompose_reduction(partial, inner[0])
    _combine(sch, contraction.block, columns, f"{COMBINATIONS[pattern]}_{COLUMN}", group)
    if contraction.last is not None:
        _cut_columns(sch, contraction.last, columns)
    _state_homes(sch, contraction, result, summed, rows, columns)


def _group_options(rows: int) -> list[int]:
    return sorted({2**power for power in range(1, max(2, rows.bit_length()))} | {math.isqrt(rows)})


def _is_among(loop: LoopRV, others: tuple[LoopRV, ...]) -> bool:
    return any(loop.same_as(one) for one in others)


def _combine(
    sch: s_tir.Schedule,
    block: SBlockRV,
    columns: int,
    pattern: str,
    group: int,
) -> None:
    """The block that adds up what a column of PEs has."""
    loops = list(sch.get_loops(block))
    spatial, parts = loops[:-1], loops[-1]
    n = max(spatial, key=lambda loop: int(sch.get(loop).extent))
    others = [one for one in spatial if not one.same_as(n)]
    n0, n1 = sch.split(n, factors=[columns, None])
    sch.reorder(parts, n0, *others, n1)
    sch.annotate(parts, MESH_AXIS, ROW)
    sch.annotate(n0, MESH_AXIS, COLUMN)
    sch.annotate(block, COMMUNICATION, pattern)
    sch.annotate(block, GROUP, group)


def _cut_columns(sch: s_tir.Schedule, block: SBlockRV, columns: int) -> None:
    loops = list(sch.get_loops(block))
    n = max(loops, key=lambda loop: int(sch.get(loop).extent))
    n0, n1 = sch.split(n, factors=[columns, None])
    sch.reorder(n0, *[one for one in loops if not one.same_as(n)], n1)
    sch.annotate(n0, MESH_AXIS, COLUMN)


def _state_homes(
    sch: s_tir.Schedule,
    contraction: WaferContraction,
    result: int,
    summed: int,
    rows: int,
    columns: int,
) -> None:
    params = list(sch.mod["main"].params)
    root = sch.get_sblock("root")
    cut = {summed: f"{ROW}/{rows}", result: f"{COLUMN}/{columns}"}
    for operand, dims in zip(contraction.buffers, contraction.dims, strict=True):
        position = next((i for i, one in enumerate(params) if one.same_as(operand)), None)
        if position is not None:
            words = [cut.get(dim, WHOLE) if dim is not None else WHOLE for dim in dims]
            sch.annotate(root, f"{HOME}{position}", " ".join(words))
