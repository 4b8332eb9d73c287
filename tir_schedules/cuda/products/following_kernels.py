"""Kernels after the main one, for what cannot be applied where its results are written.

A result that is broadcast, as the gate of a squeeze-and-excitation block, or that is needed twice
in memory goes to memory first.
"""

import math
from typing import Any

import tvm
from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx.analysis import undefined_vars

from tvm_ext.tir_schedules.block_access import element_bytes, static_extent
from tvm_ext.tir_schedules.cuda.products.shared_tile import VECTOR_BYTES, aligned, inlines, is_bound
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.inlining import kernel_blocks

THREADS = 128
MAX_VECTOR = 4
"""Neighbours that one thread computes: TVM 0.27 generates code for as many of every type."""


def schedule_following(sch: s_tir.Schedule) -> None:
    """Gives blocks that are not bound to threads kernels of their own, as few as there can be."""
    while any(inlines(sch, block) for block in _loose(sch) if sch.get_consumers(block)):
        pass
    for block in _loose(sch):
        vector = _vector(sch.get(block))
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


def _vector(block: s_tir.SBlock) -> int:
    """Neighbours along the last loop that are as aligned in memory, or one element for all."""
    if not block.iter_vars:
        return 1
    variable = block.iter_vars[-1].var
    accesses: list[Any] = nodes(block.body, tvm.ir.TensorLoad)
    accesses = [a for a in accesses if any(variable.same_as(v) for v in undefined_vars(a))]
    buffers = [access.source for access in accesses] + [block.writes[0].source]
    if any(str(buffer.dtype) == "bool" for buffer in buffers):
        return 1
    widest = VECTOR_BYTES // max(element_bytes(buffer) for buffer in buffers)
    vector = math.gcd(min(widest, MAX_VECTOR), static_extent(block.iter_vars[-1].dom.extent) or 1)
    while vector > 1 and not all(aligned(access, variable, vector) for access in accesses):
        vector //= 2
    return vector
