"""A sum of products written as one batched matrix product, whatever loops it came with."""

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.block_access import BlockAccess, access_of
from tvm_ext.tir_schedules.cuda.products.product_axes import (
    ProductAxes,
    fused_map,
    moved_by_dimension,
)
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.inlining import kernel_blocks, reduction_blocks
from tvm_ext.tir_schedules.statements import changed_block
from tvm_ext.tir_schedules.template import NotMine

# The result in which products of a type are added up.
ACCUMULATORS = {
    "float16": "float32",
    "float32": "float32",
    "bfloat16": "float32",
    "int8": "int32",
    "uint8": "int32",
}


def only_reduction(sch: s_tir.Schedule) -> SBlockRV | NotMine:
    """The kernel's only reduction."""
    reductions = reduction_blocks(sch)
    if len(reductions) != 1:
        return NotMine(f"the kernel has {len(reductions)} reductions, not one")
    return reductions[0]


def access_of_reduction(sch: s_tir.Schedule, main: SBlockRV) -> BlockAccess | NotMine:
    """What a reduction reads and writes, in a kernel all of whose blocks are as plain."""
    access = access_of(sch, main)
    if access is None or any(access_of(sch, block) is None for block in kernel_blocks(sch)):
        return NotMine("a loop is of unknown extent, scans, or writes several buffers")
    return access


def as_product(
    sch: s_tir.Schedule, main: SBlockRV, axes: ProductAxes, accumulator: str
) -> tuple[s_tir.Schedule, SBlockRV]:
    """The reduction as ``C[b, i, j] += A[b, i, k] * B[b, j, k]``, added up in one wide type.

    A product of float16 that is written in float16 is added up in float32 and rounded once.
    """
    positions = [
        position
        for position, region in enumerate(sch.get(main).reads)
        if not region.source.same_as(sch.get(main).writes[0].source)
    ]
    operands = [sch.reindex(main, ("read", positions[index])) for index in axes.operands]
    result = sch.reindex(main, ("write", 0))
    block = sch.get(main)
    for operand, reindexed in enumerate(operands):
        used = moved_by_dimension(block.reads[positions[axes.operands[operand]]], block)
        order = fused_map(used, axes.order(operand), block)
        sch.transform_layout(reindexed, ("write", 0), order)
    dimensions = (axes.batch, axes.rows, axes.columns)
    used = moved_by_dimension(block.writes[0], block)
    sch.transform_layout(result, ("read", 0), fused_map(used, dimensions, block))
    everything = list(range(len(axes.extents)))
    whole = fused_map(everything, (*dimensions, axes.steps), block)
    sch.transform_block_layout(main, whole)
    if str(sch.get(main).writes[0].source.dtype) != accumulator:
        sch.unsafe_set_dtype(main, 0, accumulator)
    name = sch.get(main).name_hint
    buffers = [sch.get(reindexed).writes[0].source for reindexed in operands]
    sch = s_tir.Schedule(_with_plain_products(sch, main, buffers, accumulator))
    return sch, sch.get_sblock(name)


def _with_plain_products(
    sch: s_tir.Schedule, main: SBlockRV, operands: list[Any], accumulator: str
) -> tirx.PrimFunc:
    """The kernel with the product written as the matrix instructions describe theirs.

    The block's reads get the order of the operands, which is how schedules name them.
    """
    func, total = sch.mod["main"], sch.get(main).writes[0].source

    def plain(store: tirx.BufferStore) -> tirx.BufferStore:
        loads = nodes(store.value, tvm.ir.TensorLoad)
        if store.buffer.same_as(total) and not loads:
            return tirx.BufferStore(total, tirx.const(0, accumulator), store.indices)
        found = [next((x for x in loads if x.source.same_as(o)), None) for o in operands]
        first, second = found
        if not store.buffer.same_as(total) or first is None or second is None:
            return store
        product = first.astype(accumulator) * second.astype(accumulator)
        own = tirx.BufferLoad(total, store.indices)
        return tirx.BufferStore(total, own + product, store.indices)

    def ordered(block: s_tir.SBlock) -> s_tir.SBlock:
        reads = [r for o in operands for r in block.reads if r.source.same_as(o)]
        if not any(write.source.same_as(total) for write in block.writes) or len(reads) < 2:
            return block
        return changed_block(block, reads=reads)

    body = structural_map(func.body, (tirx.BufferStore, plain))
    body = structural_map(body, (s_tir.SBlock, ordered))
    return func.with_body(_with_small_letters(body, [*operands, total]))


def _with_small_letters(body: tirx.Stmt, buffers: list[Any]) -> tirx.Stmt:
    """``body`` with other names for some buffers that it allocates.

    TVM 0.27 puts operands into the text of a matrix instruction at its letters A, B, C and D, those
    in names that it has put there before too.
    """
    renamed = [
        (old, tirx.decl_buffer(list(old.shape), str(old.dtype), old.name.lower()))
        for old in buffers
        if old.name != old.name.lower()
    ]

    def new(var: Any) -> Any:
        return next((new for old, new in renamed if old.same_as(var)), var)

    return structural_map(body, (tvm.ir.Var, new)) if renamed else body
