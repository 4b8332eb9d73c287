"""Work has no more time than is left, and what is cut off by that has not failed."""

from dataclasses import replace

import pytest
from sessions import QUICK, run_session
from small_kernels import add_task, matmul_task
from tvm.s_tir import meta_schedule as ms
from unoptimised import HOST

from tvm_ext.hardware.targets import compiling_for
from tvm_ext.tuning import progress, session, stopping, worker
from tvm_ext.tuning.jobs import build
from tvm_ext.tuning.kernel_state import KernelState
from tvm_ext.tuning.logs.trial_log import read_trials
from tvm_ext.tuning.measurer import Measurer
from tvm_ext.tuning.progress import SessionProgress
from tvm_ext.tuning.search import KernelSearch
from tvm_ext.tuning.session_options import Limits, SessionOptions
from tvm_ext.tuning.stopping import Budget
from tvm_ext.tuning.worker import (
    NO_DEADLINE,
    Deadline,
    OutOfTime,
    WorkerPool,
    WorkerTimeout,
    WorkRaised,
)

ADD = add_task()


@pytest.fixture(scope="module", autouse=True)
def workers(worker_stock):
    with worker_stock.lent():
        yield


class PassedTime:
    """Stands for the module ``time``: time passes where a test says so, on a busy machine too."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> PassedTime:
    made = PassedTime()
    monkeypatch.setattr(PassedTime, "now", 100.0)
    for module in (progress, session, stopping, worker):
        monkeypatch.setattr(module, "time", made)
    return made


def after(seconds: float) -> Deadline:
    return Deadline(PassedTime.now + seconds)


def test_limits_are_what_is_left_and_a_little():
    with NO_DEADLINE.limited(30.0) as limit:
        assert limit == 30.0
    with after(100.0).limited(30.0) as limit:
        assert limit == 30.0
    with after(10.0).limited(30.0) as limit:
        assert limit == 11.0
    with pytest.raises(OutOfTime), after(-1.0).limited(30.0):
        pytest.fail("the time was over")


def fail_after(seconds, failure):
    PassedTime.now += seconds
    raise failure


def test_failures_in_time_are_failures():
    raised = WorkRaised("ValueError", "no such primitive")
    for deadline in (NO_DEADLINE, after(10.0)):
        with pytest.raises(WorkRaised), deadline.limited(30.0):
            fail_after(0.0, raised)
    # It had all the time that work may have.
    with pytest.raises(WorkerTimeout), after(0.05).limited(0.01):
        fail_after(0.06, WorkerTimeout())


@pytest.mark.parametrize("failure", [WorkerTimeout(), WorkRaised("RPCError", "lost")])
def test_what_fails_when_nothing_is_left_was_cut_off(failure):
    with pytest.raises(OutOfTime), after(0.01).limited(30.0):
        fail_after(0.02, failure)


def budget(seconds: float | None, begun: float = 0.0) -> Budget:
    shown = SessionProgress("model", "cpu", "records", begun=PassedTime.now - begun)
    return Budget(SessionOptions(QUICK, time_budget=seconds), shown, [])


def test_deadlines_of_a_budget():
    assert budget(None).deadline() == budget(None).search_deadline() == NO_DEADLINE
    found = budget(100.0, begun=30.0)
    assert found.deadline() == after(70.0)
    assert not found.is_past()
    over = budget(100.0, begun=101.0)
    assert over.is_past()
    assert over.deadline() == after(-1.0)


def test_the_search_leaves_time_for_confirmations(monkeypatch):
    state = KernelState(ADD, 1e-6, [])
    state.search = object()
    monkeypatch.setattr(state, "to_confirm", lambda count: [object()])
    shown = SessionProgress("model", "cpu", "records")
    found = Budget(SessionOptions(QUICK, time_budget=1.0), shown, [state])
    assert found.deadline().at - found.search_deadline().at == 0.25


@pytest.fixture(scope="module")
def candidates():
    with compiling_for(HOST):
        search = KernelSearch(ADD, HOST, ms.cost_model.RandomModel(), lambda mod: mod, 4, 0)
        return [search.default, *(o for o in search.propose() if o.hash != search.default.hash)]


class Builds:
    """Stands for ``WorkerPool.call``: builds that take too long once they are ``slow``."""

    def __init__(self, monkeypatch):
        self.limits: list[float] = []
        self.slow = False
        self._call = WorkerPool.call
        call = self

        def patched(pool, function, *arguments, timeout):
            return call(pool, function, *arguments, timeout=timeout)

        monkeypatch.setattr(WorkerPool, "call", patched)

    def __call__(self, pool, function, *arguments, timeout):
        if function is not build:
            return self._call(pool, function, *arguments, timeout=timeout)
        self.limits.append(timeout)
        if self.slow:
            PassedTime.now += timeout
            raise WorkerTimeout(f"took longer than {timeout:g} s")
        return self._call(pool, function, *arguments, timeout=timeout)


@pytest.mark.extended
def test_nothing_is_built_when_the_time_is_over(candidates, monkeypatch):
    builds = Builds(monkeypatch)
    default, *others = candidates
    with compiling_for(HOST), Measurer(HOST) as measurer:
        assert measurer.prepare([default], after(-1.0)) == {}
        assert not measurer.is_prepared(ADD)
        assert builds.limits == []
        assert measurer.prepare([default]) == {}
        assert measurer.is_prepared(ADD)
        builds.limits.clear()
        assert list(measurer.measure(others, after(-1.0))) == []
        assert builds.limits == []
        assert {one.status for one in measurer.measure(others)} == {"ok"}
        assert builds.limits == [measurer.limits.build_seconds] * len(others)


def test_a_build_that_is_cut_off_is_no_trial_and_one_that_takes_too_long_is(
    candidates, monkeypatch
):
    builds = Builds(monkeypatch)
    default, *others = candidates
    limits = Limits(build_seconds=1.2)
    with compiling_for(HOST), Measurer(HOST, limits) as measurer:
        measurer.prepare([default])
        builds.slow = True
        assert list(measurer.measure(others, after(0.1))) == []
        assert all(limit < 1.2 for limit in builds.limits[2:])
        found = list(measurer.measure(others[:1], after(60.0)))
    assert [one.status for one in found] == ["timeout"]
    assert "took longer than 1.2 s" in found[0].message


@pytest.mark.slow
def test_a_session_logs_no_trial_that_its_budget_cut_off(tmp_path, monkeypatch):
    """The first batch would be built for ever; the next session tries all of it."""
    builds = Builds(monkeypatch)
    propose, proposed = KernelSearch.propose, []

    def slow_from_here(search):
        builds.slow = True
        found = propose(search)
        proposed.extend(one.hash for one in found)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(KernelSearch, "propose", slow_from_here)
        ended = run_session(tmp_path, [ADD], trials=None, time_budget=5.0)
    assert ended.outcome == "the time budget is used"
    # The limit of a build is 300 s.
    assert ended.seconds < 50.0
    trials = read_trials(tmp_path).trials
    assert [trial.status for trial in trials] == ["ok"] * ended.trials_done
    assert not set(proposed) & {trial.candidate for trial in trials}
    builds.slow = False
    again = run_session(tmp_path, [ADD], trials=8)
    assert {trial.status for trial in read_trials(tmp_path).trials} == {"ok"}
    assert again.trials_done == 8 - ended.trials_done
    assert set(proposed) & {trial.candidate for trial in read_trials(tmp_path).trials}


def test_kernels_that_there_is_no_time_to_make_ready_are_left_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(Budget, "search_deadline", lambda _: after(-1.0))
    ended = run_session(tmp_path, [ADD], trials=None, time_budget=1e5)
    (kernel,) = ended.kernels
    assert (kernel.state, kernel.reason, kernel.trials) == ("waiting", "", 0)
    assert ended.outcome == "the time budget is used"
    assert ended.notes == []
    assert read_trials(tmp_path).trials == []


@pytest.mark.slow
def test_searches_begin_before_the_time_goes_to_defaults(tmp_path, monkeypatch):
    """Where half of it is used, the kernels that wait are opened once nothing is searched."""
    monkeypatch.setattr(session, "_OPENED_TOGETHER", 1)
    monkeypatch.setattr(Budget, "is_half_used", lambda _: True)
    effort = QUICK.model_copy(update={"trials_per_kernel": 5})
    ended = run_session(tmp_path, [ADD, matmul_task()], effort, trials=None, time_budget=1e5)
    kernels = [trial.kernel for trial in read_trials(tmp_path).trials if trial.purpose == "search"]
    assert len(set(kernels)) == 2
    assert kernels == sorted(kernels, key=kernels.index)
    assert {kernel.state for kernel in ended.kernels} == {"done"}


def test_a_default_that_is_cut_off_is_no_trial_either(tmp_path, monkeypatch):
    deadlines = iter([after(1e5)])
    monkeypatch.setattr(Budget, "search_deadline", lambda _: next(deadlines, after(-1.0)))
    ended = run_session(tmp_path, [ADD], trials=None, time_budget=1e5)
    (kernel,) = ended.kernels
    assert (kernel.state, kernel.trials) == ("waiting", 0)
    assert read_trials(tmp_path).trials == []


@pytest.mark.extended
def test_the_best_is_confirmed_when_the_time_is_over(tmp_path, monkeypatch):
    """What is confirmed before is cut off when it is; the best is built all the same."""
    measure, asked = Measurer.measure, []

    def twice_as_fast(measuring, candidates, deadline):
        asked.append((len(candidates), deadline))
        for outcome in measure(measuring, candidates, deadline):
            is_default = len(asked) == 1
            timing = replace(
                outcome.timing, seconds=[1.0 if is_default else 0.5], reference_seconds=[1.0]
            )
            yield replace(outcome, timing=timing)

    monkeypatch.setattr(Measurer, "measure", twice_as_fast)
    past = iter([False])
    monkeypatch.setattr(Budget, "is_past", lambda _: next(past, True))
    monkeypatch.setattr(Budget, "deadline", lambda _: after(-1.0))
    run_session(tmp_path, [ADD], trials=5)
    trials = read_trials(tmp_path).trials
    assert [trial.purpose for trial in trials] == ["search"] * 5 + ["confirm"]
    (several, over), (one, never) = asked[-2:]
    assert (several, one) == (2, 1)
    assert over == after(-1.0)
    assert never == NO_DEADLINE
