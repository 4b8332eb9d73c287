"""A graph pass in a package of its own: ``pip install`` is all that it takes to use it."""

import numpy as np
import tvm
from tvm import relax

import tvm_ext
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.graph_pass import graph_pass


@graph_pass
class FoldScales:
    """Multiplies two constant factors in a row while compiling.

    Before::  a = x * 0.5; b = a * 4.0
    After::   b = x * 2.0

    Leaves alone: a first product that something else reads; factors that are no constants, not
    float32, or no single numbers; a product of factors that float32 does not hold.
    Run after: GemmFusion, which takes factors into the weights of a matmul.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns the module with the factors folded; ``mod`` itself is not changed."""
        return _Rewriter().run(mod)


class _Rewriter(BindingRewriter):
    pass_name = "FoldScales"

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        """See ``BindingRewriter``; asked for every binding of the graph."""
        outer = self._scaled(value)
        if outer is None:
            return None
        first, outer_factor = outer
        inner = self._scaled(first)
        if inner is None:
            return None
        if self.view.uses(first) > 1:
            self.refuse("the first product has another reader", first, var)
            return None
        source, inner_factor = inner
        # In float64 first: what leaves float32's range is found instead of becoming infinite.
        factor = float(inner_factor) * float(outer_factor)
        limits = np.finfo("float32")
        if factor and not limits.tiny <= abs(factor) <= limits.max:
            self.refuse("float32 does not hold the product of the factors", first, var)
            return None
        folded = relax.op.multiply(source, relax.const(factor, "float32"))
        return Replacement(folded, (first,), "folded two constant factors into one")

    def _scaled(self, expr: relax.Expr) -> tuple[relax.Expr, np.ndarray] | None:
        """What ``expr`` multiplies and by which single number; None if it is no such product."""
        product = self.view.call(expr, "relax.multiply")
        if product is None:
            return None
        for other, factor in (product.args[:], product.args[::-1]):
            constant = self.view.value(factor)
            if not isinstance(constant, tvm.ir.GenericConst):
                continue
            number = constant.value.numpy()
            if number.ndim == 0 and number.dtype == "float32" == str(other.ty.dtype):
                return other, number
        return None


def register() -> None:
    """Called through the entry point; says at which level the pass runs, and behind which."""
    tvm_ext.register_pass(FoldScales, level="graph", after="GemmFusion")
