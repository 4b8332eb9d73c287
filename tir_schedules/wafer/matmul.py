"""Matrix products on a mesh: SUMMA, Cannon's algorithm and MeshGEMM as decisions of a schedule."""

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.block_access import constant_parameter, element_bytes
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
from tvm_ext.tir_schedules.wafer.matmul_cycles import MatmulSizes
from tvm_ext.tir_schedules.wafer.matmul_decision import (
    ON_LEFT,
    ON_RIGHT,
    ON_SUMMED,
    SUMMA,
    MatmulMapping,
    decide_matmul,
)
from tvm_ext.tir_schedules.wafer.skewed_steps import CANNON, INTERLEAVED, ORDER

_PATTERNS = {
    SUMMA: (Pattern.MULTICAST_ROW, Pattern.MULTICAST_COLUMN),
    CANNON: (Pattern.SHIFT_ROW, Pattern.SHIFT_COLUMN),
    INTERLEAVED: (Pattern.SHIFT_ROW, Pattern.SHIFT_COLUMN),
}


class MeshMatmul:
    """Products of two matrices, or of batches of them, with what is computed from the result.

    The result stays where it is, a tile in each PE; the operands' tiles move: to all PEs of a row
    or column in each step (SUMMA, R. van de Geijn and J. Watts, 1997), or from neighbour to
    neighbour (Cannon; MeshGEMM, whose ring has neighbours at most two hops apart). A constant
    second operand may stay too, as often as there are rows of PEs.
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
        batch = found.longest(found.batch)
        sizes = MatmulSizes(
            batch=found.extents[batch] if batch is not None else 1,
            left=found.extents[left],
            right=found.extents[right],
            summed=found.extents[summed],
            right_is_constant=constant_parameter(func, found.operands[1]) is not None,
            dtype=str(found.operands[0].dtype),
            element_bytes=element_bytes(found.operands[0]),
        )
        mapping = decide_matmul(sizes, machine, decisions)
        _schedule(sch, found, (left, right, summed), mapping)
        return sch


def _schedule(
    sch: s_tir.Schedule, found: Contraction, loops: tuple[int, int, int], mapping: MatmulMapping
) -> None:
    left, right, summed = loops
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
    k0, k1 = _cut(sch, every[summed], found.extents[summed], mapping.steps)
    others = [loop for position, loop in enumerate(every) if position not in (*loops, batch)]
    inner = {ON_SUMMED: k1, ON_LEFT: i1, ON_RIGHT: j1}
    vector = inner.pop(mapping.vector)
    sch.reorder(*outer, i0, j0, *inner_batch, k0, *others, *inner.values(), vector)
    sch.annotate(i0, MESH_AXIS, ROW)
    sch.annotate(j0, MESH_AXIS, COLUMN)
    sch.annotate(k0, PIPELINE, 1 + mapping.overlapped)
    sch.annotate(vector, VECTOR, 1)
    if mapping.algorithm != SUMMA:
        sch.annotate(k0, ORDER, mapping.algorithm)
    result = sch.cache_write(found.block, 0, "local")
    for number, pattern in enumerate(_PATTERNS[mapping.algorithm]):
        if number == 1 and mapping.resident:
            continue
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
    sch: s_tir.Schedule, found: Contraction, loops: tuple[int, int, int], mapping: MatmulMapping
) -> None:
    """Operands lie cut in both dimensions, their tiles where the algorithm needs them first."""
    left, right, summed = loops
    batch = found.longest(found.batch)
    words = (
        {left: f"{ROW}/{mapping.rows}", summed: f"{COLUMN}/{mapping.columns}"},
        {right: f"{COLUMN}/{mapping.columns}"},
    )
    if not mapping.resident:
        words[1][summed] = f"{ROW}/{mapping.rows}"
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
