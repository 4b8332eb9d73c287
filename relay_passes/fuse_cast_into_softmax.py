"""Lets a softmax on a GPU read 16-bit numbers as they are and compute in float32."""

import tvm
from tvm import relax, te, topi

from tvm_ext.hardware.cuda.description import current_gpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.graph_pass import graph_pass

_NARROW = ("float16", "bfloat16")


@graph_pass
class FuseCastIntoSoftmax:
    """Takes the cast before a softmax into its kernel.

    Before: ``w = astype(x, float32)``, ``y = softmax(w)`` of float16 or bfloat16 ``x``
    After:  ``y = call_tir(softmax, (x,))``, which casts what it reads

    FuseOps joins a cast with what is before it, never with a reduction behind it: the cast alone
    would move three times the bytes that the softmax has to read.

    Leaves alone: casts with another user; other targets than GPUs.

    Run after: AttentionFusion. Run before: LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        return mod if current_gpu() is None else _SoftmaxRewriter().run(mod)


class _SoftmaxRewriter(BindingRewriter):
    pass_name = "FuseCastIntoSoftmax"
    roots = frozenset({"relax.nn.softmax"})

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        softmax = self.view.call(value, "relax.nn.softmax")
        if softmax is None or isinstance(value, relax.Var):
            return None
        wide = softmax.args[0]
        cast = self.view.call(wide, "relax.astype")
        if cast is None or str(wide.ty.dtype) != "float32":
            return None
        narrow = cast.args[0]
        if str(narrow.ty.dtype) not in _NARROW:
            return None
        if self.view.uses(wide) > 1:
            self.refuse("the cast has another user", var)
            return None
        axis = int(softmax.attrs.axis)

        def compute(x: te.Tensor) -> te.Tensor:
            return topi.nn.softmax(topi.cast(x, "float32"), axis)

        made = self.builder.call_te(compute, narrow, primfunc_name_hint="softmax")
        return Replacement(made, (wide,), f"reads {narrow.ty.dtype}")
