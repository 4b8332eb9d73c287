"""A kernel's blocks written out as the loops and stores that they stand for."""

import contextlib
import math
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.inlining import (
    inline_blocks,
    is_data_parallel,
    kernel_blocks,
    reduction_blocks,
)


def as_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` without blocks: what a reduction starts from is stored in its first step."""
    steps = s_tir.transform
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    lowering = tvm.transform.Sequential(
        [
            steps.CanonicalizeLoop(),
            steps.LowerInitBlock(),
            steps.PlanAndUpdateBufferAllocationLocation(),
            steps.ConvertBlocksToOpaque(),
            # What one iteration computes for itself alone becomes as small as that.
            steps.CompactBufferAllocation(),
            steps.LowerMatchBuffer(),
            steps.LowerOpaqueBlock(),
        ]
    )
    return lowering(mod)["main"]


def without_offsets(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with parameters that begin where their tensors do.

    TVM lets the arrays of loops written by hand begin anywhere in a tensor, as no other kernel's do
    and no tensor of a model does: all addresses are then numbers of 64 bits.
    """
    pairs = []
    for param in func.params:
        if isinstance(param.ty, tirx.BufferType) and isinstance(param.elem_offset, tvm.ir.Var):
            new = tirx.decl_buffer(list(param.shape), str(param.dtype), param.name)
            pairs.append((param, new))
    if not pairs:
        return func

    def plain(var: Any) -> Any:
        return next((new for old, new in pairs if old.same_as(var)), var)

    body = structural_map(func.body, (tvm.ir.Var, plain))
    params = [plain(param) for param in func.params]
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


def in_few_launches(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with as few loop nests as its blocks need; those without a root stay as they are.

    What is computed for each element goes where it is used, and so does a reduction whose every
    result is used once.
    """
    if not isinstance(func.body, s_tir.SBlockRealize) or func.body.block.name_hint != "root":
        return func
    sch = s_tir.Schedule(func)
    inline_blocks(sch, repeat=True)
    for block in reduction_blocks(sch):
        _reduce_where_used(sch, block)
    _with_starts_apart(sch)
    return sch.mod["main"]


def _with_starts_apart(sch: s_tir.Schedule) -> None:
    """Puts the stores that reductions start from in front of their loops.

    In a reduction over nothing the first step, in which they are otherwise, never comes.
    """
    for block in kernel_blocks(sch):
        stmt, loops = sch.get(block), list(sch.get_loops(block))
        if stmt.init is None or len(loops) != len(stmt.iter_vars):
            continue
        reduces = [v.iter_type == tirx.IterVar.CommReduce for v in stmt.iter_vars]
        reductions = [loop for loop, one in zip(loops, reduces, strict=True) if one]
        others = [loop for loop, one in zip(loops, reduces, strict=True) if not one]
        with contextlib.suppress(s_tir.ScheduleError):
            if reductions and others:
                sch.reorder(*others, *reductions)
            sch.decompose_reduction(block, (reductions or loops)[0])


def _reduce_where_used(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Moves a reduction into the loops of the only block that uses it, each result once."""
    consumers = sch.get_consumers(block)
    if len(consumers) != 1 or not is_data_parallel(sch, consumers[0]):
        return
    results = [v for v in sch.get(block).iter_vars if v.iter_type == tirx.IterVar.DataPar]
    if _count(results) != _count(sch.get(consumers[0]).iter_vars):
        return
    loops = sch.get_loops(consumers[0])
    if loops:
        with contextlib.suppress(s_tir.ScheduleError):
            sch.compute_at(block, loops[-1])
            inner = sch.get_loops(block)[len(loops) :]
            if inner:
                sch.decompose_reduction(block, inner[0])


def _count(iter_vars: Any) -> int | None:
    extents = [static_extent(v.dom.extent) for v in iter_vars]
    return None if None in extents else math.prod(n for n in extents if n is not None)
