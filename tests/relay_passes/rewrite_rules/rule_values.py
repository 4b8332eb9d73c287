"""Rules on numbers: special and random values for elementwise rules, with what may differ."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from real_proof import masks_of

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.relay_passes.expressions import numpy_dtype
from tvm_ext.relay_passes.rewrite_rules.expression import (
    Constant,
    Expression,
    Operator,
    Variable,
    WithNumpy,
    interpret,
    variables_of,
)
from tvm_ext.relay_passes.rewrite_rules.matching import computed_constant
from tvm_ext.relay_passes.rewrite_rules.rule import (
    EXACT,
    FINITE,
    FLOATS,
    Match,
    Rule,
    TensorKind,
)

_FLOAT_CONSTANTS = (1.0, -1.0, 0.5, 2.0, -4.0, 3.0, 0.1, -7.0, 0.0, -0.0, 1e-3, 300.0, 1e-7)
_SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, np.inf, -np.inf, np.nan)


def values_of(dtype: str, seed: int = 0, count: int = 40) -> np.ndarray:
    """All special values of a type, its extremes and denormals, and random ones."""
    rng, kind = np.random.default_rng(seed), numpy_dtype(dtype)
    if dtype == "bool":
        return np.array([False, True])
    if dtype not in FLOATS:
        info = np.iinfo(dtype)
        edges = [0, 1, 2, 3, info.max, info.max - 1, info.min, info.min + 1, info.max // 2]
        drawn = rng.integers(info.min, info.max, count, dtype, endpoint=True)
        return np.concatenate([np.array(edges, dtype), drawn])
    info = ml_dtypes.finfo(kind)
    least = float(info.smallest_subnormal)
    normal, largest = float(info.smallest_normal), float(info.max)
    edges = [least, -least, 3 * least, normal, -normal, largest, -largest, largest / 2]
    ordinary = rng.normal(size=count) * 4
    spread = np.exp2(rng.uniform(np.log2(normal), np.log2(largest), count)) * rng.choice([1, -1])
    return np.concatenate([_SPECIAL, edges, ordinary, spread]).astype(kind)


def constants_of(dtype: str) -> list[np.ndarray]:
    """Constants to try: ordinary ones and the ends of the type."""
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return [np.asarray(False), np.asarray(True)]
    if dtype not in FLOATS:
        info = np.iinfo(dtype)
        return [np.asarray(one, dtype) for one in (0, 1, 3, info.max, info.min, info.max - 5)]
    info = ml_dtypes.finfo(kind)
    ends = (np.inf, -np.inf, float(info.max), float(info.smallest_normal))
    with np.errstate(over="ignore"):
        return [np.asarray(one).astype(kind) for one in (*_FLOAT_CONSTANTS, *ends)]


@dataclass
class _Following(WithNumpy):
    """NumPy, which notes what the values between were, and computes constants as the pass does."""

    dtype: Any
    known: list[np.ndarray]
    largest: Any = 0.0
    is_ordinary: Any = True
    made: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.dtype)

    def number(self, value: Any, like: Any) -> np.ndarray:
        found = super().number(value, like)
        self.known.append(found)
        return found

    def apply(self, operator: Operator, operands: list[np.ndarray], attributes: Any) -> np.ndarray:
        if operator.name == "full":
            return operands[0]
        if all(any(one is other for other in self.known) for one in operands):
            found = computed_constant(operator, operands, attributes)
            self.known.append(found)
            return found
        found = super().apply(operator, operands, attributes)
        self.note(found)
        self._note_underflow(operator, operands, found)
        return found

    def note(self, array: np.ndarray) -> None:
        """Takes note of how large the values are, and whether they are ordinary."""
        if str(array.dtype) not in FLOATS:
            return
        wide = array.astype(np.longdouble)
        finite = np.where(np.isfinite(wide), np.abs(wide), 0)
        self.largest = np.maximum(self.largest, finite)
        is_negative_zero = (wide == 0) & np.signbit(wide)
        self.is_ordinary = self.is_ordinary & np.isfinite(wide) & ~is_negative_zero

    def _note_underflow(self, operator: Operator, operands: list[np.ndarray], found: Any) -> None:
        if str(found.dtype) not in FLOATS or operator.name not in ("multiply", "divide", "exp"):
            return
        least = float(ml_dtypes.finfo(found.dtype).smallest_normal)
        is_zero = np.logical_or.reduce(np.broadcast_arrays(*[one == 0 for one in operands]))
        self.is_ordinary = self.is_ordinary & (
            (np.abs(found.astype(np.longdouble)) >= least) | (is_zero & (operator.name != "exp"))
        )


def differences(rule: Rule, dtype: str, most: int = 60) -> tuple[int, list[str]]:
    """In how many ways the rule was tried for a type, and where its result is not as it states."""
    tried, wrong = 0, []
    for values, match in itertools.islice(_cases(rule, dtype), most):
        try:
            found = _compared(rule, values, match)
        except NotApplicable:
            continue
        tried += 1
        if found:
            wrong.append(found)
    return tried, wrong


def _cases(rule: Rule, dtype: str) -> Iterator[tuple[dict[str, np.ndarray], Match]]:
    variables = variables_of(rule.pattern)
    for match in matches_of(rule, dtype):
        yield {**_spread(rule, variables, dtype), **match.constants}, match


def matches_of(rule: Rule, dtype: str) -> Iterator[Match]:
    """The rule's constants, for all that are tried of a type and that it holds for."""
    variables = variables_of(rule.pattern)
    constants = [one.name for one in variables if isinstance(one, Constant)]
    result = TensorKind((1,), dtype)
    for chosen in itertools.product(constants_of(dtype), repeat=len(constants)):
        known = dict(zip(constants, chosen, strict=True))
        kinds = {one.name: TensorKind((), dtype) for one in variables}
        match = Match(result, kinds, known)
        if rule.holds(match):
            yield match


def _spread(rule: Rule, variables: list[Variable], dtype: str) -> dict[str, np.ndarray]:
    """Values for each variable, on an axis of its own: all of one meet all of the others."""
    free = [one.name for one in variables if not isinstance(one, Constant)]
    masks, arrays = masks_of(rule), []
    for number, name in enumerate(free):
        is_number = name not in masks and dtype == "bool" and bool(masks)
        own = "bool" if name in masks else "float32" if is_number else dtype
        arrays.append(values_of(own, number, 40 if len(free) == 1 else 8))
    return dict(zip(free, np.meshgrid(*arrays, indexing="ij"), strict=True))


def _compared(rule: Rule, values: dict[str, np.ndarray], match: Match) -> str:
    """The first difference that the rule does not allow; empty when there is none."""
    known = [values[name] for name in match.constants]
    kind = numpy_dtype(match.result.dtype)
    before, after = _Following(kind, list(known)), _Following(kind, list(known))
    for name, array in values.items():
        if name not in match.constants:
            before.note(array)
    pattern = _value(rule.pattern, values, match, before)
    result = _value(rule.result, values, match, after)
    pattern, result = np.broadcast_arrays(pattern, result)
    if pattern.dtype != result.dtype:
        return f"the type is {result.dtype} instead of {pattern.dtype}"
    is_right = _is_right(rule, pattern, result, before.largest)
    if rule.equality is FINITE:
        is_right = is_right | ~np.broadcast_to(before.is_ordinary, pattern.shape)
    if is_right.all():
        return ""
    where = tuple(np.argwhere(~is_right)[0])
    inputs = {k: v[where] if v.shape == pattern.shape else v for k, v in values.items()}
    return f"{inputs}: {pattern[where]} became {result[where]}"


def _value(expression: Expression, values: Any, match: Match, meaning: _Following) -> np.ndarray:
    return interpret(expression, values, match.value_of, meaning)


def _is_right(rule: Rule, pattern: Any, result: Any, largest: Any) -> Any:
    if str(pattern.dtype) not in FLOATS:
        return pattern == result
    one, other = pattern.astype(np.longdouble), result.astype(np.longdouble)
    same = one == other
    if rule.equality is not FINITE:
        same = same & (np.signbit(one) == np.signbit(other))
    same = same | (np.isnan(one) & np.isnan(other))
    if rule.equality is EXACT or rule.ulps == 0:
        return same
    info = ml_dtypes.finfo(pattern.dtype)
    beyond = np.exp2(np.longdouble(info.maxexp))
    one, other = (np.where(np.isinf(v), np.copysign(beyond, v), v) for v in (one, other))
    scale = np.maximum(np.abs(one), largest) if rule.of_largest else np.abs(one)
    _, exponent = np.frexp(np.where(np.isfinite(scale), scale, 0))
    unit = np.exp2(
        np.maximum(exponent - 1 - info.nmant, info.minexp - info.nmant).astype(np.longdouble)
    )
    return same | (np.abs(one - other) <= rule.ulps * unit)
