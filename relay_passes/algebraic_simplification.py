"""Graph pass that applies the rewrite rules: less work for the same results."""

from collections.abc import Mapping

import tvm
from tvm import relax

from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement, view_of
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.rewrite_rules import RULES
from tvm_ext.relay_passes.rewrite_rules.matching import Rewrite, RuleMatcher, RuleTable
from tvm_ext.relay_passes.spans import relax_functions

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
        self._worklist = _Worklist(table.depth)
        self._rewrites: dict[int, Rewrite] = {}

    def start_round(self, mod: tvm.IRModule) -> None:
        """Takes up the module, of which only what the last round has changed is looked at."""
        super().start_round(mod)
        self._worklist.start_round(mod)

    def has_work(self, func: relax.Function) -> bool:
        matcher = RuleMatcher(func, self._table)
        self._rewrites = matcher.rewrites(self._worklist)
        self._worklist.waiting |= matcher.before_steps
        return bool(self._rewrites)

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        rewrite = self._rewrites.get(hash(var))
        if rewrite is None:
            return None
        return Replacement(rewrite.result, rewrite.absorbed, rewrite.rule.name)


class _Worklist:
    """The bindings at which a rule may fit that did not fit in the round before.

    A rule looks at the operators down to the depth of its pattern and at who else reads their
    values. One that rounds looks at operators with steps too, which may be far away: the bindings
    where it was left alone for them are ``waiting``, and are tried in each round.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self.waiting: set[int] = set()
        # By hash of the variable. As they are kept, no other variable gets a hash of theirs.
        self._values: dict[int, tuple[relax.Var, relax.Expr]] = {}
        self._near: set[int] | None = None

    def __contains__(self, var: object) -> bool:
        """Whether the binding of a variable, which is given by its hash, is to be tried."""
        return self._near is None or var in self._near or var in self.waiting

    def start_round(self, mod: tvm.IRModule) -> None:
        """Compares the module with that of the last round."""
        functions = relax_functions(mod).values()
        now = {hash(pair[0]): pair for func in functions for pair in view_of(func).bound}
        before, self._values = self._values, now
        self._near = self._near_to_changes(before, now) if before else None

    def _near_to_changes(
        self,
        before: Mapping[int, tuple[relax.Var, relax.Expr]],
        now: Mapping[int, tuple[relax.Var, relax.Expr]],
    ) -> set[int]:
        """The variables at most ``depth`` operators behind one whose value or readers changed."""
        distance: dict[int, int] = {}
        for these, others in ((now, before), (before, now)):
            for var, (_, value) in these.items():
                if var not in others or not others[var][1].same_as(value):
                    distance |= dict.fromkeys((var, *_read_by(value)), 0)
        for var, (_, value) in now.items():
            known = [distance[one] for one in _read_by(value) if one in distance]
            if known and var not in distance:
                further = min(known) + isinstance(value, relax.Call)
                if further <= self._depth:
                    distance[var] = further
        return set(distance)


def _read_by(value: relax.Expr) -> list[int]:
    return [hash(var) for var in relax.analysis.free_vars(value)[:]]
