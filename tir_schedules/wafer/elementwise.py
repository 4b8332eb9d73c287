"""Elementwise and broadcast kernels on a mesh: every PE computes its part of the result."""

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    constant_parameter,
    kernel_blocks,
    operands_of,
)
from tvm_ext.tir_schedules.analysis.dimensions import Dimensions, dimensions_of, volume
from tvm_ext.tir_schedules.analysis.row_kernel import buffer_key
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.template import Decisions
from tvm_ext.tir_schedules.wafer.block_statements import reduces_or_scans
from tvm_ext.tir_schedules.wafer.mesh_partition import (
    Broadcasts,
    MeshPartition,
    decide_cut,
    parts_of,
    place_block,
    state_homes,
)


class WaferElementwise:
    """Kernels in which every element of the result is computed on its own.

    Tensors of the result's shape lie cut as it is, so that nothing has to move; what is the same
    for many elements (a bias that is no constant) is sent to the PEs that need it.
    """

    name = "wafer elementwise"
    machine_type = WaferDescription

    def apply(
        self, func: tirx.PrimFunc, machine: WaferDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        if reduces_or_scans(func):
            raise NotApplicable("the kernel reduces or scans")
        sch = inlined_schedule(func)
        stmts = [sch.get(block) for block in kernel_blocks(sch)]
        found = dimensions_of(stmts)
        largest = max(range(len(stmts)), key=lambda i: volume(stmts[i]))
        over = found.spatial(largest)
        if any(set(found.spatial(i)) - set(over) for i in range(len(stmts))):
            raise NotApplicable("its results have different dimensions")
        cut = decide_cut([(one, found.extents[one]) for one in over], machine, decisions)
        refuse_transposed(func, stmts, found, cut)
        _schedule(sch, found, cut)
        return sch


def refuse_transposed(
    func: tirx.PrimFunc, stmts: Sequence[s_tir.SBlock], dimensions: Dimensions, cut: MeshPartition
) -> None:
    """Raises NotApplicable for an operand with the dimension of the columns before the rows'."""
    for region in (one for stmt in stmts for one in operands_of(stmt)):
        axes = dimensions.axes[buffer_key(region.source)]
        if constant_parameter(func, region.source) is None and cut.transposes(axes):
            raise NotApplicable(f"{region.source.name} is read transposed")


def _schedule(sch: s_tir.Schedule, dimensions: Dimensions, cut: MeshPartition) -> None:
    broadcasts = Broadcasts(sch, dimensions, cut)
    for number, block in enumerate(kernel_blocks(sch)):
        parts = parts_of(sch, block, dimensions.loops[number], dimensions.reduces[number])
        placed = place_block(sch, block, parts, cut)
        broadcasts.copy_operands(placed, set(dimensions.spatial(number)))
    state_homes(sch, dimensions, cut)
