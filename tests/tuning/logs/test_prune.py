"""Pruning keeps the best records, drops failed trials, and says what went."""

import json

import pytest
from record_folders import (
    OTHER_TARGET,
    contents,
    cut_end,
    decided_trace,
    failed_trial,
    hash_of,
    insert_line,
    lines_of,
    opened,
    record,
    stored,
    trial,
    write_folder,
)

from tvm_ext.configs.errors import RecordsError
from tvm_ext.tuning.candidate import plain_json
from tvm_ext.tuning.logs.database_files import RECORDS, WORKLOADS, read_database, write_database
from tvm_ext.tuning.logs.lines import LOCK
from tvm_ext.tuning.logs.prune import PruneOptions, prune_folder
from tvm_ext.tuning.logs.record_folder import side_file
from tvm_ext.tuning.logs.summary import target_filter
from tvm_ext.tuning.logs.trial_log import FORMAT, TRIALS, append_trial, read_trials


@pytest.fixture
def folder(tmp_path):
    """Two kernels, of the first of which there are records for two targets."""
    folder = write_folder(tmp_path / "records", best={8: 1e-6, 4: 2e-6})
    files = read_database(folder)
    there = [record(8, seconds, OTHER_TARGET) for seconds in (7e-6, 5e-6, 6e-6)]
    write_database(folder, files.workloads.values(), [*there, *files.records])
    append_trial(folder, failed_trial(8, "build", "b" * 16, target=OTHER_TARGET))
    return folder


def times(folder):
    return sorted((seconds, cpu) for _, seconds, cpu in opened(folder))


HERE, THERE = "x86-64-v3", "skylake-avx512"


def test_the_best_of_each_kernel_and_target_stay(folder):
    log, workloads = lines_of(folder, TRIALS), lines_of(folder, WORKLOADS)
    pruned = prune_folder(folder, PruneOptions())
    assert times(folder) == [(1e-6, HERE), (2e-6, HERE), (5e-6, THERE)]
    assert sorted(one.seconds for group in pruned.records.values() for one in group) == [
        3e-6,
        3e-6,
        6e-6,
        7e-6,
    ]
    assert (pruned.records_kept, pruned.statuses) == (3, {})
    assert lines_of(folder, TRIALS) == log
    assert lines_of(folder, WORKLOADS) == workloads
    assert {kernel for kernel, _, _ in opened(folder)} == {hash_of(8), hash_of(4)}


def test_several_may_stay_in_their_order(folder):
    prune_folder(folder, PruneOptions(keep=2))
    assert [one.seconds for one in read_database(folder).records] == [
        5e-6,
        6e-6,
        3e-6,
        1e-6,
        3e-6,
        2e-6,
    ]


def test_records_without_a_time_go_first(tmp_path):
    write_database(tmp_path, [stored(8)], [record(8, 1e10), record(8, 2e-6)])
    prune_folder(tmp_path, PruneOptions())
    assert [seconds for _, seconds, _ in opened(tmp_path)] == [2e-6]


def test_failed_trials_go(folder):
    pruned = prune_folder(folder, PruneOptions(keep=9, drop_failed=True))
    assert pruned.statuses == {"wrong": 2, "build": 1}
    assert {one.status for one in read_trials(folder).trials} == {"ok"}
    assert pruned.trials_kept == len(lines_of(folder, TRIALS)) == 6
    assert len(opened(folder)) == 7


def test_records_of_a_model_go_where_something_was_measured(folder):
    trace = decided_trace(8, rows=8)
    append_trial(
        folder,
        trial(8, status="modelled", seconds=1e-9, trace=plain_json(trace.as_json())),
    )
    files = read_database(folder)
    modelled = record(8, 1e-9, trace=trace)
    write_database(folder, files.workloads.values(), [*files.records, modelled])
    prune_folder(folder, PruneOptions(keep=2))
    assert 1e-9 not in {seconds for seconds, _ in times(folder)}
    assert (1e-6, HERE) in times(folder)


def test_a_model_alone_is_pruned_by_its_own_times(tmp_path):
    traces = {3e-9: decided_trace(8, rows=4), 2e-9: decided_trace(8, rows=8)}
    for seconds, trace in traces.items():
        plain = plain_json(trace.as_json())
        append_trial(tmp_path, trial(8, status="modelled", seconds=seconds, trace=plain))
    records = [record(8, seconds, trace=trace) for seconds, trace in traces.items()]
    write_database(tmp_path, [stored(8)], records)
    prune_folder(tmp_path, PruneOptions(drop_failed=True))
    assert times(tmp_path) == [(2e-9, HERE)]
    assert len(read_trials(tmp_path).trials) == 2


def test_only_one_target(folder):
    options = PruneOptions(drop_failed=True, is_meant=target_filter("skylake"))
    pruned = prune_folder(folder, options)
    assert pruned.statuses == {"build": 1}
    assert times(folder) == [(1e-6, HERE), (2e-6, HERE), (3e-6, HERE), (3e-6, HERE), (5e-6, THERE)]


def test_nothing_to_do_writes_nothing(folder):
    before = contents(folder)
    pruned = prune_folder(folder, PruneOptions(keep=3))
    assert (pruned.records, pruned.records_kept) == ({}, 7)
    assert {k: v for k, v in contents(folder).items() if k != LOCK} == before


def test_a_copy_leaves_the_folder_alone(folder, tmp_path):
    insert_line(folder, RECORDS, 2, "garbage")
    insert_line(folder, TRIALS, 2, "garbage")
    before, copy = contents(folder), tmp_path / "small"
    pruned = prune_folder(folder, PruneOptions(drop_failed=True), copy)
    assert contents(folder) == before
    assert times(copy) == [(1e-6, HERE), (2e-6, HERE), (5e-6, THERE)]
    assert len(lines_of(copy, TRIALS)) == 6
    assert [(problem.file, problem.line) for problem in pruned.problems] == [
        (folder / TRIALS, 2),
        (folder / RECORDS, 2),
    ]


def test_bad_lines_of_the_folder_itself_are_kept_aside(folder):
    newer = json.dumps({"format": FORMAT + 1})
    insert_line(folder, TRIALS, 3, newer)
    cut_end(folder / TRIALS)
    cut = lines_of(folder, TRIALS)[-1]
    pruned = prune_folder(folder, PruneOptions(drop_failed=True))
    assert [problem.line for problem in pruned.problems] == [10, 3]
    assert json.loads(side_file(folder / TRIALS).read_text())["text"] == cut
    assert newer in lines_of(folder, TRIALS)
    assert len(opened(folder)) == 3


def test_a_copy_does_not_write_over_records(folder, tmp_path):
    other = write_folder(tmp_path / "other", (8,))
    before = contents(other)
    with pytest.raises(RecordsError, match="holds records already"):
        prune_folder(folder, PruneOptions(), other)
    assert contents(other) == before
