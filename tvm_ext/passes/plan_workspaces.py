"""Arrays that kernels allocate for themselves, planned with all other storage."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import tvm
from tvm import relax, s_tir, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_walk

from tvm_ext.compiler.backend import programs_of, threads_of
from tvm_ext.compiler.kernel_arrays import arrays_of_whole_calls, kernel_arrays
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.hardware.targets import current_description
from tvm_ext.passes.share_storage import planned_bytes
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.spans import relax_functions
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent
from tvm_ext.tir_schedules.analysis.in_place import keeps_module
from tvm_ext.tir_schedules.statements import changed_block

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")
# Smaller arrays on a CPU: an allocation in the program takes longer than it saves memory.
_LEAST_BYTES = 1 << 16
_AHEAD_OF_STORAGE = tvm.transform.Sequential(
    [
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
    ]
)


@graph_pass
class PlanWorkspaces:
    """Makes arrays that a kernel has for a whole call further results of it.

    Before: ``y = call_tir(k, (x,), out=Y)``, where ``k`` allocates ``partial: P`` in each call
    After:  ``pair = call_tir(k, (x,), out=(Y, P))``, ``y = pair[0]``

    Memory planning then knows of them. On a GPU these are all arrays in global memory, so that a
    CUDA graph can hold the kernel. On a CPU they are those of 64 KiB or more: TVM keeps what a
    kernel allocates for as long as the thread lives, and nothing else lies there meanwhile.

    Leaves alone: kernels with symbolic sizes, those that are named other than in a call, and those
    whose loops MLIR's code takes the place of; on a CPU arrays that each iteration of a loop has
    for itself, as threads do that share one, and programs that would not take less: the memory that
    TVM keeps is that of several kernels.

    Run after: ScheduleKernels. Run before: the planning of storage.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when no kernel has such an array."""
        if programs_of(current_description()).keeps_workspaces:
            return plan_workspaces(mod)
        planned = plan_workspaces(mod, _arrays_of_cpu) if current_cpu() is not None else mod
        if planned.same_as(mod) or _bytes_of_run(planned) >= _bytes_of_run(mod):
            return mod
        return planned


def may_get_workspaces(func: tirx.PrimFunc) -> bool:
    """Whether the pass may take arrays from a kernel for a CPU."""
    return bool(_workspaces(func, _arrays_of_cpu))


def plan_workspaces(
    mod: tvm.IRModule,
    arrays_of: Callable[[tirx.PrimFunc], list[tirx.Buffer]] | None = None,
) -> tvm.IRModule:
    """The module with workspaces as results; see ``PlanWorkspaces``.

    ``arrays_of`` gives those of a kernel of known sizes, by default all in global memory.
    """
    arrays_of = arrays_of or _global_arrays
    allocated = {
        str(variable.name_hint): workspaces
        for variable, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and (workspaces := _workspaces(func, arrays_of))
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


def _bytes_of_run(mod: tvm.IRModule) -> float:
    """What values take and what kernels allocate, on all threads; without limit if not known."""
    values = planned_bytes(_AHEAD_OF_STORAGE(mod)).total
    if values is None:
        return math.inf
    machine = current_description()
    return values + kernel_arrays(mod, mod, {}).bytes_on(threads_of(machine))


def _workspaces(
    func: tirx.PrimFunc, arrays_of: Callable[[tirx.PrimFunc], list[tirx.Buffer]]
) -> list[tirx.Buffer]:
    """Arrays that are to be results of a kernel; none when a size is symbolic."""
    if keeps_module(func):
        return []
    if not isinstance(func.body, s_tir.SBlockRealize) or not func.body.block.alloc_buffers:
        return []
    params = [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
    if len(params) < len(func.params) or not all(map(_is_fixed, params)):
        return []
    found = arrays_of(func)
    return found if all(map(_is_fixed, found)) else []


def _is_fixed(array: tirx.Buffer) -> bool:
    return all(static_extent(size) is not None for size in array.shape)


def _global_arrays(func: tirx.PrimFunc) -> list[tirx.Buffer]:
    """All arrays in global memory."""
    return [one for one in func.body.block.alloc_buffers if one.scope() == "global"]


def _arrays_of_cpu(func: tirx.PrimFunc) -> list[tirx.Buffer]:
    return arrays_of_whole_calls(func, _LEAST_BYTES)


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
