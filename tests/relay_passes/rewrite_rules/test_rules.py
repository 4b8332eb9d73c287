"""Every rule of the table: proved, tried on special values, found in Relax, and near misses."""

import numpy as np
import pytest
import tvm
from real_proof import counterexamples, is_elementwise
from relax_modules import arrays_of, module_of
from rule_modules import fitting, near_misses
from rule_shapes import outcomes
from rule_values import differences
from tvm import relax
from unoptimised import LLVM, machine_of

from tvm_ext.passes import registry
from tvm_ext.relay_passes.algebraic_simplification import apply_rules
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.rewrite_rules import RULES, casts, data_movement
from tvm_ext.relay_passes.rewrite_rules.expression import Apply, subexpressions, variables_of
from tvm_ext.relay_passes.rewrite_rules.matching import RuleTable
from tvm_ext.relay_passes.rewrite_rules.rule import EXACT, Rule, cost_of

ELEMENTWISE = [rule for rule in RULES if is_elementwise(rule)]


def name_of(rule: Rule) -> str:
    return f"{rule.name} {rule.equality.value} {min(rule.dtypes)}"


def every(rules: list[Rule] | tuple[Rule, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rule", rules, ids=name_of)


def test_every_rule_is_proved_in_one_of_the_ways() -> None:
    assert {*ELEMENTWISE, *data_movement.RULES, *casts.RULES} == set(RULES)


@every(RULES)
def test_rule_is_well_formed_and_lowers_the_cost(rule: Rule) -> None:
    """So that no sequence of rewrites goes on for ever."""
    names = [
        name
        for one in subexpressions(rule.pattern)
        if isinstance(one, Apply)
        for name in one.attributes.values()
    ]
    assert len(names) == len(set(names)), "an attribute's name is there twice"
    known = {one.name for one in variables_of(rule.pattern)}
    assert {one.name for one in variables_of(rule.result)} <= known
    assert cost_of(rule.result) < cost_of(rule.pattern)
    assert (rule.equality is EXACT) <= (rule.ulps == 0)


@every(ELEMENTWISE)
def test_rule_is_proved(rule: Rule) -> None:
    assert counterexamples(rule) == []


@every(ELEMENTWISE)
def test_rule_holds_for_special_and_random_values_of_each_type(rule: Rule) -> None:
    for dtype in sorted(rule.dtypes):
        tried, wrong = differences(rule, dtype)
        assert tried, f"no constants of {dtype} were found that the rule holds for"
        assert wrong == [], dtype


@pytest.mark.extended
@every(data_movement.RULES)
def test_rule_holds_for_all_small_shapes(rule: Rule) -> None:
    fitting_count, _, wrong = outcomes(rule)
    assert fitting_count
    assert wrong == []


@every(RULES)
def test_rule_is_found_and_keeps_the_type(rule: Rule) -> None:
    mod = module_of(rule.pattern, fitting(rule))

    with recording() as log:
        new = apply_rules(mod, RuleTable([rule], with_finite=True))

    assert [entry.reason for entry in log] == [rule.name]
    relax.analysis.well_formed(new)
    tvm.ir.assert_structural_equal(new["main"].ret_ty, mod["main"].ret_ty)
    assert apply_rules(new, RuleTable([rule], with_finite=True)).same_as(new)


@every(RULES)
def test_near_miss_is_left_alone(rule: Rule) -> None:
    for what, pattern, match in near_misses(rule):
        mod = module_of(pattern, match)
        new = apply_rules(mod, RuleTable([rule], with_finite=True))
        assert new.same_as(mod), what


def test_all_rules_but_one_have_a_near_miss() -> None:
    """A concat of one tensor is that tensor, whatever it is."""
    without = [rule.name for rule in RULES if not list(near_misses(rule))]
    assert without == ["concat of one"]


# What the kernels compute. A third of the rules of each way, in one program: compiling takes long.
COMPILED = [*ELEMENTWISE[::12], *data_movement.RULES[::8], *casts.RULES[:3]]


def test_kernels_compute_what_numpy_does() -> None:
    modules = [(rule, fitting(rule)) for rule in COMPILED]
    before = [module_of(rule.pattern, match) for rule, match in modules]
    after = [
        apply_rules(mod, RuleTable([rule], True))
        for mod, (rule, _) in zip(before, modules, strict=True)
    ]
    functions = {
        tvm.ir.GlobalVar(f"{kind}_{i}"): mod["main"].with_attr("global_symbol", f"{kind}_{i}")
        for kind, mods in (("before", before), ("after", after))
        for i, mod in enumerate(mods)
    }
    lowered = tvm.transform.Sequential(
        [registry.get(name).make({}) for name in ("DecomposeOpsForInference", "LegalizeOps")]
    )(tvm.IRModule(functions))
    machine = machine_of(relax.build(lowered, LLVM))
    for i, (rule, match) in enumerate(modules):
        values = {n: _numbers(k.shape, k.dtype) for n, k in match.kinds.items()}
        arrays = [tvm.runtime.tensor(one) for one in arrays_of(before[i], values)]
        old, new = (machine[f"{kind}_{i}"](*arrays).numpy() for kind in ("before", "after"))
        np.testing.assert_array_max_ulp(
            old, new, 2
        ) if rule.ulps else np.testing.assert_array_equal(old, new, rule.name)


def _numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    count = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return np.asarray(count % 2 == 0 if dtype == "bool" else count + 1, dtype)
