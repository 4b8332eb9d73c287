"""Rows whose length is known in the run only: threads walk along them in steps.

Nothing of a row waits in registers, as there may be any number of elements: every pass reads the
row again, from the caches mostly. Which version runs is decided by the sizes of the run: warps for
short rows, blocks of threads for long ones, 16-byte vectors where they divide the length. All
versions are launched, and the host leaves out those with an empty grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    is_compact,
    kernel_blocks,
    schedule_of,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.row_kernel import (
    RowBlock,
    RowKernel,
    accesses,
    buffer_key,
    has_waiting_rows,
    sized,
    substituted,
    with_joined_loops,
)
from tvm_ext.tir_schedules.analysis.row_reader import hoisted, read_rows, refuse_rows
from tvm_ext.tir_schedules.cuda.launch import Arrays, guarded, repeated
from tvm_ext.tir_schedules.cuda.row_decision import RowLaunch, along_and_beside, step_axis
from tvm_ext.tir_schedules.cuda.row_threads import ThreadRows
from tvm_ext.tir_schedules.cuda.vector_group import Lanes, powers_down
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.statements import FlatViews
from tvm_ext.tir_schedules.template import Decisions

# Elements of the longest row that one warp walks along: 64 for each of its threads.
_LONGEST_OF_WARP = 2048

# Loads of a thread that are written out one behind another, so that none waits for the last one.
_VECTORS_IN_FLIGHT, _SINGLES_IN_FLIGHT = 2, 4

_ROWS = (1, 2, 4, 8)
_PARTS = (64, 128, 256, 512, 1024)
_PARTS_ACROSS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Version:
    """One launch and the condition under which it is the one that runs.

    Attributes
    ----------
    launch : RowLaunch
        Threads and vectors.
    condition : tirx.Expr or None
        Of the sizes of the run; None for always.
    """

    launch: RowLaunch
    condition: Any


def has_symbolic_length(func: tirx.PrimFunc) -> bool:
    """Whether some loop of a reduction runs as often as is known in the run only."""
    sch = schedule_of(func)
    loops = [v for block in kernel_blocks(sch) for v in sch.get(block).iter_vars]
    reducing = [v for v in loops if v.iter_type == tirx.IterVar.CommReduce]
    return any(static_extent(v.dom.extent) is None for v in reducing)


def symbolic_length_rows(
    func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
) -> s_tir.Schedule:
    """``func`` in versions for short and long rows, with and without vectors.

    Decisions: ``vector``, ``rows`` of a block of warps, ``parts`` (threads of a long row), or
    ``parts_across``.
    """
    kernel = _read(func)
    views = FlatViews(symbolic_sizes=True)
    total = Arrays(kernel.index_dtype)
    code = []
    for version in _versions(kernel, machine, decisions):
        writer = SymbolicRows(kernel, version, views)
        code.append(writer.write())
        total.buffers += writer.arrays.buffers
    return s_tir.Schedule(views.kernel(func, code, total.buffers))


def _read(func: tirx.PrimFunc) -> RowKernel:
    # Computed again in every pass: nothing of a row waits.
    sch = inlined_schedule(func, repeat=True)
    blocks = [sch.get(block) for block in kernel_blocks(sch)]
    kernel = read_rows(blocks, func.params, symbolic_rows=True, symbolic_columns=True)
    if any(not is_compact(load.source, symbolic_sizes=True) for load in kernel.loads()):
        raise NotApplicable("a buffer is not laid out row by row")
    if has_waiting_rows(kernel):
        raise NotApplicable("a row of unknown length waits between two passes")
    refuse_rows(kernel)
    return hoisted(with_joined_loops(kernel))


def _versions(kernel: RowKernel, machine: CudaDescription, decisions: Decisions) -> list[Version]:
    warp = machine.warp_size
    symbolic_blocks = [block for block in kernel.blocks if not isinstance(block.length, int)]
    along, beside = along_and_beside(kernel, symbolic_blocks)
    if beside > along:
        parts = decisions.pick("parts_across", _PARTS_ACROSS, 8)
        return [Version(RowLaunch(True, parts, warp, 1), None)]
    length = symbolic_blocks[0].length
    probe = SymbolicRows(kernel, Version(RowLaunch(False, warp, 1, 1), None), FlatViews(True))
    widths = [w for w in powers_down(_widest(kernel, machine)) if probe.fits(w)]
    vector = decisions.pick("vector", widths, widths[0])
    rows = decisions.pick("rows", _ROWS, 4)
    parts = decisions.pick("parts", [n for n in _PARTS if n <= machine.max_threads_per_block], 256)
    short = length <= sized(_LONGEST_OF_WARP, str(length.ty))
    shapes = [(short, warp, rows), (tirx.Not(short), parts, 1)]
    found = []
    for fitting, threads, together in shapes:
        for width in sorted({1, vector}):
            launch = RowLaunch(False, threads, together, width)
            whole = tirx.floormod(length, sized(vector, str(length.ty))).equal(0)
            chosen = whole if width > 1 else tirx.Not(whole)
            condition = fitting if vector == 1 else tirx.And(fitting, chosen)
            found.append(Version(launch, condition))
    return found


def _widest(kernel: RowKernel, machine: CudaDescription) -> int:
    """Elements in 16 bytes of the widest type among all that has several elements."""
    touched = [buffer for b in kernel.blocks for buffer, _ in accesses(b.stores)]
    moved = [buffer for buffer in touched if buffer_key(buffer) not in kernel.inner]
    results = {buffer_key(s.buffer) for b in kernel.blocks if not b.columns for s in b.stores}
    results |= {buffer_key(s.buffer) for b in kernel.blocks if b.starts for s in b.stores}
    dtypes = {str(buffer.dtype) for buffer in moved if buffer_key(buffer) not in results}
    return min((machine.vector_lanes(dtype) for dtype in dtypes - {"bool"}), default=1)


class SymbolicRows(ThreadRows):
    """The statements of a row kernel of symbolic length under a launch."""

    def __init__(self, kernel: RowKernel, version: Version, views: FlatViews) -> None:
        super().__init__(kernel, version.launch, views)
        self.condition = version.condition

    def blocks(self) -> tvm.ir.Expr:
        """Blocks of threads, none when another version is to run."""
        count = super().blocks()
        if self.condition is None:
            return count
        number = sized(count, self.dtype)
        return tirx.Select(self.condition, number, self.number(0))

    def fits(self, width: int) -> bool:
        """Whether vectors of ``width`` elements suit all blocks where they divide the length."""
        if width == 1:
            return True
        for block in (b for b in self.kernel.blocks if b.columns):
            last = block.columns[-1].extent
            if len(block.stores) > 1 or not isinstance(last, tirx.Var):
                return False
            lane, _, store, ranges = self._vector(block, None, 0, width)
            if not Lanes(store, lane, width, ranges).fits():
                return False
        return True

    def _vector(
        self, block: RowBlock, partial: Sequence[Any] | None, step: Any, width: int
    ) -> tuple[Any, tuple[Any, Any], Any, list[tuple[Any, Any]]]:
        """Lane, (row, vector), and the store of a vector in these variables, with their ranges."""
        lane = tirx.Var("lane", self.dtype)
        vectors = tirx.floordiv(sized(block.length, self.dtype), self.number(width))
        at = step_axis("at", vectors, self.dtype)
        row = step_axis("row", self.kernel.count, self.dtype)
        chosen = block.stores[0] if partial is None else self._update(block, 0, partial)
        if partial is None and block.starts:
            chosen = self._update(block, 0)
        store = self.flat(chosen, block, row.var, at.var * width + lane, step)
        last = block.columns[-1].extent
        if width > 1 and isinstance(last, tirx.Var):
            # It is a multiple, where this version runs; said so, addresses are seen to be aligned.
            size = tirx.const(width, str(last.ty))
            store = substituted(store, {buffer_key(last): tirx.floordiv(last, size) * size})
        ranges = [(row.var, row.extent), (at.var, at.extent)]
        return lane, (row.var, at.var), store, ranges

    def _columns(self, block: RowBlock, partial: Sequence[Any] | None) -> tirx.Stmt:
        if isinstance(block.length, int):
            return super()._columns(block, partial)
        row, inside = self.row()
        parts = self.number(self.launch.parts)
        width = self.number(self.launch.vector)
        vectors = tirx.floordiv(sized(block.length, self.dtype), width)
        flight = _VECTORS_IN_FLIGHT if self.launch.vector > 1 else _SINGLES_IN_FLIGHT
        stride = self.launch.parts * flight
        steps = tirx.floordiv(vectors + self.number(stride - 1), self.number(stride))
        var = tirx.Var("i", self.dtype)

        def iteration(i: tvm.ir.Expr) -> tirx.Stmt:
            step = var * self.number(flight) + i
            at = step * parts + self.part
            condition = at < vectors
            if partial is None and inside is not None:
                condition = tirx.And(condition, inside)
            return guarded(condition, self._group(block, partial, row, at, step))

        body = repeated(flight, self.dtype, iteration)
        return tirx.For(var, self.number(0), steps, tirx.ForKind.SERIAL, body)

    def _group(
        self,
        block: RowBlock,
        partial: Sequence[Any] | None,
        row: tvm.ir.Expr,
        at: tvm.ir.Expr,
        step: tvm.ir.Expr,
    ) -> tirx.Stmt:
        if isinstance(block.length, int) or len(block.stores) > 1:
            return super()._group(block, partial, row, at, step)
        lane, variables, store, ranges = self._vector(block, partial, step, self.launch.vector)
        code = Lanes(store, lane, self.launch.vector, ranges).code(self.arrays, self.mine())
        values = zip(variables, (row, at), strict=True)
        return substituted(code, {buffer_key(var): value for var, value in values})
