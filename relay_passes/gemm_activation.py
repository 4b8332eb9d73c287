"""Gives activations that are spelled out behind a matrix product their name."""

from math import isclose, sqrt

from tvm import relax

from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.gemm_pattern import Surroundings


class ActivationNamer(BindingRewriter):
    """Replaces what is spelled out in several operators, x being from a matrix product::

    0.5 * x * (1 + erf(x / sqrt(2)))  ->  gelu(x)
    x * sigmoid(x)                    ->  silu(x)
    """

    pass_name = "GemmFusion"

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._around = Surroundings(self.view, self.refuse)

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        named = (
            isinstance(value, relax.Call) and self.view.call(value, "relax.multiply") is not None
        )
        return self._spelled_out(var) if named else None

    def _spelled_out(self, var: relax.Var) -> Replacement | None:
        terms, factor, inner = self._around.factors(var)
        if len(terms) != 2:
            return None
        for x, gate in (terms, reversed(terms)):
            if self.view.uses(gate) != 1 or not self._around.from_product(x):
                continue
            if factor == 1.0 and self._is_sigmoid(gate, x):
                return Replacement(relax.op.nn.silu(x), (*inner, gate), "silu named")
            passed = self._erf_gate(gate, x, factor)
            if passed is not None:
                return Replacement(relax.op.nn.gelu(x), (*inner, *passed), "gelu named")
        return None

    def _is_sigmoid(self, gate: relax.Expr, x: relax.Expr) -> bool:
        call = self.view.call(gate, "relax.sigmoid")
        return call is not None and call.args[0].same_as(x)

    def _erf_gate(
        self, gate: relax.Expr, x: relax.Expr, factor: float
    ) -> tuple[relax.Var, ...] | None:
        """The variables of ``gate`` when it is ``1 + erf(x / sqrt(2))`` and ``factor`` a half."""
        erf_var = self._around.plus_one(gate)
        erf = None if erf_var is None else self.view.call(erf_var, "relax.erf")
        inner = None if erf is None else self._around.scaled(erf.args[0])
        if erf is None or inner is None or not inner[0].same_as(x):
            return None
        if self.view.uses(erf_var) != 1 or self.view.uses(erf.args[0]) != 1:
            return None
        tolerance = 1e-5 if str(x.ty.dtype) in ("float32", "float64") else 5e-3
        exact = isclose(inner[1], 1 / sqrt(2), rel_tol=tolerance) and factor == 0.5
        return (erf.args[0], erf_var, gate) if exact else None
