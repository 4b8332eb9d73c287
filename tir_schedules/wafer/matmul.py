"""Matrix products on a mesh: SUMMA, Cannon's algorithm and MeshGEMM as decisions of a schedule."""

from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.template import Machine, NotMine
from tvm_ext.tir_schedules.wafer.annotations import (
    COLUMN,
    COMMUNICATION,
    HOME,
    MESH_AXIS,
    PIPELINE,
    ROW,
    VECTOR,
    WHOLE,
    Pattern,
)
from tvm_ext.tir_schedules.wafer.contraction import Contraction, contraction_of
from tvm_ext.tir_schedules.wafer.grid_options import grid_options
from tvm_ext.tir_schedules.wafer.skewed_steps import CANNON, INTERLEAVED, ORDER

SUMMA = 0
_PATTERNS = {
    SUMMA: (Pattern.MULTICAST_ROW, Pattern.MULTICAST_COLUMN),
    CANNON: (Pattern.SHIFT_ROW, Pattern.SHIFT_COLUMN),
    INTERLEAVED: (Pattern.SHIFT_ROW, Pattern.SHIFT_COLUMN),
}


@dataclass(frozen=True)
class _Mapping:
    """What was decided.

    Attributes
    ----------
    groups : int
        Products of a batch side by side, each on PEs of its own: groups of rows.
    rows, columns : int
        PEs of one product.
    algorithm : int
        SUMMA, CANNON or INTERLEAVED (MeshGEMM).
    overlapped : bool
        Whether messages are under way while PEs compute.
    vector_on_left : bool
        Whether an instruction goes along the first operand's own loop, or the second's.
    """

    groups: int
    rows: int
    columns: int
    algorithm: int
    overlapped: bool
    vector_on_left: bool


class MeshMatmul:
    """Products of two matrices, or of batches of them, with what is computed from the result.

    The result stays where it is, a tile in each PE; the operands' tiles move: to all PEs of a row
    or column in each step (SUMMA, R. van de Geijn and J. Watts, 1997), or from neighbour to
    neighbour (Cannon; MeshGEMM, whose ring has neighbours at most two hops apart).
    """

    name = "mesh matmul"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, MeshDescription):
            return NotMine("the target is not a mesh")
        sch = s_tir.Schedule(func)
        found = contraction_of(sch)
        if isinstance(found, NotMine):
            return found
        loops = [found.longest(group) for group in (found.left, found.right, found.summed)]
        if None in loops:
            return NotMine("an operand is a vector, or nothing is summed")
        if any(None in dims for dims in found.dims[:2]):
            return NotMine("an operand is read by windows")
        left, right, summed = (loop for loop in loops if loop is not None)
        mapping = _decide(found, left, right, summed, machine, decisions)
        _schedule(sch, found, (left, right, summed), mapping)
        return sch


def _decide(
    found: Contraction,
    left: int,
    right: int,
    summed: int,
    machine: MeshDescription,
    decisions: Decisions,
) -> _Mapping:
    extents = found.extents
    batch = found.longest(found.batch)
    most_groups = min(extents[batch], machine.rows) if batch is not None else 1
    groups = decisions.pick("groups", grid_options(most_groups, most_groups), most_groups)
    most = min(machine.rows // groups, machine.columns, extents[summed])
    algorithm = decisions.pick("algorithm", (SUMMA, CANNON, INTERLEAVED), INTERLEAVED)
    if algorithm == SUMMA:
        row_options = grid_options(extents[left], machine.rows // groups)
        column_options = grid_options(extents[right], machine.columns)
    else:
        size = max(extents[left], extents[right])
        row_options = [option for option in grid_options(size, most) if option <= most]
        column_options = []
    sides = [found.extents[loop] for loop in (left, right, summed)]
    rows = decisions.pick("rows", row_options, _balanced(row_options, sides, machine))
    columns = rows
    if algorithm == SUMMA:
        balanced = _balanced(column_options, sides, machine)
        columns = decisions.pick("columns", column_options, balanced)
    tiles = -(-extents[left] // rows), -(-extents[right] // columns)
    return _Mapping(
        groups,
        rows,
        columns,
        algorithm,
        bool(decisions.pick("overlapped", (0, 1), 1)),
        bool(decisions.pick("vector_on_left", (0, 1), int(tiles[0] >= tiles[1]))),
    )


def _balanced(options: list[int], sides: list[int], machine: MeshDescription) -> int:
    """The most PEs a side whose work of a step still takes as long as its two messages.

    With more of them, each step waits for messages, and there are as many steps as PEs in a row.
    """
    messages = 2 * machine.transfer_cycles
    start = machine.issue_cycles + machine.loop_cycles
    chosen = options[0]
    for option in options:
        longest, *others = sorted((-(-side // option) for side in sides), reverse=True)
        if others[0] * others[1] * (start + longest) >= messages:
            chosen = option
    return chosen


def _schedule(
    sch: s_tir.Schedule, found: Contraction, loops: tuple[int, int, int], mapping: _Mapping
) -> None:
    left, right, summed = loops
    steps = max(mapping.rows, mapping.columns)
    every = list(sch.get_loops(found.block))
    batch = found.longest(found.batch)
    outer: list[LoopRV] = []
    inner_batch: list[LoopRV] = []
    if batch is not None:
        group, rest = _cut(sch, every[batch], found.extents[batch], mapping.groups)
        sch.annotate(group, MESH_AXIS, ROW)
        outer.append(group)
        inner_batch.append(rest)
    i0, i1 = _cut(sch, every[left], found.extents[left], mapping.rows)
    j0, j1 = _cut(sch, every[right], found.extents[right], mapping.columns)
    k0, k1 = _cut(sch, every[summed], found.extents[summed], steps)
    others = [loop for position, loop in enumerate(every) if position not in (*loops, batch)]
    vector, scalar = (i1, j1) if mapping.vector_on_left else (j1, i1)
    sch.reorder(*outer, i0, j0, *inner_batch, k0, *others, k1, scalar, vector)
    sch.annotate(i0, MESH_AXIS, ROW)
    sch.annotate(j0, MESH_AXIS, COLUMN)
    sch.annotate(k0, PIPELINE, 1 + mapping.overlapped)
    sch.annotate(vector, VECTOR, 1)
    if mapping.algorithm != SUMMA:
        sch.annotate(k0, ORDER, mapping.algorithm)
    result = sch.cache_write(found.block, 0, "local")
    for number, pattern in enumerate(_PATTERNS[mapping.algorithm]):
        tile = sch.cache_read(found.block, number, "local")
        sch.compute_at(tile, k0)
        sch.annotate(tile, COMMUNICATION, pattern)
    _finish_result(sch, found, result, inner_batch[0] if inner_batch else j0)
    sch.decompose_reduction(found.block, k0)
    _state_homes(sch, found, loops, mapping)


def _cut(sch: s_tir.Schedule, loop: LoopRV, extent: int, count: int) -> tuple[LoopRV, LoopRV]:
    """``count`` pieces and the iterations of one; the last pieces may have fewer, or none."""
    outer, inner = sch.split(loop, factors=[count, -(-extent // count)])
    return outer, inner


def _finish_result(
    sch: s_tir.Schedule, found: Contraction, result: SBlockRV, under: LoopRV
) -> None:
    """What follows the sum is computed where the sum is."""
    if found.last is not None:
        sch.reverse_compute_inline(found.last)
    sch.reverse_compute_at(result, under)


def _state_homes(
    sch: s_tir.Schedule, found: Contraction, loops: tuple[int, int, int], mapping: _Mapping
) -> None:
    """Operands lie cut in both dimensions, their tiles where the algorithm needs them first."""
    left, right, summed = loops
    batch = found.longest(found.batch)
    words = (
        {left: f"{ROW}/{mapping.rows}", summed: f"{COLUMN}/{mapping.columns}"},
        {summed: f"{ROW}/{mapping.rows}", right: f"{COLUMN}/{mapping.columns}"},
    )
    params = list(sch.mod["main"].params)
    root = sch.get_sblock("root")
    for operand, dims, cut in zip(found.operands, found.dims, words, strict=False):
        position = next((i for i, one in enumerate(params) if one.same_as(operand)), None)
        if position is None:
            continue
        if batch is not None:
            cut = {**cut, batch: f"{ROW}/{mapping.groups}"}
        home = " ".join(cut.get(dim, WHOLE) if dim is not None else WHOLE for dim in dims)
        sch.annotate(root, f"{HOME}{position}", home)
