"""A graph pass in a package of its own: installing the package is all that it takes to use it."""

import tvm
from tvm import relax

from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.graph_pass import graph_pass


@graph_pass
class SingleAbs:
    """Keeps one absolute value of two in a row.

    Before::  a = abs(x); b = abs(a)
    After::   b = abs(x)

    Leaves alone: a first one that something else reads, unless ``even_shared`` is set.
    """

    even_shared: bool = False

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return _Rewriter(self.even_shared).run(mod)


class _Rewriter(BindingRewriter):
    pass_name = "SingleAbs"

    def __init__(self, even_shared: bool) -> None:
        super().__init__()
        self.even_shared = even_shared

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        outer = self.view.call(value, "relax.abs")
        if outer is None:
            return None
        first = outer.args[0]
        inner = self.view.call(first, "relax.abs")
        if inner is None:
            return None
        if self.view.uses(first) > 1 and not self.even_shared:
            self.refuse("the first of two absolute values has another reader", first, var)
            return None
        return Replacement(inner, (first,), "dropped the first of two absolute values")
