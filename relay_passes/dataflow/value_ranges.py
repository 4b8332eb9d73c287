"""Value ranges: between which numbers all elements of a tensor lie, and whether one may be NaN.

LLVM's ``LazyValueInfo`` and MLIR's ``IntegerRangeAnalysis``, for tensors and floating point. What
is found is sound: an operator that has no rule here may give anything, and every rounding is taken
outward. Ranges hold for what kernels compute, not for the real numbers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_ext.relay_passes.dataflow import interval
from tvm_ext.relay_passes.dataflow.framework import ForwardAnalysis, Solution, State, solve_forward
from tvm_ext.relay_passes.dataflow.interval import ValueRange, element_type, join
from tvm_ext.relay_passes.dataflow.range_operands import Operands
from tvm_ext.relay_passes.dataflow.range_rules import RULES, TUPLE_RULES
from tvm_ext.relay_passes.dataflow.sizes import MOST, extent_bounds
from tvm_ext.relay_passes.expressions import read_only

# Larger constants are looked at for their range; what a product of one can give is not computed.
_MOST_WEIGHTS = 1 << 22

# Of all integer types together.
_ENDS_OF_INTEGERS = (-(1 << 63), (1 << 64) - 1)


def value_ranges(
    mod: tvm.IRModule,
    sizes: Mapping[str, tuple[int, int]] | None = None,
    inputs: Mapping[str, tuple[float, float]] | None = None,
) -> Solution[ValueRange]:
    """The range of every value of a module.

    ``sizes`` are the least and the largest value of symbolic sizes, by name. ``inputs`` are the
    least and the largest number in inputs of which that is promised; no NaN is in them either.
    """
    return solve_forward(mod, ValueRanges(sizes or {}, inputs or {}))


class ValueRanges(ForwardAnalysis[ValueRange]):
    """The analysis; a shape has the range of its sizes."""

    def __init__(
        self,
        sizes: Mapping[str, tuple[int, int]],
        inputs: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self.sizes, self.inputs = sizes, inputs or {}
        # By hash, with the constant, which is the same as long as it is kept.
        self._constants: dict[int, tuple[relax.Expr, ValueRange]] = {}
        self._sums: dict[tuple[int, tuple[int, ...]], tuple[np.ndarray, np.ndarray]] = {}
        # By hash: a call, what it was given, and what it gives then. A pass that solves the
        # analysis in each of its rounds meets most calls again.
        self._given: dict[int, tuple[relax.Call, Sequence[State], State]] = {}

    def join(self, one: ValueRange, other: ValueRange) -> ValueRange:
        """The least range of both."""
        return join(one, other)

    def widen(self, before: ValueRange, after: ValueRange) -> ValueRange:
        """Bounds that moved go to zero, or as far as they can."""
        is_whole = isinstance(after.low, int) and isinstance(after.high, int)
        least, most = _ENDS_OF_INTEGERS if is_whole else (-math.inf, math.inf)
        low = before.low if after.low >= before.low else (0 if after.low >= 0 else least)
        high = before.high if after.high <= before.high else (0 if after.high <= 0 else most)
        return ValueRange(
            low,
            high,
            after.may_be_nan,
            after.may_be_negative_zero,
            after.is_integral,
        )

    def top(self, ty: tvm.ir.Type) -> ValueRange:
        """All numbers of the type."""
        if isinstance(ty, relax.TensorType) and ty.dtype is not None:
            return element_type(str(ty.dtype)).anything()
        if isinstance(ty, relax.ShapeType):
            return self.extents(list(ty.values or []))
        if isinstance(ty, tvm.ir.PrimType):
            return element_type(str(ty.dtype)).anything()
        return ValueRange(-math.inf, math.inf, True, True)

    def parameter(self, param: relax.Var) -> State:
        """What is promised for an input, or all numbers of its type."""
        promised = self.inputs.get(str(param.name))
        if promised is None or not isinstance(param.ty, relax.TensorType):
            return self.top_of(param.ty)
        kind = element_type(str(param.ty.dtype))
        if kind.is_float:
            low, high = map(float, promised)
            return ValueRange(low, high, may_be_negative_zero=low <= 0 <= high)
        return kind.fit(ValueRange(math.floor(promised[0]), math.ceil(promised[1])))

    def constant(self, value: relax.Expr) -> ValueRange:
        """The range of the numbers of a literal."""
        if isinstance(value, relax.ShapeExpr):
            return self.extents(value.values[:])
        if isinstance(value, tirx.IntImm | tirx.FloatImm):
            number = value.value
            found = interval.of_array(np.asarray(number))
            return found if found is not None else self.top(value.ty)
        if isinstance(value, tirx.Var) and isinstance(value.ty, tvm.ir.PrimType):
            return self.extents([value])
        if not isinstance(value, tvm.ir.GenericConst) or not isinstance(value.ty, relax.TensorType):
            return self.top(value.ty)
        known = self._constants.get(hash(value))
        if known is None:
            found = interval.of_array(read_only(value.value))
            known = value, found if found is not None else self.top(value.ty)
            self._constants[hash(value)] = known
        return known[1]

    def weight_sums(
        self, weights: relax.Expr, axes: tuple[int, ...]
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """As ``Operands.weights``; each constant is looked at once."""
        if not isinstance(weights, tvm.ir.GenericConst) or not self.constant(weights).is_number:
            return None
        key = hash(weights), axes
        if key not in self._sums:
            array = read_only(weights.value)
            if array.size == 0 or array.size > _MOST_WEIGHTS:
                return None
            wide = array.astype(np.float64)
            above = np.maximum(wide, 0).sum(axis=axes)
            self._sums[key] = above, wide.sum(axis=axes) - above
        return self._sums[key]

    def taken(self, condition: ValueRange) -> bool | None:
        """Known where a condition has one value."""
        return bool(condition.low) if condition.low == condition.high else None

    def transfer(self, call: relax.Call, operands: Sequence[State]) -> State:
        """By the rule of the operator; anything where there is none."""
        known = self._given.get(hash(call))
        if known is None or known[1] != operands:
            known = call, operands, self._computed(call, operands)
            self._given[hash(call)] = known
        return known[2]

    def _computed(self, call: relax.Call, operands: Sequence[State]) -> State:
        name = str(call.op.name).removeprefix("relax.")
        if isinstance(call.ty, relax.TupleType):
            rule: Any = TUPLE_RULES.get(name)
            fields = call.ty.fields[:]
            if rule is None:
                return self.top_of(call.ty)
            found = rule(Operands(self, call, operands, fields[0]))
            return tuple(found) if isinstance(found, list) else (found,) * len(fields)
        rule = RULES.get(name)
        if rule is None:
            return self.top_of(call.ty)
        return rule(Operands(self, call, operands, call.ty))

    def extents(self, extents: Sequence[Any]) -> ValueRange:
        """The range of sizes."""
        bounds = [extent_bounds(one, self.sizes) for one in extents] or [(0, MOST)]
        return ValueRange(
            min(low for low, _ in bounds), max(high for _, high in bounds), is_integral=True
        )
