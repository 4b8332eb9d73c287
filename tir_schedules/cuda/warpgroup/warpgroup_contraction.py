"""Matmul and convolution by warpgroup instructions (wgmma) and TMA, on GPUs of capability 9.0a.

On such a GPU instructions of single warps reach less than two thirds of the tensor cores' rate.
Operands come to shared memory by TMA copies; the epilogue is applied to the results in registers, 8
neighbouring columns of a thread at a time.
"""

import math
from dataclasses import replace

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.matrix_instructions import WARPGROUP_ARCHITECTURE
from tvm_ext.tir_schedules.analysis.buffer_access import (
    access_of_reduction,
    element_bytes,
    kernel_blocks,
    only_reduction,
    schedule_of,
)
from tvm_ext.tir_schedules.analysis.contraction import loops_of_dimensions
from tvm_ext.tir_schedules.cuda.launch import Arrays, bound, guarded, repeated
from tvm_ext.tir_schedules.cuda.matmul.matmul_decision import MatmulProblem
from tvm_ext.tir_schedules.cuda.matmul.matmul_form import MatmulAxes, fused_map, matmul_axes
from tvm_ext.tir_schedules.cuda.matmul.shared_tile import inline_consumers
from tvm_ext.tir_schedules.cuda.warpgroup.stream_k import WarpgroupGemm
from tvm_ext.tir_schedules.cuda.warpgroup.tma import ALIGNMENT, TensorMapDimension
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_decision import decide_group_tiles
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_epilogue import EpilogueStore, WarpgroupEpilogue
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_mainloop import WarpgroupGemmKernel
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_operands import (
    ImageTensor,
    TmaOperand,
    WarpgroupGemmOperands,
    group_operands,
    order_steps_last,
)
from tvm_ext.tir_schedules.packing import packed_annotations, packed_operand
from tvm_ext.tir_schedules.statements import FlatViews, in_root_block, sequence
from tvm_ext.tir_schedules.template import Decisions

# Operands whose rows begin between multiples of 16 bytes, copied to rows that do not.
#
# TMA copies ask for such rows. A kernel that reads the operand once and writes it once is cheap
# beside a large matmul.


_THREADS = 256
_MOST_BLOCKS = (1 << 31) - 1


def staged_bytes(tensor: TmaOperand) -> int:
    """Bytes that copying the operand reads and writes; 0 where that is not needed."""
    if isinstance(tensor, ImageTensor) or tensor.is_aligned:
        return 0
    return 2 * math.prod(dim.extent for dim in tensor.dimensions) * element_bytes(tensor.buffer)


def staged(
    tensor: TmaOperand, name: str, arrays: Arrays, views: FlatViews
) -> tuple[TmaOperand, list[tirx.Stmt]]:
    """The operand with aligned rows, in an array of ``arrays``, and the kernel that writes it."""
    if isinstance(tensor, ImageTensor) or tensor.is_aligned:
        return tensor, []
    unit = ALIGNMENT // element_bytes(tensor.buffer)
    dims = tensor.dimensions
    length = -(-dims[0].extent // unit) * unit
    strides = [1]
    for dim in dims[:-1]:
        strides.append(strides[-1] * dim.extent if len(strides) > 1 else length)
    size = strides[-1] * dims[-1].extent if len(dims) > 1 else length
    copy = arrays.allocated(name, (size,), str(tensor.buffer.dtype), "global")
    compact = [TensorMapDimension(dim.extent, s) for dim, s in zip(dims, strides, strict=True)]
    code = _copy(views.of(tensor.buffer), dims, copy, length // unit, unit, arrays)
    first, second = compact[:2]
    selecting, steps = (first, second) if tensor.across else (second, first)
    outer = tuple(reversed(compact[2:]))
    split = len(tensor.batch)
    aligned = replace(
        tensor,
        buffer=copy,
        selecting=selecting,
        steps=steps,
        batch=outer[:split],
        taps=outer[split:],
    )
    return aligned, [code]


def _copy(
    source: tirx.Buffer,
    dims: list[TensorMapDimension],
    copy: tirx.Buffer,
    row: int,
    unit: int,
    arrays: Arrays,
) -> tirx.Stmt:
    """Every thread writes ``unit`` neighbours; ``row`` of them are a row, with zeros at its end."""
    dtype = arrays.index_dtype
    count = row * math.prod(dim.extent for dim in dims[1:])
    blocks = min(-(-count // _THREADS), _MOST_BLOCKS)

    def vector(block: tvm.ir.Expr, thread: tvm.ir.Expr) -> tirx.Stmt:
        number = block * _THREADS + thread
        held = arrays.registers("held", unit, str(copy.dtype), [(thread, _THREADS)])
        first = number % row * unit
        address, rest = first, number // row
        for dim in dims[1:]:
            address, rest = address + rest % dim.extent * dim.stride, rest // dim.extent

        def element(lane: tvm.ir.Expr) -> tirx.Stmt:
            inside = first + lane < tirx.const(dims[0].extent, dtype)
            load = tirx.BufferLoad(source, [address + lane])
            zero = tirx.const(0, str(copy.dtype))
            return held.put(lane, tirx.if_then_else(inside, load, zero))

        def store(lane: tvm.ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(copy, held.at(lane), [number * unit + lane])

        body = sequence(
            [
                repeated(unit, dtype, element),
                repeated(unit, dtype, store, tirx.ForKind.VECTORIZED),
            ]
        )
        inside = number < tirx.const(count, dtype) if count % _THREADS else None
        return guarded(inside, body)

    return bound(
        "blockIdx.x",
        blocks,
        dtype,
        lambda b: bound("threadIdx.x", _THREADS, dtype, lambda t: vector(b, t)),
    )


MAX_BATCH = 1 << 20


class WarpgroupContraction:
    """Kernels with one contraction of two operands.

    Operands of 16 bits, of 8-bit integers, and of float32 where tf32 is allowed. Convolutions of
    images with the channels last are products too.
    """

    name = "warpgroup contraction"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``. Decisions: those of ``decide_group_tiles``."""
        if machine.arch != WARPGROUP_ARCHITECTURE:
            raise NotApplicable(f"{machine.arch} has no instructions of warpgroups")
        sch = schedule_of(func)
        main = only_reduction(sch)
        _inline_copies(sch, main)
        access = access_of_reduction(sch)
        axes = matmul_axes(access, sch.get(main))
        sizes = [axes.size(group) for group in (axes.m, axes.n, axes.k)]
        if min(sizes) < 2 or axes.size(axes.batch) > MAX_BATCH:
            raise NotApplicable("M, N or K is 1, or the batch is too large")
        order_steps_last(sch, main, axes)
        operands = group_operands(sch, main, axes, machine.tf32)
        return self._scheduled(sch, main, axes, operands, machine, decisions)

    def _scheduled(
        self,
        sch: s_tir.Schedule,
        main: SBlockRV,
        axes: MatmulAxes,
        operands: WarpgroupGemmOperands,
        machine: CudaDescription,
        decisions: Decisions,
    ) -> s_tir.Schedule:
        func, row, packed = sch.mod["main"], operands.instruction, packed_operand(sch)
        sizes = [axes.size(group) for group in (axes.batch, axes.m, axes.n, axes.k)]
        batch, rows, columns, steps = sizes
        width = tvm.DataType(row.a).bits // 8
        wanted = MatmulProblem(batch, rows, columns, steps, row.rate, width, row.k)
        product = replace(wanted, m=operands.m, k=operands.k)
        copied = sum(map(staged_bytes, operands.tensors))
        tiles = decide_group_tiles(
            *(product, machine, decisions, copied),
            wanted=wanted,
            row_bytes=operands.row_bytes,
            across=operands.tensors[1].across,
        )
        written = _written(sch, main, axes)
        views = FlatViews()
        tile = (tiles.rows, tiles.columns)
        sizes = [batch, rows, columns]
        epilogue = WarpgroupEpilogue.of(written, sizes, tile, machine, views, operands.pixels)
        arrays = Arrays(str(written.variables[0].ty))
        first, copy_a = staged(operands.tensors[0], "aligned_a", arrays, views)
        second, copy_b = staged(operands.tensors[1], "aligned_b", arrays, views)
        cut = WarpgroupGemm(
            (first, second),
            *(batch, operands.m, columns, operands.k),
            row.a,
            tiles,
            machine.sms,
        )
        kernel = WarpgroupGemmKernel(cut, epilogue, arrays)
        code = [*copy_a, *copy_b, *kernel.statements()]
        body = sequence([*views.declarations(func), *code])
        realized = in_root_block(body, arrays.buffers, packed_annotations(packed))
        return s_tir.Schedule(func.with_body(realized))


def _inline_copies(sch: s_tir.Schedule, main: SBlockRV) -> None:
    """Lets the matmul read what blocks copy that only move elements: a padding of nothing."""
    while True:
        producers = sch.get_producers(main)
        copies = [block for block in producers if _is_copy(sch.get(block))]
        if not copies:
            return
        sch.compute_inline(copies[0])


def _is_copy(block: s_tir.SBlock) -> bool:
    body = block.body
    return isinstance(body, tirx.BufferStore) and isinstance(body.value, tvm.ir.TensorLoad)


def _written(sch: s_tir.Schedule, main: SBlockRV, axes: MatmulAxes) -> EpilogueStore:
    """Everything after the matmul in one assignment, by batch, row and column."""
    for padding in sch.get_producers(main):
        sch.compute_inline(padding)
    result = sch.reindex(main, ("write", 0))
    block = sch.get(main)
    used = loops_of_dimensions(block.writes[0], block)
    dimensions = (axes.batch, axes.m, axes.n)
    sch.transform_layout(result, ("read", 0), fused_map(used, dimensions, block))
    copy = sch.cache_write(main, 0, "local")
    inline_consumers(sch, copy)
    if len(kernel_blocks(sch)) != 2:
        raise NotApplicable("the epilogue cannot be applied to one tile of the result")
    last = sch.get(copy)
    if not isinstance(last.body, tirx.BufferStore):
        raise NotApplicable("the epilogue is not one assignment")
    variables = tuple(iter_var.var for iter_var in last.iter_vars)
    return EpilogueStore(last.body, variables, sch.get(main).writes[0].source)
