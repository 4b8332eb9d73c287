"""Elementwise kernels with more than an assignment for an element: one thread for each."""

from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.inlining import kernel_blocks
from tvm_ext.tir_schedules.template import NotMine

_THREADS = (64, 128, 256, 512, 1024)


def element_blocks(
    sch: s_tir.Schedule, machine: GpuDescription, decisions: Decisions = CLOSED_FORM
) -> s_tir.Schedule | NotMine:
    """One thread for each element, whatever is computed for it.

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
    sizes = [size for size in _THREADS if size <= machine.max_threads_per_block]
    threads = decisions.pick("threads", sizes, 256)
    loops = list(sch.get_loops(block)) or [sch.add_unit_loop(block)]
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
