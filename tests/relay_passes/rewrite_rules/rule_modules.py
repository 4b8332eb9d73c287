"""For each rule a module of Relax that it fits, and modules that differ from it in one thing."""

import functools
from collections.abc import Iterator

import numpy as np
from real_proof import is_elementwise, masks_of
from rule_shapes import Instance, instances, result_of
from rule_values import matches_of

from tvm_ext.relay_passes.rewrite_rules import casts
from tvm_ext.relay_passes.rewrite_rules.expression import (
    OPERATORS,
    Apply,
    Constant,
    Expression,
    Number,
    Variable,
    subexpressions,
    variables_of,
)
from tvm_ext.relay_passes.rewrite_rules.rule import Match, Rule, TensorKind

SHAPE = (2, 3)
_CAST_TYPES = {
    "cast to its own type": {"to": "int8"},
    "cast and back": {"by": "int32", "to": "int8"},
}
_OTHER_CAST_TYPES = {
    "cast to its own type": {"to": "int16"},
    "cast and back": {"by": "bool", "to": "int8"},
    "cast of a cast": {"by": "bool", "to": "int16"},
}


def dtype_of(rule: Rule) -> str:
    """An element type that the rule is for."""
    usual = ("float32", "int32", "bool")
    return next((one for one in usual if one in rule.dtypes), min(rule.dtypes))


@functools.cache
def fitting(rule: Rule) -> Match:
    """Types, constants and attributes that the rule holds for."""
    if rule in casts.RULES:
        own = "bool" if rule.name.startswith("mask") else "int8"
        attributes = _CAST_TYPES.get(rule.name, {"by": "int32", "to": "int16"})
        return _with_result(rule, {"x": TensorKind(SHAPE, own)}, {}, attributes)
    if is_elementwise(rule):
        dtype = dtype_of(rule)
        return _elementwise(rule, dtype, next(iter(matches_of(rule, dtype))).constants)
    first = None
    for one in instances(rule, _movement_dtype(rule)):
        if result_of(rule, one) is not None:
            first = first or one
            # One of several axes and elements is the more telling one.
            if one.pattern.ndim > 1 and one.pattern.size > 1:
                return one.match
    if first is None:
        raise ValueError(f"{rule.name}: no instance was found; expected one: add shapes")
    return first.match


def _movement_dtype(rule: Rule) -> str:
    return dtype_of(rule) if dtype_of(rule) != "bool" else "float32"


def _elementwise(rule: Rule, dtype: str, constants: dict[str, np.ndarray]) -> Match:
    masks = masks_of(rule)
    other = "float32" if dtype == "bool" and masks else dtype
    kinds = {
        one.name: TensorKind(
            () if isinstance(one, Constant) else SHAPE, "bool" if one.name in masks else other
        )
        for one in variables_of(rule.pattern)
    }
    return _with_result(rule, kinds, constants, {})


def _with_result(rule: Rule, kinds: dict, constants: dict, attributes: dict) -> Match:
    # Of the result's type only the numbers that stand alone take anything.
    first = next(iter(kinds.values()))
    return Match(TensorKind(SHAPE, first.dtype), kinds, constants, attributes)


def near_misses(rule: Rule) -> Iterator[tuple[str, Expression, Match]]:
    """Patterns that look like the rule's, for which it does not hold, with what makes it so."""
    match = fitting(rule)
    for what, pattern in (
        ("another number", _with_other_numbers(rule.pattern)),
        ("another tensor", _with_other_tensors(rule.pattern, set())),
        ("an operator between", _with_operator_between(rule, match)),
    ):
        if pattern is not None:
            kinds = {**match.kinds, **{f"{n}_other": k for n, k in match.kinds.items()}}
            yield what, pattern, Match(match.result, kinds, match.constants, match.attributes)
    if rule in casts.RULES and rule.name in _OTHER_CAST_TYPES:
        attributes = _OTHER_CAST_TYPES[rule.name]
        yield "other types", rule.pattern, Match(match.result, match.kinds, {}, attributes)
    elif is_elementwise(rule):
        yield from _other_dtypes(rule, match)
    elif rule not in casts.RULES:
        refused = (one for one in instances(rule, _movement_dtype(rule)) if _is_refused(rule, one))
        one = next(refused, None)
        if one is not None:
            yield "other shapes", rule.pattern, one.match


def _is_refused(rule: Rule, one: Instance) -> bool:
    return result_of(rule, one) is None


def _other_dtypes(rule: Rule, match: Match) -> Iterator[tuple[str, Expression, Match]]:
    others = [one for one in ("float32", "int32", "bool") if one not in rule.dtypes]
    of_floats = _operators_of(rule.pattern) & {"exp", "log", "cos", "sigmoid", "sqrt"}
    for dtype in () if masks_of(rule) or of_floats else others:
        constants = {n: array.astype(dtype) for n, array in match.constants.items()}
        yield f"of {dtype}", rule.pattern, _elementwise(rule, dtype, constants)


def _with_other_numbers(pattern: Expression) -> Expression | None:
    """The pattern with every number another one; None where it has no number."""
    if isinstance(pattern, Number):
        other = not pattern.value if isinstance(pattern.value, bool) else pattern.value + 4
        return Number(other)
    if not isinstance(pattern, Apply):
        return None
    changed = [_with_other_numbers(one) for one in pattern.operands]
    if not any(changed):
        return None
    operands = [
        old if new is None else new for old, new in zip(pattern.operands, changed, strict=True)
    ]
    return Apply(pattern.operator, tuple(operands), pattern.attributes)


def _with_other_tensors(pattern: Expression, seen: set[str]) -> Expression | None:
    """The pattern with another variable where one comes again; None where none does."""
    if isinstance(pattern, Variable):
        is_again = pattern.name in seen
        seen.add(pattern.name)
        return Variable(f"{pattern.name}_other") if is_again else None
    if not isinstance(pattern, Apply):
        return None
    changed = [_with_other_tensors(one, seen) for one in pattern.operands]
    if not any(changed):
        return None
    operands = [
        old if new is None else new for old, new in zip(pattern.operands, changed, strict=True)
    ]
    return Apply(pattern.operator, tuple(operands), pattern.attributes)


def _with_operator_between(rule: Rule, match: Match) -> Expression | None:
    """The pattern with one more operator below its root; None where no operator is there."""
    names = _operators_of(rule.pattern)
    between = OPERATORS["square" if "negative" in names else "negative"]
    for position, operand in enumerate(rule.pattern.operands):
        if isinstance(operand, Apply):
            is_boolean = operand.operator.name.startswith(("logical", *_COMPARISONS))
            is_mask = _is_boolean(operand, match) or is_boolean
            one = OPERATORS["logical_xor"](operand, True) if is_mask else between(operand)
            operands = list(rule.pattern.operands)
            operands[position] = one
            return Apply(rule.pattern.operator, tuple(operands), rule.pattern.attributes)
    return None


_COMPARISONS = ("equal", "not_equal", "less", "greater")


def _is_boolean(expression: Apply, match: Match) -> bool:
    """Whether an operator moves booleans."""
    names = [one.name for one in variables_of(expression)]
    moves = expression.operator.name in ("transpose", "reshape", "broadcast_to")
    return moves and match.kinds[names[0]].dtype == "bool"


def _operators_of(pattern: Expression) -> set[str]:
    return {one.operator.name for one in subexpressions(pattern) if isinstance(one, Apply)}
