"""Which row kernels are better left to templates that tile: products and windows."""

from typing import Any

from tvm import s_tir, sym, tirx

from tvm_ext.tir_schedules.block_access import operands_of, static_extent
from tvm_ext.tir_schedules.inlining import kernel_blocks, walk
from tvm_ext.tir_schedules.rows.row_combine import combine_of
from tvm_ext.tir_schedules.rows.row_kernel import (
    RowBlock,
    RowKernel,
    buffer_key,
    loads_of,
    product,
)
from tvm_ext.tir_schedules.template import NotMine

SEVERAL_ROWS = NotMine("a reduction reads its input for several rows, as windows do")
PRODUCT = NotMine("a reduction multiplies with something that other rows need as well")


def refuse_early(sch: s_tir.Schedule) -> NotMine | None:
    """What ``refuse_rows`` would say of convolutions and matrix products, at little cost."""
    for block in kernel_blocks(sch):
        stmt = sch.get(block)
        if all(v.iter_type == tirx.IterVar.DataPar for v in stmt.iter_vars):
            continue
        extents = [static_extent(v.dom.extent) for v in stmt.iter_vars]
        sizes = [[static_extent(s) for s in read.source.shape] for read in operands_of(stmt)]
        if None in extents or any(None in size for size in sizes):
            continue
        if all(product(size) != product(extents) for size in sizes):
            return SEVERAL_ROWS
    return None


def refuse_rows(kernel: RowKernel, most_mixed: int = 1) -> NotMine | None:
    """Why running along or across the rows is not good for ``kernel``; None when it is.

    ``most_mixed`` is how many indices of an input may mix rows and columns, as the channel of a
    group normalisation does; with more of them it is a window, even where windows do not overlap.
    """
    for block in kernel.blocks:
        if block.starts and combine_of(block) is None:
            return NotMine("partial results of a reduction cannot be combined")
        if block.starts and not _reads_once(kernel, block, most_mixed):
            return SEVERAL_ROWS
        if block.starts and is_product(kernel, block):
            return PRODUCT
    return None


def is_product(kernel: RowKernel, block: RowBlock) -> bool:
    """Whether a factor of the reduced terms serves several rows, as in a matrix product."""
    rows = {buffer_key(axis.var) for axis in kernel.rows}
    columns = {buffer_key(axis.var) for axis in block.columns}
    factors = [
        side
        for store in block.stores
        for node in walk(store.value)
        if isinstance(node, tirx.Mul)
        for side in (node.a, node.b)
    ]
    for load in (load for factor in factors for load in loads_of(factor)):
        used = {
            buffer_key(v) for index in load.indices for v in tirx.analysis.undefined_vars(index)
        }
        if used & columns and not rows <= used:
            return True
    return False


def _reads_once(kernel: RowKernel, block: RowBlock, most_mixed: int) -> bool:
    """Whether some input has exactly one element for every step of the reduction."""
    rows = {buffer_key(axis.var) for axis in kernel.rows}
    columns = {buffer_key(axis.var) for axis in block.columns}
    steps = kernel.count * block.length
    own = {buffer_key(store.buffer) for store in block.stores}
    loads = [load for store in block.stores for load in loads_of(store.value)]
    for load in (load for load in loads if buffer_key(load.source) not in own):
        used = [_variables(index) for index in load.indices]
        mixed = sum(bool(u & rows and u & columns) for u in used)
        if not rows | columns <= set().union(*used) or mixed > most_mixed:
            continue
        if sym.Analyzer().can_prove_equal(kernel.size_of(load.source), steps):
            return True
    return False


def _variables(index: Any) -> set[int]:
    return {buffer_key(v) for v in tirx.analysis.undefined_vars(index)}
