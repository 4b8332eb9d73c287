"""The arrays of a kernel, and when two results are the same."""

import ml_dtypes
import numpy as np
import pytest
from small_kernels import matmul_task
from tvm import te, tirx

from tvm_ext.tuning.kernel_data import (
    KernelArguments,
    before_run,
    difference,
    finite_share,
    kernel_arguments,
    numpy_dtype,
    random_arrays,
)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = ["float64", "float32", "float16", "bfloat16", "bool", "int8", "uint8", "int32", "int64"]


def arguments(*dtypes, shape=(40, 50), results=(), limits=None):
    limits = limits or (None,) * len(dtypes)
    return KernelArguments((shape,) * len(dtypes), dtypes, results, limits)


def test_arguments_of_a_kernel():
    task = matmul_task(24, 32, 16)
    found = kernel_arguments(task.func, task.measured_calls[0])
    shapes = ((24, 16), (16, 32), (24, 32))
    assert found == KernelArguments(shapes, ("float32",) * 3, (2,), (None,) * 3)


def test_several_results_and_types():
    source = te.placeholder((6, 4), name="source", dtype="int8")
    wide = te.compute((6, 4), lambda i, j: source[i, j].astype("int32"), name="wide")
    signs = te.compute((6, 4), lambda i, j: source[i, j] > te.const(0, "int8"), name="signs")
    found = kernel_arguments(te.create_prim_func([wide, source, signs]), ((6, 4),) * 3)
    assert found.dtypes == ("int32", "int8", "bool")
    assert found.results == (0, 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_type_gets_values_of_its_own(dtype):
    (array,) = random_arrays(arguments(dtype), seed=1)
    assert array.shape == (40, 50)
    assert array.dtype == numpy_dtype(dtype)
    assert len(np.unique(array.astype(np.float64))) > 1
    assert np.isfinite(array.astype(np.float64)).all()


def test_ranges_of_integers():
    """Narrow ones take all values; wide ones are small, and nothing is divided by zero."""
    signed, unsigned, wide, wider = random_arrays(arguments("int8", "uint8", "int32", "int64"), 0)
    assert (signed.min(), signed.max()) == (-128, 127)
    assert (unsigned.min(), unsigned.max()) == (0, 255)
    assert set(np.unique(wide)) == set(np.unique(wider)) == {1, 2, 3, 4}


@pytest.mark.parametrize(("limit", "values"), [(1, {0}), (3, {0, 1, 2}), (900, {0, 1, 2, 3, 4})])
def test_indices_stay_inside(limit, values):
    (array,) = random_arrays(arguments("int64", limits=(limit,)), seed=0)
    assert set(np.unique(array)) == values


def test_indices_of_a_kernel_are_found():
    """Of what is gathered by them, the axis that they select from."""
    table = te.placeholder((7, 3), name="table")
    rows = te.placeholder((5,), name="rows", dtype="int64")
    result = te.compute((5, 3), lambda i, j: table[rows[i], j], name="result")
    func = te.create_prim_func([table, rows, result])
    found = kernel_arguments(func, ((7, 3), (5,), (5, 3)))
    assert found.index_limits == (None, 7, None)


def test_arguments_of_a_call_with_dynamic_sizes():
    """Numbers are handed on, and indices stay inside of an axis that the call decides."""
    count, length = tirx.Var("count", "int64"), tirx.Var("length", "int64")
    table = te.placeholder((2 * length, 3), name="table")
    rows = te.placeholder((length,), name="rows", dtype="int64")
    result = te.compute((length, 3), lambda i, j: table[rows[i], j] + count, name="result")
    func = te.create_prim_func([table, rows, count, result])
    found = kernel_arguments(func, ((4, 3), (2,), 7, (2, 3)))
    assert found.dtypes == ("float32", "int64", "int64", "float32")
    assert (found.results, found.index_limits) == ((3,), (None, 4, None, None))
    values = random_arrays(found, seed=0)
    assert values[2] == 7
    assert [np.shape(one) for one in values] == [(4, 3), (2,), (), (2, 3)]


def test_positive_numbers():
    """For logarithms and roots; integers stay as they are."""
    given = arguments("float32", "bfloat16", "int8", results=())
    floats, narrow, integers = random_arrays(given.positive(), 0)
    assert floats.min() >= 0.1
    assert narrow.dtype == BFLOAT16
    assert (narrow > 0).all()
    np.testing.assert_array_equal(integers, random_arrays(given, 0)[2])


def test_the_same_seed_the_same_arrays():
    first, second, other = (random_arrays(arguments(*DTYPES), seed) for seed in (3, 3, 4))
    for one, same, another in zip(first, second, other, strict=True):
        np.testing.assert_array_equal(one, same)
        assert not np.array_equal(one, another)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "bool"])
def test_results_hold_something_else_before_each_run(dtype):
    """Who reads what it has not written gets other numbers than were expected."""
    source, result = random_arrays(arguments(dtype, dtype, results=(1,)), seed=0)
    assert len(np.unique(source)) > 1
    assert len(np.unique(result)) == 1
    assert result.dtype == numpy_dtype(dtype)
    np.testing.assert_array_equal(result, before_run(result, expected=True))
    other = before_run(result)
    assert (other.dtype, other.shape) == (result.dtype, result.shape)
    assert not (other == result).any()


def test_scalars():
    (array,) = random_arrays(arguments("float32", shape=()), seed=0)
    assert array.shape == ()


@pytest.mark.parametrize(
    ("dtype", "accepted", "refused"),
    [
        (np.dtype("float64"), 1e-10, 1e-8),
        (np.dtype("float32"), 1e-4, 1e-3),
        (np.dtype("float16"), 5e-3, 2e-2),
        (BFLOAT16, 3e-2, 1e-1),
    ],
    ids=str,
)
def test_tolerance_of_each_type(dtype, accepted, refused):
    """Relative to the element."""
    right = np.array([0.0, -512.0, 3.0, 64.0])
    for error, words in ((accepted, ""), (refused, "result 0: 1 of 4 elements differ, by up to ")):
        mine = right * np.array([1.0, 1.0, 1.0, 1.0 + error])
        found = difference([mine.astype(dtype)], [right.astype(dtype)])
        assert found.startswith(words)
        assert bool(found) is bool(words)


def test_one_large_element_does_not_excuse_the_others():
    right = np.array([1.0, 2.0, 3.0, 1e6], np.float32)
    mine = right + np.array([0.0, 0.1, 0.0, 0.0], np.float32)
    assert "1 of 4 elements differ" in difference([mine], [right])


def test_elements_near_zero_are_held_to_the_typical_magnitude():
    """A sum may cancel: its error is that of its terms."""
    right = np.array([1e-6, 1.0, 2.0, 3.0], np.float32)
    mine = right.copy()
    mine[0] = -1e-4
    assert difference([mine], [right]) == ""
    mine[0] = 0.01
    assert "1 of 4 elements differ" in difference([mine], [right])


def test_all_zero():
    zeros = np.zeros(3, np.float32)
    assert difference([zeros], [zeros]) == ""
    assert "by up to 1.0e-02" in difference([zeros + np.float32(0.01)], [zeros])


def test_share_of_finite_numbers():
    half = np.array([np.nan, 1.0, np.inf, 2.0], np.float32)
    assert finite_share([np.zeros(2, np.float16), half, np.zeros(3, int)]) == 0.5
    assert finite_share([np.zeros(3, bool)]) == finite_share([]) == 1.0


def test_places_of_nan_and_infinity():
    right = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert difference([right.copy()], [right]) == ""
    for place, value in ((0, 0.0), (1, -np.inf), (1, np.nan), (2, 1.0), (3, np.nan), (3, np.inf)):
        mine = right.copy()
        mine[place] = value
        assert difference([mine], [right]) == "result 0: NaN or infinity at other places"
    mine = right.copy()
    mine[3] = 1.1
    assert "1 of 4 elements differ" in difference([mine], [right])


def test_nothing_finite():
    right = np.full(4, np.nan, np.float16)
    assert difference([right], [right]) == ""


def test_nan_of_bfloat16():
    right = np.array([np.nan, 1.0]).astype(BFLOAT16)
    assert difference([right.copy()], [right]) == ""
    assert difference([np.ones(2, BFLOAT16)], [right]) != ""


@pytest.mark.parametrize("dtype", ["int8", "int64", "bool"])
def test_integers_are_exact(dtype):
    right = np.zeros(10, dtype)
    mine = right.copy()
    assert difference([mine], [right]) == ""
    mine[[2, 5]] = 1
    assert difference([right, mine], [right, right]) == "result 1: 2 of 10 elements differ"


def test_results_that_are_missing_are_the_callers_mistake():
    with pytest.raises(ValueError, match="zip"):
        difference([], [np.zeros(1)])
