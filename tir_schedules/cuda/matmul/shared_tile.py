"""Tiles in shared memory: filled by all threads of a block, and written out by them.

The epilogue that is applied where results are written, and kernels after the main one for what
cannot be applied there.
"""

import math
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.analysis.buffer_access import (
    among,
    depends,
    element_bytes,
    is_data_parallel,
    kernel_blocks,
    nodes,
    same_block,
    static_extent,
    would_bloat,
)
from tvm_ext.tir_schedules.cuda.launch import ALL_REGISTERS, nominal_extent
from tvm_ext.tir_schedules.cuda.matmul.matmul_decision import (
    MAX_BATCH,
    ROW_PADDING_BYTES,
    MatmulTileSizes,
)

VECTOR_BYTES = 16
"""The widest access of a thread."""

CONDITIONAL_BYTES = 4
"""The widest conditional access to bytes that TVM 0.27 generates code for."""

LANES = 32

# Values of 32 bits that TVM 0.27 generates code for as one vector, and how many of them may be the
# same value repeated.
_WIDEST = {"float32": 8, "int32": 4}
_WIDEST_REPEATED = 4

# Rows whose length is a multiple of this, in bytes, are padded to an odd multiple of 16.
BANK_ALIGNMENT = 64


def bind_blocks(
    sch: s_tir.Schedule, blocks: tuple[LoopRV, LoopRV, LoopRV], tiles: MatmulTileSizes
) -> LoopRV:
    """Binds the loops over the tiles of a batch, of rows and of columns; returns the innermost.

    Tiles of ``tiles.group`` rows go column by column, so that those that run at a time share what
    they read in L2.
    """
    ordered = _bound_blocks(sch, blocks, tiles)
    sch.annotate(ordered, ALL_REGISTERS, 1)
    return ordered


def _bound_blocks(
    sch: s_tir.Schedule, blocks: tuple[LoopRV, LoopRV, LoopRV], tiles: MatmulTileSizes
) -> LoopRV:
    batch, rows, columns = blocks
    if any(static_extent(sch.get(loop).extent) is None for loop in blocks):
        # Only a grid's x may have more than 65,535 blocks.
        ordered = sch.fuse(*blocks)
        sch.bind(ordered, "blockIdx.x")
        return ordered
    sch.bind(batch, "blockIdx.z")
    if tiles.group == 1 and (static_extent(sch.get(rows).extent) or 0) <= MAX_BATCH:
        sch.bind(rows, "blockIdx.y")
        sch.bind(columns, "blockIdx.x")
        return columns
    groups, row = sch.split(rows, [None, tiles.group])
    sch.reorder(groups, columns, row)
    ordered = sch.fuse(groups, columns, row)
    sch.bind(ordered, "blockIdx.x")
    return ordered


def copy_to_shared(
    sch: s_tir.Schedule, reader: SBlockRV, operand: int, steps: LoopRV, warps: int
) -> int:
    """Copies an operand's tile in every iteration of ``steps``; what computes it is inlined.

    Returns how many neighbours a thread copies at a time.
    """
    copy = sch.cache_read(reader, operand, "shared.dyn")
    sch.compute_at(copy, steps)
    if not _is_staged(sch, copy):
        inline_producers(sch, copy)
    rows, columns = sch.get_loops(copy)[-2:]
    vector = widest_copy(sch.get(copy))
    vector = math.gcd(vector, static_extent(sch.get(columns).extent) or 1)
    _spread(sch, [rows, columns], warps, vector)
    pad_rows(sch, copy)
    return vector


def _is_staged(sch: s_tir.Schedule, copy: SBlockRV) -> bool:
    """Whether what a block reads is written by a kernel of its own."""
    return any(is_bound(sch, producer) for producer in sch.get_producers(copy))


def is_bound(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether a kernel computes the block: its loops are bound."""
    loops = sch.get_loops(block)
    return bool(loops) and sch.get(loops[0]).thread_binding is not None


def inline_producers(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Inlines all that computes what a block reads."""
    while producers := sch.get_producers(block):
        for producer in producers:
            sch.compute_inline(producer)


def widest_copy(block: s_tir.SBlock) -> int:
    """How many neighbours along its last loop a block that copies can copy at a time."""
    nbytes = element_bytes(block.writes[0].source)
    widest = VECTOR_BYTES // nbytes
    if nbytes == 1 and nodes(block.body, tvm.ir.Call):
        widest = CONDITIONAL_BYTES
    return _vector(block, widest)


def pad_rows(sch: s_tir.Schedule, writer: SBlockRV, vector: int = 1) -> None:
    """Lets the rows of the tile that ``writer`` fills begin in different banks.

    They stay multiples of ``vector`` elements: TVM 0.27 takes other wide accesses apart, which for
    eight values of 32 bits gives code that does not compile.
    """
    nbytes = element_bytes(sch.get(writer).writes[0].source)
    factor, offset = BANK_ALIGNMENT // nbytes, max(ROW_PADDING_BYTES // nbytes, vector)
    sch.storage_align(writer, 0, axis=-2, factor=factor, offset=offset)


def write_results(
    sch: s_tir.Schedule, results: SBlockRV, tiles: MatmulTileSizes, most: int = VECTOR_BYTES
) -> int:
    """Writes a finished tile, with the epilogue applied to it.

    Returns how many neighbours a thread writes at a time: no more than ``most``.
    """
    dtype = str(sch.get(results).writes[0].source.dtype)
    inline_consumers(sch, results)
    rows, columns = sch.get_loops(results)[-2:]
    written = sch.get(results).writes[0].source
    widest = _WIDEST_REPEATED if _repeats_float32(sch.get(results)) else _WIDEST[dtype]
    widest = min(VECTOR_BYTES // element_bytes(written), widest, most)
    vector = math.gcd(widest, static_extent(written.shape[-1]) or 1)
    _spread(sch, [rows, columns], tiles.warps, vector)
    return vector


def _repeats_float32(block: s_tir.SBlock) -> bool:
    """Whether all neighbours along the last loop use one float32: a constant, a bias of rows."""
    value, lane = block.body.value, block.iter_vars[-1].var
    if any(str(constant.ty) == "float32" for constant in nodes(value, tirx.FloatImm)):
        return True
    return any(
        str(load.source.dtype) == "float32"
        and not any(depends(index, lane) for index in load.indices)
        for load in nodes(value, tvm.ir.TensorLoad)
    )


def inline_consumers(sch: s_tir.Schedule, results: SBlockRV) -> None:
    """Applies the epilogue where its results are written, as far as that is possible."""
    while (consumer := only_consumer(sch, results)) and is_data_parallel(sch, consumer):
        inline_other_inputs(sch, consumer, results)
        sch.reverse_compute_inline(consumer)


def only_consumer(sch: s_tir.Schedule, results: SBlockRV) -> SBlockRV | None:
    """The block that reads the results and can be one with the block that writes them.

    Of several, as in ``x * sigmoid(x)``, those that others read are inlined into these until one is
    left. The compiler computes once what is then written more than once. None where there is no
    such block: the results are needed in memory, or each of them several times.
    """
    if writes_parameter(sch, results):
        return None
    while len(consumers := sch.get_consumers(results)) > 1:
        inner = next((block for block in consumers if sch.get_consumers(block)), None)
        if inner is None or not inlines(sch, inner):
            return None
    if not consumers or _repeats(sch, consumers[0], results):
        return None
    return consumers[0]


def inlines(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Inlines a block into those that read it, if it is no result and they stay short enough."""
    if writes_parameter(sch, block):
        return False
    if any(would_bloat(sch, block, consumer) for consumer in sch.get_consumers(block)):
        return False
    sch.compute_inline(block)
    return True


def writes_parameter(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether a block writes a result of the kernel."""
    return among(sch.get(block).writes[0].source, sch.mod["main"].params)


def _repeats(sch: s_tir.Schedule, consumer: SBlockRV, results: SBlockRV) -> bool:
    """Whether a block reads some result more than once: it is broadcast."""
    sizes = [nominal_extent(size) for size in sch.get(results).writes[0].source.shape]
    extents = [nominal_extent(v.dom.extent) for v in sch.get(consumer).iter_vars]
    return math.prod(extents) > math.prod(sizes)


def inline_other_inputs(sch: s_tir.Schedule, consumer: SBlockRV, results: SBlockRV) -> None:
    """Inlines what the consumer reads besides the matmul: a residual that is computed too."""
    while True:
        others = [
            block for block in sch.get_producers(consumer) if not same_block(sch, block, results)
        ]
        if not others:
            return
        for block in others:
            sch.compute_inline(block)


def _spread(sch: s_tir.Schedule, loops: list[LoopRV], warps: int, vector: int) -> None:
    """Hands the elements of a tile to all threads, ``vector`` neighbours at a time."""
    fused = sch.fuse(*loops)
    _, warp, lane, lanes = sch.split(fused, [None, warps, LANES, vector])
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lanes)


def _vector(block: s_tir.SBlock, widest: int) -> int:
    """Neighbours that are as aligned in memory as they are in the tile."""
    loads = nodes(block.body, tvm.ir.TensorLoad)
    variable = block.iter_vars[-1].var
    vector = widest
    while vector > 1 and not all(aligned(load, variable, vector) for load in loads):
        vector //= 2
    return vector


def aligned(load: tvm.ir.TensorLoad, variable: tirx.Var, vector: int) -> bool:
    """Whether ``vector`` neighbours along ``variable`` are one aligned piece of memory."""
    analyzer = Analyzer()
    dtype = str(variable.ty)
    address: Any = tirx.const(0, dtype)
    for size, index in zip(load.source.shape, load.indices, strict=True):
        address = address * size.astype(dtype) + index.astype(dtype)
    group, lane = tirx.Var("group", dtype), tirx.Var("lane", dtype)
    analyzer.bind(lane, tvm.ir.Range(0, vector))
    first = _at(address, variable, group * vector)
    other = _at(address, variable, group * vector + lane)
    if static_extent(analyzer.simplify(other - first - lane)) != 0:
        return False
    known = analyzer.modular_set(first)
    return known.coeff % vector == 0 and known.base % vector == 0


def _at(expression: tvm.ir.Expr, variable: tirx.Var, value: tvm.ir.Expr) -> tvm.ir.Expr:
    def replace(node: tvm.ir.Expr) -> tvm.ir.Expr:
        return value if node.same_as(variable) else node

    return structural_map(expression, (tvm.ir.Var, replace))


# Kernels after the main one, for what cannot be applied where its results are written.
#
# A result that is broadcast, as the gate of a squeeze-and-excitation block, or that is needed
# twice in memory goes to memory first.


THREADS = 128
MAX_VECTOR = 4
"""Neighbours that one thread computes: TVM 0.27 generates code for as many of every type."""


def schedule_following(sch: s_tir.Schedule) -> None:
    """Gives blocks that are not bound to threads kernels of their own, as few as there can be."""
    while any(inlines(sch, block) for block in _loose(sch) if sch.get_consumers(block)):
        pass
    for block in _loose(sch):
        vector = _following_vector(sch.get(block))
        loops = sch.get_loops(block)
        fused = sch.fuse(*loops) if loops else sch.add_unit_loop(block)
        blocks, thread, neighbours = sch.split(fused, [None, THREADS, vector])
        sch.bind(blocks, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
        if vector > 1:
            sch.vectorize(neighbours)


def _loose(sch: s_tir.Schedule) -> list[SBlockRV]:
    """Blocks that no kernel has yet."""
    return [block for block in kernel_blocks(sch) if not is_bound(sch, block)]


def _following_vector(block: s_tir.SBlock) -> int:
    """Neighbours along the last loop that are as aligned in memory, or one element for all."""
    if not block.iter_vars:
        return 1
    variable = block.iter_vars[-1].var
    accesses: list[Any] = nodes(block.body, tvm.ir.TensorLoad)
    accesses = [a for a in accesses if depends(a, variable)]
    buffers = [access.source for access in accesses] + [block.writes[0].source]
    if any(str(buffer.dtype) == "bool" for buffer in buffers):
        return 1
    widest = VECTOR_BYTES // max(element_bytes(buffer) for buffer in buffers)
    vector = math.gcd(min(widest, MAX_VECTOR), static_extent(block.iter_vars[-1].dom.extent) or 1)
    while vector > 1 and not all(aligned(access, variable, vector) for access in accesses):
        vector //= 2
    return vector
