"""Elementwise kernels with symbolic sizes, or with more than an assignment for an element."""

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.inlining import kernel_blocks
from tvm_ext.tir_schedules.template import NotMine

_THREADS = (64, 128, 256, 512, 1024)


def symbolic_elementwise(
    sch: s_tir.Schedule, machine: GpuDescription, decisions: Decisions = CLOSED_FORM
) -> s_tir.Schedule | NotMine:
    """One thread for each element, or for each 16 bytes where the last size is known and divides.

    ``sch`` holds data-parallel blocks only; it is scheduled in place.
    """
    blocks = kernel_blocks(sch)
    for number, block in enumerate(blocks):
        if any(static_extent(v.dom.extent) == 0 for v in sch.get(block).iter_vars):
            return NotMine("a loop has no iterations")
        if not sch.get(block).iter_vars or _deals_with_threads(sch.get(block)):
            return NotMine("a block brings loops of its own that are not over elements")
        asked = decisions if number == 0 and len(blocks) == 1 else CLOSED_FORM
        _schedule(sch, block, machine, asked)
    return sch


def _schedule(
    sch: s_tir.Schedule, block: SBlockRV, machine: GpuDescription, decisions: Decisions
) -> None:
    width = _vector_width(sch, block, machine)
    width = decisions.pick("vector", {1, width}, width)
    sizes = [size for size in _THREADS if size <= machine.max_threads_per_block]
    threads = decisions.pick("threads", sizes, 256)
    loops = list(sch.get_loops(block)) or [sch.add_unit_loop(block)]
    if width > 1:
        rest, vector = sch.split(loops[-1], factors=[None, width])
        sch.vectorize(vector)
        loops[-1] = rest
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    grid, thread = sch.split(fused, factors=[None, threads])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


def _deals_with_threads(block: Any) -> bool:
    """Whether a block binds loops itself, or has memory that not every thread can allocate."""
    loops = nodes(block.body, tirx.For)
    bound = any(tirx.ForKind(loop.kind) == tirx.ForKind.THREAD_BINDING for loop in loops)
    inner = nodes(block.body, s_tir.SBlock)
    memory = any(nested.alloc_buffers for nested in [block, *inner])
    return bound or memory or bool(nodes(block.body, tirx.AttrStmt))


def _vector_width(sch: s_tir.Schedule, block: SBlockRV, machine: GpuDescription) -> int:
    """Elements of a vector where every buffer is a plain copy along the last, known size."""
    stmt: Any = sch.get(block)
    loops = list(sch.get_loops(block))
    if not loops or len(loops) != len(stmt.iter_vars):
        return 1
    last = stmt.iter_vars[-1]
    extent = static_extent(last.dom.extent)
    body = stmt.body
    if not isinstance(body, tirx.BufferStore):
        return 1
    loads = nodes(body.value, tvm.ir.TensorLoad)
    accesses = [(body.buffer, body.indices), *((load.source, load.indices) for load in loads)]
    dtypes = {str(buffer.dtype) for buffer, _ in accesses}
    if extent is None or len(dtypes) != 1 or not dtypes <= {"float16", "float32", "int32"}:
        return 1
    width = min(machine.vector_lanes(dtype) for dtype in dtypes)
    while width > 1 and not all(_is_dense(b, i, last.var, extent, width) for b, i in accesses):
        width //= 2
    uses = sum(v.same_as(last.var) for v in nodes(body, tvm.ir.Var))
    dense = sum(
        any(v.same_as(last.var) for v in nodes(i[-1], tvm.ir.Var)) for _, i in accesses if i
    )
    return width if uses == dense else 1


def _is_dense(buffer: Any, indices: Any, var: tirx.Var, extent: int, width: int) -> bool:
    if extent % width:
        return False
    users = [k for k, i in enumerate(indices) if any(v.same_as(var) for v in nodes(i, tvm.ir.Var))]
    if not users:
        return True
    last = len(indices) - 1
    plain = users == [last] and isinstance(indices[last], tirx.Var)
    size = static_extent(buffer.shape[last])
    return plain and size is not None and size % width == 0
