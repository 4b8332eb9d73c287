"""Graph pass that removes transposes which cancel, repeat or transpose a constant."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.graph_pass import graph_pass, record_applied
from tvm_ext.relay_passes.layout_roles import permutation_of
from tvm_ext.relay_passes.spans import describe_origin, relax_functions

NAME = "CancelTransposes"


@graph_pass
class CancelTransposes:
    """Joins transposes of transposes, and drops those that move nothing or that repeat another.

    permute_dims(permute_dims(x, p), q) -> permute_dims(x, p[q[0]], p[q[1]], ...)
    permute_dims(x, 0, 1, ...)          -> x
    permute_dims(constant, p)           -> the transposed constant
    a = permute_dims(x, p); b = permute_dims(x, p) in one block -> b is a

    Leaves alone: transposes of a unit axis, which move no data but change the shape; transposes
    apart by another operator. An inner transpose with other users stays for them.
    Run after: LayoutPlanning. Run before: legalisation.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The module without the transposes; ``mod`` itself when there is none to remove."""
        return cancel_transposes(mod, recorded=True)


def cancel_transposes(mod: tvm.IRModule, recorded: bool = False) -> tvm.IRModule:
    """``mod`` without needless transposes, noted in the pass log if ``recorded``."""
    walker = _Canceller(mod, recorded)
    for global_var, func in relax_functions(mod).items():
        removed_before = walker.removed
        new_func = walker.visit_expr(func)
        if walker.removed > removed_before:
            walker.builder_.update_func(global_var, new_func)
    if not walker.removed:
        return mod
    return relax.transform.DeadCodeElimination()(walker.builder_.get())


@mutator
class _Canceller(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, recorded: bool) -> None:
        super().__init__(mod)
        self.recorded = recorded
        self.removed = 0
        # By source and axes: the first such transpose in the current block.
        self.made: dict[tuple[relax.Var, tuple[int, ...]], relax.Var] = {}
        # What the current block binds; inner variables of another one cannot be used in it.
        self.local: set[relax.Var] = set()
        self.folded: dict[tuple[GenericConst, tuple[int, ...]], GenericConst] = {}
        self.constants: dict[relax.Var, GenericConst] = {}

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        return self._in_block(block, super().visit_binding_block_)

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        return self._in_block(block, super().visit_dataflow_block_)

    def _in_block(
        self, block: relax.BindingBlock, visit: Callable[[Any], Any]
    ) -> relax.BindingBlock:
        outer = self.made, self.local
        self.made, self.local = {}, {binding.var for binding in block.bindings}
        new_block = visit(block)
        self.made, self.local = outer
        return new_block

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        if var in self.constants:
            return self.constants[var]
        return super().visit_dataflow_var_(var)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if operator_name(binding.value) != "relax.permute_dims":
            super().visit_var_binding_(binding)
            return
        source, axes, joined = self._origin(self.visit_expr(binding.value.args[0]), binding.value)
        if isinstance(source, GenericConst):
            self._replace(binding.var, self._transposed(source, axes), "transposed a constant")
        elif list(axes) == list(range(len(axes))):
            self._replace(binding.var, source, "removed: transposes that cancel")
        elif (source, axes) in self.made:
            self._replace(binding.var, self.made[source, axes], "removed: a repeated transpose")
        elif joined:
            self._note(binding.var, "joined two transposes")
            self._emit(binding.var, relax.op.permute_dims(source, list(axes)))
        else:
            super().visit_var_binding_(binding)
            self.made[source, axes] = self.visit_expr(binding.var)

    def _origin(
        self, source: relax.Expr, call: relax.Call
    ) -> tuple[relax.Expr, tuple[int, ...], bool]:
        """What ``call`` transposes at the end of a chain, with all axes joined to one order."""
        axes, joined = permutation_of(call), False
        while isinstance(source, relax.Var):
            inner = self.lookup_binding(source)
            if operator_name(inner) != "relax.permute_dims":
                break
            further = inner.args[0]
            if isinstance(further, relax.DataflowVar) and further not in self.local:
                break
            order = permutation_of(inner)
            axes, joined = tuple(order[axis] for axis in axes), True
            source = further
        return source, axes, joined

    def _replace(self, var: relax.Var, value: relax.Expr, what: str) -> None:
        """Lets ``value`` take the place of ``var``; a result of the block keeps its binding."""
        self._note(var, what)
        if not isinstance(var, relax.DataflowVar):
            self._emit(var, value)
        elif isinstance(value, GenericConst):
            self.constants[var] = value
        else:
            self.set_var_remap(var, value)

    def _emit(self, var: relax.Var, value: relax.Expr) -> None:
        value = self.builder_.normalize(value)
        self.builder_.emit_normalized(relax.VarBinding(var, value))

    def _note(self, var: relax.Var, what: str) -> None:
        self.removed += 1
        if self.recorded:
            record_applied(NAME, describe_origin(var), what)

    def _transposed(self, constant: GenericConst, axes: tuple[int, ...]) -> GenericConst:
        """``constant`` transposed, once for all its users."""
        if (constant, axes) not in self.folded:
            values = np.asarray(np.transpose(constant.value.numpy(), axes), order="C")
            self.folded[constant, axes] = relax.const(values, constant.ty.dtype)
        return self.folded[constant, axes]
