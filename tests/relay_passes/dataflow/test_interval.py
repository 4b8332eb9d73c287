"""The lattice of value ranges, and arithmetic on it, against numbers drawn from them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.relay_passes.dataflow import interval
from tvm_ext.relay_passes.dataflow.interval import ValueRange, element_type, join, of_array
from tvm_ext.relay_passes.dataflow.value_ranges import ValueRanges

FLOAT = element_type("float32")
BOUNDS = st.sampled_from(
    [-math.inf, -3e38, -7.5, -1.0, -1e-40, -0.0, 0.0, 1e-40, 0.5, 1.0, 7.0, 3e38, math.inf]
) | st.floats(-100, 100, width=32)


@st.composite
def ranges(draw):
    low, high = sorted((draw(BOUNDS), draw(BOUNDS)))
    is_integral = low == high and math.isfinite(low) and low.is_integer()
    return ValueRange(low, high, draw(st.booleans()), draw(st.booleans()), is_integral)


@given(ranges(), ranges(), ranges())
@settings(max_examples=60, deadline=None)
def test_join_is_a_least_upper_bound(a, b, c):
    assert join(a, b) == join(b, a)
    assert join(a, join(b, c)) == join(join(a, b), c)
    assert join(a, a) == a
    assert join(a, b).covers(a)
    assert FLOAT.anything().covers(a)


BINARY = {
    "add": (interval.add, np.add),
    "subtract": (interval.subtract, np.subtract),
    "multiply": (interval.multiply, np.multiply),
    "divide": (interval.divide, np.divide),
    "maximum": (interval.maximum, np.maximum),
    "minimum": (interval.minimum, np.minimum),
}


@pytest.mark.parametrize("name", BINARY)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_arithmetic_is_monotone_and_covers_what_is_computed(name, data):
    rule, function = BINARY[name]
    one, other, more = (data.draw(ranges()) for _ in range(3))
    found = FLOAT.fit(rule(one, other))
    assert FLOAT.fit(rule(join(one, more), other)).covers(found)
    values = np.meshgrid(members(one), members(other))
    with np.errstate(all="ignore"):
        computed = of_array(function(*values))
    assert computed is None or found.covers(computed)


def members(one: ValueRange) -> np.ndarray:
    """Numbers of a range as float32 has them, with its special ones."""
    inside = [one.low, one.high, *([0.0] if one.low <= 0 <= one.high else [])]
    finite = [n for n in (one.low, one.high) if math.isfinite(n)]
    inside += [sum(finite) / 2] if len(finite) == 2 else []
    special = [math.nan] * one.may_be_nan
    special += [-0.0] * (one.may_be_negative_zero and one.low <= 0 <= one.high)
    with np.errstate(all="ignore"):
        found = np.array([n + 0.0 for n in inside] + special, np.float32)
    # In float64: a bound that is rounded to float32 may keep a number that lies outside.
    exact = found.astype(np.float64)
    kept = found[np.isnan(exact) | ((exact >= one.low) & (exact <= one.high))]
    return kept if kept.size else np.array([math.nan], np.float32)


@given(ranges(), ranges())
@settings(max_examples=40, deadline=None)
def test_widening_covers_and_ends(before, more):
    analysis = ValueRanges({})
    after = join(before, more)
    wide = analysis.widen(before, after)
    assert wide.covers(after)
    for _ in range(3):
        wide, before = analysis.widen(wide, join(wide, after)), wide
    assert (wide.low, wide.high) == (before.low, before.high)


def test_integers_that_overflow_may_be_anything():
    byte = element_type("int8")
    assert byte.fit(ValueRange(-100, 100)).high == 100
    assert byte.fit(ValueRange(0, 128)) == byte.anything()


def test_constants_have_their_range_and_flags():
    assert of_array(np.array([1.0, -0.0, 3.0], "float32")) == ValueRange(-0.0, 3, False, True, True)
    assert of_array(np.array([0.5, np.nan], "float32")) == ValueRange(0.5, 0.5, True)
    assert of_array(np.zeros(0, "float32")) is None
