"""Comparing arrays: tolerances by precision, NaN and Inf, shapes and dtypes."""

import json

import ml_dtypes
import numpy as np
import pytest

from tvm_ext.check.tolerance import SPREADS, TOLERANCES, compare, worst
from tvm_ext.tensor_spec import FLOATS_WIDEST_FIRST, narrowest_float


def one(ours, reference, **options):
    (difference,) = compare({"y": ours}, {"y": reference}, **options)
    return difference


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_each_precision_has_its_tolerance_relative_to_the_largest_magnitude(dtype):
    tolerance = TOLERANCES[dtype]
    reference = np.array([[0.0, -256.0], [1.0, 2.0]], np.dtype(getattr(ml_dtypes, dtype, dtype)))
    for factor, ok in ((0.5, True), (2.0, False)):
        ours = reference.copy()
        ours[0, 0] = tolerance * factor * 256
        difference = one(ours, reference)
        assert difference.ok is ok
        assert difference.tolerance == tolerance
        assert difference.worst_index == (0, 0)
        assert difference.max_rel == pytest.approx(tolerance * factor, rel=0.02)
        assert difference.max_abs == pytest.approx(256 * difference.max_rel)
        assert difference.reference_value == 0.0


def test_a_wide_output_of_narrow_arithmetic_is_judged_as_narrow():
    reference = np.array([1.0, 3.0])
    ours = reference + 1e-5
    assert not one(ours, reference).ok
    assert one(ours, reference, precision={"y": "float32"}).ok
    # The other way round nothing is gained: a float16 output stays float16.
    half = reference.astype(np.float16)
    assert one(half, half, precision={"y": "float64"}).tolerance == TOLERANCES["float16"]


def test_a_tolerance_of_the_user_replaces_ours_for_floats_only():
    reference = np.array([1.0, 2.0], np.float32)
    assert one(reference * 1.05, reference, rtol=0.1).ok
    assert not one(reference * 1.0005, reference, rtol=1e-4).ok
    integers = np.array([100, 200])
    assert not one(integers + 1, integers, rtol=0.1).ok


def test_integers_and_booleans_are_exact():
    reference = np.array([3, 0, 2**63 - 1])
    assert one(reference, reference).reason == "identical"
    ours = reference - [0, 0, 1]
    difference = one(ours, reference)
    assert (difference.ok, difference.reason) == (False, "1 of 3 values differ")
    assert difference.worst_index == (2,)
    unsigned = np.array([0, 7], np.uint8)
    assert one(np.array([255, 7], np.uint8), unsigned).max_abs == 255
    flags = np.array([True, False])
    difference = one(~flags, flags)
    assert (difference.ok, difference.max_abs, difference.ours_value) == (False, 1.0, 0.0)


def test_nan_and_inf_must_be_where_the_reference_has_them():
    reference = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    assert one(reference.copy(), reference).ok
    for place, value, found in (
        (0, np.nan, "nan where the reference has 1"),
        (1, 0.0, "0 where the reference has nan"),
        (2, -np.inf, "-inf where the reference has inf"),
        (3, -1.0, "-1 where the reference has -inf"),
    ):
        ours = reference.copy()
        ours[place] = value
        difference = one(ours, reference)
        assert not difference.ok
        assert difference.worst_index == (place,)
        assert found in difference.reason
        json.dumps(difference.to_dict(), allow_nan=False)


def test_infinity_does_not_hide_a_wrong_number_beside_it():
    reference = np.array([np.inf, 1.0, 2.0], np.float32)
    difference = one(reference * np.float32(1.5), reference)
    assert (difference.ok, difference.worst_index) == (False, (2,))
    assert difference.max_rel == pytest.approx(0.5)


def test_other_shapes_dtypes_and_missing_outputs_are_failures_and_not_exceptions():
    reference = np.zeros((1, 3), np.float32)
    assert one(np.zeros((3, 1), np.float32), reference).reason == "shape [3, 1] instead of [1, 3]"
    assert one(np.zeros((1, 3)), reference).reason == "dtype float64 instead of float32"
    (missing,) = compare({}, {"y": reference})
    assert (missing.ok, missing.reason) == (False, "the output is missing")
    json.dumps(missing.to_dict(), allow_nan=False)


def test_empty_zero_and_scalar_outputs():
    assert one(np.zeros((0, 3)), np.zeros((0, 3))).ok
    assert one(np.zeros(3, np.float32), np.zeros(3, np.float32)).ok
    assert not one(np.full(3, 0.1, np.float32), np.zeros(3, np.float32)).ok
    assert one(np.float32(1).reshape(()), np.float32(1).reshape(())).worst_index == ()


def test_the_worst_is_the_failing_one_even_if_another_is_numerically_further_off():
    reference = {"a": np.ones(1, np.float16), "b": np.ones(1, np.float32)}
    ours = {"a": np.full(1, 1.006, np.float16), "b": np.full(1, 1.003, np.float32)}
    differences = compare(ours, reference)
    assert [d.ok for d in differences] == [True, False]
    assert worst(differences).name == "b"


def test_the_narrowest_float():
    assert narrowest_float("int64", "float32", "float16", "bool") == "float16"
    assert narrowest_float("int64") == ""
    assert tuple(TOLERANCES) == FLOATS_WIDEST_FIRST


def test_what_the_reference_differs_from_itself_widens_a_tolerance():
    reference = np.array([1.0, 2.0], np.float32)
    ours = reference * np.float32(1.05)
    assert one(ours, reference, spreads={"y": 0.03}).ok
    assert one(ours, reference, spreads={"y": 0.03}).tolerance == SPREADS * 0.03
    assert not one(ours, reference, spreads={"y": 0.02}).ok
    assert not one(ours, reference, spreads={"other": 0.03}).ok
    assert one(reference, reference, spreads={"y": 1e-9}).tolerance == TOLERANCES["float32"]
    assert not one(ours, reference, rtol=1e-4, spreads={"y": 0.03}).ok
    assert not one(np.array([3, 4]), np.array([3, 5]), spreads={"y": 1.0}).ok
    assert one(reference * np.float32(1.2), reference, spreads={"y": 1.0}).ok
    assert not one(-reference, reference, spreads={"y": 1.0}).ok
