"""Arrays that kernels of a GPU keep between their launches, planned with all other storage."""

from collections import Counter
from collections.abc import Sequence

import tvm
from tvm import relax, s_tir, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_walk

from tvm_ext.compiler.backend import programs_of
from tvm_ext.hardware.targets import current_description
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.spans import relax_functions
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent
from tvm_ext.tir_schedules.statements import changed_block

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")


@graph_pass
class PlanWorkspaces:
    """Makes each array in global memory inside of a kernel one more of its results.

    Before: ``y = call_tir(k, (x,), out=Y)``, where ``k`` allocates ``partial: P`` in each call
    After:  ``pair = call_tir(k, (x,), out=(Y, P))``, ``y = pair[0]``

    Memory planning then knows of it, and a CUDA graph can hold the kernel.

    Leaves alone: programs for other machines than GPUs; kernels with symbolic sizes, and those that
    are named other than in a call.

    Run after: ScheduleKernels. Run before: the planning of storage.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when no kernel has such an array."""
        keeps = programs_of(current_description()).keeps_workspaces
        return plan_workspaces(mod) if keeps else mod


def plan_workspaces(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with workspaces as results; see ``PlanWorkspaces``."""
    allocated = {
        str(variable.name_hint): workspaces
        for variable, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and (workspaces := _workspaces(func))
    }
    elsewhere = _named_elsewhere(mod) if allocated else ()
    taken = {name: found for name, found in allocated.items() if name not in elsewhere}
    if not taken:
        return mod
    others = {v: f for v, f in mod.functions.items() if str(v.name_hint) not in taken}
    planner = _WorkspacePlanner(tvm.IRModule(others, attrs=mod.attrs), taken)
    for variable, func in mod.functions.items():
        if str(variable.name_hint) in taken:
            planner.add_kernel(str(variable.name_hint), func)
    for variable, func in relax_functions(mod).items():
        planner.builder_.update_func(variable, planner.visit_expr(func))
    return planner.builder_.get()


def _workspaces(func: tirx.PrimFunc) -> list[tvm.ir.Var]:
    """Arrays in global memory that a kernel allocates; none when a size is symbolic."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return []
    params = [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
    found = [b for b in func.body.block.alloc_buffers if b.scope() == "global"]
    sizes = [size for buffer in (*params, *found) for size in buffer.shape]
    static = all(static_extent(size) is not None for size in sizes)
    return found if static and len(params) == len(func.params) else []


def _named_elsewhere(mod: tvm.IRModule) -> set[str]:
    """Functions that anything but ``call_tir`` uses."""
    uses, calls = Counter[str](), Counter[str]()

    def count_use(variable: tvm.ir.GlobalVar) -> None:
        uses[str(variable.name_hint)] += 1

    def count_call(call: relax.Call) -> None:
        if _CALL_TIR.same_as(call.op):
            calls[str(call.args[0].name_hint)] += 1

    for func in mod.functions.values():
        structural_walk(func, (tvm.ir.GlobalVar, count_use), order="pre")
        structural_walk(func, (relax.Call, count_call), order="pre")
    return {name for name, count in uses.items() if count != calls[name]}


@mutator
class _WorkspacePlanner(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, workspaces: dict[str, list[tvm.ir.Var]]) -> None:
        super().__init__(mod)
        self.workspaces = workspaces
        self.kernels: dict[str, tvm.ir.GlobalVar] = {}

    def add_kernel(self, name: str, func: tirx.PrimFunc) -> None:
        lifted = _with_parameters(func, self.workspaces[name])
        self.kernels[name] = self.builder_.add_func(lifted, name)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not _CALL_TIR.same_as(call.op) or str(call.args[0].name_hint) not in self.kernels:
            return super().visit_call_(call)
        name = str(call.args[0].name_hint)
        result = call.ty_args[0]
        several = isinstance(result, relax.TupleType)
        results = list(result.fields) if several else [result]
        extra = [
            relax.TensorType(list(buffer.shape), str(buffer.dtype))
            for buffer in self.workspaces[name]
        ]
        arguments = self.visit_expr(call.args[1])
        together = relax.Call(
            call.op,
            [self.kernels[name], arguments, *call.args[2:]],
            call.attrs,
            [relax.TupleType([*results, *extra])],
            call.span,
        )
        bound = self.builder_.emit(together)
        own = [self.builder_.emit(relax.TupleGetItem(bound, i)) for i in range(len(results))]
        return relax.Tuple(own) if several else own[0]


def _with_parameters(func: tirx.PrimFunc, buffers: Sequence[tvm.ir.Var]) -> tirx.PrimFunc:
    """The kernel with arrays that it allocated as parameters, after all others."""
    realize = func.body
    block = realize.block
    kept = [b for b in block.alloc_buffers if not any(b.same_as(other) for other in buffers)]
    body = changed_block(block, alloc_buffers=kept)
    return tirx.PrimFunc(
        [*func.params, *buffers],
        s_tir.SBlockRealize(realize.iter_values, realize.predicate, body),
        func.ret_type,
        func.attrs,
    )
