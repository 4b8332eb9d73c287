"""DropResultChecks: results are not checked against the sizes that they were allocated with."""

import tvm
from tvm import relax

from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.spans import relax_functions, with_functions

_CHECKS = ("vm.builtin.match_shape", "vm.builtin.check_tensor_info")


@graph_pass
class DropResultChecks:
    """Drops the checks that VMShapeLower writes behind the last value of a function.

    Results have the sizes that they were allocated with; checking them anew takes a tenth of the
    time of a program of one small kernel.

    Leaves alone: checks of inputs, and of what a function calls in between.

    Run after: VMShapeLower.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns the module without these checks."""
        functions = relax_functions(mod).items()
        return with_functions(mod, {var: _without_result_checks(f) for var, f in functions})


def _without_result_checks(func: relax.Function) -> relax.Function:
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
