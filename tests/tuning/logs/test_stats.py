"""Figures about a folder, from the times and counts that its lines hold."""

import json
from dataclasses import asdict

import pytest
from record_folders import (
    OTHER_TARGET,
    failed_trial,
    insert_line,
    record,
    split_trace,
    stored,
    trial,
    write_folder,
)

from tvm_ext.tuning.candidate import plain_json
from tvm_ext.tuning.logs.database_files import RECORDS, read_database, write_database
from tvm_ext.tuning.logs.record_folder import read_folder
from tvm_ext.tuning.logs.stats import figures_of
from tvm_ext.tuning.logs.trial_log import TRIALS, append_trial


def figures(folder):
    return figures_of(read_folder(folder))


def add(folder, number, **changes):
    append_trial(folder, trial(8, candidate=f"{number:016x}", **changes))


def test_counts(tmp_path):
    folder = write_folder(tmp_path)
    append_trial(folder, failed_trial(8, "timeout", "a" * 16, target=OTHER_TARGET))
    insert_line(folder, TRIALS, 2, "garbage")
    insert_line(folder, RECORDS, 2, "garbage")
    found = figures(folder)
    assert found.trials == 9
    assert found.statuses == {"ok": 6, "wrong": 2, "timeout": 1}
    assert found.purposes == {"search": 7, "confirm": 2}
    assert found.unreadable_lines == 2
    assert (found.kernels, found.workloads, found.records) == (2, 2, 4)
    assert found.targets == {"x86-64-v3, 2 cores": 8, "skylake-avx512, 8 cores": 1}
    assert found.models == {"tiny": 9}
    json.dumps(asdict(found), allow_nan=False)


def test_sessions(tmp_path):
    """A session lasts from the begin of its first trial to the end of its last."""
    add(tmp_path, 1, time="2026-11-21T10:00:02+00:00", build_seconds=1.5, run_seconds=0.5)
    add(tmp_path, 2, time="2026-11-21T10:00:30Z", build_seconds=2.0, run_seconds=1.0)
    add(tmp_path, 3, time="2026-11-22T11:00:10+01:00", run="later", versions={"tvm": "9"})
    found = figures(tmp_path)
    first, second = found.sessions
    assert (first.run, first.trials, first.begun) == ("session1", 2, "2026-11-21T10:00:00+00:00")
    assert first.wall_seconds == pytest.approx(30)
    assert first.trials_per_minute == pytest.approx(4)
    assert (first.build_seconds, first.run_seconds) == (3.5, 1.5)
    assert second.begun == "2026-11-22T10:00:08+00:00"
    assert found.wall_seconds == pytest.approx(31.5)
    assert found.trials_per_minute == pytest.approx(60 * 3 / 31.5)
    assert found.versions == [{"tvm": "0.27.0", "tvm-ext": "0.1.0"}, {"tvm": "9"}]


def test_spreads_of_measured_trials(tmp_path):
    for number, spread in enumerate([0.01, 0.02, 0.03, 0.04, 0.05]):
        add(tmp_path, number, spread=spread)
    add(tmp_path, 9, spread=0.9, status="modelled")
    spread = figures(tmp_path).spread
    assert asdict(spread) == pytest.approx(
        {"quarter": 0.02, "half": 0.03, "three_quarters": 0.04, "largest": 0.05}
    )


def test_records_of_a_model_are_counted(tmp_path):
    folder = write_folder(tmp_path, (8,))
    assert figures(folder).modelled_records == 0
    trace = split_trace(4)
    append_trial(
        folder,
        trial(4, status="modelled", seconds=7e-9, trace=plain_json(trace.as_json())),
    )
    files = read_database(folder)
    records = [*files.records, record(4, 7e-9, trace=trace)]
    write_database(folder, [*files.workloads.values(), stored(4)], records)
    found = figures(folder)
    assert (found.records, found.modelled_records) == (3, 1)
    assert found.statuses["modelled"] == 1


def test_one_trial_and_a_time_that_is_none(tmp_path):
    add(tmp_path, 1, time="yesterday")
    found = figures(tmp_path)
    assert found.sessions[0].begun == ""
    assert (found.wall_seconds, found.trials_per_minute) == (0, None)
    assert found.spread.half == pytest.approx(0.01)


def test_an_empty_log(tmp_path):
    (tmp_path / TRIALS).touch()
    found = figures(tmp_path)
    assert (found.trials, found.sessions, found.spread) == (0, [], None)
