"""Rounding errors: how far values may be from those that exact arithmetic would give.

Forward error analysis (N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition,
chapters 2 and 3). An operation with exact operands is off by half a unit in the last place, a
function such as exp by a few; a sum of n terms by gamma_n; and an operand's own error is carried on
by the slope of the operator where its value ranges are known. Inputs and constants count as exact.
Overflow and underflow are left out, as in the standard model; and an operator without a rule, or
one that jumps, as a comparison does, may be off by any amount.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tvm
from tvm import relax

from tvm_ext.relay_passes.dataflow.framework import ForwardAnalysis, Solution, State, solve_forward
from tvm_ext.relay_passes.dataflow.interval import (
    FUNCTION_ULPS,
    ElementType,
    ValueRange,
    element_type,
    gamma,
    join_all,
)
from tvm_ext.relay_passes.dataflow.sizes import count_of
from tvm_ext.relay_passes.dataflow.value_ranges import value_ranges

# Errors are counted in it, whatever the type of a value.
EPSILON = 2.0**-23


@dataclass(frozen=True, slots=True)
class Error:
    """A bound of the rounding error of every element of a tensor, in units of float32's epsilon.

    Attributes
    ----------
    absolute : float
        Of the difference to the exact value.
    relative : float
        Of that difference divided by the exact value. Either may be infinite: unknown.
    """

    absolute: float
    relative: float


EXACT = Error(0.0, 0.0)
UNKNOWN = Error(math.inf, math.inf)


@dataclass(frozen=True)
class Operand:
    """An operand: its error, and the range of what kernels compute of it."""

    error: Error
    range: ValueRange

    @property
    def magnitude(self) -> float:
        """Above the absolute value of the exact and of the computed number."""
        return self.range.magnitude + _times(self.error.absolute, EPSILON)


@dataclass(frozen=True)
class _Context:
    """What a rule is given: operands, the result's range and type, the call."""

    operands: list[Operand]
    result: ValueRange
    type: ElementType
    call: relax.Call
    sizes: Mapping[str, tuple[int, int]]

    @property
    def unit(self) -> float:
        """The unit roundoff of the result's type, in units of float32's epsilon."""
        return self.type.epsilon / 2 / EPSILON

    def count(self, place: int, axes: Sequence[int] | None) -> int:
        """The most elements along axes of an operand."""
        return count_of(self.call.args[place].ty, axes, self.sizes)[1]

    def rounded(self, absolute: float, relative: float, units: float | None = None) -> Error:
        """An error before the result is rounded, with that of rounding it."""
        unit = self.unit if units is None else units
        # (1 + a) (1 + b) - 1, in units.
        both = relative + unit + _times(_times(relative, unit), EPSILON)
        return Error(absolute + _times(unit, self.result.magnitude), both)


Rule: TypeAlias = Callable[[_Context], Error]


def rounding_errors(
    mod: tvm.IRModule,
    sizes: Mapping[str, tuple[int, int]] | None = None,
    inputs: Mapping[str, tuple[float, float]] | None = None,
) -> Solution[Error]:
    """The rounding error of every value of a module; arguments are those of ``value_ranges``."""
    ranges = value_ranges(mod, sizes, inputs)
    return solve_forward(mod, RoundingErrors(ranges, sizes or {}))


class RoundingErrors(ForwardAnalysis[Error]):
    """The analysis, of pairs of bounds; it needs the ranges of all values."""

    def __init__(self, ranges: Solution[ValueRange], sizes: Mapping[str, tuple[int, int]]) -> None:
        self._ranges, self._sizes = ranges, sizes

    def join(self, one: Error, other: Error) -> Error:
        """The larger of both bounds."""
        return Error(max(one.absolute, other.absolute), max(one.relative, other.relative))

    def widen(self, before: Error, after: Error) -> Error:
        """A bound that grows with the iterations of a loop has none."""
        return Error(
            after.absolute if after.absolute <= before.absolute else math.inf,
            after.relative if after.relative <= before.relative else math.inf,
        )

    def top(self, ty: tvm.ir.Type) -> Error:
        """Any error; a shape has none."""
        return EXACT if isinstance(ty, relax.ShapeType) else UNKNOWN

    def parameter(self, param: relax.Var) -> State:
        """Inputs are exact: what a user means is what a user gives."""
        return self._exact(param.ty)

    def constant(self, value: relax.Expr) -> Error:
        """Weights are exact."""
        return EXACT

    def _exact(self, ty: tvm.ir.Type) -> State:
        return tuple(map(self._exact, ty.fields)) if isinstance(ty, relax.TupleType) else EXACT

    def transfer(self, call: relax.Call, operands: Sequence[State]) -> State:
        """By the rule of the operator; unknown where there is none."""
        name = str(call.op.name).removeprefix("relax.")
        rule = _RULES.get(name)
        if isinstance(call.ty, relax.TupleType):
            moved = self._joined(operands[0]) if name == "split" else UNKNOWN
            return (moved,) * len(call.ty.fields[:])
        if rule is None or not isinstance(call.ty, relax.TensorType):
            return self.top(call.ty)
        given = [
            Operand(self._joined(state), self._range(argument))
            for argument, state in zip(call.args[:], operands, strict=True)
        ]
        kind = element_type(str(call.ty.dtype))
        result = _result_range(self._ranges, call, given)
        context = _Context(given, result, kind, call, self._sizes)
        return _refined(rule(context), context)

    def _joined(self, state: State) -> Error:
        if isinstance(state, Error):
            return state
        errors = list(map(self._joined, state))
        return Error(
            max((one.absolute for one in errors), default=0.0),
            max((one.relative for one in errors), default=0.0),
        )

    def _range(self, argument: relax.Expr) -> ValueRange:
        state = self._ranges.of(argument)
        found = state if isinstance(state, tuple) else (state,)
        if not found or not all(isinstance(one, ValueRange) for one in found):
            return ValueRange(-math.inf, math.inf, True)
        return join_all(found)


def _result_range(
    ranges: Solution[ValueRange], call: relax.Call, given: list[Operand]
) -> ValueRange:
    analysis = ranges.analysis
    states = [ranges.of(argument) for argument in call.args[:]]
    if any(state is None for state in states):
        return ValueRange(-math.inf, math.inf, True)
    found = analysis.transfer(call, states)
    return found if isinstance(found, ValueRange) else ValueRange(-math.inf, math.inf, True)


def _refined(error: Error, given: _Context) -> Error:
    """Each of both bounds by the other one, where the range is known."""
    found = given.result
    absolute, relative = _plain(error.absolute), _plain(error.relative)
    if found.may_be_nan or found.may_be_infinite:
        return Error(absolute, relative)
    share = relative * EPSILON
    if share < 0.5:
        # The exact value is at most the computed one divided by 1 - share.
        absolute = min(absolute, _times(relative, found.magnitude / (1 - share)))
    least = max(found.low, -found.high) - absolute * EPSILON
    if least > 0:
        relative = min(relative, absolute / least)
    return Error(absolute, relative)


def _plain(number: float) -> float:
    return math.inf if math.isnan(number) else number


def _times(one: float, other: float) -> float:
    return 0.0 if one == 0 or other == 0 else one * other


# Rules: what an operator makes of the errors of its operands.


def _moved(*places: int) -> Rule:
    """Of what gives elements of its operands as they are, or the larger of two."""

    def rule(given: _Context) -> Error:
        errors = [given.operands[place].error for place in places]
        return Error(max(one.absolute for one in errors), max(one.relative for one in errors))

    return rule


def _extremum(given: _Context) -> Error:
    """Of two numbers: the result is off by no more than the one that is off further."""
    first, second = (one.error for one in given.operands[:2])
    same_sign = all(one.range.low >= 0 for one in given.operands[:2])
    relative = max(first.relative, second.relative) if same_sign else math.inf
    if first == second == EXACT:
        return EXACT
    return Error(max(first.absolute, second.absolute), relative)


def _shrinking(given: _Context) -> Error:
    """abs and relu: never further apart than the operands; signs agree where errors are small."""
    error = given.operands[0].error
    return Error(error.absolute, error.relative if error.relative * EPSILON < 1 else math.inf)


def _view(given: _Context) -> Error:
    """Elements as they are, if it is sure which ones."""
    return _moved(0)(given) if all(o.error == EXACT for o in given.operands[1:]) else UNKNOWN


def _clipped(given: _Context) -> Error:
    error = given.operands[0].error
    low, high = (one.range.low for one in given.operands[1:3])
    # A number that is moved to a bound keeps its relative error where both signs agree.
    keeps_sign = error.relative * EPSILON < 1 and (low >= 0 or low < 0 < high)
    relative = error.relative if keeps_sign else math.inf
    return Error(error.absolute, relative)


def _sum_of_two(sign: int) -> Rule:
    def rule(given: _Context) -> Error:
        one, other = given.operands
        low, high = (
            (other.range.low, other.range.high)
            if sign > 0
            else (-other.range.high, -other.range.low)
        )
        agree = (one.range.low >= 0 and low >= 0) or (one.range.high <= 0 and high <= 0)
        are_exact = one.error == other.error == EXACT
        relative = max(one.error.relative, other.error.relative) if agree or are_exact else math.inf
        return given.rounded(one.error.absolute + other.error.absolute, relative)

    return rule


def _product(given: _Context) -> Error:
    one, other = given.operands
    first, second = one.error.absolute, other.error.absolute
    absolute = (
        _times(first, other.magnitude)
        + _times(second, one.magnitude)
        + _times(_times(first, second), EPSILON)
    )
    return given.rounded(absolute, _of_factors(one.error.relative, other.error.relative))


def _of_factors(first: float, second: float) -> float:
    return first + second + _times(_times(first, second), EPSILON)


def _quotient(given: _Context) -> Error:
    one, other = given.operands
    share = other.error.relative * EPSILON
    if share >= 0.5:
        return UNKNOWN
    return given.rounded(
        math.inf, _of_factors(one.error.relative, other.error.relative) / (1 - share)
    )


def _negated(given: _Context) -> Error:
    return given.operands[0].error


def _square_root(power: float) -> Rule:
    """sqrt, and 1 / sqrt: relative errors are halved, to first order; all of it where small."""

    def rule(given: _Context) -> Error:
        relative = given.operands[0].error.relative
        share = relative * EPSILON
        if share >= 0.25:
            return UNKNOWN
        # |(1 + t)^power - 1| is below |power| t / (1 - t) for these powers.
        carried = abs(power) * relative / (1 - share)
        return given.rounded(math.inf, carried, 2 * FUNCTION_ULPS * given.unit)

    return rule


def _function(slope: float) -> Rule:
    """Of a function with this largest slope between the exact and the computed operand.

    Kernels compute it to a few units in the last place of the result, or of 1 for smaller results.
    """

    def rule(given: _Context) -> Error:
        absolute = _times(given.operands[0].error.absolute, slope)
        ulps = 2 * FUNCTION_ULPS * given.unit
        return Error(absolute + ulps * max(given.result.magnitude, 1.0), math.inf)

    return rule


def _exponential(given: _Context) -> Error:
    """An absolute error of the operand is a relative one of the result."""
    moved = given.operands[0].error.absolute * EPSILON
    if not moved < 0.5:
        return UNKNOWN
    return given.rounded(math.inf, math.expm1(moved) / EPSILON, 2 * FUNCTION_ULPS * given.unit)


def _logarithm(given: _Context) -> Error:
    share = given.operands[0].error.relative * EPSILON
    if share >= 0.5:
        return UNKNOWN
    ulps = 2 * FUNCTION_ULPS * given.unit
    return Error(-math.log1p(-share) / EPSILON + ulps * max(given.result.magnitude, 1.0), math.inf)


def _summed(given: _Context) -> Error:
    axis = given.call.attrs.axis
    count = given.count(0, None if axis is None else [int(one) for one in axis])
    return _of_sum(given, count, count)


def _averaged(given: _Context) -> Error:
    axis = given.call.attrs.axis
    count = given.count(0, None if axis is None else [int(one) for one in axis])
    one = given.operands[0]
    off = gamma(count + 1, given.type.epsilon) / EPSILON
    absolute = one.error.absolute + _times(off, one.magnitude)
    return Error(absolute, _of_factors(one.error.relative, off) if _one_sign(one) else math.inf)


def _one_sign(one: Operand) -> bool:
    return one.range.low >= 0 or one.range.high <= 0


def _of_sum(given: _Context, count: int, roundings: int) -> Error:
    one = given.operands[0]
    off = gamma(roundings, given.type.epsilon) / EPSILON
    total = _times(count, one.magnitude)
    absolute = _times(count, one.error.absolute) + _times(off, total)
    return Error(absolute, _of_factors(one.error.relative, off) if _one_sign(one) else math.inf)


def _matmul(given: _Context) -> Error:
    """A product of matrices is off by gamma_n |A| |B| (Higham, section 3.5), and what they are."""
    one, other = given.operands
    rank = given.call.args[0].ty.ndim
    if rank < 1:
        return UNKNOWN
    return _of_products(given, one, other, given.count(0, [rank - 1]))


def _convolution(given: _Context) -> Error:
    letters = str(given.call.attrs.kernel_layout)
    axes = [axis for axis, letter in enumerate(letters) if letter != "O"]
    return _of_products(given, given.operands[0], given.operands[1], given.count(1, axes))


def _of_products(given: _Context, one: Operand, other: Operand, count: int) -> Error:
    first, second = one.error.absolute, other.error.absolute
    off = gamma(count + 1, given.type.epsilon) / EPSILON
    largest = _times(one.magnitude, other.magnitude)
    absolute = _times(count, largest) * off if off and largest else 0.0
    for error, beside in ((first, other.magnitude), (second, one.magnitude)):
        absolute += _times(count, _times(error, beside))
    absolute += _times(count, _times(_times(first, second), EPSILON))
    if not (_one_sign(one) and _one_sign(other)):
        return Error(absolute, math.inf)
    return Error(absolute, _of_factors(_of_factors(one.error.relative, other.error.relative), off))


def _cast(given: _Context) -> Error:
    error, source = given.operands[0].error, given.operands[0].range
    if given.type.is_float:
        # A cast to a type with more bits is exact: so is that of a small whole number.
        wide = element_type(str(given.call.args[0].ty.dtype))
        is_exact = (wide.is_float and wide.epsilon >= given.type.epsilon) or (
            source.is_integral and source.magnitude <= 2 / given.type.epsilon
        )
        return error if is_exact else given.rounded(error.absolute, error.relative)
    return error if error == EXACT and source.is_integral else _jumping(given)


def _jumping(given: _Context) -> Error:
    """Exact of exact operands, anything of others."""
    return EXACT if all(one.error == EXACT for one in given.operands) else UNKNOWN


def _integers(rule: Rule) -> Rule:
    """Integers are not rounded."""
    return lambda given: rule(given) if given.type.is_float else _jumping(given)


def _where(given: _Context) -> Error:
    if given.operands[0].error != EXACT:
        return UNKNOWN
    return _moved(1, 2)(given)


def _softmax(given: _Context) -> Error:
    """exp of differences, divided by their sum, which has one sign."""
    one = given.operands[0]
    axis = int(given.call.attrs.axis)
    count = given.count(0, [axis])
    spread = one.range.high - one.range.low
    # The difference to the largest element is rounded once.
    moved = 2 * one.error.absolute + _times(given.unit, spread)
    if not moved * EPSILON < 0.25:
        return UNKNOWN
    of_exp = math.expm1(moved * EPSILON) / EPSILON + 2 * FUNCTION_ULPS * given.unit
    of_sum = _of_factors(of_exp, gamma(count, given.type.epsilon) / EPSILON)
    share = of_sum * EPSILON
    if share >= 0.5:
        return UNKNOWN
    relative = _of_factors(of_exp, of_sum) / (1 - share)
    return given.rounded(relative * 1.0, relative)


_VIEWS = (
    *("broadcast_to", "dynamic_strided_slice", "expand_dims", "flatten", "flip", "concat"),
    *("nn.batch_flatten", "nn.pixel_shuffle", "permute_dims", "repeat", "reshape", "squeeze"),
    *("stack", "strided_slice", "take", "tile", "tril", "triu", "gather_elements", "gather_nd"),
    *("nn.pad", "shape_to_tensor"),
)
_FLOAT_RULES: Mapping[str, Rule] = {
    "add": _sum_of_two(1),
    "divide": _quotient,
    "erf": _function(1.13),
    "exp": _exponential,
    "log": _logarithm,
    "matmul": _matmul,
    "mean": _averaged,
    "multiply": _product,
    "nn.conv1d": _convolution,
    "nn.conv2d": _convolution,
    "nn.conv3d": _convolution,
    "nn.gelu": _function(1.13),
    "nn.silu": _function(1.1),
    "nn.softmax": _softmax,
    "rsqrt": _square_root(-0.5),
    "sigmoid": _function(0.25),
    "sqrt": _square_root(0.5),
    "subtract": _sum_of_two(-1),
    "sum": _summed,
    "tanh": _function(1.0),
}
_JUMPING = (
    *("argmax", "argmin", "ceil", "equal", "floor", "greater", "greater_equal", "isfinite"),
    *("isinf", "isnan", "less", "less_equal", "logical_and", "logical_not", "logical_or"),
    *("not_equal", "one_hot", "round", "shape_of", "sign", "trunc", "zeros_like", "ones_like"),
    *("zeros", "ones", "full", "arange"),
)
_RULES: Mapping[str, Rule] = {
    "abs": _shrinking,
    "astype": _cast,
    "clip": _clipped,
    "max": _moved(0),
    "maximum": _extremum,
    "min": _moved(0),
    "minimum": _extremum,
    "negative": _negated,
    "nn.max_pool1d": _moved(0),
    "nn.max_pool2d": _moved(0),
    "nn.relu": _shrinking,
    "where": _where,
    **{name: _view for name in _VIEWS},
    **{name: _integers(rule) for name, rule in _FLOAT_RULES.items()},
    **{name: _jumping for name in _JUMPING},
}
