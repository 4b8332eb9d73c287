"""MLIR's code as a candidate of the tuner, which records name and programs follow."""

import numpy as np
import pytest
import tvm
from matmul_kernels import product
from small_models import assert_mlp, mlp, rand
from unoptimised import HOST

import tvm_ext
from tvm_ext.configs.errors import NotApplicable
from tvm_ext.mlir import has_mlir
from tvm_ext.mlir.tuned_template import COMPETES, MlirCode
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels
from tvm_ext.tir_schedules.recorded_schedule import RecordedSchedule, schedule_as_recorded
from tvm_ext.tir_schedules.schedule_kernels import accepting_templates
from tvm_ext.tuning.candidate import Candidate, candidate_of, kernel_task
from tvm_ext.tuning.logs.trial_log import read_trials
from tvm_ext.tuning.search import TemplateSpace

NAME = MlirCode().name


@pytest.fixture(scope="module")
def task():
    return kernel_task("product", product(32, 48, 16, dtype="float32"))


@pytest.fixture
def competing(monkeypatch):
    monkeypatch.setenv(COMPETES, "1")


def test_the_tuner_tries_it_only_when_it_is_asked_to(task, monkeypatch):
    monkeypatch.delenv(COMPETES, raising=False)
    names = [one.name for one in accepting_templates(task.func, HOST)]
    assert names
    assert NAME not in names
    monkeypatch.setenv(COMPETES, "1")
    assert [one.name for one in accepting_templates(task.func, HOST)] == [*names, NAME]


def test_a_candidate_computes_the_same(task, competing):
    space = TemplateSpace(task, HOST, lambda mod: mod)
    candidate = space.default(NAME).candidate
    library = compile_kernels(candidate.mod, HOST.tvm_target())
    a, b = (
        np.random.default_rng(n).random(s, np.float32) for n, s in ((0, (32, 16)), (1, (16, 48)))
    )
    result = tvm.runtime.tensor(np.zeros((32, 48), np.float32))
    library["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), result)
    np.testing.assert_allclose(result.numpy(), a @ b, rtol=1e-4, atol=1e-5)


def test_its_decisions_make_other_candidates(task, competing):
    space = TemplateSpace(task, HOST, lambda mod: mod)
    knobs = space.default(NAME).knobs
    assert set(knobs) == {"fuses", "shares_memory"}
    apart = space.point(NAME, {"fuses": 0}).candidate
    assert apart.recorded.decisions["fuses"] == 0


def test_a_record_names_it(task, competing, monkeypatch):
    trace = TemplateSpace(task, HOST, lambda mod: mod).default(NAME).candidate.recorded.trace
    # Records are followed whether or not the tuner tries it.
    monkeypatch.delenv(COMPETES)
    again = candidate_of(task, trace, HOST, lambda mod: mod)
    assert isinstance(again, Candidate)
    assert again.recorded.template == NAME
    assert "tvm_ext.mlir" in again.mod["main"].attrs


def test_without_the_extra_a_record_is_refused(task, competing, monkeypatch):
    recorded = TemplateSpace(task, HOST, lambda mod: mod).default(NAME).candidate.recorded
    monkeypatch.setattr("tvm_ext.mlir.has_mlir", lambda: False)
    assert has_mlir()
    given = RecordedSchedule(recorded.trace, NAME, dict(recorded.decisions))
    found = schedule_as_recorded(task.func, HOST, given)
    assert isinstance(found, NotApplicable)
    assert "torch-mlir is not installed" in found.reason


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, worker_stock):
    """Records of a session that had nothing but MLIR's code to try, and what it said."""
    folder = tmp_path_factory.mktemp("records")
    options = {"effort": "quick", "trials": 4, "cost_model_name": "random"}
    with pytest.MonkeyPatch.context() as patch, worker_stock.lent():
        patch.setenv(COMPETES, "1")
        scheduling = scheduling_of(HOST)
        patch.setattr(scheduling, "templates", ())
        patch.setattr(scheduling, "fallback", None)
        progress = tvm_ext.tune(mlp(5), HOST, work_dir=folder, **options)
    return folder, progress


def test_a_session_measures_it_and_its_log_names_it(tuned):
    folder, progress = tuned
    assert progress.trials_done >= len(progress.kernels) == 2
    assert all(one.best_schedule.startswith(NAME) for one in progress.kernels)
    assert {one.template for one in read_trials(folder).trials} == {NAME}


def test_a_program_follows_the_records_and_its_report_names_it(tuned, tmp_path):
    folder, _ = tuned
    compiled = tvm_ext.compile(mlp(5), HOST, records=folder, require_records=True)
    kernels = compiled.report.kernels
    assert {(one.schedule, one.source, one.tuned) for one in kernels} == {(NAME, "record", "hit")}
    assert_mlp(compiled, rand(5, 6))
    compiled.save(tmp_path / "tuned.tvmx")
    assert_mlp(tvm_ext.load(tmp_path / "tuned.tvmx"), rand(5, 6))


def test_records_of_it_are_a_miss_without_the_extra(tuned, monkeypatch):
    folder, _ = tuned
    monkeypatch.setattr("tvm_ext.mlir.has_mlir", lambda: False)
    compiled = tvm_ext.compile(mlp(5), HOST, records=folder)
    kernels = compiled.report.kernels
    assert all(one.schedule != NAME and one.tuned == "miss" for one in kernels)
    assert all("torch-mlir is not installed" in one.miss for one in kernels), kernels
    assert_mlp(compiled, rand(5, 6))


def test_it_is_tried_beside_the_templates(worker_stock, competing, tmp_path):
    with worker_stock.lent():
        tvm_ext.tune(mlp(5), HOST, work_dir=tmp_path, effort="quick", trials=8)
    tried = {one.template for one in read_trials(tmp_path).trials}
    assert NAME in tried
    assert len(tried) > 1
