"""Matrix product by the instructions of warp groups, on GPUs of compute capability 9.0a.

On such a GPU instructions of single warps reach less than two thirds of the tensor cores' rate.
Operands come to shared memory by bulk copies; what follows the product is applied to the results
in registers, 8 neighbouring columns of a thread at a time.
"""

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import access_of
from tvm_ext.tir_schedules.cuda.launch import Arrays
from tvm_ext.tir_schedules.cuda.products.contraction_decision import Product
from tvm_ext.tir_schedules.cuda.products.product_axes import (
    ProductAxes,
    fused_map,
    loads_of,
    moved_by_dimension,
    product_axes,
)
from tvm_ext.tir_schedules.cuda.products.product_form import only_reduction
from tvm_ext.tir_schedules.cuda.products.shared_tile import inline_consumers
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_map import OperandTensor, operand_tensor
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_staging import staged, staged_bytes
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_decision import TILE_ROWS, decide_group_tiles
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_epilogue import GroupEpilogue, Written
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_kernel import GroupKernel, GroupProduct
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.flat_views import FlatViews, flattened, nodes
from tvm_ext.tir_schedules.inlining import kernel_blocks
from tvm_ext.tir_schedules.statements import sequence
from tvm_ext.tir_schedules.template import Machine, NotMine

ARCHITECTURE = "sm_90a"
DTYPES = ("float16", "bfloat16")
MAX_BATCH = 1 << 20


class WarpGroupContraction:
    """Kernels with one sum of products of two operands of 16-bit types."""

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
        access = access_of(sch, main)
        if access is None or any(access_of(sch, block) is None for block in kernel_blocks(sch)):
            return NotMine("a loop has a symbolic extent, scans, or writes several buffers")
        axes = product_axes(access, sch.get(main))
        if isinstance(axes, NotMine):
            return axes
        sizes = [axes.size(group) for group in (axes.rows, axes.columns, axes.steps)]
        if min(sizes) < 2 or axes.size(axes.batch) > MAX_BATCH:
            return NotMine("it has a single row, column or step, or too many products")
        operands = _operands(func, sch.get(main), axes)
        if isinstance(operands, NotMine):
            return operands
        return self._scheduled(sch, main, axes, operands, machine, decisions)

    def _scheduled(
        self,
        sch: s_tir.Schedule,
        main: SBlockRV,
        axes: ProductAxes,
        operands: tuple[OperandTensor, OperandTensor],
        machine: GpuDescription,
        decisions: Decisions,
    ) -> s_tir.Schedule | NotMine:
        func, dtype = sch.mod["main"], str(operands[0].buffer.dtype)
        sizes = [axes.size(group) for group in (axes.batch, axes.rows, axes.columns, axes.steps)]
        batch, rows, columns, steps = sizes
        product = Product(batch, rows, columns, steps, dtype, element_bytes=2, depth=16)
        copied = sum(map(staged_bytes, operands))
        tiles = decide_group_tiles(product, machine, decisions, copied)
        if isinstance(tiles, NotMine):
            return tiles
        written = _written(sch, main, axes)
        if isinstance(written, NotMine):
            return written
        views = FlatViews()
        tile = (TILE_ROWS, tiles.columns)
        epilogue = GroupEpilogue.of(written, (batch, rows, columns), tile, machine, views)
        if isinstance(epilogue, NotMine):
            return epilogue
        arrays = Arrays(str(written.variables[0].ty))
        first, copy_a = staged(operands[0], "aligned_a", arrays, views)
        second, copy_b = staged(operands[1], "aligned_b", arrays, views)
        aligned = (first, second)
        cut = GroupProduct(aligned, batch, rows, columns, steps, dtype, tiles, machine.sms)
        kernel = GroupKernel(cut, epilogue, arrays)
        code = [*copy_a, *copy_b, *kernel.statements()]
        body = sequence([*views.declarations(func), *code])
        root = s_tir.SBlock([], [], [], "root", body, None, arrays.buffers)
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


def _operands(
    func: tirx.PrimFunc, block: s_tir.SBlock, axes: ProductAxes
) -> tuple[OperandTensor, OperandTensor] | NotMine:
    """A and B as tensors in memory."""
    loads = loads_of(block)
    if not loads:
        return NotMine("it adds up something other than products of two operands")
    dtypes = {str(load.source.dtype) for load in loads}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        return NotMine(f"operands are of {', '.join(sorted(dtypes))}, not of one type of 16 bits")
    total = str(block.writes[0].source.dtype)
    if total not in ("float32", *dtypes):
        return NotMine(f"it adds up products of {dtypes.pop()} in {total}")
    if loads[0].source.same_as(loads[1].source):
        return NotMine("both operands are the same array")
    reads = [region for region in block.reads if not _same(region, block.writes[0])]
    if not all(any(r.source.same_as(p) for p in func.params) for r in reads):
        return NotMine("an operand is computed in the kernel")
    plain = flattened(block.body, FlatViews())
    if plain is None:
        return NotMine("an operand's layout is not plain")
    variables = [iter_var.var for iter_var in block.iter_vars]
    found = []
    for operand, selecting in zip(axes.operands, (axes.rows, axes.columns), strict=True):
        load = next(x for x in loads if x.source.same_as(reads[operand].source))
        index = _address_of(plain, loads, load)
        tensor = operand_tensor(
            load, index, variables, axes.extents, (axes.batch, selecting, axes.steps)
        )
        if isinstance(tensor, NotMine):
            return tensor
        found.append(tensor)
    return found[0], found[1]


def _address_of(plain: tirx.BufferStore, loads: list[Any], load: Any) -> Any:
    """The address of one of the product's ``loads`` in its flattened form."""
    flat = nodes(plain.value, tvm.ir.TensorLoad)[1:]
    return flat[next(i for i, other in enumerate(loads) if other.same_as(load))].indices[0]


def _same(region: Any, other: Any) -> bool:
    return bool(region.source.same_as(other.source))


def _written(sch: s_tir.Schedule, main: SBlockRV, axes: ProductAxes) -> Written | NotMine:
    """Everything after the product in one assignment, by batch, row and column."""
    block = sch.get(main)
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
