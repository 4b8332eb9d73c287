"""Sessions for a GPU, whose kernels this CPU runs with one thread after the other."""

import pytest
from rpc_servers import KEY, rpc_house
from serial_gpu import gpu, run_cuda_session, serial_gpu, softmax_task, threads_of
from sessions import QUICK
from small_kernels import add_task

import tvm_ext
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tuning.cuda.presence import CudaDeviceFacts
from tvm_ext.tuning.logs.record_lookup import RecordLookup
from tvm_ext.tuning.logs.trial_log import read_trials
from tvm_ext.tuning.runner import rpc_devices

GPU = gpu()
SOFTMAX, ADD = softmax_task(), add_task()
SIX = QUICK.model_copy(update={"trials_per_kernel": 6})


@pytest.fixture(scope="module", autouse=True)
def workers(worker_stock):
    with worker_stock.lent():
        yield


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """A session that refuses what has 128 threads or more; its folder and what it says."""
    folder = tmp_path_factory.mktemp("gpu")
    with serial_gpu(lambda mod: threads_of(mod["main"]) >= 128):
        progress = run_cuda_session(folder, [SOFTMAX, ADD], SIX, GPU)
    return folder, progress


def test_candidates_of_templates_and_rules_are_right(session):
    folder, progress = session
    trials = read_trials(folder).trials
    assert progress.notes == []
    assert {trial.status for trial in trials} == {"ok", "resources"}
    assert {str(trial.target["arch"]) for trial in trials} == {"sm_80"}
    templates = {trial.template for trial in trials if trial.kernel == SOFTMAX.hash}
    assert templates >= {"row reduction", "dlight Fallback"}
    for kernel in progress.kernels:
        assert kernel.best_seconds <= kernel.default_seconds


def test_what_takes_too_much_is_not_run(session):
    folder, progress = session
    refused = [one for one in read_trials(folder).trials if one.status == "resources"]
    for trial in refused:
        assert trial.message.endswith("threads; at most 32")
        assert (trial.seconds, trial.samples, trial.run_seconds) == (None, [], 0.0)
    assert sum(kernel.failed for kernel in progress.kernels) == len(refused) > 0


def test_records_are_for_this_gpu(session):
    folder, progress = session
    records = RecordLookup([folder], GPU)
    best = {kernel.hash: kernel.best_schedule for kernel in progress.kernels}
    for task in (SOFTMAX, ADD):
        func, choice = schedule_kernel(task.func, GPU, records, task.name)
        assert (choice.source, choice.reason) == ("record", best[task.hash])
        # An "elementwise" that was found for a GPU is not the one for CPUs.
        assert threads_of(func) >= 32
    other = gpu("nvidia-h200")
    _, choice = schedule_kernel(ADD.func, other, RecordLookup([folder], other), ADD.name)
    assert choice.source == "template"
    assert choice.miss == "its records are for another target: cuda sm_80"


def test_a_session_goes_on(session):
    folder, _ = session
    more = QUICK.model_copy(update={"trials_per_kernel": 11})
    with serial_gpu():
        again = run_cuda_session(folder, [SOFTMAX], more, GPU, "xgboost")
    assert again.trials_done >= 1
    assert again.notes == []
    trials = [one for one in read_trials(folder).trials if one.purpose == "search"]
    assert len({(one.kernel, one.candidate) for one in trials}) == len(trials)


def test_half_precision_and_a_cold_cache(tmp_path):
    """The template adds up in float32; TVM's rules round 4,096 times, and do not get through."""
    task = softmax_task(4, 4096, "float16")
    small_cache = gpu(l2_bytes=1 << 16)
    with serial_gpu():
        run_cuda_session(tmp_path, [task], QUICK, small_cache, trials=3, l2="cold")
    found = {trial.template: trial for trial in read_trials(tmp_path).trials}
    assert found["row reduction"].status == "ok"
    assert found["dlight Fallback"].status == "wrong"
    assert found["dlight Fallback"].message.endswith("accepted is 1e-02")


def test_compiling_a_model_with_what_was_found(abs_model_path, tmp_path, monkeypatch):
    found = CudaDeviceFacts(True, "NVIDIA A100", (8, 0))
    monkeypatch.setattr("tvm_ext.tuning.cuda.presence.checked_gpu", lambda machine, servers: found)
    with serial_gpu():
        progress = tvm_ext.tune(
            abs_model_path, "nvidia-a100", work_dir=tmp_path, trials=2, l2="warm"
        )
    assert progress.notes == []
    assert {kernel.state for kernel in progress.kernels} == {"done"}
    versions = read_trials(tmp_path).trials[0].versions
    assert versions["gpu"] == "NVIDIA A100, compute capability 8.0"
    compiled = tvm_ext.compile(
        abs_model_path, "nvidia-a100", records=tmp_path, require_records=True
    )
    assert {kernel.tuned for kernel in compiled.report.kernels} == {"hit"}


@pytest.mark.slow
def test_a_server_measures(tmp_path):
    with rpc_house(1) as (address, _), serial_gpu():
        servers = rpc_devices(f"{address.host}:{address.port}", KEY, 20.0)
        run_cuda_session(tmp_path, [SOFTMAX], QUICK, GPU, trials=4, devices=servers)
    trials = read_trials(tmp_path).trials
    assert {trial.status for trial in trials} == {"ok"}
    assert {trial.device for trial in trials} == {f"{address.host}:{address.port} {KEY}"}
