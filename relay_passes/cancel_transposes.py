"""CancelTransposes: no transposes that cancel, repeat or transpose a constant."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_equal

from tvm_ext.relay_passes.axis_factors import MOVEMENTS, AxisFactors
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.graph_pass import graph_pass, record_applied
from tvm_ext.relay_passes.layout_roles import permutation_of
from tvm_ext.relay_passes.spans import describe_origin, relax_functions

NAME = "CancelTransposes"


@graph_pass
class CancelTransposes:
    """Joins transposes of transposes, and drops those that move nothing or that repeat another.

    permute_dims(permute_dims(x, p), q) -> permute_dims(x, p[q[0]], p[q[1]], ...)
    permute_dims(reshape(permute_dims(x, 0, 3, 1, 2), (n, c, h * w)), 0, 2, 1)
                                        -> reshape(x, (n, h * w, c))
    permute_dims(x, 0, 1, ...)          -> x
    permute_dims(constant, p)           -> the transposed constant
    a = permute_dims(x, p); b = permute_dims(x, p) in one block -> b is a

    Between transposes of one tensor there may be reshapes, also of sizes that a run decides. They
    become one transpose between two reshapes at most, and a transpose that moves only axes of
    extent 1 becomes a reshape.

    Leaves alone: transposes apart by another operator (see SinkTransposes); reshapes that join
    parts of several axes. An inner transpose with other users stays for them.
    Run after: LayoutPlanning, SinkTransposes. Run before: legalisation.
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
        source, chain = self._chain(binding.value)
        transposes = [call for call in chain if operator_name(call) == "relax.permute_dims"]
        if not transposes:
            super().visit_var_binding_(binding)
        elif len(transposes) == len(chain):
            self._visit_transposes(binding, source, transposes)
        elif isinstance(source, GenericConst) or not self._joined(binding, source, chain):
            super().visit_var_binding_(binding)

    def _chain(self, value: relax.Expr) -> tuple[relax.Expr, list[relax.Call]]:
        """The transposes and reshapes that end in ``value``, and what the first of them reads."""
        chain: list[relax.Call] = []
        while operator_name(value) in MOVEMENTS:
            source = value.args[0] if chain else self.visit_expr(value.args[0])
            if chain and isinstance(source, relax.DataflowVar) and source not in self.local:
                break
            chain.insert(0, value)
            value = self.lookup_binding(source) if isinstance(source, relax.Var) else None
        return (source if chain else value), chain

    def _visit_transposes(
        self, binding: relax.VarBinding, source: relax.Expr, chain: Sequence[relax.Call]
    ) -> None:
        """A chain without reshapes: all its axes are joined to one order."""
        axes = permutation_of(chain[0])
        for call in chain[1:]:
            axes = tuple(axes[axis] for axis in permutation_of(call))
        if isinstance(source, GenericConst):
            self._replace(binding.var, self._transposed(source, axes), "transposed a constant")
        elif list(axes) == list(range(len(axes))):
            self._replace(binding.var, source, "removed: transposes that cancel")
        elif (source, axes) in self.made:
            self._replace(binding.var, self.made[source, axes], "removed: a repeated transpose")
        elif self._joined(binding, source, chain):
            pass
        elif len(chain) > 1:
            self._note(binding.var, "joined two transposes")
            self._emit(binding.var, relax.op.permute_dims(source, list(axes)))
        else:
            super().visit_var_binding_(binding)
            self.made[source, axes] = self.visit_expr(binding.var)

    def _joined(
        self, binding: relax.VarBinding, source: relax.Expr, chain: Sequence[relax.Call]
    ) -> bool:
        """Whether a chain became one reshape, or one transpose between reshapes."""
        shape = binding.var.ty.shape
        if not all(isinstance(s, relax.ShapeExpr) for s in (source.ty.shape, shape)):
            return False
        factors = AxisFactors(list(source.ty.shape))
        view = factors.view_behind(chain)
        if view is None:
            return False
        if factors.is_in_order(view):
            same = bool(structural_equal(source.ty.shape, shape))
            value = source if same else relax.op.reshape(source, shape)
            self._replace(binding.var, value, "removed: transposes that cancel")
            return True
        transposes = sum(operator_name(call) == "relax.permute_dims" for call in chain)
        if transposes < 2 or transposes == len(chain):
            return False
        self._note(binding.var, "joined transposes across reshapes")
        *inner, last = factors.one_transpose(view, shape)
        for make in inner:
            source = self._inner(binding.var, make(source))
        self._emit(binding.var, last(source))
        return True

    def _replace(self, var: relax.Var, value: relax.Expr, what: str) -> None:
        """Lets ``value`` take the place of ``var``; a result of the block keeps its binding."""
        self._note(var, what)
        if not isinstance(var, relax.DataflowVar) or isinstance(value, relax.Call):
            self._emit(var, value)
        elif isinstance(value, GenericConst):
            self.constants[var] = value
        else:
            self.set_var_remap(var, value)

    def _emit(self, var: relax.Var, value: relax.Expr) -> None:
        value = self.builder_.normalize(value)
        self.builder_.emit_normalized(relax.VarBinding(var, value))

    def _inner(self, var: relax.Var, value: relax.Expr) -> relax.Var:
        """A new variable like ``var``, with its origin, that is bound to ``value``."""
        value = self.builder_.normalize(value)
        kind = relax.DataflowVar if self.builder_.current_block_is_dataflow() else relax.Var
        inner = kind(f"{var.name}_inner", value.ty, var.span)
        self.builder_.emit_normalized(relax.VarBinding(inner, value))
        self.local.add(inner)
        return inner

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
