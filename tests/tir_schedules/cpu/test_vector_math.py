"""Calls of elementary functions are written out, compute the same, and need no call."""

import functools

import numpy as np
import pytest
import scipy.special
import tvm
import unoptimised
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from lowering import statements
from thoroughness import ALL_CASES, DRAWS
from tvm import s_tir, te, tirx
from tvm_ffi import structural_equal

from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.cpu.vector_math.logarithm import CONSTANT_POWERS
from tvm_ext.tir_schedules.cpu.vector_math.rewrite import (
    FUNCTIONS,
    noted_exponents_below_zero,
    with_vector_math,
)

EXACT = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "log", "log2", "log10", "log1p")},
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{name: getattr(np, f"arc{name[1:]}") for name in ("asin", "acos", "atan")},
    **{name: getattr(np, f"arc{name[1:]}") for name in ("asinh", "acosh", "atanh")},
    "erf": scipy.special.erf,
    "exp10": lambda x: np.power(10.0, x),
    "sigmoid": scipy.special.expit,
}
LENGTH = 16

floats = st.floats(width=32, allow_subnormal=True)
vectors = arrays.arrays("float32", LENGTH, elements=floats)


def kernel(function, arguments=1, dtype="float32", length=LENGTH, unroll=False):
    """The function on each element; in one vector, or in scalars of an unrolled loop."""
    inputs = [te.placeholder((length,), dtype, f"x{i}") for i in range(arguments)]
    output = te.compute((length,), lambda i: function(*(x(i) for x in inputs)), "y")
    sch = s_tir.Schedule(te.create_prim_func([*inputs, output]))
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    (sch.unroll if unroll else sch.vectorize)(loop)
    return sch.mod["main"]


def called(name):
    return lambda *values: getattr(tirx, name)(*values)


def calls(func, name):
    stores = [s for s in statements(func.body) if isinstance(s, tirx.BufferStore)]
    found = [call for store in stores for call in nodes(store.value, tvm.ir.Call)]
    return sum(str(call.op.name).endswith(f".{name}") for call in found)


def build(func):
    return unoptimised.built({"main": func})


def run(func, *values):
    return run_built(build(func), *values)


def run_built(program, *values):
    result = tvm.runtime.tensor(np.empty_like(values[0]))
    program["main"](*(tvm.runtime.tensor(v) for v in values), result)
    return result.numpy()


@functools.cache
def built(name, features=()):
    func = kernel(called(name), 2 if name == "pow" else 1)
    return build(with_vector_math(func, features).func)


def assert_close(found, exact, name):
    """A few units in the last place; zeros, infinities and NaN where they should be; all signs."""
    with np.errstate(all="ignore"):
        wanted = exact.astype("float32")
        close = np.abs(found - exact) <= 4 * np.spacing(np.abs(wanted)).astype("float64")
    # Rounding decides between the largest number and infinity.
    overflow = np.isfinite(exact) & (np.abs(exact) > 3.4e38) & (np.abs(found) > 3.4e38)
    same_sign = np.signbit(found) == np.signbit(wanted)
    good = same_sign & ((found == wanted) | (close & np.isfinite(found)) | overflow)
    bad = np.where(np.isnan(wanted), ~np.isnan(found), ~good)
    assert not np.any(bad), (name, found[bad], wanted[bad])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_written_out(name):
    func = kernel(called(name), 2 if name == "pow" else 1)
    before = func.script()
    result = with_vector_math(func)
    assert (result.replaced, result.left) == ({name: 1}, {})
    assert (calls(func, name), calls(result.func, name)) == (1, 0)
    assert func.script() == before
    again = with_vector_math(result.func)
    assert again.replaced == {}
    assert again.func.same_as(result.func)


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=20 * DRAWS, deadline=None)
@given(x=vectors)
def test_any_float(name, x):
    if name in ("sin", "cos", "tan"):
        x = np.where(np.isfinite(x) & (np.abs(x) > 1e8), np.float32(1), x)
    with np.errstate(all="ignore"):
        exact = EXACT[name](x.astype("float64"))
    assert_close(run_built(built(name), x), exact, name)


@pytest.mark.parametrize("name", ["exp", "exp2", "exp10", "sigmoid", "cosh", "sinh"])
@settings(max_examples=20 * DRAWS, deadline=None)
@given(x=vectors)
def test_any_float_with_an_instruction_for_powers_of_two(name, x):
    func = kernel(called(name))
    assert "ldexp" in with_vector_math(func, ["avx512f"]).func.script()
    assert "ldexp" not in with_vector_math(func, ["avx2"]).func.script()
    with np.errstate(all="ignore"):
        exact = EXACT[name](x.astype("float64"))
    assert_close(run_built(built(name, ("avx512f",)), x), exact, name)


@settings(max_examples=20 * DRAWS, deadline=None)
@given(x=vectors)
def test_exponential_of_what_is_not_above_zero(x):
    """Is shorter where a kernel is noted to have no others: what is no normal float is zero."""
    func = kernel(called("exp"))
    written = with_vector_math(noted_exponents_below_zero(func)).func
    assert len(written.script()) < len(with_vector_math(func).func.script())
    x = np.where(np.isnan(x), x, -np.abs(x))
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype("float64"))
    found = run(written, x)
    is_zero = exact < 2.0**-126
    assert np.all(np.abs(found[is_zero]) <= 2.0**-126)
    assert_close(np.where(is_zero, 0, found), np.where(is_zero, 0, exact), "exp")


def test_exponential_of_a_minimum_is_that_of_any_other_number():
    """Of numbers above zero as well, and with denormal results."""
    func = kernel(lambda x: tirx.exp(tirx.min(x, tirx.const(0, "float32"))))
    x = np.float32(
        [0.5, 3, 100, 1e9, np.inf, 0, -1, -87.5, -88, -90, -100, -103, -104, -1e9, -0.0, 2]
    )
    exact = np.exp(np.minimum(x, 0).astype("float64"))
    assert_close(run(with_vector_math(func).func, x), exact, "exp")


@pytest.mark.extended
@settings(max_examples=60 * DRAWS, deadline=None)
@given(x=vectors, y=vectors | st.integers(-7, 7).map(lambda n: np.full(LENGTH, n, "float32")))
def test_any_power(x, y):
    with np.errstate(all="ignore"):
        exact = np.power(x.astype("float64"), y.astype("float64"))
    assert_close(run_built(built("pow"), x, y), exact, "pow")


@pytest.mark.extended
@pytest.mark.parametrize("exponent", CONSTANT_POWERS)
def test_constant_powers_are_those_of_the_general_function(exponent):
    constant = tirx.const(exponent, "float32")
    func = kernel(lambda x: tirx.call_intrin("float32", "tirx.pow", x, constant))
    written = with_vector_math(func).func
    assert "float64" not in written.script()
    x = np.array([0, -0.0, 1, -1, 0.3, 7, -7, 1e-45, 3e38, -3e38, np.inf, -np.inf, np.nan])
    x = np.resize(x, LENGTH).astype("float32")
    with np.errstate(all="ignore"):
        exact = np.power(x.astype("float64"), np.full(LENGTH, exponent))
    assert_close(run(written, x), exact, f"pow by {exponent}")


def test_sine_and_cosine_of_huge_numbers_stay_between_minus_one_and_one():
    draw = np.random.default_rng(0)
    for _ in range(50):
        x = draw.choice([-1, 1], LENGTH) * np.exp(draw.uniform(18, 88, LENGTH))
        for name in ("sin", "cos"):
            assert np.all(np.abs(run_built(built(name), x.astype("float32"))) <= 1)


def test_float16_is_computed_as_float32_and_rounded_once():
    x = np.linspace(-4, 4, LENGTH).astype("float16")
    result = with_vector_math(kernel(called("tanh"), dtype="float16"))
    assert result.replaced == {"tanh": 1}
    exact = np.tanh(x.astype("float64")).astype("float16")
    np.testing.assert_array_max_ulp(run(result.func, x), exact, 1)


@pytest.mark.parametrize(
    ("function", "dtype", "left"),
    [
        (called("exp"), "float64", "exp of float64"),
        (lambda x: tirx.atan2(x, x), "float32", "atan2 of float32"),
        (lambda x: tirx.fmod(x, x), "float32", "fmod of float32"),
    ],
)
def test_what_stays_a_call_is_named(function, dtype, left):
    func = kernel(function, dtype=dtype)
    result = with_vector_math(func)
    assert result.func.same_as(func)
    assert (result.replaced, result.left) == ({}, {left: 1})


def test_a_kernel_without_functions_stays():
    func = kernel(lambda x: tirx.sqrt(x) + x)
    assert with_vector_math(func).func.same_as(func)


def test_functions_within_functions_and_several_of_one():
    func = kernel(lambda x: tirx.exp(tirx.tanh(x)) * tirx.exp(-x))
    result = with_vector_math(func)
    assert result.replaced == {"exp": 2, "tanh": 1}
    x = np.linspace(-3, 3, LENGTH).astype("float32")
    exact = np.exp(np.tanh(x.astype("float64")) - x)
    np.testing.assert_allclose(run(result.func, x), exact, rtol=1e-6)


LENGTHS = (1, 7, 13, 24)
# Three copies have names of their own as 24 have, which take a second.
UNROLLED = LENGTHS if ALL_CASES else (1, 3)


@pytest.mark.parametrize(
    ("length", "unroll"), [*((n, False) for n in LENGTHS), *((n, True) for n in UNROLLED)]
)
def test_odd_vectors_and_unrolled_scalars(length, unroll):
    # What an unrolled loop repeats has names of its own in every copy.
    func = kernel(
        lambda x: tirx.if_then_else(x > 0.0, tirx.log(x), tirx.sin(x)), length=length, unroll=unroll
    )
    x = np.linspace(-2, 3, length).astype("float32")
    with np.errstate(all="ignore"):
        exact = np.where(x > 0, np.log(x.astype("float64")), np.sin(x.astype("float64")))
    np.testing.assert_allclose(run(with_vector_math(func).func, x), exact, rtol=1e-6)


def test_equal_kernels_stay_equal():
    first, second = (with_vector_math(kernel(called("erf"))).func for _ in range(2))
    assert structural_equal(first, second)


def test_a_reduction_is_rewritten_too():
    x = te.placeholder((4, 8), "float32", "x")
    axis = te.reduce_axis((0, 8))
    total = te.compute((4,), lambda i: te.sum(te.exp(x[i, axis]), axis=axis), "total")
    func = with_vector_math(te.create_prim_func([x, total])).func
    values = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
    result = tvm.runtime.tensor(np.empty(4, "float32"))
    build(func)["main"](tvm.runtime.tensor(values), result)
    np.testing.assert_allclose(result.numpy(), np.exp(values).sum(1), rtol=1e-6)
