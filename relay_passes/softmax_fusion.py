"""SoftmaxFusion: a softmax or its logarithm that a model spells out, as the operator."""

import json
from collections.abc import Sequence

import tvm
from tvm import relax

from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, GraphView, Replacement
from tvm_ext.relay_passes.gemm_epilogue import FLOAT_TYPES
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.normalization_spellings import kept_axes

# Under this name a function that reduces carries how, as TVM's operators do not for infinities.
REDUCTION = "tvm_ext.reduction"


def reduction_attribute(combine: str, axes: Sequence[int], keepdims: bool) -> str:
    """What a function carries that combines the elements along ``axes`` by "max" or the like."""
    return json.dumps({"combine": combine, "axes": list(axes), "keepdims": keepdims})


@graph_pass
class SoftmaxFusion:
    """Names a softmax in parts, so that it becomes one kernel.

    Before: ``e = exp(x - max(x)); e / sum(e)``
    After:  ``softmax(x)``
    Before: ``d = x - max(x); d - log(sum(exp(d)))``
    After:  ``log_softmax(x)``

    Leaves alone: several axes at once; exponentials without the maximum, which may overflow where
    the operator does not; parts that are used elsewhere as well; integers.

    Run after: FoldConstantCalls. Run before: AttentionFusion, LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        return _SoftmaxNamer().run(mod)


class _SoftmaxNamer(BindingRewriter):
    pass_name = "SoftmaxFusion"
    roots = frozenset({"relax.divide", "relax.subtract"})

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        is_tensor = isinstance(value, relax.Call) and isinstance(var.ty, relax.TensorType)
        if not is_tensor or str(var.ty.dtype) not in FLOAT_TYPES:
            return None
        if self.view.call(value, "relax.divide") is not None:
            return self._softmax(var, value)
        if self.view.call(value, "relax.subtract") is not None:
            return self._log_softmax(var, value)
        return None

    def _softmax(self, var: relax.Var, divide: relax.Call) -> Replacement | None:
        exponential, total = divide.args
        found = _summed(self.view, total)
        if found is None or not found[0].same_as(exponential):
            return None
        inner = self.view.call(exponential, "relax.exp")
        shifted = None if inner is None else self._less_its_maximum(inner.args[0], found[1])
        if inner is None or shifted is None:
            return None
        x, maximum = shifted
        uses = {exponential: 2, total: 1, inner.args[0]: 1, maximum: 1}
        if not self._are_inner(uses, var):
            return None
        result = relax.op.nn.softmax(x, found[1])
        return Replacement(result, tuple(reversed(uses)), "softmax named")

    def _log_softmax(self, var: relax.Var, subtract: relax.Call) -> Replacement | None:
        shifted_var, logarithm = subtract.args
        log = self.view.call(logarithm, "relax.log")
        found = None if log is None else _summed(self.view, log.args[0])
        inner = None if found is None else self.view.call(found[0], "relax.exp")
        if log is None or found is None or inner is None:
            return None
        shifted = self._less_its_maximum(shifted_var, found[1])
        if shifted is None or not inner.args[0].same_as(shifted_var):
            return None
        x, maximum = shifted
        uses = {logarithm: 1, log.args[0]: 1, found[0]: 1, shifted_var: 2, maximum: 1}
        if not self._are_inner(uses, var):
            return None
        result = relax.op.nn.log_softmax(x, found[1])
        return Replacement(result, tuple(reversed(uses)), "log_softmax named")

    def _are_inner(self, uses: dict[relax.Expr, int], var: relax.Var) -> bool:
        """Whether the parts have no other users than each other."""
        if all(self.view.uses(part) == count for part, count in uses.items()):
            return True
        self.refuse("a part of it is used elsewhere as well", var)
        return False

    def _less_its_maximum(
        self, expr: relax.Expr, axis: int
    ) -> tuple[relax.Expr, relax.Expr] | None:
        """``x`` and its maximum along ``axis``, where ``expr`` is their difference."""
        call = self.view.call(expr, "relax.subtract")
        if call is None:
            return None
        x, maximum = call.args
        found = self._maximum(maximum)
        is_same = found is not None and found[0].same_as(x) and found[1] == axis
        return (x, maximum) if is_same else None

    def _maximum(self, expr: relax.Expr) -> tuple[relax.Expr, int] | None:
        """What ``expr`` is the maximum of along one axis, which it keeps, and the axis."""
        operator = self.view.call(expr, "relax.max")
        if operator is not None:
            axes = kept_axes(operator)
            return (operator.args[0], axes[0]) if axes and len(axes) == 1 else None
        call = self.view.call(expr, "relax.call_tir")
        text = None if call is None else (self.mod[call.args[0]].attrs or {}).get(REDUCTION)
        if call is None or text is None:
            return None
        how = json.loads(str(text))
        is_maximum = how["combine"] == "max" and how["keepdims"] and len(how["axes"]) == 1
        return (call.args[1].fields[0], how["axes"][0]) if is_maximum else None


def _summed(view: GraphView, expr: relax.Expr) -> tuple[relax.Expr, int] | None:
    """What ``expr`` is the sum of along one axis, which it keeps, and the axis."""
    call = view.call(expr, "relax.sum")
    axes = None if call is None else kept_axes(call)
    return (call.args[0], axes[0]) if call is not None and axes and len(axes) == 1 else None
