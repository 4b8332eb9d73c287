"""Rules as theorems: over the real numbers, over integers that wrap around, over booleans.

A rule for floating-point numbers is proved over the reals: wherever its pattern has a real value,
its result has the same. A rule for integers is proved over bit vectors, which wrap around as the
machine's integers do. exp, log and cos are functions of which is known only what ``_Reals`` says.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import z3

from tvm_ext.relay_passes.rewrite_rules.expression import (
    Apply,
    Expression,
    Operator,
    Variable,
    interpret,
    subexpressions,
    variables_of,
)
from tvm_ext.relay_passes.rewrite_rules.rule import BOOLEANS, FLOATS, SIGNED, Rule

_MILLISECONDS = 20_000
_LOGIC = {"logical_not", "logical_and", "logical_or", "logical_xor"}


class Terms:
    """Expressions as terms of z3; ``facts`` says what is in them, ``defined`` is their domain."""

    def __init__(self) -> None:
        self.facts: list[z3.BoolRef] = []
        self.defined: list[z3.BoolRef] = []

    def number(self, value: int | float | bool, like: Any) -> Any:
        return z3.BoolVal(value) if isinstance(value, bool) else self.constant(value)

    def apply(self, operator: Operator, operands: list[Any], attributes: dict[str, Any]) -> Any:
        return getattr(self, operator.name.removeprefix("logical_") + "_")(*operands)

    def constant(self, value: float) -> Any:
        raise NotImplementedError

    def variable(self, name: str) -> Any:
        raise NotImplementedError

    def less_(self, x: Any, y: Any) -> Any:
        return x < y

    def less_equal_(self, x: Any, y: Any) -> Any:
        return x <= y

    def negative_(self, x: Any) -> Any:
        return -x

    def add_(self, x: Any, y: Any) -> Any:
        return x + y

    def subtract_(self, x: Any, y: Any) -> Any:
        return x - y

    def multiply_(self, x: Any, y: Any) -> Any:
        return x * y

    def square_(self, x: Any) -> Any:
        return x * x

    def full_(self, value: Any) -> Any:
        return value

    def where_(self, mask: Any, x: Any, y: Any) -> Any:
        return z3.If(mask, x, y)

    def greater_(self, x: Any, y: Any) -> Any:
        return self.less_(y, x)

    def greater_equal_(self, x: Any, y: Any) -> Any:
        return self.less_equal_(y, x)

    def equal_(self, x: Any, y: Any) -> Any:
        return x == y

    def not_equal_(self, x: Any, y: Any) -> Any:
        return x != y

    def not_(self, x: Any) -> Any:
        return z3.Not(x)

    def and_(self, x: Any, y: Any) -> Any:
        return z3.And(x, y)

    def or_(self, x: Any, y: Any) -> Any:
        return z3.Or(x, y)

    def xor_(self, x: Any, y: Any) -> Any:
        return z3.Xor(x, y)

    def maximum_(self, x: Any, y: Any) -> Any:
        return z3.If(self.less_(y, x), x, y)

    def minimum_(self, x: Any, y: Any) -> Any:
        return z3.If(self.less_(x, y), x, y)

    def clip_(self, x: Any, low: Any, high: Any) -> Any:
        return self.minimum_(high, self.maximum_(low, x))

    def relu_(self, x: Any) -> Any:
        return self.maximum_(self.constant(0), x)

    def abs_(self, x: Any) -> Any:
        return z3.If(self.less_(x, self.constant(0)), -x, x)

    def sign_(self, x: Any) -> Any:
        zero, one = self.constant(0), self.constant(1)
        return z3.If(self.less_(zero, x), one, z3.If(self.less_(x, zero), -one, zero))


class _Reals(Terms):
    exp_of, log_of, cos_of = (
        z3.Function(name, z3.RealSort(), z3.RealSort()) for name in ("exp", "log", "cos")
    )

    def constant(self, value: float) -> Any:
        return z3.RealVal(Fraction(value))

    def variable(self, name: str) -> Any:
        return z3.Real(name)

    def divide_(self, x: Any, y: Any) -> Any:
        self.defined.append(y != 0)
        return x / y

    def exp_(self, x: Any) -> Any:
        found = self.exp_of(x)
        self.facts += [found > 0, self.log_of(found) == x]
        return found

    def log_(self, x: Any) -> Any:
        found = self.log_of(x)
        self.defined.append(x > 0)
        self.facts.append(z3.Implies(x > 0, self.exp_of(found) == x))
        return found

    def cos_(self, x: Any) -> Any:
        return self.cos_of(x)

    def sigmoid_(self, x: Any) -> Any:
        return 1 / (1 + self.exp_(-x))

    def sqrt_(self, x: Any) -> Any:
        root = z3.FreshReal("root")
        self.defined.append(x >= 0)
        self.facts.append(z3.Implies(x >= 0, z3.And(root >= 0, root * root == x)))
        return root

    def power_(self, x: Any, exponent: Any) -> Any:
        number = exponent.as_fraction()
        if number < 0:
            return self.divide_(z3.RealVal(1), self.power_(x, z3.RealVal(-number)))
        if number == Fraction(1, 2):
            return self.sqrt_(x)
        found = z3.RealVal(1)
        for _ in range(int(number)):
            found = found * x
        return found

    def floor_(self, x: Any) -> Any:
        return z3.ToReal(z3.ToInt(x))

    def ceil_(self, x: Any) -> Any:
        below = z3.ToInt(x)
        return z3.ToReal(z3.If(z3.ToReal(below) == x, below, below + 1))

    def trunc_(self, x: Any) -> Any:
        below = z3.ToInt(x)
        is_below = z3.Or(x >= 0, z3.ToReal(below) == x)
        return z3.ToReal(z3.If(is_below, below, below + 1))

    def round_(self, x: Any) -> Any:
        below, half = z3.ToInt(x), z3.RealVal("1/2")
        rest = x - z3.ToReal(below)
        goes_up = z3.Or(rest > half, z3.And(rest == half, below % 2 == 1))
        return z3.ToReal(z3.If(goes_up, below + 1, below))


class _Integers(Terms):
    """Of 8 bits: none of the operators is another one for more bits."""

    def __init__(self, is_signed: bool) -> None:
        super().__init__()
        self.is_signed = is_signed

    def constant(self, value: float) -> Any:
        return z3.BitVecVal(int(value), 8)

    def variable(self, name: str) -> Any:
        return z3.BitVec(name, 8)

    def less_(self, x: Any, y: Any) -> Any:
        return x < y if self.is_signed else z3.ULT(x, y)

    def less_equal_(self, x: Any, y: Any) -> Any:
        return x <= y if self.is_signed else z3.ULE(x, y)


class _Booleans(Terms):
    def variable(self, name: str) -> Any:
        return z3.Bool(name)

    def less_(self, x: Any, y: Any) -> Any:
        return z3.And(z3.Not(x), y)

    def less_equal_(self, x: Any, y: Any) -> Any:
        return z3.Or(z3.Not(x), y)


def counterexamples(rule: Rule) -> list[str]:
    """What z3 says against the rule, for each kind of numbers that it is for; none if it is proved.

    A rule that z3 cannot decide in time counts as not proved.
    """
    return [
        f"{type(terms[0]).__name__}: {found}"
        for terms in _kinds_of_terms(rule)
        if (found := _refuted(rule, *terms))
    ]


def _kinds_of_terms(rule: Rule) -> Iterator[tuple[Terms, Terms]]:
    """For the pattern and for the result, by the kinds of numbers of the rule."""
    others = [one for one in variables_of(rule.pattern) if one.name not in masks_of(rule)]
    if rule.dtypes & FLOATS or (rule.dtypes == BOOLEANS and others):
        yield _Reals(), _Reals()
    if rule.dtypes & SIGNED:
        yield _Integers(True), _Integers(True)
    if rule.dtypes - SIGNED - FLOATS - BOOLEANS:
        yield _Integers(False), _Integers(False)
    if rule.dtypes & BOOLEANS and (not others or rule.dtypes != BOOLEANS):
        yield _Booleans(), _Booleans()


def masks_of(rule: Rule) -> set[str]:
    """Names of the variables that have to be booleans."""
    found = set()
    for one in subexpressions(rule.pattern):
        if not isinstance(one, Apply):
            continue
        masks = one.operands[:1] if one.operator.name == "where" else ()
        masks = one.operands if one.operator.name in _LOGIC else masks
        found |= {mask.name for mask in masks if isinstance(mask, Variable)}
    return found


def _refuted(rule: Rule, before: Terms, after: Terms) -> str:
    masks = masks_of(rule)
    values = {
        one.name: z3.Bool(one.name) if one.name in masks else before.variable(one.name)
        for one in variables_of(rule.pattern)
    }

    def term(expression: Expression, terms: Terms) -> Any:
        return interpret(expression, values, lambda attribute: None, terms)

    pattern, result = term(rule.pattern, before), term(rule.result, after)
    solver = z3.Solver()
    solver.set("timeout", _MILLISECONDS)
    assumed = [term(one, before) for one in (rule.given, rule.implied) if one is not None]
    solver.add(*assumed, *before.facts, *after.facts, *before.defined)
    solver.add(z3.Not(z3.And(pattern == result, *after.defined)))
    outcome = solver.check()
    if outcome == z3.unsat:
        return ""
    return str(solver.model()) if outcome == z3.sat else f"not decided: {solver.reason_unknown()}"


def is_elementwise(rule: Rule) -> bool:
    """Whether it has operators alone that z3 knows as functions of single elements."""
    return all(
        hasattr(_Reals, one.operator.name.removeprefix("logical_") + "_")
        for one in subexpressions(rule.pattern)
        if isinstance(one, Apply)
    )
