"""Reductions, softmax and normalisations: one kernel, by threads, warps or blocks for each row.

Rows that are long, and fewer than multiprocessors, are shared by several blocks in several kernels.
"""

from tvm import s_tir, tirx

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.elementwise import with_arrays
from tvm_ext.tir_schedules.cuda.launch import Arrays
from tvm_ext.tir_schedules.cuda.rows.open_length import has_open_length, open_length_rows
from tvm_ext.tir_schedules.cuda.rows.row_decision import RowLaunch, decide_launch
from tvm_ext.tir_schedules.cuda.rows.row_split import split_rows
from tvm_ext.tir_schedules.cuda.rows.row_split_decision import decide_splits
from tvm_ext.tir_schedules.cuda.rows.row_staging import staged
from tvm_ext.tir_schedules.cuda.rows.row_threads import ThreadRows
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions, Numbered
from tvm_ext.tir_schedules.flat_views import FlatViews, is_compact
from tvm_ext.tir_schedules.inlining import inline_blocks, kernel_blocks
from tvm_ext.tir_schedules.rows.row_hoist import hoisted
from tvm_ext.tir_schedules.rows.row_kernel import RowKernel
from tvm_ext.tir_schedules.rows.row_reader import read_rows
from tvm_ext.tir_schedules.rows.row_refusals import refuse_early, refuse_rows
from tvm_ext.tir_schedules.template import Machine, NotMine


class RowReduction:
    """Kernels that reduce rows, and may use the results for every element of the row again."""

    name = "row reduction"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not an NVIDIA GPU")
        refusal = refuse_early(s_tir.Schedule(func))
        if refusal is not None:
            return refusal
        parted = _in_parts(func, machine, decisions)
        if parted is not None:
            return parted
        launch: RowLaunch | NotMine = NotMine("no version of the kernel fits in registers")
        # Rows in registers first; where they are too long, reading and computing again.
        for repeat, stage in ((False, True), (False, False), (True, True), (True, False)):
            kernel = _read(func, repeat)
            if isinstance(kernel, NotMine):
                launch = kernel
                continue
            kernel = staged(kernel) if stage else kernel
            launch = _launch(kernel, machine, decisions)
            if isinstance(launch, RowLaunch):
                views = FlatViews(open_sizes=True)
                writer = ThreadRows(kernel, launch, views)
                code = writer.write()
                return s_tir.Schedule(with_arrays(func, views, [code], writer.arrays))
        return open_length_rows(func, machine, decisions) if has_open_length(func) else launch


def _in_parts(
    func: tirx.PrimFunc, machine: GpuDescription, decisions: Decisions
) -> s_tir.Schedule | None:
    """The kernel with each row shared by several blocks, where that is the better way."""
    kernel = _read(func, repeat=True)
    splits = 1 if isinstance(kernel, NotMine) else decide_splits(kernel, machine, decisions)
    if isinstance(kernel, NotMine) or splits == 1:
        return None
    launches = split_rows(kernel, splits)
    if isinstance(launches, NotMine):
        return None
    views, arrays, code = FlatViews(), Arrays(kernel.index_dtype), []
    for number, part in enumerate(launches):
        launch = _launch(part, machine, Numbered(decisions, number))
        if isinstance(launch, NotMine):
            return None
        writer = ThreadRows(part, launch, views)
        code.append(writer.write())
        arrays.buffers += writer.arrays.buffers
    return s_tir.Schedule(with_arrays(func, views, code, arrays))


def _read(func: tirx.PrimFunc, repeat: bool) -> RowKernel | NotMine:
    sch = s_tir.Schedule(func)
    inline_blocks(sch, repeat=repeat)
    blocks = [sch.get(block) for block in kernel_blocks(sch)]
    kernel = read_rows(blocks, func.params, open_rows=True)
    if isinstance(kernel, NotMine):
        return kernel
    if any(not is_compact(load.source, open_sizes=True) for load in kernel.loads()):
        return NotMine("a buffer is not laid out row by row")
    refusal = refuse_rows(kernel)
    return hoisted(kernel) if refusal is None else refusal


def _launch(
    kernel: RowKernel, machine: GpuDescription, decisions: Decisions
) -> RowLaunch | NotMine:
    probe = ThreadRows(kernel, RowLaunch(False, machine.warp_size, 1, 1), FlatViews(True))
    if not probe.keeps_rows_in_place():
        return NotMine("a thread would read elements of a row that another one computes")
    return decide_launch(kernel, probe.fits, machine, decisions)
