"""A kernel's blocks written out as the loops and stores that they stand for."""

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm_ffi import structural_map


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
