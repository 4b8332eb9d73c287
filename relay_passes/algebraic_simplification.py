"""Graph pass that applies the rewrite rules: less work for the same results."""

import tvm
from tvm import relax

from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.rewrite_rules import RULES
from tvm_ext.relay_passes.rewrite_rules.matching import Rewrite, RuleMatcher, RuleTable

_TABLES = {with_finite: RuleTable(RULES, with_finite) for with_finite in (False, True)}


@graph_pass
class AlgebraicSimplification:
    """Replaces what operators compute together by less work with the same result.

    Before: ``a = permute_dims(x, [0, 2, 1])``; ``b = relu(a)``; ``y = permute_dims(b, [0, 2, 1])``
    After:  ``y = relu(x)``

    The rules are data, in ``rewrite_rules``. Each states for which element types its result has the
    same bits, or which rounding it may differ by; tests prove it. With ``fast_math`` rules run too
    that hold only without NaN, infinities and negative zeros, such as ``x + 0.0``.

    Leaves alone: a rewrite that would change the type of a result, or that saves no work as other
    operators read the inner values; one that rounds differently where an operator with steps, such
    as round or a cast to integers, depends on it.

    Run after: FoldConstantCalls. Run before: passes that look for operators side by side.
    """

    fast_math: bool = False

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when no rule fits."""
        return apply_rules(mod, _TABLES[self.fast_math])


def apply_rules(mod: tvm.IRModule, table: RuleTable) -> tvm.IRModule:
    """``mod`` with the rules of ``table`` applied until none fits; ``mod`` itself if none does."""
    new = _RuleRewriter(table).run(mod)
    return mod if new.same_as(mod) else relax.transform.CanonicalizeBindings()(new)


class _RuleRewriter(BindingRewriter):
    pass_name = "AlgebraicSimplification"

    def __init__(self, table: RuleTable) -> None:
        self._table = table
        self._rewrites: dict[int, Rewrite] = {}

    def has_work(self, func: relax.Function) -> bool:
        self._rewrites = RuleMatcher(func, self._table).rewrites()
        return bool(self._rewrites)

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        rewrite = self._rewrites.get(hash(var))
        if rewrite is None:
            return None
        return Replacement(rewrite.result, rewrite.absorbed, rewrite.rule.name)
