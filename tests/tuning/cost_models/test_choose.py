"""Cost models rank candidates, learn from times, keep what they learned, and may fail."""

import sys
from functools import cache

import numpy as np
import pytest
from drawn_candidates import (
    MACHINE,
    SHAPES,
    asked,
    context_of,
    drawn,
    made_up_seconds,
    plain_module,
    results,
    task_of,
)
from scipy.stats import spearmanr
from small_kernels import add_task
from thoroughness import one_in
from tvm import s_tir
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.script import tirx as T

from tvm_ext.configs.errors import TuningError
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.hardware.tvm_compat import tune_context
from tvm_ext.tuning.backend import tuning_of
from tvm_ext.tuning.cost_models.choose import (
    GuardedCostModel,
    choose_model,
    model_file,
)
from tvm_ext.tuning.cost_models.performance_predictor import PredictorModel
from tvm_ext.tuning.cost_models.xgboost_model import XGBoostModel
from tvm_ext.tuning.cpu.cost_model import CpuCostModel, modelled_seconds
from tvm_ext.tuning.cuda.cost_model import CudaCostModel
from tvm_ext.tuning.search import metaschedule_space

SHAPE, OTHER = SHAPES[0], SHAPES[1]


def seconds_of(shape) -> list[float]:
    return [made_up_seconds(candidate) for candidate in drawn(shape)]


def agreement(scores: np.ndarray, seconds: list[float]) -> float:
    return float(spearmanr(scores, -np.array(seconds)).statistic)


def teach(model, shape, count: int | None = None) -> None:
    model.update(
        context_of(task_of(shape)),
        asked(drawn(shape)[:count]),
        results(seconds_of(shape)[:count]),
    )


def ranked(model, shape, count: int | None = None) -> np.ndarray:
    candidates = drawn(shape)[:count]
    scores = model.predict(context_of(task_of(shape)), asked(candidates))
    assert scores.dtype == np.float64
    assert scores.shape == (len(candidates),)
    assert np.isfinite(scores).all()
    return scores


# Candidates whose scores are compared one by one: looking at their loops takes longest.
FEW = 6


@cache
def analytic(shape) -> np.ndarray:
    """Scores of a few candidates by the analytic model."""
    return ranked(CpuCostModel(MACHINE), shape, FEW)


# The analytic model.


@pytest.mark.extended
def test_analytic_model_scores_calls_a_microsecond():
    scores = ranked(CpuCostModel(MACHINE), SHAPE)
    expected = [1e-6 / modelled_seconds(one.mod, MACHINE) for one in drawn(SHAPE)]
    np.testing.assert_allclose(scores, expected)
    assert len(set(scores)) > len(scores) // 2


def test_analytic_model_knows_that_vectors_and_threads_pay():
    sch = s_tir.Schedule(add_task(1 << 20).workload)
    (i,) = sch.get_loops(sch.get_sblock("result"))
    plain = modelled_seconds(sch.mod, MACHINE)
    i_out, i_in = sch.split(i, [None, 64])
    sch.vectorize(i_in)
    vectors = modelled_seconds(sch.mod, MACHINE)
    sch.parallel(i_out)
    threads = modelled_seconds(sch.mod, MACHINE)
    assert threads < vectors < plain


# Boosted trees.


@pytest.mark.extended
@pytest.mark.parametrize("model", [XGBoostModel, PredictorModel])
def test_model_learns_the_ranking_of_a_kernel(model):
    learner = model(MACHINE)
    before = agreement(ranked(learner, SHAPE), seconds_of(SHAPE))
    teach(learner, SHAPE)
    assert agreement(ranked(learner, SHAPE), seconds_of(SHAPE)) > max(0.9, before)


@pytest.mark.extended
@pytest.mark.parametrize("model", [XGBoostModel, PredictorModel])
def test_same_samples_give_the_same_scores_and_leave_numpy_alone(model):
    np.random.seed(7)
    state = np.random.get_state()[1].tolist()
    found = []
    for _ in range(2):
        learner = model(MACHINE)
        teach(learner, SHAPE)
        found.append(ranked(learner, SHAPE, FEW))
    np.testing.assert_array_equal(*found)
    assert np.random.get_state()[1].tolist() == state


@pytest.mark.slow
@pytest.mark.parametrize("model", [XGBoostModel, PredictorModel])
def test_candidates_without_a_time_teach_nothing(model):
    learner, other = model(MACHINE), model(MACHINE)
    teach(learner, SHAPE)
    teach(other, SHAPE)
    useless = [None, 0.0, float("inf"), float("nan"), 1e10, None]
    candidates = asked(drawn(SHAPE)[: len(useless)])
    other.update(context_of(task_of(SHAPE)), candidates, results(useless))
    np.testing.assert_array_equal(ranked(learner, SHAPE, FEW), ranked(other, SHAPE, FEW))


@pytest.mark.extended
@pytest.mark.parametrize("model", [XGBoostModel, PredictorModel])
def test_a_few_samples_or_failures_only_are_no_trouble(model):
    learner = model(MACHINE)
    context = context_of(task_of(OTHER))
    learner.update(context, asked(drawn(OTHER)[:3]), results([None, 0.0, None]))
    np.testing.assert_allclose(ranked(learner, OTHER, FEW), analytic(OTHER))
    teach(learner, OTHER, 1)
    assert (ranked(learner, OTHER, FEW) > 0).all()
    learner.update(context, [], [])


@pytest.mark.extended
@pytest.mark.parametrize("model", one_in(2, [XGBoostModel, PredictorModel]))
def test_saved_and_loaded_model_gives_the_same_scores(model, tmp_path):
    learner = model(MACHINE)
    for shape in SHAPES[:2]:
        teach(learner, shape)
    path = str(tmp_path / "model")
    learner.save(path)
    again = model(MACHINE)
    again.load(path)
    for shape in SHAPES[:2]:
        wanted = ranked(learner, shape, FEW)
        np.testing.assert_allclose(ranked(again, shape, FEW), wanted, rtol=1e-6)
    teach(again, SHAPES[2])
    assert agreement(ranked(again, SHAPES[2]), seconds_of(SHAPES[2])) > 0.9


@pytest.mark.extended
@pytest.mark.parametrize("model", [XGBoostModel, PredictorModel])
def test_model_without_samples_can_be_saved_and_loaded(model, tmp_path):
    model(MACHINE).save(str(tmp_path / "model"))
    again = model(MACHINE)
    again.load(str(tmp_path / "model"))
    np.testing.assert_allclose(ranked(again, SHAPE, FEW), analytic(SHAPE))


@T.prim_func(private=True)
def zeros(x: T.Buffer((64,), "float32")):
    for i in range(64):
        x[i] = T.float32(0)


@pytest.mark.extended
def test_kernel_without_features_gets_a_score():
    learner = XGBoostModel(MACHINE)
    teach(learner, SHAPE)
    args = ms.arg_info.ArgInfo.from_prim_func(zeros)
    empty = ms.MeasureCandidate(s_tir.Schedule(plain_module(zeros)), args)
    scores = learner.predict(context_of(task_of(SHAPE)), [*asked(drawn(SHAPE)[:2]), empty])
    assert scores.shape == (3,)
    assert scores[2] == 0
    assert scores[0] != 0


def test_pickled_arrays_are_not_loaded(tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, kernels=np.array(["a", object()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        XGBoostModel(MACHINE).load(str(path))


# Names.


def test_unknown_name_is_an_error_that_names_the_nearest(tmp_path):
    with pytest.raises(TuningError, match="unknown cost model 'xgbost'; nearest known: 'xgboost'"):
        choose_model("xgbost", MACHINE, tmp_path, print)


@pytest.mark.extended
@pytest.mark.parametrize("name", sorted(tuning_of(MACHINE).cost_models))
def test_every_name_is_a_model_that_works(name, tmp_path):
    notes: list[str] = []
    model = choose_model(name, MACHINE, tmp_path, notes.append)
    teach(model, SHAPE)
    assert ranked(model, SHAPE, FEW).std() > 0
    model.remember()
    assert model.name == name
    assert notes == []


@pytest.mark.extended
@pytest.mark.parametrize("name", ["xgboost", "predictor"])
def test_what_was_learned_is_there_in_the_next_session(name, tmp_path):
    notes: list[str] = []
    first = choose_model(name, MACHINE, tmp_path, notes.append)
    teach(first, SHAPE)
    first.remember()
    again = choose_model(name, MACHINE, tmp_path, notes.append)
    known = ranked(first, SHAPE, FEW)
    np.testing.assert_allclose(ranked(again, SHAPE, FEW), known, rtol=1e-6)
    other = choose_model(name, MACHINE.with_cores(2), tmp_path, notes.append)
    assert agreement(ranked(other, SHAPE, FEW), list(known)) != -1
    assert model_file(name, MACHINE, tmp_path) != model_file(name, MACHINE.with_cores(2), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [model_file(name, MACHINE, tmp_path).name]
    assert notes == []


@pytest.mark.parametrize("name", ["xgboost", "predictor"])
def test_file_that_is_of_no_use_is_left_out_with_one_note(name, tmp_path):
    path = model_file(name, MACHINE, tmp_path)
    path.write_bytes(b"PK\x03\x04 no model")
    notes: list[str] = []
    model = choose_model(name, MACHINE, tmp_path, notes.append)
    assert ranked(model, SHAPE, FEW).std() > 0
    assert model.name == name
    assert len(notes) == 1
    assert "left out" in notes[0]


@pytest.mark.parametrize("name", ["xgboost", "predictor"])
def test_missing_package_falls_back_with_one_note(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    notes: list[str] = []
    model = choose_model(name, MACHINE, tmp_path, notes.append)
    np.testing.assert_allclose(ranked(model, SHAPE, FEW), analytic(SHAPE))
    teach(model, SHAPE)
    model.remember()
    assert model.name == "analytic"
    assert len(notes) == 1
    assert f"'{name}'" in notes[0]
    assert "xgboost" in notes[0]
    assert "by 'analytic'" in notes[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
@pytest.mark.parametrize("name", ["analytic", "xgboost", "predictor"])
def test_models_of_a_gpu(name, tmp_path):
    notes: list[str] = []
    machine = resolve_target("nvidia-a100")
    model = choose_model(name, machine, tmp_path, notes.append)
    # Without samples all of them are the roofline of a GPU.
    wanted = ranked(CudaCostModel(machine), SHAPE, FEW)
    np.testing.assert_allclose(ranked(model, SHAPE, FEW), wanted)
    assert model.name == ("xgboost" if name == "xgboost" else "analytic")
    assert [("it is not for targets such as 'nvidia-a100'" in note) for note in notes] == (
        [True] if name == "predictor" else []
    )


# Models that fail.


class _Odd:
    """A model with a flaw."""

    def __init__(self, scores=None, fails_at="") -> None:
        self.scores, self.fails_at = scores, fails_at

    def predict(self, context, candidates):
        if self.fails_at == "predict":
            raise RuntimeError("it broke\nin two lines")
        return self.scores(len(candidates)) if self.scores else np.ones(len(candidates))

    def update(self, context, candidates, results):
        if self.fails_at == "update":
            raise ZeroDivisionError("it broke")

    def load(self, path):
        raise OSError("it broke")

    def save(self, path):
        raise OSError("it broke")


FLAWS = {
    "raises": _Odd(fails_at="predict"),
    "no number": _Odd(lambda count: np.full(count, np.nan)),
    "infinite": _Odd(lambda count: np.full(count, np.inf)),
    "too few": _Odd(lambda count: np.ones(count - 1)),
    "one for all": _Odd(lambda count: np.ones(1)),
    "text": _Odd(lambda count: ["good"] * count),
    "nothing": _Odd(lambda count: None),
}


def guarded(first, notes: list[str], file=None) -> GuardedCostModel:
    chain = [("odd", lambda: first), ("analytic", lambda: CpuCostModel(MACHINE))]
    return GuardedCostModel(chain, notes.append, file)


@pytest.mark.extended
@pytest.mark.parametrize("flaw", FLAWS)
def test_failing_model_is_replaced_with_one_note(flaw):
    notes: list[str] = []
    model = guarded(FLAWS[flaw], notes)
    for _ in range(2):
        np.testing.assert_allclose(ranked(model, SHAPE, FEW), analytic(SHAPE))
        teach(model, SHAPE, FEW)
    assert len(notes) == 1
    assert notes[0].startswith("cost model 'odd' (")
    assert "\n" not in notes[0]


def test_model_that_cannot_learn_is_replaced_with_one_note():
    notes: list[str] = []
    model = guarded(_Odd(fails_at="update"), notes)
    assert ranked(model, SHAPE, FEW).std() == 0
    teach(model, SHAPE)
    teach(model, SHAPE)
    assert ranked(model, SHAPE, FEW).std() > 0
    assert len(notes) == 1


def test_models_that_all_fail_leave_all_candidates_equal():
    notes: list[str] = []
    chain = [(f"odd{n}", lambda: _Odd(fails_at="predict")) for n in range(2)]
    model = GuardedCostModel(chain, notes.append)
    for _ in range(2):
        assert ranked(model, SHAPE).tolist() == [0.0] * len(drawn(SHAPE))
        teach(model, SHAPE)
    assert len(notes) == 1
    assert "'odd0'" in notes[0]
    assert "'odd1'" in notes[0]
    assert "by chance" in notes[0]


def test_model_that_cannot_be_kept_goes_on(tmp_path):
    notes: list[str] = []
    model = guarded(_Odd(), notes, tmp_path / "file")
    model.remember()
    (tmp_path / "file").write_text("")
    model.recall()
    assert model.name == "odd"
    assert len(notes) == 2


# In MetaSchedule's hands.


def test_evolutionary_search_asks_the_model(tmp_path):
    asked_for: list[int] = []

    @derived_object
    class Counting(ms.cost_model.PyCostModel):
        def load(self, path):
            """Nothing."""

        def save(self, path):
            """Nothing."""

        def update(self, context, candidates, results):
            """Nothing."""

        def predict(self, context, candidates):
            asked_for.append(len(candidates))
            return CpuCostModel(MACHINE).predict(context, candidates)

    notes: list[str] = []
    model = GuardedCostModel([("counting", Counting)], notes.append)
    search = ms.search_strategy.EvolutionarySearch(
        population_size=8, init_min_unmeasured=2, genetic_num_iters=1
    )
    task = task_of(SHAPE)
    context = tune_context(
        task.workload, MACHINE.tvm_target(), metaschedule_space(), search, task.name, 3
    )
    designs = context.generate_design_space()
    context.pre_tuning(16, 4, designs, ms.database.MemoryDatabase(), model)
    found = context.generate_measure_candidates()
    assert len(found) == 4
    assert sum(asked_for) >= 8
    assert notes == []
