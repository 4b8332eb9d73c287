"""Plans storage: liveness, reuse of buffers, and the figures for the report."""

from collections.abc import Callable, Mapping

import tvm
from tvm import relax, tirx
from tvm.sym import Analyzer

from tvm_ext.compiler.far_limits import without_far_limits
from tvm_ext.compiler.graph_facts import relax_bindings, weight_bytes
from tvm_ext.compiler.storage_steps import RoundStorage
from tvm_ext.open_size import SizeRange
from tvm_ext.relay_passes.operator_name import operator_name
from tvm_ext.relay_passes.origin_writer import bindings_of
from tvm_ext.report.records import MemoryRecord
from tvm_ext.tir_schedules.block_access import static_extent


def plan_memory(
    mod: tvm.IRModule,
    reuse: bool = True,
    ranges: Mapping[str, SizeRange] | None = None,
    passes: Callable[[tvm.IRModule], tvm.IRModule] | None = None,
) -> tuple[tvm.IRModule, MemoryRecord]:
    """The module with explicit storage, ready for code generation, and its memory figures.

    Without ``reuse`` every value gets storage of its own, which shows whether sharing is at fault.
    ``ranges`` are those of symbolic dimensions of the inputs, by name: what depends on them alone
    gets storage for the largest size, which all sizes share. ``passes`` see the module with its
    storage, before that is turned into calls of the virtual machine.
    """
    ranges = ranges or {}
    mod = _allocate_explicitly(_with_ranges(mod, ranges))
    unplanned, _ = _allocated(mod, "relax.builtin.alloc_tensor", ranges)
    if reuse:
        mod = without_far_limits(_share_storage(mod), ranges)
    planned, symbolic = _allocated(mod, "relax.memory.alloc_storage", ranges)
    left, left_symbolic = _allocated(mod, "relax.builtin.alloc_tensor", ranges)
    record = MemoryRecord(
        planned_peak_bytes=planned + left,
        unplanned_bytes=unplanned,
        weights_bytes=weight_bytes(mod),
        dynamic=symbolic or left_symbolic,
    )
    if passes is not None:
        mod = passes(mod)
    finish = tvm.transform.Sequential(
        [
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            RoundStorage(),
            relax.transform.VMShapeLower(),
            _DropResultChecks(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )
    return finish(mod), record


_CHECKS = ("vm.builtin.match_shape", "vm.builtin.check_tensor_info")


@relax.transform.function_pass(opt_level=0, name="DropResultChecks")
class _DropResultChecks:
    """Drops the checks that VMShapeLower writes behind the last value of a function.

    Results have the sizes that they were allocated with; checking them anew takes a tenth of the
    time of a program of one small kernel.
    """

    def transform_function(
        self, func: relax.Function, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> relax.Function:
        *before, last = func.body.blocks
        bindings = list(last.bindings)
        while bindings and _is_check(bindings[-1].value) and bindings[-1].var != func.body.body:
            bindings.pop()
        body = relax.SeqExpr([*before, relax.BindingBlock(bindings)], func.body.body)
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)


def _is_check(value: relax.Expr) -> bool:
    called = getattr(value, "op", None)
    name = called.global_symbol if isinstance(called, relax.ExternFunc) else ""
    return isinstance(value, relax.TupleGetItem) or name in _CHECKS


def _with_ranges(mod: tvm.IRModule, ranges: Mapping[str, SizeRange]) -> tvm.IRModule:
    """The module with the annotations that TVM's planner reads."""
    if not ranges:
        return mod
    bounds = {
        "tir_var_upper_bound": {name: allowed.high for name, allowed in ranges.items()},
        "tir_var_lower_bound": {name: allowed.low for name, allowed in ranges.items()},
    }
    main = mod["main"].with_attrs(bounds)
    return tvm.IRModule(
        {**dict(mod.functions.items()), mod.get_global_var("main"): main}, attrs=mod.attrs
    )


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
    try:
        planned = relax.transform.StaticPlanBlockMemory()(mod)
    except (tvm.error.InternalError, ValueError) as error:
        # A slice up to 10**9 of each of three open dimensions may have more bytes than 64 bits
        # count. Such values get storage of their own, of the size that each run finds.
        if "exceeds range of int64" not in str(error):
            raise
        return mod
    if not branching:
        return planned
    return tvm.IRModule({**dict(planned.functions.items()), **branching}, attrs=mod.attrs)


def _has_branches(func: relax.Function) -> bool:
    return any(isinstance(binding.value, relax.If) for binding in bindings_of(func))


def _allocated(
    mod: tvm.IRModule, operator: str, ranges: Mapping[str, SizeRange]
) -> tuple[int, bool]:
    """Bytes that calls of ``operator`` allocate at most, and whether some size has no limit."""
    total, symbolic = 0, False
    for binding in relax_bindings(mod):
        if operator_name(binding.value) != operator:
            continue
        elements = 1
        for size in binding.value.args[0].values:
            extent = _largest(size, ranges)
            symbolic = symbolic or extent is None
            # At least one: the figure is a lower bound.
            elements *= extent if extent is not None else 1
        total += elements * _element_bytes(binding)
    return total, symbolic


def _largest(size: tirx.Expr, ranges: Mapping[str, SizeRange]) -> int | None:
    """The largest value of a size; None where a run decides it without a limit."""
    extent = static_extent(size)
    if extent is not None or not ranges:
        return extent
    analyzer = Analyzer()
    for var in tirx.analysis.undefined_vars(size):
        allowed = ranges.get(var.name)
        if allowed is None:
            return None
        analyzer.bind(var, tvm.ir.Range(allowed.low, allowed.high + 1))
    return int(analyzer.const_int_bound(size).max_value)


def _element_bytes(binding: relax.VarBinding) -> int:
    """Storage is sized in bytes, a tensor in elements of its type."""
    ty = binding.var.ty
    if not isinstance(ty, relax.TensorType):
        return 1
    return (tvm.DataType(str(ty.dtype)).bits + 7) // 8
