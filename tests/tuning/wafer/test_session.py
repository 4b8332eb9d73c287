"""Tuning for a mesh: modelled times in the same logs, and mappings that compute the wrong thing."""

from pathlib import Path
from unittest import mock

import pytest
from sessions import QUICK
from tvm import s_tir, tirx
from tvm.s_tir import meta_schedule as ms
from wafer_matmuls import product

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.tuning.candidate import kernel_task
from tvm_ext.tuning.logs.record_lookup import RecordLookup
from tvm_ext.tuning.logs.trial_log import read_trials
from tvm_ext.tuning.session import TuningSession
from tvm_ext.tuning.session_options import SessionOptions
from tvm_ext.tuning.wafer.cost_model import WaferCostModel, wafer_cost
from tvm_ext.tuning.wafer.measurer import ModelledBuilder, ModelledRunner

MESH = resolve_target("mesh16")
# The model looks at twelve schedules for each of a batch.
EFFORT = QUICK.model_copy(update={"cost_model": "analytic", "batch": 2})


@pytest.fixture(scope="module", autouse=True)
def workers(worker_stock):
    with worker_stock.lent():
        yield


def tuned(folder: Path, task, trials: int):
    with compiling_for(MESH):
        options = SessionOptions(EFFORT, trials=trials)
        session = TuningSession(
            "small", [task], MESH, folder, lambda mod: mod, "analytic", options, {task.hash: 1e-6}
        )
        return session.run()


@pytest.fixture
def task():
    return kernel_task("product", product(60, 60, 60))


@pytest.mark.extended
def test_trials_are_modelled_and_found_again(tmp_path, task):
    progress = tuned(tmp_path, task, trials=5)
    assert progress.is_modelled
    trials = read_trials(tmp_path).trials
    assert {trial.status for trial in trials} == {"modelled"}
    assert {trial.device for trial in trials} == {"model"}
    (kernel,) = progress.kernels
    assert kernel.best_seconds < kernel.default_seconds
    found = RecordLookup([tmp_path], MESH).find("product", task.func)
    assert found.seconds == pytest.approx(kernel.best_seconds)


@pytest.mark.slow
def test_the_same_session_goes_on_and_tries_nothing_twice(tmp_path, task):
    tuned(tmp_path, task, trials=3)
    tuned(tmp_path, task, trials=6)
    searched = [t.candidate for t in read_trials(tmp_path).trials if t.purpose == "search"]
    assert len(searched) == len(set(searched)) == 6


def test_a_mapping_that_computes_the_wrong_thing_is_caught(tmp_path, task):
    # The last part of the sum is never taken: plausible messages, wrong product.
    def part(order, step, count, i, j):
        return tirx.floormod(step + i + j, count - 1)

    with mock.patch("tvm_ext.tir_schedules.wafer.matmul._part", part):
        progress = tuned(tmp_path, task, trials=3)
    (kernel,) = progress.kernels
    assert kernel.state == "skipped"
    assert "its default mapping is wrong" in kernel.reason


def test_a_tile_that_does_not_fit_is_no_candidate(tmp_path):
    # On 16 x 16 PEs, a tile of three such matrices takes 3 MB of each.
    task = kernel_task("product", product(8192, 8192, 8192))
    progress = tuned(tmp_path, task, trials=3)
    (trial, *_) = read_trials(tmp_path).trials
    assert trial.status == "build"
    assert trial.message.startswith("SRAM: ")
    assert progress.kernels[0].state == "skipped"


@pytest.mark.slow
def test_plain_metaschedule_tunes_with_the_cost_function(tmp_path):
    func = product(64, 64, 64).with_attr("global_symbol", "main")

    def space(sch):
        block = sch.get_sblock("C")
        i, j, k = sch.get_loops(block)
        i0, i1 = sch.split(i, sch.sample_perfect_tile(i, 2, 16))
        j0, j1 = sch.split(j, sch.sample_perfect_tile(j, 2, 16))
        sch.reorder(i0, j0, i1, k, j1)
        sch.annotate(i0, "tvm_ext.mesh", "row")
        sch.annotate(j0, "tvm_ext.mesh", "column")

    database = ms.tune_tir(
        func,
        MESH.tvm_target(),
        str(tmp_path),
        max_trials_global=8,
        num_trials_per_iter=4,
        builder=ModelledBuilder(MESH),
        runner=ModelledRunner(),
        cost_model=WaferCostModel(MESH),
        space=ms.space_generator.ScheduleFn(space, [], [], {}),
        num_tuning_cores=1,
        seed=1,
    )
    records = list(database.get_all_tuning_records())
    assert records
    for record in records:
        schedule = s_tir.Schedule(record.workload.mod)
        record.trace.apply_to_schedule(schedule, remove_postproc=False)
        modelled = wafer_cost(schedule.mod, MESH).seconds
        assert float(record.run_secs[0]) == pytest.approx(modelled)
