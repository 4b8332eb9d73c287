"""Reductions, softmax and normalisations: one kernel, by threads, warps or blocks for each row.

Rows that are long, and fewer than multiprocessors, are shared by several blocks in several
kernels.
"""

import math
from dataclasses import replace
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm_ffi import structural_equal

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    among,
    element_bytes,
    is_compact,
    kernel_blocks,
    nodes,
    schedule_of,
)
from tvm_ext.tir_schedules.analysis.guarded_loads import guarded_loads
from tvm_ext.tir_schedules.analysis.loop_nest import fresh
from tvm_ext.tir_schedules.analysis.row_kernel import (
    RowBlock,
    RowKernel,
    Store,
    buffer_key,
    substituted,
)
from tvm_ext.tir_schedules.analysis.row_parts import split_rows
from tvm_ext.tir_schedules.analysis.row_reader import (
    hoisted,
    read_rows,
    refuse_early,
    refuse_rows,
)
from tvm_ext.tir_schedules.cuda.launch import Arrays
from tvm_ext.tir_schedules.cuda.row_decision import (
    ROW_REGISTERS,
    RowLaunch,
    decide_launch,
    runs_across,
)
from tvm_ext.tir_schedules.cuda.row_symbolic import has_symbolic_length, symbolic_length_rows
from tvm_ext.tir_schedules.cuda.row_threads import ThreadRows
from tvm_ext.tir_schedules.cuda.vector_group import powers_up
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.statements import FlatViews
from tvm_ext.tir_schedules.template import Decisions, NumberedDecisions

# Keeps in registers what several passes over a row read from memory.


def staged(kernel: RowKernel) -> RowKernel:
    """The kernel with every input row that more than one block reads loaded once, at the start.

    Such a row waits in a buffer of the kernel. Loads under a condition stay where they are.
    """
    extents = next((_extents(b) for b in kernel.blocks if b.length == kernel.length), ())
    columns = tuple(
        LoopAxis(tirx.Var(f"staged{i}", kernel.index_dtype), n) for i, n in enumerate(extents)
    )
    found: list[tuple[Any, list[int]]] = []
    for number, block in enumerate(kernel.blocks):
        if _extents(block) == extents and extents:
            for load in _row_loads(kernel, block, columns):
                _note(found, load, number)
    shared = [load for load, users in found if len(set(users)) > 1]
    if not shared:
        return kernel
    inner = dict(kernel.inner)
    held = []
    copies = []
    for load in shared:
        size = tirx.const(math.prod(extents), kernel.index_dtype)
        buffer = tirx.decl_buffer([size], str(load.source.dtype), f"{load.source.name}_row")
        inner[buffer_key(buffer)] = (0,)
        index = _fused(columns, kernel.index_dtype)
        held.append((load, buffer))
        copies.append(_on_own_axes(RowBlock(columns, (Store(buffer, (index,), load),), ())))
    blocks = [_with_rows(block, columns, held, kernel.index_dtype) for block in kernel.blocks]
    return replace(kernel, blocks=(*copies, *blocks), inner=inner)


def _extents(block: RowBlock) -> tuple[int, ...]:
    return tuple(axis.extent for axis in block.columns)


def _renaming(block: RowBlock, columns: tuple[LoopAxis, ...]) -> dict[int, Any]:
    pairs = zip(block.columns, columns, strict=True)
    return {buffer_key(old.var): new.var for old, new in pairs}


def _row_loads(
    kernel: RowKernel, block: RowBlock, columns: tuple[LoopAxis, ...]
) -> list[tvm.ir.Expr]:
    """What a block always reads of the kernel's inputs for each of its columns."""
    names = _renaming(block, columns)
    written = {buffer_key(store.buffer) for b in kernel.blocks for store in b.stores}
    last = columns[-1].var
    loads = []
    for store in block.stores:
        for load, condition in guarded_loads(substituted(store.value, names), certain=True):
            used = [v for i in load.indices for v in tirx.analysis.undefined_vars(i)]
            inside = buffer_key(load.source) in written
            rows = not kernel.rows or any(v.same_as(a.var) for v in used for a in kernel.rows)
            if condition is None and not inside and rows and any(v.same_as(last) for v in used):
                loads.append(load)
    return loads


def _note(noted: list[tuple[Any, list[int]]], load: tvm.ir.TensorLoad, user: int) -> None:
    for other, users in noted:
        if _same(other, load):
            users.append(user)
            return
    noted.append((load, [user]))


def _same(load: tvm.ir.TensorLoad, other: tvm.ir.TensorLoad) -> bool:
    return load.source.same_as(other.source) and structural_equal(
        list(load.indices), list(other.indices)
    )


def _fused(columns: tuple[LoopAxis, ...], dtype: str) -> tvm.ir.Expr:
    index: Any = tirx.const(0, dtype)
    for axis in columns:
        index = index * tirx.const(axis.extent, dtype) + axis.var
    return index


def _on_own_axes(block: RowBlock) -> RowBlock:
    columns = tuple(LoopAxis(fresh(a.var), a.extent) for a in block.columns)
    names = _renaming(block, columns)
    stores = tuple(
        Store(
            s.buffer, tuple(substituted(i, names) for i in s.indices), substituted(s.value, names)
        )
        for s in block.stores
    )
    return RowBlock(columns, stores, block.starts)


def _with_rows(
    block: RowBlock, columns: tuple[LoopAxis, ...], held: list[tuple[Any, Any]], dtype: str
) -> RowBlock:
    """The block with loads from the rows that wait, in its own columns."""
    if _extents(block) != tuple(axis.extent for axis in columns):
        return block
    names = _renaming(block, columns)
    back = {buffer_key(new.var): old.var for old, new in zip(block.columns, columns, strict=True)}
    index = _fused(block.columns, dtype)

    def load(node: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        buffer = next((b for other, b in held if _same(other, node)), None)
        return node if buffer is None else tirx.BufferLoad(buffer, [index])

    stores = tuple(
        replace(s, value=substituted(substituted(s.value, names, load), back)) for s in block.stores
    )
    return replace(block, stores=stores)


# Whether rows are so few and so long that several blocks share one, and how many.


# Parts are whole numbers of the widest vectors of any type.
_PART_UNIT = 16

# Blocks of a multiprocessor that are at work at the same time, of the threads that long rows get.
_BLOCKS_OF_SM = 2

# Estimate: what one multiprocessor gets of L2's bandwidth, in shares, when others leave it alone.
_SHARES_OF_SM = 2

# Elements of a row below which a part is not worth a block.
_FEWEST_ELEMENTS = 1024

_MOST_SPLITS = 1024


def decide_splits(kernel: RowKernel, machine: CudaDescription, decisions: Decisions) -> int:
    """Parts of every row; 1 where a block takes whole rows.

    By default the sooner of the two: one block reads a row at what a multiprocessor alone gets
    of L2, or all multiprocessors read it at the bandwidth of memory, once for every launch, and
    there are launches to start. Where a run decides how many rows there are, they are taken for
    enough. Asks for ``splits``, where rows are long enough to be cut.
    """
    most = min(_MOST_SPLITS, kernel.length // _FEWEST_ELEMENTS)
    options = powers_up(most)
    if len(options) == 1 or not isinstance(kernel.count, int):
        return 1
    try:
        launches = split_rows(kernel, options[-1], _PART_UNIT)
    except NotApplicable:
        return 1
    # A block takes as many rows as a warp has threads where these are neighbours.
    rows = machine.warp_size if runs_across(kernel) else 1
    wanted = max(1, _BLOCKS_OF_SM * machine.sms * rows // kernel.count)
    best = max(n for n in options if n <= wanted)
    each = [_row_bytes(block) for block in kernel.blocks]
    # Rows that fit stay in registers after the first pass.
    fits = kernel.length <= ROW_REGISTERS * machine.max_threads_per_block
    row = max(each) if fits else sum(each)
    waves = -(-kernel.count // (rows * machine.sms))
    share = _SHARES_OF_SM * machine.l2_gbs * 1e9 / machine.sms
    whole = waves * min(rows, kernel.count) * row / share
    passes = kernel.count * sum(each)
    parts = passes / machine.bandwidth(passes)
    parts += (len(launches) - 1) * machine.kernel_overhead_us * 1e-6
    return decisions.pick("splits", options, best if parts < whole else 1)


def _row_bytes(block: RowBlock) -> int:
    """Bytes of one row that a block moves, every operand once for each of its elements."""
    if not block.columns:
        return 0
    own = [store.buffer for store in block.stores] if block.starts else []
    loads = [load for store in block.stores for load in nodes(store.value, tvm.ir.TensorLoad)]
    moved = [load.source for load in loads if not among(load.source, own)]
    moved += [] if block.starts else [store.buffer for store in block.stores]
    return block.length * sum(element_bytes(buffer) for buffer in moved)


class RowReduction:
    """Kernels that reduce rows, and may use the results for every element of the row again."""

    name = "row reduction"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        refuse_early(schedule_of(func))
        parted = _in_parts(func, machine, decisions)
        if parted is not None:
            return parted
        reason = NotApplicable()
        # Rows in registers first; where they are too long, reading and computing again.
        for repeat, stage in ((False, True), (False, False), (True, True), (True, False)):
            try:
                kernel = staged(_read(func, repeat)) if stage else _read(func, repeat)
                launch = _launch(kernel, machine, decisions)
            except NotApplicable as refusal:
                reason = refusal
                continue
            views = FlatViews(symbolic_sizes=True)
            writer = ThreadRows(kernel, launch, views)
            code = writer.write()
            return s_tir.Schedule(views.kernel(func, [code], writer.arrays.buffers))
        if has_symbolic_length(func):
            return symbolic_length_rows(func, machine, decisions)
        raise reason


def _in_parts(
    func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
) -> s_tir.Schedule | None:
    """The kernel with each row shared by several blocks, where that is the better way."""
    try:
        kernel = _read(func, repeat=True)
        splits = decide_splits(kernel, machine, decisions)
        if splits == 1:
            return None
        launches = [
            (part, _launch(part, machine, NumberedDecisions(decisions, number)))
            for number, part in enumerate(split_rows(kernel, splits, _PART_UNIT))
        ]
    except NotApplicable:
        return None
    views, arrays, code = FlatViews(), Arrays(kernel.index_dtype), []
    for part, launch in launches:
        writer = ThreadRows(part, launch, views)
        code.append(writer.write())
        arrays.buffers += writer.arrays.buffers
    return s_tir.Schedule(views.kernel(func, code, arrays.buffers))


def _read(func: tirx.PrimFunc, repeat: bool) -> RowKernel:
    sch = inlined_schedule(func, repeat=repeat)
    blocks = [sch.get(block) for block in kernel_blocks(sch)]
    kernel = read_rows(blocks, func.params, symbolic_rows=True)
    if any(not is_compact(load.source, symbolic_sizes=True) for load in kernel.loads()):
        raise NotApplicable("a buffer is not laid out row by row")
    refuse_rows(kernel)
    return hoisted(kernel)


def _launch(kernel: RowKernel, machine: CudaDescription, decisions: Decisions) -> RowLaunch:
    probe = ThreadRows(kernel, RowLaunch(False, machine.warp_size, 1, 1), FlatViews(True))
    if not probe.keeps_rows_in_place():
        raise NotApplicable("a thread would read elements of a row that another one computes")
    return decide_launch(kernel, probe.fits, machine, decisions)
