"""The predictor learns across kernels, judges itself and dismisses with care."""

import json

import numpy as np
import pytest
from drawn_candidates import MACHINE, SHAPES, drawn, made_up_seconds

from tvm_ext.configs.errors import RecordsError
from tvm_ext.tuning.cost_models.performance_predictor import (
    FEWEST_SAMPLES,
    PerformancePredictor,
    PredictorQuality,
    Sample,
    has_best,
    judged,
    rank_correlation,
)
from tvm_ext.tuning.cpu.cost_model import modelled_seconds
from tvm_ext.tuning.cpu.loop_features import loop_features


def samples(shape, seconds=made_up_seconds) -> list[Sample]:
    return [
        Sample(loop_features(one.mod, MACHINE), seconds(one), one.task.hash, one.hash)
        for one in drawn(shape)
    ]


@pytest.fixture(scope="module")
def all_samples() -> dict[tuple[int, int, int], list[Sample]]:
    return {shape: samples(shape) for shape in SHAPES}


def trained(groups) -> PerformancePredictor:
    predictor = PerformancePredictor()
    predictor.fit(sample for group in groups for sample in group)
    return predictor


@pytest.fixture(scope="module")
def of_all(all_samples) -> PerformancePredictor:
    """For tests that only ask it or write it."""
    return trained(all_samples.values())


def matrix(group: list[Sample]) -> np.ndarray:
    return np.array([sample.features for sample in group])


def times(group: list[Sample]) -> np.ndarray:
    return np.array([sample.seconds for sample in group])


def randomly(group: list[Sample], seed: int) -> list[Sample]:
    """The same candidates with times that have nothing to do with them."""
    drawn_times = np.random.default_rng(seed).uniform(1e-6, 1e-3, len(group))
    return [
        Sample(one.features, float(seconds), one.kernel, one.candidate)
        for one, seconds in zip(group, drawn_times, strict=True)
    ]


def test_without_samples_it_is_the_analytic_model():
    predictor = PerformancePredictor()
    candidate = drawn(SHAPES[0])[0]
    features = loop_features(candidate.mod, MACHINE)
    expected = modelled_seconds(candidate.mod, MACHINE)
    assert predictor.predict_seconds(features) == pytest.approx(expected)
    assert predictor.quality() == PredictorQuality(0, 0)
    assert str(predictor.quality()) == "0 samples; too few kernels to judge by"


@pytest.mark.slow
@pytest.mark.parametrize("left_out", range(len(SHAPES)))
def test_kernels_left_out_are_ranked_and_timed(all_samples, left_out):
    group = all_samples[SHAPES[left_out]]
    predictor = trained(g for shape, g in all_samples.items() if shape != SHAPES[left_out])
    predicted = predictor.predict_seconds(matrix(group))
    untrained = PerformancePredictor().predict_seconds(matrix(group))
    found, before = (rank_correlation(one, times(group)) for one in (predicted, untrained))
    assert found > max(0.65, before)
    assert has_best(predicted, times(group), 8)
    assert np.median(np.abs(np.log2(predicted / times(group)))) < 1.25


@pytest.mark.extended
def test_quality_is_that_of_kernels_left_out(all_samples, of_all):
    quality = of_all.quality()
    count = sum(len(group) for group in all_samples.values())
    assert (quality.samples, quality.kernels) == (count, len(SHAPES))
    assert quality.rank_correlation > 0.75
    assert list(quality.recall) == [1, 4, 8]
    assert sorted(quality.recall.values()) == list(quality.recall.values())
    assert str(quality).startswith(f"{count} samples; on 4 kernels left out in turn: rank corr")


@pytest.mark.extended
def test_quality_of_noise_is_poor(all_samples):
    noise = [randomly(group, seed) for seed, group in enumerate(all_samples.values())]
    assert trained(noise).quality().rank_correlation < 0.5


def test_one_kernel_cannot_be_judged(all_samples):
    quality = trained([all_samples[SHAPES[0]]]).quality()
    assert quality.kernels == 0
    assert np.isnan(quality.rank_correlation)


def test_metrics_by_hand():
    predicted, measured = np.array([3.0, 1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(predicted, measured) == pytest.approx(0.4)
    assert not has_best(predicted, measured, 2)
    assert has_best(predicted, measured, 3)
    assert rank_correlation(np.ones(4), measured) == 0
    quality = judged(8, [(predicted, measured), (measured, measured)])
    assert quality.rank_correlation == pytest.approx(0.7)
    assert quality.recall == {1: 0.5, 4: 1.0, 8: 1.0}


@pytest.mark.extended
def test_order_of_samples_does_not_matter(all_samples):
    features = matrix(all_samples[SHAPES[0]])
    forwards = trained(all_samples.values())
    backwards = trained(group[::-1] for group in reversed(list(all_samples.values())))
    np.testing.assert_array_equal(
        forwards.predict_seconds(features), backwards.predict_seconds(features)
    )


def test_candidate_counts_once_with_its_last_time(all_samples):
    predictor = trained(all_samples.values())
    count = len(predictor.samples)
    one = all_samples[SHAPES[0]][0]
    predictor.add([Sample(one.features, 1.0, one.kernel, one.candidate)])
    predictor.add([Sample(one.features, value, "x", "y") for value in (0.0, np.inf, np.nan)])
    assert len(predictor.samples) == count
    assert max(sample.seconds for sample in predictor.samples) == 1.0


# Which candidates are worth building.


def test_slow_candidates_are_dismissed_and_fast_ones_kept(all_samples):
    predictor = trained(all_samples.values())
    group = all_samples[SHAPES[1]]
    best = times(group).min()
    kept = predictor.keep(matrix(group), best)
    assert kept.dtype == bool
    assert 0 < (~kept).sum() <= 0.75 * len(group)
    assert kept[times(group).argmin()]
    assert times(group)[~kept].min() > 1.2 * best
    assert predictor.keep(matrix(group), 1.0).all()


@pytest.mark.extended
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 24])
def test_three_of_four_at_most_are_dismissed(all_samples, of_all, count):
    features = matrix(all_samples[SHAPES[0]])[:count]
    kept = of_all.keep(features, 1e-12)
    assert kept.sum() == -(-count // 4)
    assert kept[of_all.predict_seconds(features).argmin()]


def test_nothing_is_dismissed_for_want_of_samples(all_samples):
    predictor = trained([all_samples[SHAPES[0]], all_samples[SHAPES[1]]])
    assert len(predictor.samples) < FEWEST_SAMPLES
    assert predictor.keep(matrix(all_samples[SHAPES[2]]), 1e-12).all()


@pytest.mark.extended
def test_nothing_is_dismissed_by_a_poor_predictor(all_samples):
    noise = [randomly(group, seed) for seed, group in enumerate(all_samples.values())]
    predictor = trained(noise)
    assert predictor.quality().rank_correlation < 0.3
    assert predictor.keep(matrix(all_samples[SHAPES[0]]), 1e-12).all()


def test_no_candidates_are_no_trouble(of_all):
    assert of_all.keep(np.zeros((0, 3)), 1.0).shape == (0,)


# Files.


@pytest.mark.extended
def test_saved_and_loaded_predictor_says_the_same(all_samples, of_all, tmp_path):
    of_all.save(tmp_path / "predictor.json")
    again = PerformancePredictor()
    again.load(tmp_path / "predictor.json")
    for group in all_samples.values():
        np.testing.assert_array_equal(
            of_all.predict_seconds(matrix(group)), again.predict_seconds(matrix(group))
        )
    assert again.quality() == of_all.quality()


DAMAGES = {
    "cut": lambda text: text[: len(text) // 2],
    "no object": lambda text: "[]",
    "other features": lambda text: text.replace('"modelled"', '"modeled"'),
    "no number": lambda text: text.replace('"seconds":', '"seconds":NaN,"before":'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_other_files_are_refused(of_all, tmp_path, damage):
    path = tmp_path / "predictor.json"
    of_all.save(path)
    path.write_text(damage(path.read_text()))
    predictor = PerformancePredictor()
    with pytest.raises(RecordsError, match=r"features of another|not a file of the"):
        predictor.load(path)
    assert predictor.samples == []


def test_file_is_plain_json(of_all, tmp_path):
    of_all.save(tmp_path / "predictor.json")
    stored = json.loads((tmp_path / "predictor.json").read_text())
    assert {"kernel", "candidate", "seconds", "features"} == set(stored["samples"][0])
