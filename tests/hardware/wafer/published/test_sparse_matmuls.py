"""Load balance of sparse tiles: the slowest PE, padding, and unrolled rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.hardware.wafer.published.families import calibration, predict_rows
from tvm_ext.hardware.wafer.published.matmuls import SPARSE, expected_maximum, median_maximum
from tvm_ext.hardware.wafer.published.rows import PublishedRow

# 128 x 16 cells a PE.
SIZES = {"m": 1024, "n": 68, "k": 1024, "grid_rows": 8, "grid_cols": 64}


def answer(kernel, **columns):
    columns = {"arch": "WSE-2", "unit": "cycles", "dtype": "fp32", **SIZES, **columns}
    columns.setdefault("parameters", {"density": 0.05})
    (found,) = predict_rows([PublishedRow(2, "q", kernel, **columns)])
    return found


def test_the_expected_maximum_is_that_of_drawn_numbers():
    drawn = np.random.default_rng(0).binomial(300, 0.1, size=(4000, 50)).max(axis=1)
    assert expected_maximum(300, 0.1, 50) == pytest.approx(drawn.mean(), rel=0.005)
    assert median_maximum(300, 0.1, 50) == np.median(drawn)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 400), st.floats(0.01, 1), st.integers(1, 1000))
def test_a_maximum_is_between_the_mean_and_all_and_grows_with_the_draws(trials, share, draws):
    most = expected_maximum(trials, share, draws)
    assert trials * share - 1e-6 <= most <= trials + 1e-6
    assert expected_maximum(trials, share, 2 * draws) >= most - 1e-6
    assert 0 <= median_maximum(trials, share, draws) <= trials


def test_a_full_matrix_has_no_imbalance():
    full = {"density": 1}
    csr = answer("SpMM CSR, local compute phase only", parameters=full)
    assert csr.predicted == pytest.approx(csr.predicted_mean)


def test_more_processing_elements_have_a_slower_slowest_one_and_the_same_mean():
    few = answer("SpMM CSR")
    many = answer("SpMM CSR", m=4096, grid_rows=32)
    assert many.predicted > few.predicted > few.predicted_mean
    assert many.predicted_mean == pytest.approx(few.predicted_mean)


def test_each_format_costs_what_it_loops_over():
    values = calibration().values(SPARSE)
    entry = values["nonzero"] + 68 * values["element"]
    most = expected_maximum(128 * 16, 0.05, 512) * entry + values["start"]
    assert answer("SpMM COO").predicted == pytest.approx(most)
    assert answer("SpMM COO").predicted_mean is None
    assert answer("SpMM CSR").predicted == pytest.approx(most + 128 * values["line"])
    assert answer("SpMM CSC").predicted == pytest.approx(most + 16 * values["line"])


def test_rows_of_ellpack_are_as_long_as_the_longest_and_short_ones_are_unrolled():
    values = calibration().values(SPARSE)
    entry = values["nonzero"] + 68 * values["element"]

    def wanted(length, saved):
        return 128 * length * (entry - saved) + 128 * values["line"] + values["start"]

    short = median_maximum(16, 0.05, 128 * 512)
    assert short <= 10
    found = answer("SpMM ELLPACK")
    assert found.predicted == pytest.approx(wanted(short, values["unrolled"]))
    long = median_maximum(16, 0.6, 128 * 512)
    assert long > 10
    found = answer("sparse x dense, ELL format", parameters={"density": 0.6})
    assert found.predicted == pytest.approx(wanted(long, 0))


def test_the_slowest_is_compared_with_the_slowest():
    found = answer("SpMM CSR", value=20298.0, value_max=23456.0)
    assert found.published == 23456
    assert found.of == "slowest PE"
    assert found.error == pytest.approx(found.predicted / 23456 - 1)
    assert answer("SpMM CSR", value=20298.0).published == 20298


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"parameters": {}}, "no density"),
        ({"parameters": {"density": "5 %"}}, "no density"),
        ({"parameters": {"density": 5}}, "the density is 5"),
        ({"n": None}, "no M, N and K"),
        ({"dtype": "fp16"}, "fp16"),
        ({"grid_rows": 1, "grid_cols": 1}, "49,152"),
        ({"grid_rows": 2000}, "larger than the fabric"),
    ],
)
def test_sparse_products_that_are_refused(columns, said):
    found = answer("SpMM CSR", **columns)
    assert not found.covered
    assert said in found.reason


def test_a_sparse_product_in_no_known_format_is_refused():
    assert "names no format" in answer("SpMM, blocked").reason
