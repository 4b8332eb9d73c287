"""A scheduled kernel in the form in which its accesses and instructions are counted."""

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable, last_line
from tvm_ext.hardware.machine import MachineDescription


def lowered(mod: tvm.IRModule, machine: MachineDescription) -> tirx.PrimFunc:
    """The kernel "main" of ``mod`` without blocks, its buffers flat and as small as they can be.

    What cannot be vectorised is a loop over single elements, as it will be when it runs.

    Raises NotApplicable where TVM refuses: such a candidate will not be built either.
    """
    passes = [
        tirx.transform.BindTarget(machine.tvm_target()),
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerCrossThreadReduction(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.VectorizeLoop(),
    ]
    try:
        return tvm.transform.Sequential(passes)(mod)["main"]
    except (ValueError, TypeError, RuntimeError) as error:
        raise NotApplicable(last_line(error)) from error
