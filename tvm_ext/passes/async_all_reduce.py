"""All-reduces that go on while kernels run: started where they stand, waited for where needed."""

from collections.abc import Sequence

import tvm
from tvm import relax, tirx

from tvm_ext.compiler.compile_context import current_compilation
from tvm_ext.configs.sharding_record import DONE_FUNCTION, START_FUNCTION
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.dataflow.buffer_lifetimes import (
    BufferLifetimes,
    buffer_lifetimes,
    is_view,
)
from tvm_ext.relay_passes.graph_pass import graph_pass, record_applied, record_refusal
from tvm_ext.relay_passes.spans import describe_origin, relax_functions, with_functions

ALL_REDUCE_FUNCTION = "runtime.disco.allreduce"


@graph_pass
class AsyncAllReduce:
    """Starts an all-reduce where it stands, and waits for it where its result is read first.

    Before: ``allreduce(a, b)``, ``k1(x, y)``, ``k2(b, z)``
    After:  ``all_reduce_start(a, b)``, ``k1(x, y)``, ``all_reduce_done(a, b)``, ``k2(b, z)``

    The call that waits reads both buffers, so neither has its memory given to another value before.

    Leaves alone: programs for GPUs, all-reduces within a branch, and those whose result the next
    kernel reads.

    Run after: CallTIRRewrite. Run before: ShareStorage.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself where no all-reduce has a kernel beside it."""
        if current_cpu() is None:
            return mod
        lives = buffer_lifetimes(mod)
        kernels = {var for var, func in mod.functions.items() if isinstance(func, tirx.PrimFunc)}
        changed: dict[tvm.ir.GlobalVar, relax.Function] = {}
        for variable, func in relax_functions(mod).items():
            bindings = [one for block in func.body.blocks for one in block.bindings]
            beside = _kernels_beside(bindings, lives[variable], kernels)
            context = current_compilation()
            if context is not None and variable.name_hint == "main":
                context.kernels_beside = [count for _, count in beside.values()]
            split = {start: use for start, (use, count) in beside.items() if count}
            if split:
                changed[variable] = _with_bindings(func, _split(bindings, split))
        return with_functions(mod, changed)


def _is_all_reduce(value: relax.Expr) -> bool:
    called = value.op if isinstance(value, relax.Call) else None
    return isinstance(called, relax.ExternFunc) and called.global_symbol == ALL_REDUCE_FUNCTION


def _kernels_beside(
    bindings: Sequence[relax.Binding], lives: BufferLifetimes, kernels: set[tvm.ir.GlobalVar]
) -> dict[int, tuple[int, int]]:
    """By the place of an all-reduce: where its result is used first, and the kernels between."""
    found: dict[int, tuple[int, int]] = {}
    for start, binding in enumerate(bindings):
        if not _is_all_reduce(binding.value):
            continue
        where = describe_origin(binding.value.args[0])
        written = lives.named(binding.value.args[-1])
        use = start + 1
        while use < len(bindings) and not _reads(bindings[use].value, written, lives):
            use += 1
        between = [one.value for one in bindings[start + 1 : use]]
        count = sum(isinstance(one, relax.Call) and one.op in kernels for one in between)
        found[start] = use, count
        if count:
            record_applied("AsyncAllReduce", where, f"goes on while {count} kernels run")
        else:
            record_refusal("AsyncAllReduce", where, "no kernel runs ahead of what reads its result")
    return found


def _reads(value: relax.Expr, written: set[relax.Var], lives: BufferLifetimes) -> bool:
    """Whether a value is more than another name of what is written."""
    is_name = isinstance(value, relax.Var) or is_view(value)
    return not is_name and not written.isdisjoint(lives.named(value))


def _split(bindings: Sequence[relax.Binding], uses: dict[int, int]) -> list[relax.Binding]:
    """The bindings, with a call that starts and one that waits for each of these all-reduces."""
    waits: dict[int, list[relax.Binding]] = {}
    written: list[relax.Binding] = []
    for place, binding in enumerate(bindings):
        written += waits.pop(place, [])
        if place not in uses:
            written.append(binding)
            continue
        call = binding.value
        start = relax.Call(relax.ExternFunc(START_FUNCTION), call.args, call.attrs, call.ty_args)
        written.append(_bound(binding.var, start))
        operands = [call.args[0], call.args[-1]]
        done = relax.Call(relax.ExternFunc(DONE_FUNCTION), operands, None, call.ty_args)
        waits.setdefault(uses[place], []).append(_bound(relax.Var("_", binding.var.ty), done))
    return written + [one for left in waits.values() for one in left]


def _bound(variable: relax.Var, value: relax.Expr) -> relax.VarBinding:
    return relax.VarBinding(variable, relax.BlockBuilder().normalize(value))


def _with_bindings(func: relax.Function, bindings: Sequence[relax.Binding]) -> relax.Function:
    body = relax.SeqExpr([relax.BindingBlock(list(bindings))], func.body.body)
    made = relax.Function(func.params, body, func.ret_ty, func.is_pure, span=func.span)
    return made.with_attrs(dict((func.attrs or {}).items()))
