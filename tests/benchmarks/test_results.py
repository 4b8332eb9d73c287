"""Ratios, means and differences: the arithmetic behind the tables."""

import math

import numpy as np
import pytest
from results import (
    CaseResult,
    KernelFigures,
    Measured,
    geometric_mean,
    geometric_means,
    relative_difference,
)


def case(name="m", **milliseconds):
    return CaseResult(name, "", {peer: Measured(ms, 0.0, 1) for peer, ms in milliseconds.items()})


def test_a_ratio_is_the_peers_time_by_ours():
    result = case(tvm_ext=2.0, onnxruntime=3.0)
    assert result.ratio("onnxruntime") == 1.5
    assert result.ratio("openvino") is None
    assert case(onnxruntime=3.0).ratio("onnxruntime") is None


def test_the_best_peer_is_the_faster_of_two():
    assert case(tvm_ext=2.0, onnxruntime=3.0, openvino=1.0, tvm=0.1).best_ratio() == 0.5
    assert case(tvm_ext=2.0, onnxruntime=3.0).best_ratio() == 1.5
    assert case(tvm_ext=2.0).best_ratio() is None


def test_means_are_geometric_and_leave_out_what_is_missing():
    results = [
        case(tvm_ext=1.0, onnxruntime=2.0, openvino=4.0),
        case(tvm_ext=1.0, onnxruntime=8.0),
    ]
    means = geometric_means(results, ["onnxruntime", "openvino", "tvm"])
    assert means == pytest.approx({"onnxruntime": 4.0, "openvino": 4.0, "tvm": None, "best": 4.0})
    assert geometric_mean([]) is None
    assert geometric_mean([None, 2.0]) == pytest.approx(2.0)


def test_a_wrong_answer_counts_in_no_mean():
    fast_but_wrong = case(tvm_ext=1.0, onnxruntime=9.0)
    fast_but_wrong.programs["tvm_ext"] = Measured(1.0, 0.0, 1, difference=0.5, wrong=True)
    assert fast_but_wrong.failed
    assert fast_but_wrong.ratio("onnxruntime") == 9.0
    assert fast_but_wrong.right_ratio("onnxruntime") is None
    wrong_peer = case(tvm_ext=2.0, onnxruntime=3.0)
    wrong_peer.programs["openvino"] = Measured(1.0, 0.0, 1, difference=0.5, wrong=True)
    assert not wrong_peer.failed
    assert wrong_peer.best_ratio() == 1.5
    assert geometric_means([fast_but_wrong, wrong_peer], ["onnxruntime", "openvino"]) == (
        pytest.approx({"onnxruntime": 1.5, "openvino": None, "best": 1.5})
    )


def test_medians_and_spread():
    measured = Measured.of([1.0, 2.0, 3.0, 4.0, 100.0], 1e-4, tolerance=1e-3)
    assert measured.milliseconds == 3000.0
    assert measured.spread == pytest.approx(2.0 / 3.0)
    assert measured.samples == 5
    assert not measured.wrong


@pytest.mark.parametrize(
    ("difference", "wrong"),
    [(None, False), (1e-3, False), (2e-3, True), (math.inf, True), (math.nan, True)],
)
def test_an_answer_is_wrong_above_the_tolerance(difference, wrong):
    assert Measured.of([1.0], difference, tolerance=1e-3).wrong is wrong


def test_difference_is_relative_to_the_largest_magnitude():
    wanted = [np.array([1.0, -100.0], np.float32), np.array([2], np.int64)]
    assert relative_difference(wanted, wanted) == 0.0
    found = [np.array([1.5, -100.0], np.float32), np.array([2], np.int64)]
    assert relative_difference(found, wanted) == pytest.approx(0.005)
    found = [wanted[0], np.array([3], np.int64)]
    assert relative_difference(found, wanted) == pytest.approx(0.5)


def test_difference_of_what_is_not_finite():
    special = np.array([np.nan, np.inf, -np.inf, 2.0], np.float32)
    assert relative_difference([special], [special]) == 0.0
    for place in range(3):
        other = special.copy()
        other[place] = 1.0
        assert relative_difference([other], [special]) == math.inf
        assert relative_difference([special], [other]) == math.inf


def test_difference_of_other_shapes_numbers_and_types():
    one = np.ones((2, 3), np.float32)
    assert relative_difference([one], [one[:, :2]]) == math.inf
    assert relative_difference([one], [one, one]) == math.inf
    assert relative_difference([np.zeros((0,))], [np.zeros((0,))]) == 0.0
    flags = np.array([True, False])
    assert relative_difference([flags], [~flags]) == 1.0
    zeros = np.zeros(3, np.float32)
    assert relative_difference([zeros + 1e-5], [zeros]) == pytest.approx(1e-5)


def test_rates_of_a_kernel_and_its_share_of_the_peak():
    kernel = KernelFigures("flops", flops=4e9, bytes=1e9, seconds=0.5, peak=16.0)
    assert (kernel.gflops, kernel.gbs, kernel.share) == (8.0, 2.0, 0.5)
    assert KernelFigures("bytes", 4e9, 1e9, 0.5, peak=8.0).share == 0.25


def test_plain_data_has_the_ratios():
    result = case(tvm_ext=2.0, onnxruntime=3.0)
    result.kernel = KernelFigures("flops", 4e9, 1e9, 0.5, 16.0)
    data = result.to_dict()
    assert data["ratios"] == {"onnxruntime": 1.5}
    assert data["best_ratio"] == 1.5
    assert data["kernel"]["share"] == 0.5
