"""Removes what the ranges of values make superfluous, such as relu of what is never negative."""

import math
from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.dataflow.framework import Solution, solve_forward
from tvm_ext.relay_passes.dataflow.interval import ValueRange, element_type, is_plus
from tvm_ext.relay_passes.dataflow.value_numbering import COMMUTATIVE, value_numbers
from tvm_ext.relay_passes.dataflow.value_ranges import ValueRanges, value_ranges
from tvm_ext.relay_passes.expressions import operator_name, static_shape
from tvm_ext.relay_passes.graph_pass import graph_pass, record_applied
from tvm_ext.relay_passes.spans import all_bindings_of, describe_origin, relax_functions

NAME = "CorrelatedValuePropagation"

# Elements of a condition that becomes a constant.
_MOST_ELEMENTS = 4096


@graph_pass
class CorrelatedValuePropagation:
    """Removes operators that change nothing for the numbers that can reach them.

    LLVM's pass of this name does so for integers; here it is for tensors, by ``dataflow``.

    Before: ``y = nn.relu(softmax(x))``; ``z = clip(sigmoid(x), -1, 2)``; ``c = less(abs(x), 0)``
    After:  ``y = softmax(x)``; ``z = sigmoid(x)``; ``c = False``
    So are abs of what is not negative, the larger of two numbers of which one always is, rounding
    of whole numbers, casts there and back that lose nothing, where and If with a known condition,
    and the second of two sums or products that differ in the order of their operands.

    Results keep their bits: an operator that would change a NaN or the sign of a zero stays.

    Leaves alone: what may be any number, as inputs are; branches that hold more than calls.

    Run after: FoldConstantCalls. Run before: EliminateCommonSubexpr, fusion.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself where nothing is superfluous."""
        if not _has_candidates(mod):
            return mod
        folded = _with_known_branches(mod)
        changed = _Simplifier().run(folded)
        if changed.same_as(mod):
            return mod
        # The variables that are left are other names for earlier ones.
        return relax.transform.CanonicalizeBindings()(changed)


def _has_candidates(mod: tvm.IRModule) -> bool:
    for func in relax_functions(mod).values():
        for binding in all_bindings_of(func):
            name = operator_name(binding.value)
            if name in _RULES or name in COMMUTATIVE or isinstance(binding.value, relax.If):
                return True
    return False


class _Simplifier(BindingRewriter):
    pass_name = NAME

    def __init__(self) -> None:
        self.roots = COMMUTATIVE | _RULES.keys()
        # One for all rounds, as it keeps what it has found of constants.
        self.analysis = ValueRanges({})
        self._analysed: tvm.IRModule | None = None
        self._ranges: Solution[ValueRange]

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        if self._analysed is None or not self._analysed.same_as(self.mod):
            self._analysed = self.mod
            self._ranges = solve_forward(self.mod, self.analysis)
            self._numbers = value_numbers(self.mod)

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        name = operator_name(value)
        if name in COMMUTATIVE:
            leader = self._numbers.leader(var)
            if not leader.same_as(var) and self._fits(leader, var):
                return Replacement(leader, (), "computed already, with its operands swapped")
        rule = _RULES.get(name)
        if rule is None:
            return None
        operands = [self.range(argument) for argument in value.args]
        if any(operand is None for operand in operands):
            return None
        found = rule(self, value, [operand for operand in operands if operand is not None])
        if found is None:
            return None
        made, why = found
        return Replacement(made, (), why) if self._fits(made, var) else None

    def _fits(self, made: relax.Expr, var: relax.Var) -> bool:
        is_alike = bool(tvm_ffi.structural_equal(made.ty, var.ty))
        return is_alike and (not isinstance(made, relax.Var) or self.reaches(made))

    def range(self, operand: relax.Expr) -> ValueRange | None:
        """The range of an operand; None for tuples, and for what no run computes."""
        found = self._ranges.of(operand)
        return found if isinstance(found, ValueRange) else None


_Found = tuple[relax.Expr, str] | None
_Rule = Callable[[_Simplifier, relax.Call, list[ValueRange]], _Found]


def _relu(graph: _Simplifier, call: relax.Call, given: list[ValueRange]) -> _Found:
    one = given[0]
    # Kernels hand NaN on, see PropagateNan; of the two zeros they may give either, but the same for
    # what they have given already.
    again = graph.view.call(call.args[0], "relax.nn.relu") is not None
    if one.low >= 0 and (again or not one.may_be_negative_zero):
        return call.args[0], "relu of what is never negative"
    return None


def _clip(graph: _Simplifier, call: relax.Call, given: list[ValueRange]) -> _Found:
    one, least, most = given
    # At a bound that is zero, a kernel may choose the sign.
    signs = one.may_be_negative_zero and 0 in (least.high, most.low)
    if least.high <= one.low and one.high <= most.low and not signs:
        return call.args[0], "clip to bounds that are never reached"
    return None


def _abs(graph: _Simplifier, call: relax.Call, given: list[ValueRange]) -> _Found:
    if is_plus(given[0]) and not given[0].may_be_nan:
        return call.args[0], "abs of what is never negative"
    return None


def _extremum(sign: int) -> _Rule:
    def rule(graph: _Simplifier, call: relax.Call, given: list[ValueRange]) -> _Found:
        if any(one.may_be_nan for one in given):
            return None
        for place, (one, other) in enumerate((given, given[::-1])):
            least, bound = (one.low, other.high) if sign > 0 else (-one.high, -other.low)
            zeros = least == bound == 0 and not (is_plus(one) and is_plus(other))
            if least >= bound and not zeros:
                kind = "larger" if sign > 0 else "smaller"
                return call.args[place], f"the {kind} of two numbers of which this always is"
        return None

    return rule


def _rounding(graph: _Simplifier, call: relax.Call, given: list[ValueRange]) -> _Found:
    return (call.args[0], "rounding of whole numbers") if given[0].is_integral else None


def _cast(graph: _Simplifier, call: relax.Call, given: list[ValueRange]) -> _Found:
    inner = graph.view.call(call.args[0], "relax.astype")
    if inner is None:
        return None
    source = graph.range(inner.args[0])
    if source is None or str(inner.args[0].ty.dtype) != str(call.ty.dtype):
        return None
    if not _holds(str(inner.ty.dtype), source, str(call.ty.dtype)):
        return None
    return inner.args[0], f"casts to {inner.ty.dtype} and back, which lose nothing"


def _holds(dtype: str, source: ValueRange, source_type: str) -> bool:
    """Whether a type has all numbers of a range, so that a cast to it can be undone."""
    kind, wide = element_type(dtype), element_type(source_type)
    if not kind.is_float:
        is_whole = source.is_integral and source.is_number and not source.may_be_negative_zero
        return dtype != "bool" and is_whole and source.within(kind.low, kind.high)
    if not wide.is_float:
        return source.magnitude <= min(2 / kind.epsilon, kind.high)
    return (
        kind.epsilon <= wide.epsilon and kind.high >= wide.high and kind.smallest <= wide.smallest
    )


def _condition(graph: _Simplifier, call: relax.Call, given: list[ValueRange]) -> _Found:
    found = graph.analysis.transfer(call, given)
    shape = static_shape(call)
    if found.low != found.high or shape is None or math.prod(shape) > _MOST_ELEMENTS:
        return None
    truth = bool(found.low)
    return relax.const(np.full(shape, truth), "bool"), f"a condition that is always {truth}"


def _where(graph: _Simplifier, call: relax.Call, given: list[ValueRange]) -> _Found:
    truth = graph.analysis.taken(given[0])
    if truth is None:
        return None
    return call.args[1 if truth else 2], f"a choice whose condition is always {truth}"


_CONDITIONS = (
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("logical_and", "logical_or", "logical_not", "isnan", "isinf", "isfinite"),
)
_RULES: dict[str, _Rule] = {
    "relax.abs": _abs,
    "relax.astype": _cast,
    "relax.ceil": _rounding,
    "relax.clip": _clip,
    "relax.floor": _rounding,
    "relax.maximum": _extremum(1),
    "relax.minimum": _extremum(-1),
    "relax.nn.relu": _relu,
    "relax.round": _rounding,
    "relax.trunc": _rounding,
    "relax.where": _where,
    **{f"relax.{name}": _condition for name in _CONDITIONS},
}


# If with a condition that is the same in every run.


def _with_known_branches(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with the bindings of a branch in place of each If that always takes it."""
    functions = relax_functions(mod)
    if not any(
        isinstance(b.value, relax.If) for f in functions.values() for b in all_bindings_of(f)
    ):
        return mod
    folder = _BranchFolder(mod)
    for global_var, func in functions.items():
        before = folder.folded
        made = folder.visit_expr(func)
        if folder.folded > before:
            folder.builder_.update_func(global_var, made)
    return folder.builder_.get() if folder.folded else mod


@mutator
class _BranchFolder(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._ranges = value_ranges(mod)
        self.folded = 0

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        taken = self._taken(binding.value)
        if taken is None:
            super().visit_var_binding_(binding)
            return
        self.folded += 1
        record_applied(NAME, describe_origin(binding.var), "an If that always takes one branch")
        for block in taken.blocks[:]:
            for inner in block.bindings[:]:
                self.visit_binding(inner)
        result = self.visit_expr(taken.body)
        var = relax.Var(binding.var.name, result.ty, binding.var.span)
        self.builder_.emit_normalized(relax.VarBinding(var, result))
        self.set_var_remap(binding.var, var)

    def _taken(self, value: relax.Expr) -> relax.SeqExpr | None:
        """The branch that an If always takes, if its bindings can stand where the If does."""
        if not isinstance(value, relax.If):
            return None
        condition = self._ranges.of(value.cond)
        if not isinstance(condition, ValueRange) or condition.low != condition.high:
            return None
        branch = value.true_branch if condition.low else value.false_branch
        blocks = branch.blocks[:] if isinstance(branch, relax.SeqExpr) else None
        if blocks is None or any(isinstance(block, relax.DataflowBlock) for block in blocks):
            return None
        return branch
