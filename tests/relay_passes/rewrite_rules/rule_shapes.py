"""Rules of data movement on all small shapes and attributes, with a distinct number everywhere.

Such a rule says that two ways of moving elements put the same ones at the same places. Which ones
these are does not depend on the numbers, so distinct ones show a difference wherever there is one.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.relay_passes.rewrite_rules.expression import (
    Apply,
    Constant,
    Expression,
    Number,
    Variable,
    WithNumpy,
    interpret,
)
from tvm_ext.relay_passes.rewrite_rules.rule import Match, Rule, TensorKind

_SHAPES = [(), (1,), (2,), (3,), (1, 2), (2, 1), (2, 3), (2, 2), (1, 2, 3), (2, 1, 2), (2, 2, 2)]
# Enough for several slices side by side.
_LONG_SHAPES = [(4,), (4, 2)]
_VIEWS = [*_SHAPES, (6,), (4,), (3, 2), (1, 1), (1, 1, 2), (2, 3, 1), (1, 6)]
_FAR = 2**31 - 1
_SLICES = [(0, _FAR, 1), (1, _FAR, 1), (0, 2, 1), (-2, _FAR, 1), (0, _FAR, 2), (1, -1, 1)]
_BACKWARDS = [(-1, -_FAR, -1), (_FAR, 0, -2)]
_SHORT_SLICES = [(0, 1, 1), (1, 2, 1), (0, 2, 1), (2, 3, 1), (2, _FAR, 1), (3, 4, 1), (1, 3, 2)]
# What is taken along an axis.
_PLACES: list[Any] = [[0], [1], [0, 1], [0, 2], [1, 3], [0, 1, 2], [1, 0], [0, 0], [-1], [0, 1, 3]]


@dataclass(frozen=True)
class Instance:
    """A pattern with values for its variables and attributes, and what NumPy makes of it."""

    values: dict[str, np.ndarray]
    attributes: dict[str, Any]
    pattern: np.ndarray
    match: Match


def instances(rule: Rule, dtype: str = "float64") -> Iterator[Instance]:
    """All small instances of the pattern, whether the rule's condition holds or not."""
    names = _operator_names(rule.pattern)
    is_long = "take" in names or ("concat" in names and len(names) > 1)
    shapes = _LONG_SHAPES if is_long else _SHAPES
    for values, attributes, array in _Walk(shapes, dtype).of(rule.pattern, {}, {}):
        kinds = {n: TensorKind(v.shape, str(v.dtype)) for n, v in values.items()}
        known = {n: values[n] for n in _constants(rule.pattern)}
        match = Match(TensorKind(array.shape, str(array.dtype)), kinds, known, attributes)
        yield Instance(values, attributes, array, match)


def outcomes(rule: Rule, dtype: str = "float64") -> tuple[int, int, list[str]]:
    """How many instances the rule fits and does not fit, and where its result is wrong."""
    fitting, others, wrong = 0, 0, []
    for one in instances(rule, dtype):
        result = result_of(rule, one)
        if result is None:
            others += 1
            continue
        fitting += 1
        if not np.array_equal(result, one.pattern):
            shapes = {name: array.shape for name, array in one.values.items()}
            wrong.append(f"{shapes} {one.attributes}")
    return fitting, others, wrong


def result_of(rule: Rule, one: Instance) -> np.ndarray | None:
    """The rule's result; None where it is not applied, as its condition or the type forbids it."""
    if not rule.holds(one.match):
        return None
    meaning = WithNumpy(one.pattern.dtype)
    try:
        result = interpret(rule.result, one.values, one.match.value_of, meaning)
    except (NotApplicable, ValueError):
        return None
    # The pass looks at the types of both, and does without the rule where they differ.
    return result if result.shape == one.pattern.shape else None


def _constants(pattern: Expression) -> set[str]:
    if isinstance(pattern, Constant):
        return {pattern.name}
    operands = pattern.operands if isinstance(pattern, Apply) else ()
    return set().union(*map(_constants, operands))


def _operator_names(pattern: Expression) -> set[str]:
    if not isinstance(pattern, Apply):
        return set()
    return {pattern.operator.name}.union(*map(_operator_names, pattern.operands))


Found = tuple[dict[str, np.ndarray], dict[str, Any], np.ndarray]


class _Walk:
    def __init__(self, shapes: list[tuple[int, ...]], dtype: str) -> None:
        self._shapes = shapes
        self._dtype = dtype

    def of(self, pattern: Expression, values: Any, attributes: Any) -> Iterator[Found]:
        """The instances of a part of the pattern, where these names have values already."""
        if isinstance(pattern, Number):
            yield values, attributes, np.asarray(pattern.value, self._dtype)
        elif isinstance(pattern, Variable):
            yield from self._of_variable(pattern, values, attributes)
        elif isinstance(pattern, Apply):
            yield from self._of_operator(pattern, values, attributes)

    def _of_variable(self, variable: Variable, values: Any, attributes: Any) -> Iterator[Found]:
        if variable.name in values:
            yield values, attributes, values[variable.name]
            return
        if variable.name == "places":
            arrays = (np.array(places, "int64") for places in _PLACES)
            yield from (({**values, "places": array}, attributes, array) for array in arrays)
            return
        for shape in self._shapes:
            numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape) + 100 * len(values) + 1
            array = numbers % 3 == 0 if variable.name == "mask" else numbers
            array = np.asarray(array, bool if variable.name == "mask" else self._dtype)
            yield {**values, variable.name: array}, attributes, array

    def _of_operator(self, pattern: Apply, values: Any, attributes: Any) -> Iterator[Found]:
        for own, given, operands in self._of_operands(pattern.operands, values, attributes):
            for choice in _choices(pattern, operands, given):
                named = {str(pattern.attributes[key]): value for key, value in choice.items()}
                try:
                    meaning = WithNumpy(self._dtype)
                    array = meaning.apply(pattern.operator, operands, choice)
                except (ValueError, IndexError):
                    continue
                yield own, {**given, **named}, array

    def _of_operands(
        self, operands: tuple[Expression, ...], values: Any, attributes: Any
    ) -> Iterator[tuple[Any, Any, list[np.ndarray]]]:
        if not operands:
            yield values, attributes, []
            return
        for own, given, array in self.of(operands[0], values, attributes):
            for last, more, arrays in self._of_operands(operands[1:], own, given):
                yield last, more, [array, *arrays]


def _choices(pattern: Apply, operands: list[np.ndarray], given: Any) -> Iterator[dict[str, Any]]:
    """The attributes that the operator may have with these operands."""
    name, first = pattern.operator.name, operands[0]
    if name == "strided_slice":
        yield from _slices(pattern, first)
    elif name == "split":
        yield from _splits(first, given)
    elif name in _CHOICES:
        yield from _CHOICES[name](first)
    else:
        yield {}


def _slices(pattern: Apply, x: np.ndarray) -> Iterator[dict[str, Any]]:
    is_joined = "of_" in str(pattern.attributes["axes"])
    several = _SHORT_SLICES if is_joined else [*_SLICES, *_BACKWARDS]
    for axis, bounds in itertools.product(range(x.ndim), several):
        yield _slice((axis,), (bounds,))
    if x.ndim == 2 and not is_joined:
        for both in itertools.product(_SLICES[:4], repeat=2):
            yield _slice((1, 0), both)


def _slice(axes: tuple[int, ...], bounds: tuple[tuple[int, int, int], ...]) -> dict[str, Any]:
    begin, end, strides = zip(*bounds, strict=True)
    return {"axes": axes, "begin": begin, "end": end, "strides": strides}


def _splits(x: np.ndarray, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of several parts that are joined, the others are parts of the same split, or one is not."""
    parts = [given["parts_0"]] if "parts_0" in given else [1, 2, 4, (), (1,), (1, 2), (1, 2, 3)]
    axes = [given["axis_0"]] if "axis_1" in given else range(x.ndim)
    for own, axis in itertools.product(parts, axes):
        count = own if isinstance(own, int) else len(own) + 1
        for index in range(count):
            yield {"parts": own, "axis": axis, "index": index}


def _reductions(x: np.ndarray) -> Iterator[dict[str, Any]]:
    for count in range(1, x.ndim + 1):
        for axes in itertools.combinations(range(x.ndim), count):
            yield from ({"axes": axes, "keepdims": keeps} for keeps in (False, True))


_CHOICES: dict[str, Any] = {
    "transpose": lambda x: ({"axes": p} for p in itertools.permutations(range(x.ndim))),
    "reshape": lambda x: ({"shape": s} for s in _VIEWS if np.prod(s, dtype=int) == x.size),
    "broadcast_to": lambda x: ({"shape": s} for s in _SHAPES),
    "take": lambda x: ({"axis": axis} for axis in range(x.ndim)),
    "concat": lambda x: ({"axis": axis} for axis in range(x.ndim)),
    "pad": lambda x: (
        {"widths": widths, "mode": "constant", "value": 0.0}
        for widths in itertools.product((0, 1, -1), repeat=2 * x.ndim)
        if x.ndim < 3
    ),
    "tile": lambda x: ({"repeats": r} for r in itertools.product((1, 2), repeat=max(x.ndim, 1))),
    "repeat": lambda x: (
        {"repeats": n, "axis": axis} for n in (1, 2) for axis in (None, *range(x.ndim))
    ),
    **dict.fromkeys(("sum", "mean", "max", "min"), _reductions),
}
