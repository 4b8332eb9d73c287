"""What the pruner learns, from this session and from those before it, however they ended."""

import numpy as np
import pytest
from drawn_candidates import MACHINE, SHAPES, drawn
from sessions import run_session
from small_kernels import add_task, matmul_task
from unoptimised import HOST

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.recorded_schedule import kernel_hash
from tvm_ext.tuning.cost_models import performance_predictor as predictor_model
from tvm_ext.tuning.cost_models.choose import model_file
from tvm_ext.tuning.cost_models.performance_predictor import PerformancePredictor
from tvm_ext.tuning.cpu.loop_features import loop_features
from tvm_ext.tuning.logs.trial_log import read_trials
from tvm_ext.tuning.pruning import Pruner


@pytest.fixture(scope="module", autouse=True)
def workers(worker_stock):
    with worker_stock.lent():
        yield


@pytest.fixture
def analysed(monkeypatch):
    """The candidates whose loops are looked at, by their hash."""
    found: list[str] = []

    def noted(mod, machine):
        found.append(kernel_hash(mod))
        return loop_features(mod, machine)

    monkeypatch.setattr(predictor_model, "loop_features", noted)
    return found


def stored(folder, machine=MACHINE) -> dict[str, float]:
    """Seconds by candidate, as they are kept beside the records."""
    predictor = PerformancePredictor()
    predictor.load(model_file("predictor", machine, folder))
    return {sample.candidate: sample.seconds for sample in predictor.samples}


def new_pruner(folder) -> Pruner:
    return Pruner(MACHINE, folder, pytest.fail)


def test_what_was_saved_is_not_analysed_again(tmp_path, analysed):
    known, new = drawn(SHAPES[0])[:4], drawn(SHAPES[0])[4:6]
    pruner = new_pruner(tmp_path)
    pruner.learn((one, 1e-3) for one in known)
    pruner.save()
    assert analysed == [one.hash for one in known]
    analysed.clear()
    again = new_pruner(tmp_path)
    again.learn([*((one, 2e-3) for one in known), *((one, None) for one in new[:1])])
    assert analysed == []
    again.learn([(one, 3e-3) for one in new])
    assert analysed == [one.hash for one in new]
    again.save()
    assert stored(tmp_path) == {
        **{one.hash: 2e-3 for one in known},
        **{one.hash: 3e-3 for one in new},
    }


def test_loops_that_were_ranked_are_not_analysed_again(tmp_path, analysed):
    pruner = new_pruner(tmp_path)
    candidates = drawn(SHAPES[1])[:3]
    assert pruner.kept(candidates, 1e-6) == list(candidates)
    pruner.learn((one, 1e-3) for one in candidates)
    assert analysed == [one.hash for one in candidates]


def test_features_are_those_of_the_loops(tmp_path):
    one = drawn(SHAPES[0])[1]
    pruner = new_pruner(tmp_path)
    pruner.learn([(one, 1e-3)])
    pruner.save()
    predictor = PerformancePredictor()
    predictor.load(model_file("predictor", MACHINE, tmp_path))
    (sample,) = predictor.samples
    assert (sample.kernel, sample.candidate) == (one.task.hash, one.hash)
    np.testing.assert_array_equal(sample.features, loop_features(one.mod, MACHINE))


def measured(folder) -> set[str]:
    return {trial.candidate for trial in read_trials(folder).trials if trial.is_measured}


@pytest.mark.slow
def test_trials_of_a_killed_session_are_learned_from(tmp_path, monkeypatch, analysed):
    """It wrote its trials, and had no time to save what it learned from the last of them."""
    tasks = [matmul_task(), add_task()]
    run_session(tmp_path, tasks, trials=5)
    saved = stored(tmp_path, HOST)
    assert set(saved) == measured(tmp_path)
    with monkeypatch.context() as killed:
        killed.setattr(Pruner, "save", lambda pruner: None)
        run_session(tmp_path, tasks, trials=8)
    assert stored(tmp_path, HOST) == saved
    unsaved = measured(tmp_path) - set(saved)
    assert unsaved
    analysed.clear()
    run_session(tmp_path, tasks, trials=9)
    assert set(stored(tmp_path, HOST)) == measured(tmp_path)
    assert unsaved <= set(analysed)
    assert not set(saved) & set(analysed)


@pytest.mark.extended
def test_what_was_learned_is_kept_when_a_kernel_is_done(tmp_path, monkeypatch):
    """The search of a kernel that is done does not begin again in the next session."""
    saves: list[set[str]] = []
    save = Pruner.save

    def noted(pruner):
        save(pruner)
        saves.append(set(stored(tmp_path, HOST)))

    monkeypatch.setattr(Pruner, "save", noted)
    run_session(tmp_path, [matmul_task(), add_task()], trials=5)
    # After each of the two kernels, and at the end.
    assert len(saves) == 3
    assert saves[0] == saves[-1] == measured(tmp_path)


def test_a_candidate_that_tvm_will_not_lower_is_left_to_the_builder(tmp_path, monkeypatch):
    known, bad = drawn(SHAPES[0])[:2]

    def lowered(mod, machine):
        if mod.same_as(bad.mod):
            raise NotApplicable("Well-formedness check failed")
        return loop_features(mod, machine)

    monkeypatch.setattr(predictor_model, "loop_features", lowered)
    pruner = new_pruner(tmp_path)
    pruner.learn([(known, 1e-3)])
    assert pruner.kept([known, bad], 1e-3) == [known, bad]
    scores = predictor_model.PredictorModel(MACHINE).score_modules([bad.mod])
    assert scores.tolist() == [0]
