"""MLIR's code as a candidate of the tuner, which records name and programs follow."""

import subprocess
import sys

import numpy as np
import pytest
import tvm
from matmul_kernels import product
from small_models import assert_mlp, mlp, mlp_reference, rand
from tvm import relax
from tvm.script import tirx as T
from unoptimised import HOST

import tvm_ext
from tvm_ext.configs.errors import NotApplicable
from tvm_ext.mlir import has_mlir
from tvm_ext.mlir.tuned_template import COMPETES, MlirCode, MlirLoops
from tvm_ext.passes.plan_workspaces import plan_workspaces
from tvm_ext.tir_schedules.analysis.in_place import CODE_ATTRIBUTE
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels
from tvm_ext.tir_schedules.recorded_schedule import RecordedSchedule, schedule_as_recorded
from tvm_ext.tir_schedules.schedule_kernels import accepting_templates
from tvm_ext.tuning import search
from tvm_ext.tuning.candidate import Candidate, candidate_of, kernel_task
from tvm_ext.tuning.logs.trial_log import read_trials
from tvm_ext.tuning.search import TemplateSpace

NAME = MlirCode().name
LOOPS = MlirLoops().name
BOTH = [NAME, LOOPS]


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
    assert not {*BOTH} & {*names}
    monkeypatch.setenv(COMPETES, "1")
    assert [one.name for one in accepting_templates(task.func, HOST)] == [*names, *BOTH]


@pytest.mark.extended
@pytest.mark.parametrize("name", BOTH)
def test_a_candidate_computes_the_same(task, competing, name):
    space = TemplateSpace(task, HOST, lambda mod: mod)
    candidate = space.default(name).candidate
    assert "tvm_ext.mlir" in candidate.mod["main"].attrs
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


@pytest.mark.extended
def test_decisions_of_our_template_make_other_loops(task, competing):
    space = TemplateSpace(task, HOST, lambda mod: mod)
    own = next(one.name for one in accepting_templates(task.func, HOST))
    knobs = space.default(LOOPS).knobs
    assert set(knobs) == set(space.default(own).knobs)
    name, knob = next((n, k) for n, k in knobs.items() if len(k.options) > 1)
    other = next(one for one in knob.options if one != knob.default)
    texts = [
        str(point.candidate.mod["main"].attrs["tvm_ext.mlir"])
        for point in (space.default(LOOPS), space.point(LOOPS, {name: other}))
    ]
    assert texts[0] != texts[1]


@pytest.mark.extended
@pytest.mark.parametrize("name", BOTH)
def test_a_record_names_it(task, competing, monkeypatch, name):
    trace = TemplateSpace(task, HOST, lambda mod: mod).default(name).candidate.recorded.trace
    # Records are followed whether or not the tuner tries it.
    monkeypatch.delenv(COMPETES)
    again = candidate_of(task, trace, HOST, lambda mod: mod)
    assert isinstance(again, Candidate)
    assert again.recorded.template == name
    assert "tvm_ext.mlir" in again.mod["main"].attrs


@pytest.mark.parametrize("name", BOTH)
def test_without_the_extra_a_record_is_refused(task, competing, monkeypatch, name):
    recorded = TemplateSpace(task, HOST, lambda mod: mod).default(name).candidate.recorded
    monkeypatch.setattr("tvm_ext.mlir.has_mlir", lambda: False)
    assert has_mlir()
    given = RecordedSchedule(recorded.trace, name, dict(recorded.decisions))
    found = schedule_as_recorded(task.func, HOST, given)
    assert isinstance(found, NotApplicable)
    assert "torch-mlir is not installed" in found.reason


@pytest.fixture(scope="module", params=BOTH)
def tuned(request, tmp_path_factory, worker_stock):
    """Records of a session that had nothing but one way of MLIR's to try, and what it said."""

    def only_it(func, machine):
        return [one for one in accepting_templates(func, machine) if one.name == request.param]

    folder = tmp_path_factory.mktemp("records")
    options = {"effort": "quick", "trials": 4, "cost_model_name": "random"}
    with pytest.MonkeyPatch.context() as patch, worker_stock.lent():
        patch.setenv(COMPETES, "1")
        patch.setattr(search, "accepting_templates", only_it)
        progress = tvm_ext.tune(mlp(5), HOST, work_dir=folder, **options)
    return request.param, folder, progress


@pytest.mark.slow
def test_a_session_measures_it_and_its_log_names_it(tuned):
    name, folder, progress = tuned
    assert progress.trials_done >= len(progress.kernels) == 2
    assert all(one.best_schedule.startswith(name) for one in progress.kernels)
    assert {one.template for one in read_trials(folder).trials} == {name}


@pytest.mark.slow
def test_a_program_follows_the_records_and_its_report_names_it(tuned, tmp_path):
    name, folder, _ = tuned
    compiled = tvm_ext.compile(mlp(5), HOST, records=folder, require_records=True)
    kernels = compiled.report.kernels
    assert {(one.schedule, one.source, one.tuned) for one in kernels} == {(name, "record", "hit")}
    assert_mlp(compiled, rand(5, 6))
    compiled.save(tmp_path / "tuned.tvmx")
    np.save(tmp_path / "x.npy", rand(5, 6))
    # Where it is loaded there is no MLIR.
    script = (
        "import sys, numpy as np; sys.modules['torch_mlir'] = None; import tvm_ext;"
        f"model = tvm_ext.load(r'{tmp_path}/tuned.tvmx');"
        f"found = model.run({{'x': np.load(r'{tmp_path}/x.npy')}});"
        f"np.savez(r'{tmp_path}/found.npz', **found)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    expected = mlp_reference(rand(5, 6))
    with np.load(tmp_path / "found.npz") as found:
        assert set(found) == set(expected)
        for output in found:
            np.testing.assert_allclose(found[output], expected[output], rtol=1e-4, atol=1e-5)


@pytest.mark.extended
def test_records_of_it_are_a_miss_without_the_extra(tuned, monkeypatch):
    name, folder, _ = tuned
    monkeypatch.setattr("tvm_ext.mlir.has_mlir", lambda: False)
    compiled = tvm_ext.compile(mlp(5), HOST, records=folder)
    kernels = compiled.report.kernels
    assert all(one.schedule != name and one.tuned == "miss" for one in kernels)
    assert all("torch-mlir is not installed" in one.miss for one in kernels), kernels
    assert_mlp(compiled, rand(5, 6))


@pytest.mark.slow
def test_it_is_tried_beside_the_templates(worker_stock, competing, tmp_path):
    with worker_stock.lent():
        tvm_ext.tune(mlp(5), HOST, work_dir=tmp_path, effort="quick", trials=8)
    tried = {one.template for one in read_trials(tmp_path).trials}
    assert {*BOTH} <= tried
    assert len(tried) > 2


def test_arrays_of_a_kernel_with_code_of_its_own_stay_in_it():
    """What MLIR's code allocates for itself no parameter gives it."""

    @T.prim_func(private=True, s_tir=True)
    def twice(x: T.Buffer((64, 1024), "float32"), y: T.Buffer((64, 1024), "float32")):
        sums = T.sblock_alloc_buffer((64, 1024))
        for i, j in T.grid(64, 1024):
            with T.sblock("sums"):
                a, b = T.axis.remap("SS", [i, j])
                sums[a, b] = x[a, b] + x[a, b]
        for i, j in T.grid(64, 1024):
            with T.sblock("twice"):
                a, b = T.axis.remap("SS", [i, j])
                y[a, b] = sums[a, b] + sums[a, 1023 - b]

    kind = relax.TensorType([64, 1024], "float32")

    def planned(kernel):
        builder = relax.BlockBuilder()
        x = relax.Var("x", kind)
        with builder.function("main", [x]):
            builder.emit_func_output(
                builder.emit(relax.call_tir(builder.add_func(kernel, "twice"), [x], kind))
            )
        return len(plan_workspaces(builder.get())["twice"].params)

    assert planned(twice) == 3
    assert planned(twice.with_attr(CODE_ATTRIBUTE, "module {}")) == 2
