"""Finds the rules of a table in the bindings of a function, and builds their results as Relax."""

import math
from collections import defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.relay_passes.binding_rewriter import GraphView, view_of
from tvm_ext.relay_passes.expressions import numpy_dtype, read_only, same_extents
from tvm_ext.relay_passes.rewrite_rules.expression import (
    Apply,
    Constant,
    Expression,
    Number,
    Operator,
    Variable,
    WithNumpy,
    interpret,
)
from tvm_ext.relay_passes.rewrite_rules.relax_operators import (
    NAMES,
    Operation,
    build_call,
    kind_of,
    read_call,
    read_part,
    scalar_of,
)
from tvm_ext.relay_passes.rewrite_rules.rule import (
    FLOATS,
    ROUNDING,
    Equality,
    Match,
    Rule,
    TensorKind,
)

# Operators with steps: a difference in the last place of what they are given may be a whole step
# of their results.
_STEPS = frozenset(
    f"relax.{name}"
    for name in (
        *("round", "floor", "ceil", "trunc", "sign", "floor_divide", "floor_mod", "mod"),
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("argmax", "argmin", "argsort", "sort", "topk", "quantize"),
    )
)


class RuleTable:
    """Rules by the operator at the root of their pattern, and what its operands have to be."""

    def __init__(self, rules: Iterable[Rule], with_finite: bool = False) -> None:
        self._rules: defaultdict[str, list[tuple[frozenset[str], Rule]]] = defaultdict(list)
        for rule in rules:
            if with_finite or rule.equality is not Equality.FINITE:
                root = rule.pattern.operator.name
                self._rules[root].append((_wanted(rule.pattern), rule))
        self.names = frozenset(name for name, own in NAMES.items() if own in self._rules)
        every = [rule.pattern for found in self._rules.values() for _, rule in found]
        # How many operators a pattern has below each other at most.
        self.depth = max(map(_depth, every), default=0)
        self._candidates: dict[tuple[str, frozenset[str]], list[Rule]] = {}

    def candidates(self, operator: str, operands: frozenset[str]) -> list[Rule]:
        """Those that may fit a call of ``operator`` with operands of these kinds."""
        key = operator, operands
        if key not in self._candidates:
            found = [rule for wanted, rule in self._rules[operator] if wanted <= operands]
            self._candidates[key] = found
        return self._candidates[key]


def _depth(pattern: Expression) -> int:
    below = pattern.operands if isinstance(pattern, Apply) else ()
    return isinstance(pattern, Apply) + max(map(_depth, below), default=0)


def _wanted(pattern: Apply) -> frozenset[str]:
    """The kinds of operands that a pattern names: operators, and "constant"."""
    kinds = set()
    for operand in pattern.operands:
        if isinstance(operand, Apply):
            kinds.add(operand.operator.name)
        elif isinstance(operand, Number | Constant):
            kinds.add("constant")
    return frozenset(kinds)


@dataclass(frozen=True)
class Rewrite:
    """A rule that fits a binding: its result, and the variables whose work that does as well."""

    rule: Rule
    result: relax.Expr
    absorbed: tuple[relax.Var, ...]


class RuleMatcher:
    """Looks for rules in one function, whose bindings are as they are."""

    def __init__(self, func: relax.Function, table: RuleTable) -> None:
        self._func = func
        self._table = table
        self._bindings = view_of(func).bound
        # By hash, which is that of the node: TVM takes long to find two variables equal.
        self._values = {hash(var): value for var, value in self._bindings}
        self._read: dict[int, Operation | None] = {}
        self._kinds: dict[int, TensorKind] = {}
        self._numbers: dict[int, np.ndarray | None] = {}
        # By hash: where a rule that rounds is not applied, as operators with steps follow.
        self.before_steps: set[int] = set()

    def rewrites(self, tried: Container[int]) -> dict[int, Rewrite]:
        """By hash of the variable: the first rule that fits its binding, for all that have one.

        ``tried`` has the hashes of the variables whose bindings are looked at.
        """
        found = {}
        for var, value in self._bindings:
            key = hash(var)
            rewrite = self._rewrite_of(var, value) if key in tried else None
            if rewrite is not None:
                found[key] = rewrite
        return found

    def _rewrite_of(self, var: relax.Var, value: relax.Expr) -> Rewrite | None:
        if isinstance(value, relax.Call):
            op = value.op
            if not isinstance(op, tvm.ir.Op) or op.name not in self._table.names:
                return None
        elif not isinstance(value, relax.TupleGetItem):
            return None
        operation = self._operation(var)
        if operation is None:
            return None
        kinds = frozenset(map(self._operand_kind, operation.operands))
        for rule in self._table.candidates(operation.operator, kinds):
            try:
                rewrite = _Attempt(self, rule, var).rewrite(operation)
            except NotApplicable:
                continue
            if rewrite is not None:
                return rewrite
        return None

    def resolve(self, expr: relax.Expr) -> relax.Expr:
        """The last variable of a chain of aliases, or the constant at its end."""
        while isinstance(expr, relax.Var):
            value = self._values.get(hash(expr))
            if not isinstance(value, relax.Var | GenericConst):
                break
            expr = value
        return expr

    def operation(self, expr: relax.Expr) -> Operation | None:
        """What ``expr``, a variable without an alias, is bound to."""
        return self._operation(expr) if isinstance(expr, relax.Var) else None

    def _operation(self, var: relax.Var) -> Operation | None:
        key = hash(var)
        if key not in self._read:
            value = self._values.get(key)
            found = None
            if isinstance(value, relax.Call):
                found = read_call(value, var.ty)
            elif isinstance(value, relax.TupleGetItem):
                found = self._part(value)
            self._read[key] = found
        return self._read[key]

    def _part(self, item: relax.TupleGetItem) -> Operation | None:
        source = self.resolve(item.tuple_value)
        call = self._values.get(hash(source)) if isinstance(source, relax.Var) else source
        if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op):
            return None
        return read_part(item, call) if call.op.name == "relax.split" else None

    def kind(self, expr: Any) -> TensorKind:
        """The type of an operand, an array or an expression; raises NotApplicable without one."""
        if isinstance(expr, np.ndarray):
            return TensorKind(expr.shape, str(expr.dtype))
        key = hash(expr)
        if key not in self._kinds:
            self._kinds[key] = kind_of(expr.ty)
        return self._kinds[key]

    def is_number(self, expr: relax.Expr, wanted: int | float | bool) -> bool:
        """Whether all elements of a constant are this number, with its sign if it is a zero."""
        key = hash(expr)
        if key not in self._numbers:
            self._numbers[key] = None if isinstance(expr, relax.Var) else _one_number(expr)
        found = self._numbers[key]
        if found is None or isinstance(wanted, bool) is not (found.dtype == bool):
            return False
        # Integers have one zero, floating-point numbers two.
        is_signed_zero = wanted == 0 and found.dtype.kind not in "iub"
        is_alike = not is_signed_zero or bool(np.signbit(found)) is (math.copysign(1, wanted) < 0)
        return bool(found == wanted) and is_alike

    def _operand_kind(self, expr: relax.Expr) -> str:
        expr = self.resolve(expr)
        if not isinstance(expr, relax.Var):
            return "constant"
        operation = self._operation(expr)
        return operation.operator if operation is not None else ""

    @cached_property
    def view(self) -> GraphView:
        """Uses of variables; made when a rule fits, as it takes a walk over the function."""
        return view_of(self._func)

    @cached_property
    def _on_the_way_to_steps(self) -> set[int]:
        """The variables that an operator with steps depends on by elementwise ones, by hash."""
        found: set[int] = set()
        for var, call in reversed(self._bindings):
            if isinstance(call, relax.TupleGetItem | relax.Var):
                operands = [getattr(call, "tuple_value", call)]
                is_on_the_way = hash(var) in found
            elif isinstance(call, relax.Call) and isinstance(call.op, tvm.ir.Op):
                operands = _tensors_of(call)
                is_read = hash(var) in found and call.op.name in NAMES
                is_on_the_way = is_read or _has_steps(call, var)
            else:
                continue
            if is_on_the_way:
                found |= {hash(self.resolve(one)) for one in operands}
        return found

    def meets_steps(self, var: relax.Var) -> bool:
        """Whether an operator with steps depends on ``var`` by elementwise operators."""
        key = hash(var)
        if key not in self._on_the_way_to_steps:
            return False
        self.before_steps.add(key)
        return True


def _tensors_of(call: relax.Call) -> list[relax.Expr]:
    """The operands of a call, those in tuples among them."""
    operands: list[relax.Expr] = []
    for argument in call.args[:]:
        operands += argument.fields[:] if isinstance(argument, relax.Tuple) else [argument]
    return operands


def _has_steps(call: relax.Call, var: relax.Var) -> bool:
    """Whether it is an operator with steps, or a kernel, of which nothing is known."""
    name = str(call.op.name)
    if name == "relax.astype":
        return str(var.ty.dtype) not in FLOATS
    return name in _STEPS or name.startswith("relax.call_")


class _Attempt:
    """One rule, tried at one binding."""

    def __init__(self, matcher: RuleMatcher, rule: Rule, var: relax.Var) -> None:
        self.matcher = matcher
        self.rule = rule
        self.var = var
        self.operands: dict[str, relax.Expr] = {}
        self.attributes: dict[str, Any] = {}
        # The variables of the inner operators, with what each costs.
        self.inner: list[tuple[relax.Var, int]] = []

    def rewrite(self, operation: Operation) -> Rewrite | None:
        """The rewrite, or None where the rule does not fit; raises NotApplicable likewise."""
        if not self._fits(self.rule.pattern, operation):
            return None
        variables = self.rule.variables
        if self.matcher.kind(self.operands[variables[0].name]).dtype not in self.rule.dtypes:
            return None
        result = self.matcher.kind(self.var)
        kinds, constants = {}, {}
        for variable in variables:
            expr = self.operands[variable.name]
            value = expr if isinstance(expr, np.ndarray) else None
            kinds[variable.name] = self.matcher.kind(expr)
            if isinstance(variable, Constant):
                constants[variable.name] = _array(expr) if value is None else value
        match = Match(result, kinds, constants, self.attributes)
        if not self.rule.holds(match):
            return None
        if not self._pays() or self._is_seen_by_steps():
            return None
        built = build_relax(self.rule.result, match, self.operands)
        if not _same_kind(built.kind, result):
            return None
        return Rewrite(self.rule, built.expr, tuple(var for var, _ in self.inner))

    def _pays(self) -> bool:
        """Whether the operators that are not needed any more cost more than those of the result."""
        needless = self.rule.pattern.operator.cost
        for var, cost in self.inner:
            needless += cost if self.matcher.view.uses(var) == 1 else 0
        return self.rule.cost < needless

    def _is_seen_by_steps(self) -> bool:
        return self.rule.equality is ROUNDING and self.matcher.meets_steps(self.var)

    def _fits(self, pattern: Apply, operation: Operation) -> bool:
        if pattern.operator.name != operation.operator:
            return False
        if len(pattern.operands) != len(operation.operands):
            return False
        for name, bound in pattern.attributes.items():
            self.attributes[str(bound)] = operation.attributes[name]
        if not pattern.operator.is_commutative:
            # What is noted in vain goes with the attempt, or is taken back by an operator around.
            return all(map(self._operand_fits, pattern.operands, operation.operands))
        saved = dict(self.operands), dict(self.attributes), list(self.inner)
        if all(map(self._operand_fits, pattern.operands, operation.operands)):
            return True
        self.operands, self.attributes, self.inner = saved
        return all(map(self._operand_fits, pattern.operands, operation.operands[::-1]))

    def _operand_fits(self, pattern: Expression, operand: relax.Expr) -> bool:
        expr = self.matcher.resolve(operand)
        if isinstance(pattern, Apply):
            operation = self.matcher.operation(expr)
            if operation is None or not self._fits(pattern, operation):
                return False
            self.inner.append((expr, pattern.operator.cost))
            return True
        if isinstance(pattern, Number):
            return self.matcher.is_number(expr, pattern.value)
        if not isinstance(pattern, Variable):
            return False
        if isinstance(pattern, Constant):
            value = (
                scalar_of(expr, self.matcher.kind(self.var).dtype)
                if not isinstance(expr, relax.Var)
                else None
            )
            if value is None and not _is_tensor(expr):
                return False
            expr = expr if value is None else value
        known = self.operands.setdefault(pattern.name, expr)
        return known is expr or _is_same(known, expr)


def _is_tensor(expr: relax.Expr) -> bool:
    return isinstance(expr, GenericConst) and isinstance(expr.ty, relax.TensorType)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return False
    return bool(one.same_as(other))


def _array(expr: relax.Expr) -> np.ndarray:
    return read_only(expr.value)


def _one_number(expr: relax.Expr) -> np.ndarray | None:
    """The number that all elements of a constant are, with its sign if it is a zero."""
    array = _array(expr) if _is_tensor(expr) else np.empty(0)
    if not array.size:
        return None
    first = array.flat[0]
    if array.size > 1:
        # Most constants show in a few elements that they are not all one number.
        if not all(bool(np.all(part == first)) for part in (array.flat[:16], array)):
            return None
        if first == 0 and bool(np.any(np.signbit(array) != np.signbit(first))):
            return None
    return np.asarray(first)


def _same_kind(one: TensorKind, other: TensorKind) -> bool:
    return one.dtype == other.dtype and same_extents(one.shape, other.shape)


# The result of a rule as Relax.


@dataclass(frozen=True)
class BuiltExpression:
    """An expression of Relax; calls in it are nested, and ``kind`` is its type."""

    expr: relax.Expr
    kind: TensorKind
    # What stands for the expression where the type of a call on it is asked for.
    stand_in: relax.Expr


def build_relax(expression: Expression, match: Match, operands: dict[str, Any]) -> BuiltExpression:
    """``expression`` over these operands, arrays or expressions of Relax, with calls nested.

    Raises NotApplicable where a constant in it cannot be computed.
    """
    meaning = _WithRelax(match.result.dtype)
    values: dict[str, Any] = {
        name: value if isinstance(value, np.ndarray) else _leaf(value)
        for name, value in operands.items()
    }
    values |= {name: _Known(array, values[name]) for name, array in match.constants.items()}
    return _as_built(interpret(expression, values, match.value_of, meaning))


@dataclass(frozen=True)
class _Known:
    """A constant: its value, and the expression that it is already, if any."""

    array: np.ndarray
    built: Any = None

    @property
    def dtype(self) -> str:
        return str(self.array.dtype)


def _leaf(expr: relax.Expr) -> BuiltExpression:
    return BuiltExpression(expr, kind_of(expr.ty), expr)


def _as_built(value: Any) -> BuiltExpression:
    if isinstance(value, BuiltExpression):
        return value
    if isinstance(value.built, BuiltExpression):
        return value.built
    return _leaf(relax.const(value.array, str(value.array.dtype)))


class _WithRelax:
    """Expressions as Relax; what constants alone decide is computed with NumPy."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._builder = relax.BlockBuilder()

    def number(self, value: int | float | bool, like: Any) -> _Known:
        """A constant without axes."""
        dtype = self._dtype if like is None else _value_dtype(like)
        return _Known(WithNumpy(numpy_dtype(dtype)).number(value, None))

    def apply(self, operator: Operator, operands: list[Any], attributes: dict[str, Any]) -> Any:
        """A constant, if all operands are, or a call."""
        is_known = all(isinstance(one, _Known) for one in operands)
        if is_known and operator.name != "full":
            return _Known(computed_constant(operator, [one.array for one in operands], attributes))
        built = [_as_built(one) for one in operands]
        call = build_call(operator.name, [one.expr for one in built], attributes)
        typed = build_call(operator.name, [one.stand_in for one in built], attributes)
        ty = self._type_of(typed)
        return BuiltExpression(call, kind_of(ty), relax.Var("stand_in", ty))

    def _type_of(self, expr: relax.Expr) -> Any:
        if isinstance(expr, relax.TupleGetItem):
            return self._type_of(expr.tuple_value).fields[expr.index]
        return self._builder.normalize(expr).ty


def _value_dtype(value: Any) -> str:
    return value.dtype if isinstance(value, _Known) else value.kind.dtype


def computed_constant(
    operator: Operator, arrays: list[np.ndarray], attributes: dict[str, Any]
) -> np.ndarray:
    """Raises NotApplicable where the result overflows, or is too small to have all its digits."""
    found = WithNumpy(arrays[0].dtype).apply(operator, arrays, attributes)
    if str(found.dtype) not in FLOATS or operator.name in ("maximum", "minimum"):
        return found
    if all(np.isfinite(one).all() for one in arrays):
        least = ml_dtypes.finfo(found.dtype).smallest_normal
        is_small = (np.abs(found) < least) & ~_comes_of_zeros(operator, arrays)
        if not np.isfinite(found).all() or is_small.any():
            raise NotApplicable("a constant of the result is out of range")
    return found


def _comes_of_zeros(operator: Operator, arrays: list[np.ndarray]) -> Any:
    """Where a result may be zero because of its operands: a factor, or both terms."""
    zeros = [one == 0 for one in arrays]
    if operator.name == "multiply":
        return np.logical_or.reduce(np.broadcast_arrays(*zeros))
    if operator.name == "transpose":
        return True
    return np.logical_and.reduce(np.broadcast_arrays(*zeros))
