"""Exported trials read back, and an exported folder is a database of plain TVM."""

import csv
import json

import pytest
from record_folders import (
    OTHER_TARGET,
    contents,
    hash_of,
    insert_line,
    lines_of,
    opened,
    record,
    split_trace,
    stored,
    trial,
    write_folder,
)

from tvm_ext.configs.errors import RecordsError
from tvm_ext.tuning.candidate import plain_json
from tvm_ext.tuning.logs.database_files import (
    RECORDS,
    WORKLOADS,
    append_record,
    append_workload,
    read_database,
    write_database,
)
from tvm_ext.tuning.logs.export import export_records
from tvm_ext.tuning.logs.record_folder import read_folder
from tvm_ext.tuning.logs.summary import best_schedules
from tvm_ext.tuning.logs.trial_log import TRIALS, append_trial, read_trials


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "records", best={8: 1.25e-6, 4: 2e-6})


def test_a_table(folder, tmp_path):
    append_trial(folder, trial(8, status="modelled", seconds=5e-9, kernel_name='odd, "name"\n'))
    insert_line(folder, TRIALS, 1, "garbage")
    records = read_folder(folder)
    assert export_records(records, tmp_path / "t.csv") == 9
    with (tmp_path / "t.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == [one.status for one in records.trials]
    best = rows[3]
    assert (best["microseconds"], best["modelled_microseconds"]) == ("1.25", "")
    assert best["decisions"] == "rows=4 columns=2"
    assert best["origins"] == "MatMul_8; MatMul_8_again"
    assert best["target"] == "x86-64-v3, 2 cores"
    assert (best["purpose"], best["is_default"]) == ("confirm", "0")
    assert rows[2]["microseconds"] == ""
    assert rows[2]["message"] == "it broke"
    modelled = rows[8]
    assert (modelled["microseconds"], modelled["modelled_microseconds"]) == ("", "0.005")
    assert modelled["kernel_name"] == 'odd, "name"\n'


def test_a_table_without_trials_has_its_header(tmp_path):
    (tmp_path / TRIALS).touch()
    assert export_records(read_folder(tmp_path), tmp_path / "t.csv") == 0
    assert (tmp_path / "t.csv").read_text().startswith("run,time,model,kernel,")


def test_a_list(folder, tmp_path):
    records = read_folder(folder)
    export_records(records, tmp_path / "t.json")
    listed = json.loads((tmp_path / "t.json").read_text())
    assert listed == [json.loads(line) for line in lines_of(folder, TRIALS)]


def test_a_folder_gets_the_best_records(folder, tmp_path):
    append_workload(folder, stored(6))
    append_record(folder, 0, record(8, 9e-6, OTHER_TARGET))
    insert_line(folder, RECORDS, 1, '[0,[[[["Juggle",[],[],[]]],[]],[1e-9],{"kind":"llvm"},null]]')
    records = read_folder(folder)
    assert export_records(records, tmp_path / "out", is_folder=True) == 3
    assert opened(tmp_path / "out") == sorted(
        [
            (hash_of(8), 1.25e-6, "x86-64-v3"),
            (hash_of(4), 2e-6, "x86-64-v3"),
            (hash_of(8), 9e-6, "skylake-avx512"),
        ]
    )
    assert len(lines_of(tmp_path / "out", WORKLOADS)) == 2
    assert [problem.line for problem in records.problems] == [1]
    assert not (tmp_path / "out" / TRIALS).exists()


def test_an_existing_folder_is_a_folder(folder, tmp_path):
    (tmp_path / "out").mkdir()
    assert export_records(read_folder(folder), tmp_path / "out") == 2
    assert len(opened(tmp_path / "out")) == 2


def test_records_are_not_written_over(folder):
    before = contents(folder)
    with pytest.raises(RecordsError, match="holds records already"):
        export_records(read_folder(folder), folder)
    assert contents(folder) == before


def test_a_log_of_winners(folder, tmp_path):
    append_trial(folder, trial(6, is_default=True))
    output = tmp_path / "shipped" / TRIALS
    output.parent.mkdir()
    assert export_records(read_folder(folder), output) == 2
    found = read_trials(output.parent).trials
    assert {one.kernel: one.seconds for one in found} == {hash_of(8): 1.25e-6, hash_of(4): 2e-6}
    assert all(not one.is_default and one.is_measured for one in found)
    assert all((one.origins, one.samples, one.model) == ([], [], "") for one in found)


def test_times_of_a_model_are_exported_as_such(tmp_path):
    """Where nothing was measured, and with the trials that say what they are."""
    folder = write_folder(tmp_path / "records", (8,))
    trace = split_trace(4)
    for size, at in ((8, trace), (4, trace)):
        changes = {"seconds": 1e-9, "trace": plain_json(at.as_json()), "candidate": "c" * 16}
        append_trial(folder, trial(size, status="modelled", **changes))
    files = read_database(folder)
    modelled = [record(4, 1e-9, trace=trace)]
    write_database(folder, [*files.workloads.values(), stored(4)], [*files.records, *modelled])
    out = tmp_path / "out"
    assert export_records(read_folder(folder), out, is_folder=True) == 2
    assert {seconds for _, seconds, _ in opened(out)} == {1e-6, 1e-9}
    (one,) = read_trials(out).trials
    assert (one.kernel, one.status) == (hash_of(4), "modelled")
    assert {best.is_modelled for best in best_schedules(read_folder(out))} == {True, False}
    log = tmp_path / "log" / TRIALS
    log.parent.mkdir()
    assert export_records(read_folder(folder), log) == 2
    statuses = {one.kernel: one.status for one in read_trials(log.parent).trials}
    assert statuses == {hash_of(8): "ok", hash_of(4): "modelled"}


def test_another_ending_is_refused(folder, tmp_path):
    with pytest.raises(RecordsError, match=r"expected \.csv, \.json"):
        export_records(read_folder(folder), tmp_path / "t.xlsx")
    assert not (tmp_path / "t.xlsx").exists()
