"""Plans storage: liveness, reuse of buffers, and the figures for the report."""

import tvm
from tvm import relax

from tvm_ext.compiler.graph_facts import operator_name, relax_bindings, weight_bytes
from tvm_ext.relay_passes.origin_writer import bindings_of
from tvm_ext.report.records import MemoryRecord
from tvm_ext.tir_schedules.block_access import static_extent


def plan_memory(mod: tvm.IRModule, reuse: bool = True) -> tuple[tvm.IRModule, MemoryRecord]:
    """The module with explicit storage, ready for code generation, and its memory figures.

    Without ``reuse`` every value gets storage of its own, which shows whether sharing is at fault.
    """
    mod = _allocate_explicitly(mod)
    unplanned, _ = _allocated(mod, "relax.builtin.alloc_tensor")
    if reuse:
        mod = _share_storage(mod)
    planned, symbolic = _allocated(mod, "relax.memory.alloc_storage")
    left, left_symbolic = _allocated(mod, "relax.builtin.alloc_tensor")
    record = MemoryRecord(
        planned_peak_bytes=planned + left,
        unplanned_bytes=unplanned,
        weights_bytes=weight_bytes(mod),
        dynamic=symbolic or left_symbolic,
    )
    finish = tvm.transform.Sequential(
        [
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )
    return finish(mod), record


def _allocate_explicitly(mod: tvm.IRModule) -> tvm.IRModule:
    return tvm.transform.Sequential(
        [
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
        ]
    )(mod)


def _share_storage(mod: tvm.IRModule) -> tvm.IRModule:
    """Plans storage of all functions but those with branches.

    TVM's planner lets one branch use storage that only the other one allocates, which ends the
    process (apache/tvm#20191).
    """
    branching = {
        global_var: func
        for global_var, func in mod.functions.items()
        if isinstance(func, relax.Function) and _has_branches(func)
    }
    planned = relax.transform.StaticPlanBlockMemory()(mod)
    if not branching:
        return planned
    return tvm.IRModule({**dict(planned.functions.items()), **branching}, attrs=mod.attrs)


def _has_branches(func: relax.Function) -> bool:
    return any(isinstance(binding.value, relax.If) for binding in bindings_of(func))


def _allocated(mod: tvm.IRModule, operator: str) -> tuple[int, bool]:
    """Bytes that calls of ``operator`` allocate, and whether some size is symbolic."""
    total, symbolic = 0, False
    for binding in relax_bindings(mod):
        if operator_name(binding.value) != operator:
            continue
        elements = 1
        for size in binding.value.args[0].values:
            extent = static_extent(size)
            symbolic = symbolic or extent is None
            # At least one: the figure is a lower bound.
            elements *= extent if extent is not None else 1
        total += elements * _element_bytes(binding)
    return total, symbolic


def _element_bytes(binding: relax.VarBinding) -> int:
    """Storage is sized in bytes, a tensor in elements of its type."""
    ty = binding.var.ty
    if not isinstance(ty, relax.TensorType):
        return 1
    return (tvm.DataType(str(ty.dtype)).bits + 7) // 8
