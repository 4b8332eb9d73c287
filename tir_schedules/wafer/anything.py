"""The generic schedule for meshes: every block on its own, with copies of what lies elsewhere."""

from tvm import s_tir, tirx

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.inlining import inline_blocks, kernel_blocks
from tvm_ext.tir_schedules.template import Machine, NotMine
from tvm_ext.tir_schedules.wafer.block_statements import share_loops
from tvm_ext.tir_schedules.wafer.block_tiles import schedule_tiles
from tvm_ext.tir_schedules.wafer.separate_sums import with_separate_sums
from tvm_ext.tir_schedules.wafer.tile_plan import plan_tiles


class MeshBlockwise:
    """Any kernel made of blocks with known extents.

    The two largest loops of each block's result are cut over rows and columns. Tiles of what it
    reads come from wherever they lie; what depends on data (a gather by indices of the run) is
    left as it is.
    """

    name = "mesh blockwise"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, MeshDescription):
            return NotMine("the target is not a mesh")
        if share_loops(func):
            return NotMine("blocks share loops")
        func = with_separate_sums(func)
        sch = s_tir.Schedule(func)
        inline_blocks(sch)
        stmts = [sch.get(block) for block in kernel_blocks(sch)]
        extents = [static_extent(one.dom.extent) for stmt in stmts for one in stmt.iter_vars]
        if not stmts:
            return NotMine("the kernel has no blocks: its loops are written by hand")
        if None in extents:
            return NotMine("an extent is not known")
        if 0 in extents:
            return NotMine("there is nothing to compute")
        return schedule_tiles(sch, plan_tiles(func, stmts, machine, decisions))
