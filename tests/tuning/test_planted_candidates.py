"""Candidates that are wrong, crash, hang or allocate without end do not end a session."""

import pytest
from planted_candidates import planted
from sessions import run_session
from small_kernels import add_task

from tvm_ext.tuning.logs.database_files import read_database
from tvm_ext.tuning.logs.trial_log import read_trials
from tvm_ext.tuning.search import KernelSearch
from tvm_ext.tuning.session_options import Limits

EXPECTED = {"wrong": "wrong", "crash": "run", "hang": "timeout", "greedy": "run"}


@pytest.fixture(autouse=True)
def workers(worker_stock):
    with worker_stock.lent():
        yield


@pytest.fixture
def planting(monkeypatch):
    """The first batch of every search holds the flawed candidates; returns their hashes."""
    hashes: dict[str, str] = {}
    propose = KernelSearch.propose

    def with_planted(search):
        found = propose(search)
        if not hashes:
            flawed = {kind: planted(search.default, kind) for kind in EXPECTED}
            hashes.update({kind: one.hash for kind, one in flawed.items()})
            return [*flawed.values(), *found]
        return found

    monkeypatch.setattr(KernelSearch, "propose", with_planted)
    return hashes


@pytest.mark.slow
def test_each_is_recorded_and_none_is_chosen(tmp_path, planting):
    limits = Limits(300, 3, 300, 1 << 29)
    progress = run_session(tmp_path, [add_task()], trials=10, limits=limits)
    trials = read_trials(tmp_path).trials
    statuses = {trial.candidate: trial.status for trial in trials}
    assert {kind: statuses[planting[kind]] for kind in EXPECTED} == EXPECTED
    assert sum(trial.is_measured for trial in trials) > 1
    assert all(trial.seconds is None for trial in trials if trial.status != "ok")
    messages = {trial.candidate: trial.message for trial in trials}
    assert "elements differ" in messages[planting["wrong"]]
    assert "SIGABRT" in messages[planting["crash"]]
    assert "longer than 3 s" in messages[planting["hang"]]
    assert "memory limit 512 MiB" in messages[planting["greedy"]]
    (kernel,) = progress.kernels
    assert kernel.failed == len(EXPECTED)
    assert len(read_database(tmp_path).records) >= 1
    again = run_session(tmp_path, [add_task()], trials=12, limits=limits)
    assert again.trials_done <= 2
    repeated = [t.candidate for t in read_trials(tmp_path).trials if t.purpose == "search"]
    assert len(repeated) == len(set(repeated))
