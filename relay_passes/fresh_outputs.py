"""Outputs that are inputs, weights or views of other outputs get memory of their own."""

from collections.abc import Mapping

import tvm
from tvm import relax, te
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.spans import bindings_of, relax_bindings

# Operators whose result is memory of its own, and another view of their operand's memory.
_ALLOCATING = ("relax.call_tir", "relax.call_dps_packed")
_VIEWS = ("relax.reshape",)
_PACKED = "relax.call_pure_packed"
_MAY_WRITE = ("relax.call_tir_inplace", "relax.call_inplace_packed")
# Packed functions that are known to read only.
_READERS = ("vm.builtin.tensor_to_shape",)


@graph_pass
class FreshOutputs:
    """Gives outputs that are inputs, weights or views of other outputs memory of their own.

    Before: ``return (x, y, reshape(y))``
    After:  ``return (copy(x), y, copy(reshape(y)))``

    Leaves alone: programs for CPUs, of whose results a run copies these; results of branches whose
    sizes are not known.

    Run after: legalisation and fusion, which would take the copies away again.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when no output shares its memory."""
        return mod if current_cpu() is not None else with_fresh_outputs(mod)


def with_fresh_outputs(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` whose function ``main`` copies each output that lies in memory of something else.

    On a device an output that is an input, a constant or a view of another output would be that
    one's own memory, and whoever writes to the one changes the other.
    """
    main = _with_bound_result(mod["main"])
    copier = _OutputCopier(mod, main)
    if not copier.is_shared:
        return mod
    copier.builder_.update_func(mod.get_global_var("main"), copier.visit_expr(main))
    return copier.builder_.get()


def _with_bound_result(main: relax.Function) -> relax.Function:
    """The function returning a variable that a binding of its own defines."""
    result = main.body.body
    if any(binding.var.same_as(result) for binding in bindings_of(main)):
        return main
    bound = relax.Var("result", result.ty)
    block = relax.BindingBlock([relax.VarBinding(bound, result)])
    body = relax.SeqExpr([*main.body.blocks, block], bound)
    return relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)


def shared_outputs(main: relax.Function) -> list[bool]:
    """Of each output whether its memory is an input's, a weight's or another output's.

    Also where that cannot be told: of what a branch, a function or a packed function returns.
    """
    values = {binding.var: binding.value for binding in bindings_of(main)}
    result = values.get(main.body.body, main.body.body)
    fields = result.fields if isinstance(result, relax.Tuple) else [main.body.body]
    places = [_allocated(field, values) for field in fields]
    return [place is None or place in places[:position] for position, place in enumerate(places)]


def _allocated(
    value: relax.Expr, values: Mapping[relax.Var, relax.Expr]
) -> tuple[relax.Var, int] | None:
    """The call whose memory a value is, and its place among the results; None for anything else."""
    while isinstance(value, relax.Var) and value in values:
        bound = values[value]
        if isinstance(bound, relax.TupleGetItem):
            several = values.get(bound.tuple_value)
            if not isinstance(several, relax.Tuple):
                is_made = operator_name(several) in _ALLOCATING
                return (bound.tuple_value, bound.index) if is_made else None
            bound = several.fields[bound.index]
        elif operator_name(bound) in _ALLOCATING:
            return value, 0
        elif operator_name(bound) in _VIEWS:
            bound = bound.args[0]
        value = bound
    return None


def writes_to_inputs(mod: tvm.IRModule) -> bool:
    """Whether a program may write to what it is given: in place, or in a packed function."""
    bound = (binding.value for binding in relax_bindings(mod))
    calls = [value for value in bound if isinstance(value, relax.Call)]
    return any(operator_name(call) in _MAY_WRITE or _is_packed_writer(call) for call in calls)


def _is_packed_writer(call: relax.Call) -> bool:
    """Whether a call hands a tensor to a packed function that nothing is known of."""
    callee, *arguments = call.args if operator_name(call) == _PACKED else (call.op, *call.args)
    if not isinstance(callee, relax.ExternFunc) or callee.global_symbol in _READERS:
        return False
    return not all(isinstance(one, tvm.ir.StringImm) for one in arguments)


@mutator
class _OutputCopier(PyExprMutator):
    """Copies in the binding of the value that the function returns."""

    def __init__(self, mod: tvm.IRModule, main: relax.Function) -> None:
        super().__init__(mod)
        self._result = main.body.body
        self._shared = shared_outputs(main)
        self.is_shared = any(self._shared)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if not binding.var.same_as(self._result):
            super().visit_var_binding_(binding)
            return
        value = binding.value
        if isinstance(value, relax.Tuple):
            fields = zip(value.fields, self._shared, strict=True)
            changed: relax.Expr = relax.Tuple([self._fresh(*field) for field in fields])
        else:
            changed = self._fresh(value, self._shared[0])
        in_dataflow = self.builder_.current_block_is_dataflow()
        is_output = in_dataflow and not isinstance(binding.var, relax.DataflowVar)
        emit = self.builder_.emit_output if is_output else self.builder_.emit
        self.set_var_remap(binding.var, emit(changed, binding.var.name))

    def _fresh(self, field: relax.Expr, shared: bool) -> relax.Expr:
        visited = self.visit_expr(field)
        if not shared or not isinstance(field.ty.shape, relax.ShapeExpr):
            return visited
        return self.builder_.emit_te(_copied, visited, primfunc_name_hint="copy_output")


def _copied(tensor: te.Tensor) -> te.Tensor:
    return te.compute(tensor.shape, lambda *place: tensor(*place), name="copy", tag="injective")
