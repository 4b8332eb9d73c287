"""A kernel's blocks written out as the loops and stores that they stand for."""

import tvm
from tvm import s_tir, tirx


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
            steps.LowerMatchBuffer(),
            steps.LowerOpaqueBlock(),
        ]
    )
    return lowering(mod)["main"]
