"""Outputs that are inputs, weights or views of other outputs get memory of their own."""

import tvm
from tvm import relax, te
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.spans import bindings_of

# Operators whose result is another view of their operand's memory.
_VIEWS = ("relax.reshape",)


@graph_pass
class FreshOutputs:
    """Gives outputs that are inputs, weights or views of other outputs memory of their own.

    Before: ``return (x, y, reshape(y))``
    After:  ``return (copy(x), y, copy(reshape(y)))``

    Leaves alone: programs for CPUs, whose results are copied on their way out.

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


@mutator
class _OutputCopier(PyExprMutator):
    """Copies in the binding of the value that the function returns."""

    def __init__(self, mod: tvm.IRModule, main: relax.Function) -> None:
        super().__init__(mod)
        self._params = list(main.params)
        self._values = {binding.var: binding.value for binding in bindings_of(main)}
        self._result = main.body.body
        value = self._values.get(self._result, self._result)
        fields = value.fields if isinstance(value, relax.Tuple) else [value]
        places = [self._place(field) for field in fields]
        self._shared = [
            isinstance(place, GenericConst)
            or any(place.same_as(other) for other in (*self._params, *places[:position]))
            for position, place in enumerate(places)
        ]
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
        return (
            self.builder_.emit_te(_copied, visited, primfunc_name_hint="copy_output")
            if shared
            else visited
        )

    def _place(self, value: relax.Expr) -> relax.Expr:
        """The variable or constant whose memory a value looks at."""
        while isinstance(value, relax.Var) and value in self._values:
            bound = self._values[value]
            if isinstance(bound, relax.Call):
                if str(getattr(bound.op, "name", "")) not in _VIEWS:
                    return value
                bound = bound.args[0]
            elif not isinstance(bound, relax.Var | GenericConst):
                return value
            value = bound
        return value


def _copied(tensor: te.Tensor) -> te.Tensor:
    return te.compute(tensor.shape, lambda *place: tensor(*place), name="copy", tag="injective")
