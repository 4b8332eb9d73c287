"""MLIR's code as a candidate of the tuner, which records name."""

import numpy as np
import pytest
import tvm
from matmul_kernels import product
from unoptimised import HOST

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.mlir import has_mlir
from tvm_ext.mlir.tuned_template import COMPETES, MlirCode
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels
from tvm_ext.tir_schedules.recorded_schedule import RecordedSchedule, schedule_as_recorded
from tvm_ext.tir_schedules.schedule_kernels import accepting_templates
from tvm_ext.tuning.candidate import Candidate, candidate_of, kernel_task
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
