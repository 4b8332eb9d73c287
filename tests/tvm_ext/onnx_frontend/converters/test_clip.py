"""Clip against ONNX Runtime."""

import numpy as np
import pytest
from one_model import in_one_model, run_model
from operator_models import assert_as_runtime, element_type, relax_operators
from small_models import model, node, value

INF, NAN = float("inf"), float("nan")

VALUES = np.array([-INF, -9, -1, -0.5, 0, 0.5, 1, 9, INF, NAN], np.float32)


def clip(*, opset: int = 17, stored: bool = True, low=None, high=None, x=VALUES, **attributes):
    bounds = {k: np.array(v, x.dtype) for k, v in (("low", low), ("high", high)) if v is not None}
    names = [name if name in bounds else "" for name in ("low", "high")]
    while names and not names[-1]:
        names.pop()
    inputs = [value("x", list(x.shape), element_type(x))]
    if not stored:
        inputs += [value(name, [], element_type(x)) for name in bounds]
    proto = model(
        [node("Clip", ["x", *names], ["y"], name="clip", **attributes)],
        inputs,
        [value("y", list(x.shape), element_type(x))],
        opset,
        **(bounds if stored else {}),
    )
    return proto, {"x": x} if stored else {"x": x, **bounds}


BOUNDS = [
    {},
    {"low": -1},
    {"high": 1},
    {"low": 0, "high": 6},
    {"low": 2, "high": -2},
    {"low": -INF, "high": INF},
]


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "run time"])
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_clip(bounds, stored):
    # An absent bound is the largest finite number there, and none here: infinity stays.
    x = VALUES if len(bounds) == 2 else VALUES[~np.isinf(VALUES)]
    proto, inputs = clip(x=x, stored=stored, **bounds)
    assert_as_runtime(proto, **inputs)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "int32", "int64", "uint8"])
def test_clip_of_other_types(dtype):
    x = np.array([0, 1, 3, 5, 7, 100]).astype(dtype)
    proto, inputs = clip(x=x, low=2, high=6)
    assert_as_runtime(proto, **inputs)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("attributes", [{}, {"min": -1.0}, {"max": 1.0}, {"min": 0.0, "max": 6.0}])
def test_clip_with_bounds_as_attributes(attributes):
    proto, inputs = clip(opset=6, x=VALUES[np.isfinite(VALUES)], **attributes)
    assert_as_runtime(proto, **inputs)


def test_a_bound_that_is_no_number_is_no_bound():
    proto, inputs = clip(stored=False, low=-1, high=2)
    inputs["high"] = np.array(NAN, np.float32)
    (found,) = run_model(proto, inputs).values()
    np.testing.assert_array_equal(found, np.maximum(VALUES, -1))


def test_clip_is_two_operators_that_passes_can_see():
    proto, _ = clip(low=0, high=6)
    assert relax_operators(proto) == {"maximum", "minimum"}
