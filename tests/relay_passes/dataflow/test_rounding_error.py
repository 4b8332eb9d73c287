"""float32 is no further from float64 than the bounds say."""

import math

import numpy as np
import pytest
from analysed_models import computed, graphs, if_model, in_float64, loop_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import mlp, node

from tvm_ext.onnx_frontend import import_model
from tvm_ext.relay_passes.dataflow.rounding_error import (
    EPSILON,
    EXACT,
    UNKNOWN,
    Error,
    RoundingErrors,
    rounding_errors,
)

ERRORS = st.builds(Error, *[st.sampled_from([0.0, 1.0, 2.5, math.inf])] * 2)


def outputs(mod, **arguments):
    found = rounding_errors(mod, **arguments).results(mod.get_global_var("main"))
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.extended
@given(graphs(is_smooth=True), st.lists(st.floats(-2, 3, width=32), min_size=9, max_size=9))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_float32_is_as_close_to_float64_as_promised(proto, numbers):
    x = np.array(numbers, "float32").reshape(3, 3)
    bounds = outputs(import_model(proto).mod, inputs={"x": (-2.0, 3.0)})
    exact = computed(in_float64(proto), x.astype("float64"))
    for narrow, wide, bound in zip(computed(proto, x), exact, bounds, strict=True):
        sound = np.isfinite(narrow) & np.isfinite(wide)
        off = np.abs(narrow[sound].astype("float64") - wide[sound])
        # Underflow is left out of the bounds.
        assert np.all(off <= bound.absolute * EPSILON + 1e-37)
        if math.isfinite(bound.relative):
            assert np.all(off <= bound.relative * EPSILON * np.abs(wide[sound]) + 1e-37)


@given(ERRORS, ERRORS, ERRORS)
@settings(max_examples=40, deadline=None)
def test_errors_are_a_lattice(a, b, c):
    join = RoundingErrors(None, {}).join
    assert join(a, b) == join(b, a)
    assert join(a, join(b, c)) == join(join(a, b), c)
    assert join(a, a) == a
    assert join(EXACT, a) == a
    assert join(UNKNOWN, a) == UNKNOWN


def test_a_network_has_a_small_bound_where_its_input_has_a_range():
    bounded = outputs(import_model(mlp()).mod, inputs={"x": (-1.0, 1.0)})
    assert all(0 < one.absolute < 500 for one in bounded)
    open_ended = outputs(import_model(mlp()).mod)
    assert all(one == UNKNOWN for one in open_ended)


def test_relu_of_an_input_is_exact_and_an_if_has_the_larger_error():
    (found,) = outputs(import_model(if_model("Relu", "Abs")).mod)
    assert found == EXACT
    (found,) = outputs(import_model(if_model("Relu", "Sigmoid")).mod)
    assert 0 < found.absolute < 100


def test_an_error_that_grows_in_a_loop_has_no_bound():
    mod = import_model(loop_model([node("Mul", ["a", "x"], ["b"])])).mod
    assert outputs(mod, inputs={"x": (-1.0, 1.0)})[0].absolute == math.inf
