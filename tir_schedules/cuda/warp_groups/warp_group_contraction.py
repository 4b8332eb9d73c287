"""Products and convolutions by the instructions of warp groups, on GPUs of capability 9.0a.

On such a GPU instructions of single warps reach less than two thirds of the tensor cores' rate.
Operands come to shared memory by bulk copies; what follows the product is applied to the results
in registers, 8 neighbouring columns of a thread at a time.
"""

from dataclasses import replace

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.launch import Arrays
from tvm_ext.tir_schedules.cuda.products.contraction_decision import Product
from tvm_ext.tir_schedules.cuda.products.product_axes import (
    ProductAxes,
    fused_map,
    moved_by_dimension,
    product_axes,
)
from tvm_ext.tir_schedules.cuda.products.product_form import access_of_reduction, only_reduction
from tvm_ext.tir_schedules.cuda.products.shared_tile import inline_consumers
from tvm_ext.tir_schedules.cuda.warp_groups import warp_group_instructions as hopper
from tvm_ext.tir_schedules.cuda.warp_groups.group_operands import (
    GroupOperands,
    group_operands,
    order_steps_last,
)
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_staging import staged, staged_bytes
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_decision import decide_group_tiles
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_epilogue import GroupEpilogue, Written
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_kernel import GroupKernel
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_work import GroupProduct
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.flat_views import FlatViews
from tvm_ext.tir_schedules.inlining import kernel_blocks
from tvm_ext.tir_schedules.packing import packed_annotations, packed_operand
from tvm_ext.tir_schedules.statements import sequence
from tvm_ext.tir_schedules.template import Machine, NotMine

ARCHITECTURE = "sm_90a"
MAX_BATCH = 1 << 20


class WarpGroupContraction:
    """Kernels with one sum of products of two operands.

    Operands of 16 bits, of 8-bit integers, and of float32 where tf32 is allowed. Convolutions of
    images with the channels last are products too.
    """

    name = "warp group contraction"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``. Decisions: those of ``decide_group_tiles``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not a GPU")
        if machine.arch != ARCHITECTURE:
            return NotMine(f"{machine.arch} has no instructions of warp groups")
        sch = s_tir.Schedule(func)
        main = only_reduction(sch)
        if isinstance(main, NotMine):
            return main
        _inline_copies(sch, main)
        access = access_of_reduction(sch, main)
        if isinstance(access, NotMine):
            return access
        axes = product_axes(access, sch.get(main))
        if isinstance(axes, NotMine):
            return axes
        sizes = [axes.size(group) for group in (axes.rows, axes.columns, axes.steps)]
        if min(sizes) < 2 or axes.size(axes.batch) > MAX_BATCH:
            return NotMine("it has a single row, column or step, or too many products")
        order_steps_last(sch, main, axes)
        operands = group_operands(sch, main, axes, machine.tf32)
        if isinstance(operands, NotMine):
            return operands
        return self._scheduled(sch, main, axes, operands, machine, decisions)

    def _scheduled(
        self,
        sch: s_tir.Schedule,
        main: SBlockRV,
        axes: ProductAxes,
        operands: GroupOperands,
        machine: GpuDescription,
        decisions: Decisions,
    ) -> s_tir.Schedule | NotMine:
        func, dtype, packed = sch.mod["main"], operands.dtype, packed_operand(sch)
        sizes = [axes.size(group) for group in (axes.batch, axes.rows, axes.columns, axes.steps)]
        batch, rows, columns, steps = sizes
        rate, width = "tf32" if dtype == "float32" else dtype, tvm.DataType(dtype).bits // 8
        depth = hopper.DEPTH_BYTES // width
        wanted = Product(batch, rows, columns, steps, rate, width, depth)
        product = replace(wanted, rows=operands.rows, steps=operands.steps)
        copied = sum(map(staged_bytes, operands.tensors))
        tiles = decide_group_tiles(
            *(product, machine, decisions, copied),
            wanted=wanted,
            row_bytes=operands.row_bytes,
            across=operands.tensors[1].across,
        )
        if isinstance(tiles, NotMine):
            return tiles
        written = _written(sch, main, axes)
        if isinstance(written, NotMine):
            return written
        views = FlatViews()
        tile = (tiles.rows, tiles.columns)
        sizes = [batch, rows, columns]
        epilogue = GroupEpilogue.of(written, sizes, tile, machine, views, operands.pixels)
        if isinstance(epilogue, NotMine):
            return epilogue
        arrays = Arrays(str(written.variables[0].ty))
        first, copy_a = staged(operands.tensors[0], "aligned_a", arrays, views)
        second, copy_b = staged(operands.tensors[1], "aligned_b", arrays, views)
        cut = GroupProduct(
            (first, second),
            *(batch, operands.rows, columns, operands.steps),
            dtype,
            tiles,
            machine.sms,
        )
        kernel = GroupKernel(cut, epilogue, arrays)
        code = [*copy_a, *copy_b, *kernel.statements()]
        body = sequence([*views.declarations(func), *code])
        notes = packed_annotations(packed)
        root = s_tir.SBlock([], [], [], "root", body, None, arrays.buffers, [], notes)
        realized = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
        return s_tir.Schedule(func.with_body(realized))


def _inline_copies(sch: s_tir.Schedule, main: SBlockRV) -> None:
    """Lets the product read what blocks copy that only move elements: a padding of nothing."""
    while True:
        producers = sch.get_producers(main)
        copies = [block for block in producers if _is_copy(sch.get(block))]
        if not copies:
            return
        sch.compute_inline(copies[0])


def _is_copy(block: s_tir.SBlock) -> bool:
    body = block.body
    return isinstance(body, tirx.BufferStore) and isinstance(body.value, tvm.ir.TensorLoad)


def _written(sch: s_tir.Schedule, main: SBlockRV, axes: ProductAxes) -> Written | NotMine:
    """Everything after the product in one assignment, by batch, row and column."""
    for padding in sch.get_producers(main):
        sch.compute_inline(padding)
    result = sch.reindex(main, ("write", 0))
    block = sch.get(main)
    used = moved_by_dimension(block.writes[0], block)
    dimensions = (axes.batch, axes.rows, axes.columns)
    sch.transform_layout(result, ("read", 0), fused_map(used, dimensions, block))
    copy = sch.cache_write(main, 0, "local")
    inline_consumers(sch, copy)
    if len(kernel_blocks(sch)) != 2:
        return NotMine("what follows the product cannot be applied to one tile of it")
    last = sch.get(copy)
    if not isinstance(last.body, tirx.BufferStore):
        return NotMine("what follows the product is not one assignment")
    variables = tuple(iter_var.var for iter_var in last.iter_vars)
    return Written(last.body, variables, sch.get(main).writes[0].source)
