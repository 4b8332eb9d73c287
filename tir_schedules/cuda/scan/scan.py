"""CumSum and CumProd on a GPU: blocks of threads along each scan, or threads across many.

Two launches where a few long scans are cut into chunks, else one. The floor is memory: two bytes
moved for each byte of the input, three where it is read for the totals of chunks first.
"""

from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.as_loops import as_loops, in_few_launches, without_offsets
from tvm_ext.tir_schedules.cuda.device_code import host_call
from tvm_ext.tir_schedules.cuda.elementwise import with_arrays
from tvm_ext.tir_schedules.cuda.rows.row_decision import RowLaunch, decide_launch
from tvm_ext.tir_schedules.cuda.rows.row_threads import ThreadRows
from tvm_ext.tir_schedules.cuda.scan.scan_code import ScanCode
from tvm_ext.tir_schedules.cuda.scan.scan_decision import ScanLaunch, decide_scan
from tvm_ext.tir_schedules.cuda.scan.scan_kernel import ScanKernel, scan_of
from tvm_ext.tir_schedules.cuda.vector_group import powers_down, vector_widths
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions, Numbered
from tvm_ext.tir_schedules.flat_views import FlatViews, is_compact, nodes
from tvm_ext.tir_schedules.rows.row_kernel import (
    Axis,
    RowBlock,
    RowKernel,
    Store,
    buffer_key,
    substituted,
)
from tvm_ext.tir_schedules.template import Machine, NotMine


class Scan:
    """Running sums, products and extrema along one axis."""

    name = "scan"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not an NVIDIA GPU")
        if host_call(func.body) is not None:
            return NotMine("the kernel is no scan: it calls a function of the host")
        func = without_offsets(func)
        kernel = scan_of(as_loops(in_few_launches(func)).body)
        if isinstance(kernel, NotMine):
            return kernel
        if any(not is_compact(p) for p in func.params if isinstance(p.ty, tirx.BufferType)):
            return NotMine("a tensor of the scan is not laid out row by row")
        launch = decide_scan(kernel, _widest(kernel, machine), machine, decisions)
        written = _written(func, kernel, launch, machine, decisions)
        return written if isinstance(written, NotMine) else s_tir.Schedule(written)


def _widest(kernel: ScanKernel, machine: GpuDescription) -> int:
    """The widest vectors that all loads and stores of the scan can be."""
    if kernel.runs_across:
        return 1
    stores = [*kernel.before, *kernel.after]
    dtypes = {str(load.source.dtype) for load in nodes(kernel.term, tvm.ir.TensorLoad)}
    widths = [vector_widths(store, machine)[0] for store in stores]
    widths += [machine.vector_lanes(dtype) for dtype in dtypes - {"bool"}]
    return next(width for width in powers_down(min(widths)) if _fits(kernel, width))


def _fits(kernel: ScanKernel, width: int) -> bool:
    """Whether all loads and stores move vectors of ``width`` elements."""
    if width == 1:
        return True
    probe = ScanCode(kernel, ScanLaunch(False, 32, 1, width, width, 1), FlatViews())
    held = probe.held(probe.registers("held", width))

    def term(_: Any, lane: Any) -> tirx.BufferStore:
        return tirx.BufferStore(held.buffer, kernel.term, [*held.thread, lane])

    def result(store: tirx.BufferStore) -> bool:
        return probe.fits(lambda _, lane: probe.result(store, held.at(lane)))

    return probe.fits(term) and all(result(store) for store in (*kernel.before, *kernel.after))


def _written(
    func: tirx.PrimFunc,
    kernel: ScanKernel,
    launch: ScanLaunch,
    machine: GpuDescription,
    decisions: Decisions,
) -> tirx.PrimFunc | NotMine:
    """The kernel, with one that sums up the chunks in front where there are several."""
    views = FlatViews()
    code = ScanCode(kernel, launch, views)
    size = tirx.const(max(1, launch.chunks - 1) * kernel.count, kernel.index_dtype)
    totals = tirx.decl_buffer([size], kernel.dtype, "chunk_totals")
    statements = []
    if launch.chunks > 1:
        sums = _sums_of_chunks(kernel, launch, totals)
        probe = ThreadRows(sums, RowLaunch(False, machine.warp_size, 1, 1), FlatViews())
        found = decide_launch(sums, probe.fits, machine, Numbered(decisions, 1))
        if isinstance(found, NotMine):
            return found
        rows = ThreadRows(sums, found, views)
        statements.append(rows.write())
        code.arrays.buffers += rows.arrays.buffers
    statements.append(code.write(views.of(totals)))
    return with_arrays(func, views, statements, code.arrays)


def _sums_of_chunks(kernel: ScanKernel, launch: ScanLaunch, totals: Any) -> RowKernel:
    """The totals of all chunks but the last, as a reduction of rows."""
    dtype = kernel.index_dtype
    chunk = Axis(tirx.Var("chunk", dtype), launch.chunks - 1)
    step = Axis(tirx.Var("step", dtype), launch.chunk)
    place: Any = chunk.var
    for axis in kernel.rows:
        place = place * tirx.const(axis.extent, dtype) + axis.var
    position = chunk.var * tirx.const(launch.chunk, dtype) + step.var
    term = substituted(kernel.term, {buffer_key(kernel.position.var): position})
    total = kernel.operation(tirx.BufferLoad(totals, [place]), term)
    block = RowBlock((step,), (Store(totals, (place,), total),), (kernel.identity,))
    return RowKernel((chunk, *kernel.rows), (block,), {}, dtype)
