"""NormalizationFusion: a normalisation that a model spells out, as one kernel."""

from typing import Any

import tvm
from tvm import relax, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import is_symbolic
from tvm_ext.relay_passes.gemm_epilogue import FLOAT_TYPES
from tvm_ext.relay_passes.graph_pass import OUT_ELEMENTWISE_FUSABLE, graph_pass
from tvm_ext.relay_passes.normalization import NARROW_TYPES, Divisor, Guard, Normalization
from tvm_ext.relay_passes.normalization_spellings import spelled_out

_OPERATORS = ("relax.nn.layer_norm", "relax.nn.rms_norm", "relax.nn.instance_norm")


@graph_pass
class NormalizationFusion:
    """Computes LayerNorm, RMSNorm, InstanceNorm and the L2 norm in one kernel, row by row in cache.

    Before: ``m = mean(x); d = x - m; v = mean(power(d, 2)); d / sqrt(v + eps)``
    After:  ``layer_norm(x)``; scale and shift that follow join it when operators are fused
    Before: ``w = astype(x, float32); w * rsqrt(mean(w * w) + eps)``
    After:  ``rms_norm(x)``, which reads the narrow numbers

    ``Guard`` has the ways in which ``eps`` may stand, ``normalization_spellings`` the operators.
    Also for ``layer_norm``, ``rms_norm`` and ``instance_norm`` of ``relax.nn``. TVM computes the
    first from the mean of the squares, which loses all digits when the mean is much larger than
    the deviations. Here deviations are squared. Sizes may be symbolic. Numbers of 16 bits are
    computed with as float32.

    Leaves alone: a variance that is written as ``mean(x * x) - mean(x) * mean(x)``; values inside
    that are used elsewhere as well; unknown shapes; scales of ``layer_norm`` and ``rms_norm`` that
    are not over the last axes.

    Run after: LayoutPlanning, FoldConstantCalls. Run before: LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        return _Fuser().run(mod)


class _Fuser(BindingRewriter):
    pass_name = "NormalizationFusion"

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        try:
            if (call := self.view.call(value, *_OPERATORS)) is not None:
                return self._operator(var, call)
            found = spelled_out(self.view, value)
            if found is None:
                return None
            norm, inner = found
            _check(norm)
        except NotApplicable as refused:
            self.refuse(str(refused), var)
            return None
        return Replacement(self._kernel(norm), inner, f"over {_words(norm)} of its input")

    def _operator(self, var: relax.Var, call: relax.Call) -> Replacement:
        attrs: Any = call.attrs
        x, kind = call.args[0], call.op.name.removeprefix("relax.nn.")
        rank, is_rms = x.ty.ndim, kind == "rms_norm"
        axes = tuple(sorted(int(axis) % rank for axis in attrs.axes))
        divisor = Divisor(Guard.ADD_INSIDE, float(attrs.epsilon), is_mean=True)
        norm = Normalization(x, axes, not is_rms, divisor, str(x.ty.dtype))
        _check(norm)
        if kind == "instance_norm":
            steps = self._by_channel(call, int(attrs.channel_axis) % rank, var)
        else:
            if axes != tuple(range(rank - len(axes), rank)):
                raise NotApplicable("it is not over the last axes")
            steps = list(call.args[1:])
        used = [True] if is_rms else [bool(attrs.scale), bool(attrs.center)]
        result = self.bind(self._kernel(norm), var)
        for operator, operand, is_used in zip(
            (relax.op.multiply, relax.op.add), steps, used, strict=False
        ):
            result = self.bind(operator(result, operand), var) if is_used else result
        return Replacement(result, (), f"over {_words(norm)} of its input, deviations squared")

    def _by_channel(self, call: relax.Call, axis: int, var: relax.Var) -> list[relax.Expr]:
        """Scale and shift with the rank of the data, to be applied along ``axis``."""
        shape = [1] * call.args[0].ty.ndim
        shape[axis] = call.args[0].ty.shape[axis]
        return [self.bind(relax.op.reshape(part, shape), var) for part in call.args[1:]]

    def _kernel(self, norm: Normalization) -> relax.Call:
        return self.builder.call_te(
            norm.compute,
            norm.x,
            primfunc_name_hint=norm.name,
            primfunc_attrs={"op_pattern": OUT_ELEMENTWISE_FUSABLE},
        )


def _check(norm: Normalization) -> None:
    """Raises NotApplicable where there is no kernel for ``norm``."""
    if str(norm.x.ty.dtype) not in (*FLOAT_TYPES, *NARROW_TYPES):
        raise NotApplicable(f"its type is {norm.x.ty.dtype}, which is no floating point type")
    shape = norm.x.ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        raise NotApplicable("its shape is unknown, even as symbols")
    if any(isinstance(n, tirx.IntImm) and int(n) == 0 for n in shape):
        raise NotApplicable("its input is empty")
    # FuseTIR fails on sizes that are computed from others.
    if not all(isinstance(n, tirx.IntImm) or is_symbolic(n) for n in shape):
        raise NotApplicable("a size of its input is computed from others")


def _words(norm: Normalization) -> str:
    return "axis " + ", ".join(str(axis) for axis in norm.axes)
