"""Memory that a kernel for a GPU needs between its parts becomes an output that nobody reads."""

from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.tir_schedules.block_access import static_extent

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")


def with_planned_workspaces(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` whose kernels get their workspaces as arguments.

    Before: ``y = call_tir(k, (x,), T)``, and ``k`` allocates ``w`` at every call
    After:  ``y, _ = call_tir(k, (x,), (T, W))``

    The planning of storage then places them, and a CUDA graph can hold the kernel: what a kernel
    allocates by itself may be elsewhere when the graph is launched again. Workspaces whose size
    only a run knows stay where they are, and so do those of kernels with sizes among their
    arguments.
    """
    with_sizes = _called_with_sizes(mod)
    lifted = {
        str(var.name_hint): (func, _workspaces(func))
        for var, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and str(var.name_hint) not in with_sizes
    }
    lifted = {name: found for name, found in lifted.items() if found[1]}
    if not lifted:
        return mod
    # A kernel's name carries the types of its parameters: a lifted one gets a new name object.
    others = {v: f for v, f in mod.functions.items() if str(v.name_hint) not in lifted}
    lifter = _Lifter(tvm.IRModule(others, attrs=mod.attrs))
    for name, (func, workspaces) in lifted.items():
        lifter.add_kernel(name, _lifted(func, workspaces), workspaces)
    for global_var, func in others.items():
        if isinstance(func, relax.Function):
            lifter.builder_.update_func(global_var, lifter.visit_expr(func))
    return lifter.builder_.get()


def _called_with_sizes(mod: tvm.IRModule) -> set[str]:
    """Names of kernels that some call passes sizes to, or that something else than a call names."""
    found: set[str] = set()

    def visit(node: relax.Expr) -> None:
        if not isinstance(node, relax.Call) or not node.args:
            return
        kernel = node.args[0]
        if isinstance(kernel, tvm.ir.GlobalVar) and (
            not _CALL_TIR.same_as(node.op) or len(node.args) > 2
        ):
            found.add(str(kernel.name_hint))

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return found


def _workspaces(func: tirx.PrimFunc) -> list[tvm.ir.Var]:
    if not isinstance(func.body, s_tir.SBlockRealize):
        return []
    return [
        buffer
        for buffer in func.body.block.alloc_buffers
        if buffer.scope() == "global" and None not in map(static_extent, buffer.shape)
    ]


def _lifted(func: tirx.PrimFunc, workspaces: list[tvm.ir.Var]) -> tirx.PrimFunc:
    """The kernel with its workspaces as last parameters."""
    realize, block = func.body, func.body.block
    kept = [b for b in block.alloc_buffers if not any(b.same_as(one) for one in workspaces)]
    body = s_tir.SBlockRealize(
        realize.iter_values,
        realize.predicate,
        s_tir.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            block.name_hint,
            block.body,
            block.init,
            kept,
            block.match_buffers,
            block.annotations,
        ),
    )
    return tirx.PrimFunc([*func.params, *workspaces], body, func.ret_type, func.attrs)


def _type_of(buffer: tvm.ir.Var) -> relax.TensorType:
    sizes: list[Any] = [static_extent(size) for size in buffer.shape]
    return relax.TensorType(sizes, str(buffer.dtype))


@mutator
class _Lifter(PyExprMutator):
    """Gives the calls of lifted kernels their further outputs."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.kernels: dict[str, tuple[tvm.ir.GlobalVar, list[relax.TensorType]]] = {}

    def add_kernel(self, name: str, func: tirx.PrimFunc, workspaces: list[tvm.ir.Var]) -> None:
        added = self.builder_.add_func(func, name)
        self.kernels[name] = (added, [_type_of(buffer) for buffer in workspaces])

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not _CALL_TIR.same_as(call.op) or str(call.args[0].name_hint) not in self.kernels:
            return super().visit_call_(call)
        kernel, types = self.kernels[str(call.args[0].name_hint)]
        arguments = self.visit_expr(call.args[1])
        (old,) = call.ty_args
        outputs = list(old.fields) if isinstance(old, relax.TupleType) else [old]
        both = self.builder_.emit(
            relax.Call(
                call.op,
                [kernel, arguments],
                call.attrs,
                [relax.TupleType([*outputs, *types])],
                call.span,
            )
        )
        parts = [relax.TupleGetItem(both, place) for place in range(len(outputs))]
        return relax.Tuple(parts) if isinstance(old, relax.TupleType) else parts[0]
