"""Sessions from their first trial to their outcome, on kernels that run in no time."""

from dataclasses import replace

import pytest
import tvm
from planted_candidates import planted
from record_folders import opened
from sessions import QUICK, run_session
from small_kernels import add_task, matmul_task
from tvm import te, tirx

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.recorded_schedule import kernel_hash
from tvm_ext.tuning.candidate import kernel_task
from tvm_ext.tuning.jobs import build
from tvm_ext.tuning.logs.best_records import best, candidate_results
from tvm_ext.tuning.logs.database_files import read_database
from tvm_ext.tuning.logs.trial_log import read_trials
from tvm_ext.tuning.measurer import Measurer
from tvm_ext.tuning.progress import SessionProgress
from tvm_ext.tuning.search import KernelSearch
from tvm_ext.tuning.worker import WorkerDied, WorkerPool

MATMUL, ADD = matmul_task(), add_task()


@pytest.fixture(scope="module", autouse=True)
def workers(worker_stock):
    with worker_stock.lent():
        yield


class Watcher:
    """Notes what a listener sees."""

    def __init__(self):
        self.current: set[str] = set()
        self.counts: list[int] = []
        self.fractions: list[float] = []

    def update(self, progress):
        self.current.add(progress.current)
        self.counts.append(progress.trials_done)
        self.fractions.append(progress.fraction)


class Interrupting:
    """Ctrl-C after a number of trials."""

    def __init__(self, trials: int):
        self.trials = trials

    def update(self, progress):
        if progress.trials_done >= self.trials:
            self.trials = 1 << 30
            raise KeyboardInterrupt


def searched(folder):
    return [(t.kernel, t.candidate) for t in read_trials(folder).trials if t.purpose == "search"]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """A session of 10 trials on two kernels: its folder, what it says, and what was seen."""
    folder, watcher = tmp_path_factory.mktemp("session"), Watcher()
    progress = run_session(folder, [MATMUL, ADD], listener=watcher, trials=10)
    return folder, progress, watcher


@pytest.mark.extended
def test_all_trials_are_used(session):
    folder, progress, _ = session
    assert progress.outcome == "all trials are used"
    assert progress.trials_done == progress.trials_planned == 10
    found = searched(folder)
    assert len(found) == len(set(found)) == 10
    assert {kernel.state for kernel in progress.kernels} == {"done"}
    assert {kernel.reason for kernel in progress.kernels} == {"all trials are used"}
    assert sum(kernel.trials for kernel in progress.kernels) == 10
    assert progress.notes == []


def test_the_listener_sees_every_trial_and_every_kernel(session):
    _, progress, watcher = session
    assert set(watcher.counts) >= set(range(3, 11))
    assert watcher.counts == sorted(watcher.counts)
    assert watcher.current == {"", MATMUL.hash, ADD.hash}
    assert progress.current == ""
    assert watcher.fractions[-1] == 1.0
    assert progress.ended is not None


@pytest.mark.extended
def test_the_listener_sees_a_kernel_that_got_no_trials(tmp_path, monkeypatch):
    """Which kernel is searched depends on measured times: here all trials go to one."""

    def first_of_matmul(states):
        return next((s for s in states if s.is_open and s.task.hash == MATMUL.hash), None)

    monkeypatch.setattr("tvm_ext.tuning.session.next_kernel", first_of_matmul)
    watcher = Watcher()
    run_session(tmp_path, [MATMUL, ADD], listener=watcher, trials=4)
    assert watcher.current == {"", MATMUL.hash, ADD.hash}


def test_each_kernel_begins_with_its_default(session):
    folder, progress, _ = session
    for kernel in progress.kernels:
        trials = [t for t in read_trials(folder).trials if t.kernel == kernel.hash]
        assert trials[0].is_default
        assert trials[0].seconds == kernel.default_seconds
        # The default is the unit: later it takes turns with the others, as their reference.
        assert trials[0].reference_samples
        assert [t for t in trials[1:] if t.is_default and t.purpose == "search"] == []
        assert kernel.best_seconds <= kernel.default_seconds


def test_the_database_says_what_the_trials_speak_for(session):
    folder, progress, _ = session
    records = read_database(folder).records
    for kernel in progress.kernels:
        trials = [t for t in read_trials(folder).trials if t.kernel == kernel.hash]
        mine = [record.seconds for record in records if record.workload == kernel.hash]
        assert min(mine) == best(candidate_results(trials)).seconds == kernel.best_seconds
        assert kernel.default_seconds in mine
        assert kernel.is_confirmed
    assert len(opened(folder)) == len(records)


def test_kernels_are_ordered_by_their_cost(session):
    _, progress, _ = session
    costs = [(kernel.best_seconds or 0.0) * kernel.calls for kernel in progress.kernels]
    assert costs == sorted(costs, reverse=True)


def test_a_session_with_no_trials_left_starts_none(session):
    folder, _, _ = session
    before = searched(folder)
    again = run_session(folder, [MATMUL, ADD], trials=10)
    assert (again.trials_done, again.outcome) == (0, "all trials are used")
    assert searched(folder) == before
    # What earlier sessions found is shown.
    assert all(kernel.best_seconds for kernel in again.kernels)


@pytest.mark.extended
def test_more_trials_go_on_from_there(session):
    folder, first, _ = session
    before = searched(folder)
    again = run_session(folder, [MATMUL, ADD], trials=13)
    assert again.trials_done == again.trials_planned == 3
    found = searched(folder)
    assert found[: len(before)] == before
    assert len(found) == len(set(found)) == 13
    defaults = {kernel.hash: kernel.default_seconds for kernel in first.kernels}
    assert all(kernel.default_seconds == defaults[kernel.hash] for kernel in again.kernels)


@pytest.mark.extended
def test_a_tiny_time_budget(tmp_path):
    """It ends; what was measured until then is on the disk, and the next session goes on."""
    progress = run_session(tmp_path, [ADD], trials=None, time_budget=0.01)
    assert progress.outcome == "the time budget is used"
    assert len(searched(tmp_path)) == progress.trials_done <= 1
    again = run_session(tmp_path, [ADD], trials=3)
    assert again.trials_done == 3 - progress.trials_done
    assert len(set(searched(tmp_path))) == 3


@pytest.mark.extended
def test_a_time_budget_in_the_middle(tmp_path, monkeypatch):
    """Once it is used, no further trial begins, and the best is confirmed."""
    late = False
    measure, seconds = Measurer.measure, SessionProgress.seconds.fget

    def measured(measuring, candidates, deadline):
        nonlocal late
        for number, outcome in enumerate(measure(measuring, candidates, deadline)):
            late = late or (len(candidates) > 1 and number == 2)
            yield outcome

    monkeypatch.setattr(Measurer, "measure", measured)
    monkeypatch.setattr(SessionProgress, "seconds", property(lambda p: seconds(p) + 1e6 * late))
    progress = run_session(tmp_path, [ADD], trials=None, time_budget=1e5)
    assert progress.outcome == "the time budget is used"
    # The default, three of the first batch, and one more if it was running by then.
    assert 4 <= progress.trials_done == len(searched(tmp_path)) <= 5
    (kernel,) = progress.kernels
    assert (kernel.state, kernel.reason) == ("done", "the time budget is used")


def test_everything_is_done(tmp_path):
    """The effort's number of trials, and a kernel whose schedules are all tried before."""
    effort = QUICK.model_copy(update={"trials_per_kernel": 6})
    progress = run_session(tmp_path, [ADD], effort, trials=None)
    assert progress.trials_planned == progress.trials_done == 6
    (kernel,) = progress.kernels
    assert kernel.reason == "6 trials, as the effort says"
    progress = run_session(tmp_path, [ADD], trials=1000)
    assert progress.outcome == "every kernel's search has ended"
    (kernel,) = progress.kernels
    assert kernel.reason == "all schedules were tried"
    assert kernel.trials == len(set(searched(tmp_path))) < 100


@pytest.mark.extended
def test_early_stop(tmp_path, monkeypatch):
    """Nothing gains: the search ends after as many trials as the patience."""
    measure = Measurer.measure

    def slow(measuring, candidates, deadline):
        for outcome in measure(measuring, candidates, deadline):
            timing = replace(outcome.timing, seconds=[1.0], reference_seconds=[1.0])
            yield replace(outcome, timing=timing)

    monkeypatch.setattr(Measurer, "measure", slow)
    effort = QUICK.model_copy(update={"patience": 5})
    progress = run_session(tmp_path, [MATMUL], effort, trials=100)
    (kernel,) = progress.kernels
    assert (kernel.state, kernel.reason) == ("done", "no gain in 5 trials")
    assert progress.outcome == "every kernel's search has ended"
    # The default, and batches of four until five are without a gain.
    assert kernel.trials == 1 + 8
    assert kernel.gain == 1.0
    assert [len(opened(tmp_path)), kernel.curve] == [1, [(1, 1.0)]]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    return folder, run_session(folder, [MATMUL, ADD], listener=Interrupting(5), trials=10)


def test_ctrl_c(interrupted):
    folder, progress = interrupted
    assert progress.outcome == "interrupted; the same command goes on from here"
    assert progress.was_interrupted
    assert progress.ended is not None
    assert 5 <= len(searched(folder)) == progress.trials_done < 10
    found = read_trials(folder)
    assert found.problems == []
    # The database is settled: TVM reads it, and it holds what beats the default.
    assert {kernel for kernel, *_ in opened(folder)} == {MATMUL.hash, ADD.hash}


@pytest.mark.extended
def test_after_ctrl_c_the_same_command_goes_on(interrupted):
    folder, progress = interrupted
    before = searched(folder)
    again = run_session(folder, [MATMUL, ADD], trials=10)
    assert again.trials_done == 10 - progress.trials_done
    found = searched(folder)
    assert found[: len(before)] == before
    assert len(set(found)) == 10


@pytest.mark.parametrize("trials", [0, 1])
def test_ctrl_c_before_the_search(tmp_path, trials):
    progress = run_session(tmp_path, [ADD], listener=Interrupting(trials), trials=3)
    assert progress.outcome.startswith("interrupted")
    assert len(searched(tmp_path)) == progress.trials_done == trials


def dynamic_task():
    length = tirx.Var("n", "int64")
    source = te.placeholder((length,), name="source")
    result = te.compute((length,), lambda i: source[i] * 2.0, name="result")
    return kernel_task("dynamic", te.create_prim_func([source, result]), 1, ["Mul.0"])


@pytest.mark.extended
def test_kernels_that_cannot_be_tuned_are_skipped(tmp_path, monkeypatch):
    """One of unknown size, and one whose unscheduled form dies."""
    sick = add_task(64)
    call = WorkerPool.call

    def failing(pool, function, job, *, timeout):
        if function is build and _builds(job, sick):
            raise WorkerDied("the process died of SIGSEGV")
        return call(pool, function, job, timeout=timeout)

    monkeypatch.setattr(WorkerPool, "call", failing)
    progress = run_session(tmp_path, [dynamic_task(), sick, ADD], trials=4)
    skipped = [kernel for kernel in progress.kernels if kernel.state == "skipped"]
    reasons = {kernel.name: kernel.reason for kernel in skipped}
    assert reasons == {
        "dynamic": "data decide its sizes or whether it runs: freeze inputs with --input-shape",
        sick.name: "the kernel without a schedule is of no use: the process died of SIGSEGV",
    }
    assert {kernel for kernel, _ in searched(tmp_path)} == {ADD.hash}
    assert progress.trials_done == 4


def _builds(job, task) -> bool:
    return kernel_hash(tvm.ir.load_json(job.mod_json)) == task.hash


@pytest.mark.extended
def test_a_skipped_kernel_gives_its_trials_back(tmp_path):
    effort = QUICK.model_copy(update={"trials_per_kernel": 3})
    progress = run_session(tmp_path, [dynamic_task(), ADD], effort, trials=None)
    assert progress.trials_planned == progress.trials_done == 3
    assert progress.outcome == "every kernel's search has ended"


@pytest.mark.extended
def test_a_default_with_wrong_numbers_is_noted_and_skipped(tmp_path, monkeypatch):
    begin = KernelSearch.__init__

    def with_wrong_default(search, task, *arguments):
        begin(search, task, *arguments)
        if task.hash == MATMUL.hash:
            search.default = planted(search.default, "wrong")

    monkeypatch.setattr(KernelSearch, "__init__", with_wrong_default)
    progress = run_session(tmp_path, [MATMUL, ADD], trials=5)
    states = {kernel.hash: (kernel.state, kernel.reason) for kernel in progress.kernels}
    state, reason = states[MATMUL.hash]
    assert state == "skipped"
    assert reason.startswith("its default schedule is of no use (wrong: result 0: ")
    assert states[ADD.hash][0] == "done"
    assert progress.notes == [f"{MATMUL.name}: {reason}"]
    trials = [t for t in read_trials(tmp_path).trials if t.kernel == MATMUL.hash]
    assert [t.status for t in trials] == ["wrong"]
    assert {record.workload for record in read_database(tmp_path).records} == {ADD.hash}


def test_an_unreadable_line_is_noted(tmp_path):
    (tmp_path / "trials.jsonl").write_text("damaged\n")
    progress = run_session(tmp_path, [ADD], trials=1)
    assert len(progress.notes) == 1
    assert "trials.jsonl:1: not JSON" in progress.notes[0]
    assert progress.trials_done == 1


def test_no_kernels(tmp_path):
    progress = run_session(tmp_path, [], trials=3)
    assert (progress.kernels, progress.trials_done) == ([], 0)
    assert progress.outcome
    assert progress.ended is not None


def test_the_log_says_where_and_how(session):
    folder, _, _ = session
    trial = read_trials(folder).trials[0]
    assert trial.model == "small"
    assert trial.device == "local"
    assert trial.target["num-cores"] == host_description().cores
    assert trial.host_cpu
    assert trial.build_seconds > 0
    assert trial.run_seconds > 0
