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
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.inlining import is_data_parallel, would_bloat

VECTOR_BYTES = 16
"""The widest access of a thread."""

CONDITIONAL_BYTES = 4
"""The widest conditional access to bytes that TVM 0.27 generates code for."""

LANES = 32

# Values of 32 bits that TVM 0.27 generates code for as one vector.
_WIDEST = {"float32": 8, "int32": 4}

# Rows whose length is a multiple of this, in bytes, are padded to an odd multiple of 16.
BANK_ALIGNMENT = 64


def copy_to_shared(
    sch: s_tir.Schedule, reader: SBlockRV, operand: int, steps: LoopRV, warps: int
) -> int:
    """Copies an operand's tile in every iteration of ``steps``; what computes it is inlined.

    Returns how many neighbours a thread copies at a time.
    """
    copy = sch.cache_read(reader, operand, "shared.dyn")
    sch.compute_at(copy, steps)
    inline_producers(sch, copy)
    rows, columns = sch.get_loops(copy)[-2:]
    vector = widest_copy(sch.get(copy))
    vector = math.gcd(vector, static_extent(sch.get(columns).extent) or 1)
    _spread(sch, [rows, columns], warps, vector)
    pad_rows(sch, copy)
    return vector


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


def write_results(sch: s_tir.Schedule, results: SBlockRV, tiles: TileSizes) -> int:
    """Writes a finished tile, with all that follows the product applied to it.

    Returns how many neighbours a thread writes at a time.
    """
    dtype = str(sch.get(results).writes[0].source.dtype)
    while (consumer := only_consumer(sch, results)) and is_data_parallel(sch, consumer):
        inline_other_inputs(sch, consumer, results)
        sch.reverse_compute_inline(consumer)
    rows, columns = sch.get_loops(results)[-2:]
    written = sch.get(results).writes[0].source
    widest = min(VECTOR_BYTES // element_bytes(written), _WIDEST[dtype])
    vector = math.gcd(widest, static_extent(written.shape[-1]) or 1)
    _spread(sch, [rows, columns], tiles.warps, vector)
    return vector


def only_consumer(sch: s_tir.Schedule, results: SBlockRV) -> SBlockRV | None:
    """The block that reads the results; None when there is none, or when it cannot be one.

    Of several, as in ``x * sigmoid(x)``, those that others read are inlined into these until one is
    left. The compiler computes once what is then written more than once.
    """
    while len(consumers := sch.get_consumers(results)) > 1:
        inner = next((block for block in consumers if sch.get_consumers(block)), None)
        if inner is None or any(would_bloat(sch, inner, user) for user in sch.get_consumers(inner)):
            return None
        sch.compute_inline(inner)
    return consumers[0] if consumers else None


def inline_other_inputs(sch: s_tir.Schedule, consumer: SBlockRV, results: SBlockRV) -> None:
    """Inlines what the consumer reads besides the product: a residual that is computed too."""
    while True:
        others = [
            block
            for block in sch.get_producers(consumer)
            if not sch.get(block).same_as(sch.get(results))
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
