"""What a kernel is: the same work has the same workload and the same hash, whatever its name."""

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.tir_schedules.block_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.scope_marks import without_scope_marks

# Attributes that change what a schedule may do. Others are notes of passes that are done by then.
_KEPT_ATTRIBUTES = ("tirx.noalias", "s_tir", CONSTANTS_ATTRIBUTE)


def workload(func: tirx.PrimFunc) -> tvm.IRModule:
    """The kernel alone, under the name "main", as MetaSchedule's databases hold it."""
    kept = {} if func.attrs is None else {k: v for k, v in func.attrs.items()}
    plain = without_scope_marks(func)
    for key in kept:
        if key not in _KEPT_ATTRIBUTES:
            plain = plain.without_attr(key)
    return tvm.IRModule({"main": plain.with_attr("global_symbol", "main")})


def kernel_hash(mod: tvm.IRModule) -> str:
    """16 hexadecimal digits that are equal for structurally equal workloads, in any process."""
    return f"{tvm_ffi.structural_hash(mod) & (2**64 - 1):016x}"
