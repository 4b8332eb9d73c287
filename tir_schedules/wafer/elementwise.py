"""Elementwise and broadcast kernels on a mesh: every PE computes its part of the result."""

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.block_access import constant_parameter, operands_of
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.inlining import inline_blocks, kernel_blocks
from tvm_ext.tir_schedules.rows.row_kernel import buffer_key
from tvm_ext.tir_schedules.template import Machine, NotMine
from tvm_ext.tir_schedules.wafer.block_statements import reduces_or_scans
from tvm_ext.tir_schedules.wafer.broadcasts import Broadcasts, state_homes
from tvm_ext.tir_schedules.wafer.dimensions import Dimensions, dimensions_of, volume
from tvm_ext.tir_schedules.wafer.mesh_cut import MeshCut, decide_cut, parts_of, place_block


class MeshElementwise:
    """Kernels in which every element of the result is computed on its own.

    Tensors of the result's shape lie cut as it is, so that nothing has to move; what is the same
    for many elements (a bias that is no constant) is sent to the PEs that need it.
    """

    name = "mesh elementwise"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, MeshDescription):
            return NotMine("the target is not a mesh")
        if reduces_or_scans(func):
            return NotMine("the kernel reduces or scans")
        sch = s_tir.Schedule(func)
        inline_blocks(sch)
        stmts = [sch.get(block) for block in kernel_blocks(sch)]
        found = dimensions_of(stmts)
        if isinstance(found, NotMine):
            return found
        largest = max(range(len(stmts)), key=lambda i: volume(stmts[i]))
        over = found.spatial(largest)
        if any(set(found.spatial(i)) - set(over) for i in range(len(stmts))):
            return NotMine("its results have different dimensions")
        cut = decide_cut([(one, found.extents[one]) for one in over], machine, decisions)
        refusal = transposed(func, stmts, found, cut)
        if refusal is not None:
            return refusal
        _schedule(sch, found, cut)
        return sch


def transposed(
    func: tirx.PrimFunc, stmts: Sequence[s_tir.SBlock], found: Dimensions, cut: MeshCut
) -> NotMine | None:
    """A refusal where an operand would lie with the dimension of the columns before the rows'."""
    for region in (one for stmt in stmts for one in operands_of(stmt)):
        axes = found.axes[buffer_key(region.source)]
        if constant_parameter(func, region.source) is None and cut.turns(axes):
            return NotMine(f"{region.source.name} is read transposed")
    return None


def _schedule(sch: s_tir.Schedule, found: Dimensions, cut: MeshCut) -> None:
    broadcasts = Broadcasts(sch, found, cut)
    for number, block in enumerate(kernel_blocks(sch)):
        parts = parts_of(sch, block, found.loops[number], found.reduces[number])
        placed = place_block(sch, block, parts, cut)
        broadcasts.copy_operands(placed, set(found.spatial(number)))
    state_homes(sch, found, cut)
