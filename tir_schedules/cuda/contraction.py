"""Matrix product and convolution: tiles in shared memory, multiplied by the tensor cores.

A block of threads computes one tile of results. The operands' tiles come into shared memory by
asynchronous copies, several steps ahead; each warp loads fragments of them one step ahead and
multiplies. The finished tile goes through shared memory once more, so that bias, activation and
residual are applied where it is written in whole rows.
"""

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm_ffi import structural_map

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import access_of
from tvm_ext.tir_schedules.cuda.contraction_decision import Product, TileSizes, decide_tiles
from tvm_ext.tir_schedules.cuda.matrix_intrinsics import TILE, MatrixInstruction, result_fragment
from tvm_ext.tir_schedules.cuda.product_axes import (
    ProductAxes,
    fused_map,
    loads_of,
    moved_by_dimension,
    product_axes,
)
from tvm_ext.tir_schedules.cuda.shared_tile import copy_to_shared, pad_rows, write_results
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.llvm.flat_views import nodes
from tvm_ext.tir_schedules.llvm.inlining import kernel_blocks, reduction_blocks
from tvm_ext.tir_schedules.template import Machine, NotMine

# The result in which products of a type are added up.
ACCUMULATORS = {
    "float16": "float32",
    "bfloat16": "float32",
    "int8": "int32",
    "uint8": "int32",
}

MAX_BATCH = 65_535
"""Blocks of threads along y and z of a grid: CUDA C++ Programming Guide, compute capabilities."""


@dataclass(frozen=True)
class Contraction:
    """Kernels with one sum of products of two operands.

    Attributes
    ----------
    described : bool
        The loops that each matrix instruction stands for, in its place: what a machine without
        tensor cores can run.
    """

    described: bool = False
    name: str = "contraction"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``. Decisions: those of ``decide_tiles``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not a GPU")
        sch = s_tir.Schedule(func)
        main = _anchor(sch)
        if isinstance(main, NotMine):
            return main
        access = access_of(sch, main)
        if access is None or any(access_of(sch, block) is None for block in kernel_blocks(sch)):
            return NotMine("a loop has a symbolic extent, scans, or writes several buffers")
        axes = product_axes(access, sch.get(main))
        if isinstance(axes, NotMine):
            return axes
        instruction = _instruction(sch.get(main))
        if isinstance(instruction, NotMine):
            return instruction
        product = Product(
            batch=axes.size(axes.batch),
            rows=axes.size(axes.rows),
            columns=axes.size(axes.columns),
            steps=axes.size(axes.steps),
            dtype=instruction.dtype,
            element_bytes=access.element_bytes,
            depth=instruction.depth,
        )
        if min(product.rows, product.columns) < 2 or product.batch > MAX_BATCH:
            return NotMine("it has a single row or column, or too many products")
        tiles = decide_tiles(product, machine, decisions)
        if isinstance(tiles, NotMine):
            return tiles
        sch, main = _as_product(sch, main, axes, instruction)
        sch.pad_einsum(main, [1, tiles.rows, tiles.columns, tiles.depth])
        _schedule(sch, main, tiles, instruction, axes, self.described)
        return sch


def _anchor(sch: s_tir.Schedule) -> SBlockRV | NotMine:
    """The kernel's only reduction."""
    reductions = reduction_blocks(sch)
    if len(reductions) != 1:
        return NotMine(f"the kernel has {len(reductions)} reductions, not one")
    return reductions[0]


def _instruction(block: s_tir.SBlock) -> MatrixInstruction | NotMine:
    loads = loads_of(block)
    if not loads:
        return NotMine("it adds up something other than products of two operands")
    dtypes = {str(load.source.dtype) for load in loads}
    dtype = dtypes.pop()
    if dtypes or dtype not in ACCUMULATORS:
        return NotMine(f"tensor cores do not multiply {', '.join(sorted({dtype, *dtypes}))}")
    accumulator, written = ACCUMULATORS[dtype], str(block.writes[0].source.dtype)
    if written not in (accumulator, dtype):
        return NotMine(f"it adds up products of {dtype} in {written}")
    if accumulator == "int32" and written != accumulator:
        return NotMine(f"it adds up products of {dtype} in {written}, which wraps around")
    return MatrixInstruction(dtype, accumulator)


def _as_product(
    sch: s_tir.Schedule, main: SBlockRV, axes: ProductAxes, instruction: MatrixInstruction
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
    if str(sch.get(main).writes[0].source.dtype) != instruction.accumulator:
        sch.unsafe_set_dtype(main, 0, instruction.accumulator)
    name = sch.get(main).name_hint
    buffers = [sch.get(reindexed).writes[0].source for reindexed in operands]
    sch = s_tir.Schedule(_with_plain_products(sch, main, buffers, instruction.accumulator))
    return sch, sch.get_sblock(name)


def _with_plain_products(
    sch: s_tir.Schedule, main: SBlockRV, operands: list[Any], accumulator: str
) -> tirx.PrimFunc:
    """The kernel with the product written as the matrix instructions describe theirs."""
    func, total = sch.mod["main"], sch.get(main).writes[0].source

    def plain(store: tirx.BufferStore) -> tirx.BufferStore:
        loads = nodes(store.value, tvm.ir.TensorLoad)
        if store.buffer.same_as(total) and not loads:
            return tirx.BufferStore(total, tirx.const(0, accumulator), store.indices)
        found = [next((x for x in loads if x.source.same_as(o)), None) for o in operands]
        if not store.buffer.same_as(total) or None in found:
            return store
        first, second = (load.astype(accumulator) for load in found)
        own = tirx.BufferLoad(total, store.indices)
        return tirx.BufferStore(total, own + first * second, store.indices)

    return func.with_body(structural_map(func.body, (tirx.BufferStore, plain)))


def _schedule(
    sch: s_tir.Schedule,
    main: SBlockRV,
    tiles: TileSizes,
    instruction: MatrixInstruction,
    axes: ProductAxes,
    described: bool,
) -> None:
    """Binds, stages and pipelines a padded product."""
    batch, i, j, k = sch.get_loops(main)
    factors = [None, tiles.rows // tiles.warp_rows, tiles.warp_rows // TILE, TILE]
    row_block, row_warp, row_tile, row = sch.split(i, factors)
    factors = [None, tiles.columns // tiles.warp_columns, tiles.warp_columns // TILE, TILE]
    column_block, column_warp, column_tile, column = sch.split(j, factors)
    depth = instruction.depth
    steps, part, step = sch.split(k, [None, tiles.depth // depth, depth])
    blocks, warps = (batch, row_block, column_block), (row_warp, column_warp)
    sch.reorder(*blocks, *warps, steps, part, row_tile, column_tile, row, column, step)
    outer = sch.blockize(row)
    for loop, tag in zip(blocks, ("z", "y", "x"), strict=True):
        sch.bind(loop, f"blockIdx.{tag}")
    warp = sch.fuse(*warps)
    sch.bind(warp, "threadIdx.y")
    for operand in (0, 1):
        copy_to_shared(sch, outer, operand, steps, tiles.warps)
    fragments = [sch.cache_read(outer, operand, "local") for operand in (0, 1)]
    results = sch.cache_write(outer, 0, "shared.dyn")
    kept = sch.cache_write(outer, 0, "local")
    sch.reverse_compute_at(kept, warp)
    sch.reverse_compute_at(results, column_block)
    for fragment in fragments:
        sch.compute_at(fragment, part)
    for loop in (row_tile, column_tile):
        sch.unroll(loop)
    inner = [_by_instruction(sch, block, instruction, axes, operand)
             for operand, block in enumerate(fragments)]
    stored = _by_instruction(sch, kept, instruction, axes, None)
    start = sch.decompose_reduction(outer, steps)
    for loop in sch.get_loops(start)[-2:]:
        sch.unroll(loop)
    filled = sch.get_child_blocks(start)[0]
    vector = write_results(sch, results, tiles)
    kept = sch.blockize(stored)
    pad_rows(sch, kept, vector)
    if not described:
        for operand, loop in enumerate(inner):
            sch.tensorize(loop, instruction.load("ab"[operand], axes.depth_last[operand]))
        sch.tensorize(sch.get_loops(main)[-3], instruction.multiply())
        sch.tensorize(sch.get_loops(filled)[-2], instruction.fill())
        sch.tensorize(kept, instruction.store())
    if tiles.stages > 1:
        _pipeline(sch, steps, part, tiles, instruction, asynchronous=not described)


def _by_instruction(
    sch: s_tir.Schedule,
    block: SBlockRV,
    instruction: MatrixInstruction,
    axes: ProductAxes,
    operand: int | None,
) -> LoopRV:
    """Cuts a copy from or to registers into tiles, kept as the instruction wants them.

    Returns the loop that one instruction replaces.
    """
    if operand is None:
        shape: tuple[int, int] = (TILE, TILE)
    else:
        shape = (TILE, instruction.depth)
        shape = shape if axes.depth_last[operand] else (shape[1], shape[0])
    i, j = sch.get_loops(block)[-2:]
    outer_i, inner_i = sch.split(i, [None, shape[0]])
    outer_j, inner_j = sch.split(j, [None, shape[1]])
    sch.reorder(outer_i, outer_j, inner_i, inner_j)
    sch.unroll(outer_i)
    sch.unroll(outer_j)

    def kept(b: Any, x: Any, y: Any) -> list[Any]:
        inside = (x % shape[0], y % shape[1])
        if operand is None:
            place = result_fragment(*inside)
        else:
            ordered = inside if axes.depth_last[operand] else inside[::-1]
            place = instruction.fragment("ab"[operand], *ordered)  # type: ignore[arg-type]
        return [b, x // shape[0], y // shape[1], *place]

    sch.transform_layout(block, ("read" if operand is None else "write", 0), kept)
    return inner_i


def _pipeline(
    sch: s_tir.Schedule,
    steps: LoopRV,
    part: LoopRV,
    tiles: TileSizes,
    instruction: MatrixInstruction,
    asynchronous: bool,
) -> None:
    """Copies run ``stages - 1`` tiles ahead of the products, fragments one instruction ahead."""
    last = tiles.stages - 1
    if tiles.depth > instruction.depth:
        # The loop over the parts becomes three: the first load, loads and products, last products.
        # The first load of the next tile goes between the last two of this one.
        stages, order = [0, 0, last - 1, last, last], [0, 1, 3, 2, 4]
        sch.annotate(part, "software_pipeline_stage", [0, 0, 1])
        sch.annotate(part, "software_pipeline_order", [0, 1, 2])
    else:
        stages, order = [0, 0, last], [0, 1, 2]
    sch.annotate(steps, "software_pipeline_stage", stages)
    sch.annotate(steps, "software_pipeline_order", order)
    if asynchronous:
        sch.annotate(steps, "software_pipeline_async_stages", [0])
