"""A folder while a session writes to it: the log counts, and the database follows it."""

import json

import pytest
from record_folders import (
    OTHER_TARGET,
    TARGET,
    contents,
    cut_end,
    decided_trace,
    hash_of,
    insert_line,
    kernel_trials,
    lines_of,
    matmul,
    opened,
    record,
    side_lines,
    split_trace,
    stored,
    trial,
    write_folder,
)

from tvm_ext.configs.errors import RecordsError
from tvm_ext.tuning.candidate import kernel_task
from tvm_ext.tuning.logs import record_folder
from tvm_ext.tuning.logs.database_files import RECORDS, WORKLOADS, read_database, write_database
from tvm_ext.tuning.logs.record_folder import RecordFolder
from tvm_ext.tuning.logs.trial_log import TRIALS, append_trial, read_trials


def tuning(folder, *sizes) -> RecordFolder:
    """The folder as a session on matmuls of these sizes opens it."""
    tasks = [kernel_task(f"matmul{size}", matmul(size)["main"]) for size in sizes]
    return RecordFolder(folder, TARGET, tasks)


def add_all(folder: RecordFolder, size: int) -> None:
    """Adds what a session finds out about one kernel."""
    for one in kernel_trials(size):
        folder.add(one, split_trace(size))


def times(folder) -> set[tuple[str, float]]:
    return {(kernel, seconds) for kernel, seconds, _ in opened(folder)}


def test_the_log_comes_first(tmp_path, monkeypatch):
    written = []
    for name in ("append_trial", "append_workload", "append_record"):
        original = getattr(record_folder, name)

        def noted(*arguments, name=name, original=original):
            written.append(name)
            original(*arguments)

        monkeypatch.setattr(record_folder, name, noted)
    with tuning(tmp_path, 8) as folder:
        add_all(folder, 8)
    # The default, a better one, one that failed, and a confirmation.
    assert written == [
        *("append_trial", "append_workload", "append_record"),
        *("append_trial", "append_record"),
        "append_trial",
        "append_trial",
    ]


def test_each_record_points_at_its_own_workload(tmp_path):
    with tuning(tmp_path, 8, 4, 6) as folder:
        add_all(folder, 4)
        add_all(folder, 8)
        folder.settle()
        add_all(folder, 6)
    assert {kernel for kernel, _ in times(tmp_path)} == {hash_of(size) for size in (8, 4, 6)}
    with tuning(tmp_path, 8, 4, 6) as folder:
        folder.settle()
    assert times(tmp_path) == {(hash_of(n), s) for n in (8, 4, 6) for s in (1e-6, 3e-6)}
    assert len(lines_of(tmp_path, WORKLOADS)) == 3


@pytest.mark.parametrize("lost", ["append_workload", "append_record"])
def test_what_a_killed_session_left_out_is_added(tmp_path, monkeypatch, lost):
    def killed(*_):
        raise KeyboardInterrupt

    default = kernel_trials(8)[0]
    with monkeypatch.context() as patch, tuning(tmp_path, 8) as folder:
        patch.setattr(record_folder, lost, killed)
        with pytest.raises(KeyboardInterrupt):
            folder.add(default, split_trace(8))
    assert read_trials(tmp_path).trials == [default]
    assert read_database(tmp_path).records == []
    with tuning(tmp_path, 8) as folder:
        assert folder.trials == {hash_of(8): [default]}
        assert folder.problems == []
    assert times(tmp_path) == {(hash_of(8), 3e-6)}


def test_a_session_without_the_kernel_adds_nothing(tmp_path):
    append_trial(tmp_path, kernel_trials(8)[0])
    with tuning(tmp_path, 4):
        pass
    assert not (tmp_path / RECORDS).exists()


def test_settling_drops_what_does_not_beat_the_default(tmp_path):
    default, better, wrong, confirmed = kernel_trials(8)
    slow = trial(8, candidate="a" * 16, seconds=4e-6)
    with tuning(tmp_path, 8) as folder:
        for one in (default, better, wrong, slow):
            folder.add(one, split_trace(8))
        assert {seconds for _, seconds in times(tmp_path)} == {3e-6, better.seconds, 4e-6}
        folder.settle()
        assert {seconds for _, seconds in times(tmp_path)} == {3e-6, better.seconds}
        # Measured again it was luck.
        folder.add(confirmed.model_copy(update={"seconds": 3.1e-6}), split_trace(8))
        folder.settle([hash_of(8)])
        assert {seconds for _, seconds in times(tmp_path)} == {3e-6}


def test_settling_takes_the_confirmed_time(tmp_path):
    with tuning(tmp_path, 8) as folder:
        add_all(folder, 8)
        folder.settle([hash_of(8)])
    assert [one.seconds for one in read_database(tmp_path).records] == [1e-6, 3e-6]
    assert lines_of(tmp_path, TRIALS) == [one.to_line() for one in kernel_trials(8)]


def modelled(*trials):
    return [
        one.model_copy(update={"status": "modelled"}) if one.is_measured else one for one in trials
    ]


def test_modelled_times_make_records_until_one_is_measured(tmp_path):
    default, better, wrong, _ = modelled(*kernel_trials(8, best=2e-6, default=9e-6))
    with tuning(tmp_path, 8, 4) as folder:
        for one in (default, better, wrong, modelled(kernel_trials(4)[0])[0]):
            folder.add(one, split_trace(8 if one.kernel == hash_of(8) else 4))
        expected = {(hash_of(8), 9e-6), (hash_of(8), better.seconds), (hash_of(4), 3e-6)}
        assert times(tmp_path) == expected
        folder.settle()
        assert times(tmp_path) == expected
        # Measured, and slower than the model says.
        first = trial(8, candidate="a" * 16, seconds=7e-5, is_default=True)
        folder.add(first, split_trace(8))
        expected = {(hash_of(8), 7e-5), (hash_of(4), 3e-6)}
        assert times(tmp_path) == expected
        folder.add(better.model_copy(update={"candidate": "b" * 16}), split_trace(8))
        assert times(tmp_path) == expected
    assert len(read_trials(tmp_path).trials) == 6


def test_a_settled_folder_is_not_written_to(tmp_path):
    with tuning(tmp_path, 8) as folder:
        add_all(folder, 8)
        folder.settle()
    before = contents(tmp_path)
    with tuning(tmp_path, 8) as folder:
        folder.settle()
    assert contents(tmp_path) == before


def test_foreign_records_stay(tmp_path):
    """Of other targets, of other kernels, and of kernels of the session without trials."""
    foreign = [record(8, 7e-6, OTHER_TARGET), record(4, 5e-6), record(6, 6e-6)]
    write_database(tmp_path, map(stored, (8, 4, 6)), foreign)
    append_trial(tmp_path, trial(8, OTHER_TARGET, candidate="b" * 16, seconds=7e-6))
    with tuning(tmp_path, 8, 6) as folder:
        assert folder.trials == {}
        add_all(folder, 8)
        folder.settle()
    files = read_database(tmp_path)
    bodies = [one.body for one in files.records]
    assert all(one.body in bodies for one in foreign)
    assert {(one.workload, one.seconds) for one in files.records} == {
        (hash_of(8), 7e-6),
        (hash_of(4), 5e-6),
        (hash_of(6), 6e-6),
        (hash_of(8), 1e-6),
        (hash_of(8), 3e-6),
    }
    # A session for the other machine sees its own trial only.
    tasks = [kernel_task("matmul8", matmul(8)["main"])]
    with RecordFolder(tmp_path, OTHER_TARGET, tasks) as folder:
        assert [one.candidate for one in folder.trials[hash_of(8)]] == ["b" * 16]


def test_only_one_session_at_a_time(tmp_path):
    with tuning(tmp_path, 8), pytest.raises(RecordsError, match=r"another session.*--output"):
        tuning(tmp_path, 4)
    tuning(tmp_path, 4).close()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "records").write_text("")
    with pytest.raises(RecordsError, match=r"cannot write records to '.*records'"):
        tuning(tmp_path / "records", 8)


def test_a_folder_is_made(tmp_path):
    tuning(tmp_path / "a" / "b", 8).close()
    assert (tmp_path / "a" / "b").is_dir()


def test_bad_lines_go_to_side_files_and_are_listed(tmp_path):
    write_folder(tmp_path)
    insert_line(tmp_path, TRIALS, 2, '{"format":1,"run":3}')
    insert_line(tmp_path, RECORDS, 3, "[0,[")
    cut_end(tmp_path / TRIALS)
    with tuning(tmp_path, 8, 4) as folder:
        found = {(problem.file.name, problem.line) for problem in folder.problems}
        assert found == {(TRIALS, 2), (TRIALS, 9), (RECORDS, 3)}
        assert [len(folder.trials[hash_of(size)]) for size in (8, 4)] == [4, 3]
    moved = side_lines(tmp_path / TRIALS)
    assert [line["line"] for line in moved] == [2, 9]
    assert [line["text"] for line in side_lines(tmp_path / RECORDS)] == ["[0,["]
    assert read_trials(tmp_path).problems == []
    # The confirmation of the second kernel was cut off, so that the search's time counts again.
    assert times(tmp_path) >= {(hash_of(4), 0.9e-6), (hash_of(8), 1e-6)}


def test_records_that_others_added_stay(tmp_path):
    """Of the same kernel and target, by another schedule than those that were tried."""
    foreign = record(8, 2e-6, trace=decided_trace(8, rows=8))
    write_database(tmp_path, [stored(8)], [foreign])
    with tuning(tmp_path, 8) as folder:
        add_all(folder, 8)
        folder.settle()
    assert times(tmp_path) == {(hash_of(8), seconds) for seconds in (1e-6, 2e-6, 3e-6)}


@pytest.mark.parametrize("trace", [None, [], "split", [[["Split"]], []]])
def test_a_trial_whose_trace_is_of_no_use_gets_no_record(tmp_path, trace):
    """The database stays one that TVM opens."""
    default, better, *_ = kernel_trials(8)
    append_trial(tmp_path, default)
    append_trial(tmp_path, better.model_copy(update={"trace": trace}))
    with tuning(tmp_path, 8) as folder:
        assert len(folder.trials[hash_of(8)]) == 2
    assert times(tmp_path) == {(hash_of(8), 3e-6)}
    with tuning(tmp_path, 8) as folder:
        assert folder.problems == []


def test_lines_are_json_that_other_readers_take(tmp_path):
    with tuning(tmp_path, 8) as folder:
        add_all(folder, 8)
    for name in (TRIALS, RECORDS, WORKLOADS):
        for line in lines_of(tmp_path, name):
            json.loads(line, parse_constant=pytest.fail)
