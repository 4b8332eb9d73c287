"""Moves reshapes behind a matrix product past what should be computed together with it."""

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.tirx import IntImm

from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.gemm_compute import ACTIVATIONS
from tvm_ext.relay_passes.gemm_pattern import Surroundings, same_shape


class ReshapeSinker(BindingRewriter):
    """Lets an epilogue follow its product directly, x being from a matrix product.

    A reshape is a view of the same memory, but operator fusion stops at it::

        act(reshape(x))       ->  reshape(act(x))
        reshape(x) + bias     ->  reshape(x + bias)
        reshape(x) + y        ->  reshape(x + reshape(y))
        reshape(reshape(x))   ->  reshape(x)
    """

    pass_name = "GemmFusion"

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._around = Surroundings(self.view, self.refuse)

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        if not isinstance(value, relax.Call):
            return None
        if self.view.call(value, "relax.reshape") is not None:
            return self._reshape_twice(var, value)
        if self.view.call(value, "relax.add") is not None:
            return self._add_behind(var, value)
        if self.view.call(value, *ACTIVATIONS) is not None:
            return self._activation_behind(var, value)
        return None

    def _reshape_twice(self, var: relax.Var, call: relax.Call) -> Replacement | None:
        first = self.view.call(call.args[0], "relax.reshape")
        if first is None or not self._around.from_product(first.args[0]):
            return None
        source = first.args[0]
        value = source if same_shape(source, var) else relax.op.reshape(source, call.args[1])
        return Replacement(value, (), "reshape of a reshape joined")

    def _activation_behind(self, var: relax.Var, call: relax.Call) -> Replacement | None:
        source = self._reshaped_product(call.args[0])
        if source is None:
            return None
        activated = relax.Call(call.op, [source, *call.args[1:]], call.attrs)
        return self._reshape_after(var, activated, call.args[0], "reshape moved behind")

    def _add_behind(self, var: relax.Var, call: relax.Call) -> Replacement | None:
        for reshaped, addend in (call.args, reversed(call.args)):
            source = self._reshaped_product(reshaped)
            if source is None or not same_shape(var, reshaped):
                continue
            moved = self._addend_like(source, reshaped, addend)
            if moved is not None:
                return self._reshape_after(
                    var, relax.op.add(source, moved), reshaped, "reshape moved behind the add"
                )
        return None

    def _reshape_after(
        self, var: relax.Var, value: relax.Call, reshaped: relax.Var, what: str
    ) -> Replacement:
        result = relax.op.reshape(self.bind(value, var), var.ty.shape)
        return Replacement(result, (reshaped,), what)

    def _addend_like(
        self, source: relax.Expr, reshaped: relax.Expr, addend: relax.Expr
    ) -> relax.Expr | None:
        """``addend``, so that it can be added to ``source`` instead; None when it cannot."""
        if same_shape(addend, reshaped):
            return self.bind(relax.op.reshape(addend, source.ty.shape), reshaped)
        if not isinstance(addend, GenericConst):
            return None
        array = addend.value.numpy()
        if array.size == 1:
            return relax.const(np.reshape(array, ()), str(addend.ty.dtype))
        last = source.ty.shape.values[-1], reshaped.ty.shape.values[-1]
        if not all(isinstance(extent, IntImm) and int(extent) == array.size for extent in last):
            return None
        if array.shape[-1] != array.size:
            return None
        return relax.const(np.reshape(array, -1), str(addend.ty.dtype))

    def _reshaped_product(self, expr: relax.Expr) -> relax.Expr | None:
        """The source of the reshape ``expr``, if it is from a product and both have one user."""
        call = self.view.call(expr, "relax.reshape")
        if call is None or not self._around.from_product(call.args[0]):
            return None
        shapes = expr.ty.shape, call.args[0].ty.shape
        if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
            return None
        if self.view.uses(expr) != 1 or self.view.uses(call.args[0]) != 1:
            self.refuse("a reshape behind the product has another user", expr)
            return None
        return call.args[0]
