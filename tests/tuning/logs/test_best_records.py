"""The best record is the fastest one that TVM can apply."""

import json

import pytest
from record_folders import (
    OTHER_TARGET,
    TARGET,
    decided_trace,
    hash_of,
    lines_of,
    record,
    split_trace,
    stored,
    write_folder,
    write_lines,
)

from tvm_ext.tuning.logs.best_records import best_records, top_records
from tvm_ext.tuning.logs.database_files import RECORDS, read_database, target_key, write_database
from tvm_ext.tuning.logs.record_folder import read_folder
from tvm_ext.tuning.logs.summary import best_schedules

KEY = target_key(dict(TARGET.export()))
OTHER_KEY = target_key(dict(OTHER_TARGET.export()))


def test_the_least_time_of_each_kernel_on_each_target(tmp_path):
    records = [record(8, 3e-6), record(8, 1e-6), record(8, 5e-6, OTHER_TARGET), record(4, 2e-6)]
    write_database(tmp_path, [stored(8), stored(4)], records)
    found = best_records(read_database(tmp_path))
    assert {group: one.seconds for group, one in found.items()} == {
        (hash_of(8), KEY): 1e-6,
        (hash_of(8), OTHER_KEY): 5e-6,
        (hash_of(4), KEY): 2e-6,
    }


def test_failures_of_metaschedule_have_no_time(tmp_path):
    """It notes 1e10 seconds, or none, for candidates that failed."""
    failed, untimed = record(8, 1e10), record(4)
    untimed.body[1] = None
    write_database(tmp_path, [stored(8), stored(4)], [failed, untimed, record(8, 2.0)])
    files = read_database(tmp_path)
    assert len(files.records) == 3
    assert [one.seconds for one in best_records(files).values()] == [2.0]


def test_one_that_does_not_apply_is_passed_over_and_named(tmp_path):
    folder = write_folder(tmp_path)
    lines = lines_of(folder, RECORDS)
    lines[1] = lines[1].replace('"root"', '"stem"')
    write_lines(folder, RECORDS, lines)
    files = read_database(folder)
    assert best_records(files)[hash_of(8), KEY].seconds == 3e-6
    (problem,) = files.problems
    assert problem.line == 2
    assert [one.line for one in files.records] == [1, 3, 4]


def test_several_of_the_best(tmp_path):
    records = [record(8, seconds) for seconds in (4e-6, 1e-6, 3e-6, 2e-6)]
    write_database(tmp_path, [stored(8)], records)
    (found,) = top_records(read_database(tmp_path), 3).values()
    assert [one.seconds for one in found] == [1e-6, 2e-6, 3e-6]


@pytest.mark.parametrize(
    ("trace", "text"),
    [
        (decided_trace(8, rows=4, columns=8), "register tile (rows=4, columns=8)"),
        (split_trace(8), "primitives of MetaSchedule's own space"),
    ],
)
def test_what_the_best_says(tmp_path, trace, text):
    folder = write_folder(tmp_path, (8,))
    write_database(folder, [stored(8)], [record(8, 1e-6, trace=trace)])
    (best,) = best_schedules(read_folder(folder))
    assert (best.name, best.kernel) == ("matmul8", hash_of(8))
    assert best.recorded.describe() == text
    assert best.recorded.seconds == 1e-6
    assert json.loads(json.dumps(best.record.trace)) == best.record.trace
