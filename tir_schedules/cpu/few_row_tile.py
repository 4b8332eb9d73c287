"""Products of few rows with a matrix that a run gives: as much of its rows at once as fits.

Such a matrix is not packed while compiling, and copying it would take longer than the product. How
the loops around a tile go is as for symbolic tiles.
"""

from dataclasses import replace

from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent
from tvm_ext.tir_schedules.cpu.blockwise import schedule_others
from tvm_ext.tir_schedules.cpu.symbolic_contraction import symbolic_contraction, with_code
from tvm_ext.tir_schedules.cpu.symbolic_tile import (
    epilogue_block,
    far_rows,
    single_sum,
    vector_axis,
    with_rows,
)
from tvm_ext.tir_schedules.cpu.symbolic_tile_code import symbolic_tile_code
from tvm_ext.tir_schedules.cpu.symbolic_tile_cut import MOST_FAR_ROWS
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions


class FewRowTile:
    """Kernels with one contraction of known extents, of few rows and a large computed operand."""

    name = "few row tile"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> s_tir.Schedule:
        """See ``Template.apply``. It asks for no decision: registers decide."""
        sch = inlined_schedule(func)
        anchor = single_sum(sch)
        if None in [static_extent(v.dom.extent) for v in sch.get(anchor).iter_vars]:
            raise NotApplicable("an extent is symbolic")
        epilogue = epilogue_block(sch, anchor)
        found = symbolic_contraction(sch, anchor, epilogue)
        columns = vector_axis(found)
        if columns is None:
            raise NotApplicable("no loop walks the output and the operands without a stride")
        lanes = machine.vector_lanes(str(found.start.ty))
        tile = with_rows(found, columns, (lanes,), machine)
        count = 1 if tile.rows is None else tile.rows.length or 0
        if not 0 < count <= MOST_FAR_ROWS:
            raise NotApplicable(f"more than {MOST_FAR_ROWS} rows")
        far = far_rows(found, tile, sch.mod["main"], machine)
        sizes = () if far is None else far.column_sizes(columns, count, lanes)
        if not sizes:
            raise NotApplicable("no large operand of the run lies along the columns")
        tile = replace(tile, column_sizes=sizes, row_sizes=(count,), far_rows=far)
        code = symbolic_tile_code(found, tile, machine.cores > 1)
        done = [block for block in (anchor, epilogue) if block is not None]
        schedule_others(sch, done, machine)
        return with_code(sch, code, done, found.views)
