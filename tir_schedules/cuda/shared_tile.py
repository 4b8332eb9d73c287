"""Tiles in shared memory: filled by all threads of a block, and written out by them."""

import math
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.block_access import element_bytes, static_extent
from tvm_ext.tir_schedules.cuda.contraction_decision import ROW_PADDING_BYTES, TileSizes
from tvm_ext.tir_schedules.llvm.flat_views import nodes

VECTOR_BYTES = 16
"""The widest access of a thread."""

LANES = 32


def copy_to_shared(
    sch: s_tir.Schedule, reader: SBlockRV, operand: int, steps: LoopRV, warps: int
) -> None:
    """Copies an operand's tile in every iteration of ``steps``; what computes it is inlined."""
    copy = sch.cache_read(reader, operand, "shared.dyn")
    sch.compute_at(copy, steps)
    while producers := sch.get_producers(copy):
        for producer in producers:
            sch.compute_inline(producer)
    rows, columns = sch.get_loops(copy)[-2:]
    size = static_extent(sch.get(rows).extent) * static_extent(sch.get(columns).extent)
    block = sch.get(copy)
    nbytes = element_bytes(block.writes[0].source)
    vector = _vector(block, sch, VECTOR_BYTES // nbytes)
    vector = math.gcd(vector, static_extent(sch.get(columns).extent))
    _spread(sch, [rows, columns], warps, vector, size)
    sch.storage_align(copy, 0, axis=-2, factor=BANK_ALIGNMENT // nbytes,
                      offset=ROW_PADDING_BYTES // nbytes)


def write_results(
    sch: s_tir.Schedule, results: SBlockRV, kept: SBlockRV, tiles: TileSizes
) -> None:
    """Writes a finished tile, with all that follows the product applied to it."""
    while consumers := sch.get_consumers(results):
        for consumer in consumers:
            for producer in sch.get_producers(consumer):
                if not sch.get(producer).same_as(sch.get(results)):
                    sch.compute_inline(producer)
        sch.reverse_compute_inline(consumers[0])
    block = sch.get(results)
    rows, columns = sch.get_loops(results)[-2:]
    written = block.writes[0].source
    vector = VECTOR_BYTES // element_bytes(written)
    vector = math.gcd(vector, static_extent(written.shape[-1]) or 1)
    _spread(sch, [rows, columns], tiles.warps, vector, tiles.rows * tiles.columns)
    sch.storage_align(kept, 0, axis=-2, factor=32, offset=ROW_PADDING_BYTES // 4)


BANK_ALIGNMENT = 64


def _spread(
    sch: s_tir.Schedule, loops: list[LoopRV], warps: int, vector: int, size: int
) -> None:
    """Hands the elements of a tile to all threads, ``vector`` neighbours at a time."""
    fused = sch.fuse(*loops)
    _, warp, lane, lanes = sch.split(fused, [None, warps, LANES, vector])
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lanes)


def _vector(block: s_tir.SBlock, sch: s_tir.Schedule, widest: int) -> int:
    """Neighbours that are as aligned in memory as they are in the tile."""
    loads = nodes(block.body, tvm.ir.TensorLoad)
    variable = block.iter_vars[-1].var
    vector = widest
    while vector > 1 and not all(_aligned(load, variable, vector) for load in loads):
        vector //= 2
    return vector


def _aligned(load: Any, variable: Any, vector: int) -> bool:
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


def _at(expression: Any, variable: Any, value: Any) -> Any:
    def replace(found: Any) -> Any:
        return value if found.same_as(variable) else found

    return structural_map(expression, (tvm.ir.Var, replace))
