"""A matrix times a vector on a mesh: the matrix stays, columns of PEs add up partial results."""

import math
from collections.abc import Sequence

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.tir_schedules.analysis.buffer_access import among, schedule_of
from tvm_ext.tir_schedules.template import Decisions
from tvm_ext.tir_schedules.wafer.annotations import (
    COLUMN,
    COMMUNICATION,
    GROUP,
    MESH_AXIS,
    ROW,
    VECTOR,
    Pattern,
)
from tvm_ext.tir_schedules.wafer.contraction import WaferContraction
from tvm_ext.tir_schedules.wafer.mesh_partition import cut_loop, pick_pieces

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
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        sch = schedule_of(func)
        found = WaferContraction.of(sch)
        left, right = found.longest(found.m), found.longest(found.n)
        summed = found.longest(found.k)
        if found.size(found.batch) > 1:
            raise NotApplicable("it is a batch of matmuls")
        if (left is None) == (right is None) or summed is None:
            raise NotApplicable("neither operand is a vector, or nothing is summed")
        cut = (dim for dims in found.dims for dim in dims if dim is None or found.extents[dim] > 1)
        if None in cut:
            raise NotApplicable("an operand is read by windows")
        result = left if left is not None else right
        _schedule(sch, found, result or 0, summed, int(left is not None), machine, decisions)
        return sch


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
    rows = pick_pieces("rows", contraction.extents[summed], machine.rows, decisions)
    columns = pick_pieces("columns", contraction.extents[result], machine.columns, decisions)
    pattern = decisions.pick("combination", range(len(COMBINATIONS)), _TWO_PHASE)
    groups = _group_options(rows) if COMBINATIONS[pattern] == Pattern.TWO_PHASE else [0]
    group = decisions.pick("group", groups, min(groups, key=lambda g: abs(g - math.isqrt(rows))))
    along_result = decisions.pick("vector_on_result", (0, 1), 1)

    loops = list(sch.get_loops(contraction.block))
    k0, _ = cut_loop(sch, loops[summed], rows)
    partial = sch.rfactor(k0, 0)
    every = list(sch.get_loops(partial))
    # The loop of the rows of PEs stands where the summed loop was, before the rest of it.
    k0, k1 = every[summed], every[summed + 1]
    n = every[result] if result < summed else every[result + 1]
    others = [one for i, one in enumerate(every) if not among(one, (k0, k1, n))]
    n0, n1 = cut_loop(sch, n, columns)
    inner = (k1, n1) if along_result else (n1, k1)
    sch.reorder(k0, n0, *others, *inner)
    sch.annotate(k0, MESH_AXIS, ROW)
    sch.annotate(n0, MESH_AXIS, COLUMN)
    sch.annotate(inner[1], VECTOR, 1)
    part = sch.cache_read(partial, vector, "local")
    sch.compute_at(part, n0)
    sch.annotate(part, COMMUNICATION, Pattern.MULTICAST_ROW)
    sch.decompose_reduction(partial, inner[0])
    # The block that adds up what a column of PEs has.
    *spatial, parts = sch.get_loops(contraction.block)
    _cut_columns(sch, spatial, columns, [parts])
    sch.annotate(parts, MESH_AXIS, ROW)
    sch.annotate(contraction.block, COMMUNICATION, f"{COMBINATIONS[pattern]}_{COLUMN}")
    sch.annotate(contraction.block, GROUP, group)
    if contraction.last is not None:
        _cut_columns(sch, sch.get_loops(contraction.last), columns)
    home = {summed: f"{ROW}/{rows}", result: f"{COLUMN}/{columns}"}
    contraction.state_homes(sch, home, home)


def _group_options(rows: int) -> list[int]:
    return sorted({2**power for power in range(1, max(2, rows.bit_length()))} | {math.isqrt(rows)})


def _cut_columns(
    sch: s_tir.Schedule, loops: Sequence[LoopRV], columns: int, outer: Sequence[LoopRV] = ()
) -> None:
    """Puts the columns of PEs, which share the longest loop, around a block inside ``outer``."""
    n = max(loops, key=lambda loop: int(sch.get(loop).extent))
    n0, n1 = sch.split(n, factors=[columns, None])
    sch.reorder(*outer, n0, *(loop for loop in loops if not loop.same_as(n)), n1)
    sch.annotate(n0, MESH_AXIS, COLUMN)
