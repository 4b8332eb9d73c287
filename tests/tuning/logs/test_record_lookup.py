"""The record that a compilation uses, and why there is none."""

import pytest
from record_folders import (
    OTHER_TARGET,
    TARGET,
    decided_trace,
    insert_line,
    kernel_trials,
    lines_of,
    matmul,
    record,
    split_trace,
    stored,
    trial,
    write_folder,
    write_lines,
)

from tvm_ext.configs.errors import NotApplicable, RecordsError
from tvm_ext.tir_schedules.recorded_schedule import RecordedSchedule
from tvm_ext.tuning.logs.database_files import RECORDS, WORKLOADS, write_database
from tvm_ext.tuning.logs.record_lookup import RecordLookup
from tvm_ext.tuning.logs.trial_log import TRIALS, append_trial


class RecordMachine:
    """The machine that the records of these tests are for."""

    def tvm_target(self):
        return TARGET


class OtherMachine:
    """Another machine."""

    def tvm_target(self):
        return OTHER_TARGET


def lookup(*folders, origins=None) -> RecordLookup:
    return RecordLookup(folders, RecordMachine(), origins)


def find(found: RecordLookup, size: int) -> RecordedSchedule | NotApplicable:
    return found.find(f"kernel{size}", matmul(size)["main"])


def reason(found: RecordLookup, size: int) -> str:
    miss = find(found, size)
    assert isinstance(miss, NotApplicable), miss
    return miss.reason


def test_the_least_time_is_used(tmp_path):
    found = find(lookup(write_folder(tmp_path)), 8)
    assert isinstance(found, RecordedSchedule)
    assert found.seconds == 1e-6
    assert found.template == "register tile"
    assert dict(found.decisions) == {"rows": 4, "columns": 2}


def test_the_name_of_a_kernel_does_not_count(tmp_path):
    found = lookup(write_folder(tmp_path))
    func = matmul(8)["main"].with_attr("global_symbol", "fused_matmul7")
    assert found.find("fused_matmul7", func).seconds == 1e-6


def test_records_for_another_target(tmp_path):
    write_database(tmp_path, [stored(8)], [record(8, 1e-6, OTHER_TARGET)])
    assert reason(lookup(tmp_path), 8) == (
        "its records are for another target: skylake-avx512, 8 cores"
    )
    write_database(tmp_path, [stored(8)], [record(8, 1e-6, OTHER_TARGET), record(8, 5e-6)])
    assert find(lookup(tmp_path), 8).seconds == 5e-6


def test_a_kernel_that_was_never_tuned(tmp_path):
    assert reason(lookup(write_folder(tmp_path)), 6) == "it was never tuned"


def test_a_node_that_was_tuned_as_part_of_another_kernel(tmp_path):
    origins = {"kernel6": ["MatMul_9", "MatMul_8"], "kernel5": ["MatMul_9"]}
    found = lookup(write_folder(tmp_path), origins=origins)
    assert reason(found, 6).startswith("MatMul_8 was tuned as part of another kernel: the graph")
    assert reason(found, 5) == "it was never tuned"


def test_a_kernel_whose_trials_led_to_no_record_has_not_changed(tmp_path):
    append_trial(tmp_path, trial(8))
    (tmp_path / RECORDS).touch()
    assert reason(lookup(tmp_path, origins={"kernel8": ["MatMul_8"]}), 8) == "it was never tuned"


def test_a_damaged_record_gives_way_to_the_next_best(tmp_path):
    records = [record(8, seconds) for seconds in (3e-6, 1e-6, 2e-6)]
    write_database(tmp_path, [stored(8)], records)
    lines = lines_of(tmp_path, RECORDS)
    lines[1] = lines[1].replace('"root"', '"stem"').replace('"product"', '"stem"')
    write_lines(tmp_path, RECORDS, lines)
    assert find(lookup(tmp_path), 8).seconds == 2e-6


def test_only_damaged_records(tmp_path):
    write_database(tmp_path, [stored(8)], [record(8, 1e-6)])
    lines = [line.replace('"product"', '"stem"') for line in lines_of(tmp_path, RECORDS)]
    write_lines(tmp_path, RECORDS, lines)
    assert reason(lookup(tmp_path), 8).startswith("no record of it can be used: TVM cannot read")


def test_records_of_failures_are_none(tmp_path):
    write_database(tmp_path, [stored(8)], [record(8, 1e10)])
    assert reason(lookup(tmp_path), 8) == "no record of it can be used: it has no time"
    write_database(tmp_path, [stored(8)], [record(8, 1e10), record(8, 2.0)])
    assert find(lookup(tmp_path), 8).seconds == 2.0


def test_bad_lines_are_listed_and_cost_only_themselves(tmp_path):
    write_folder(tmp_path)
    insert_line(tmp_path, RECORDS, 1, "damaged")
    lines = lines_of(tmp_path, WORKLOADS)
    write_lines(tmp_path, WORKLOADS, [lines[0], "damaged"])
    found = lookup(tmp_path)
    places = [(problem.file.name, problem.line) for problem in found.problems]
    # The workload, the record, and the two records of that workload.
    assert places == [(WORKLOADS, 2), (RECORDS, 1), (RECORDS, 4), (RECORDS, 5)]
    assert find(found, 8).seconds == 1e-6
    assert reason(found, 4) == "it was never tuned"


def test_the_first_folder_that_knows_a_kernel(tmp_path):
    first = write_folder(tmp_path / "first", (8,), best=2e-6)
    second = write_folder(tmp_path / "second", (8, 4), best=1e-6)
    found = lookup(first, second)
    assert find(found, 8).seconds == 2e-6
    assert find(found, 4).seconds == 1e-6


def test_a_first_folder_for_another_target_does_not_hide_the_second(tmp_path):
    (tmp_path / "first").mkdir()
    write_database(tmp_path / "first", [stored(8)], [record(8, 1e-9, OTHER_TARGET)])
    second = write_folder(tmp_path / "second", (8,))
    assert find(lookup(tmp_path / "first", second), 8).seconds == 1e-6


def test_a_trace_of_primitives(tmp_path):
    write_database(tmp_path, [stored(8)], [record(8, 1e-6, trace=split_trace(8))])
    found = find(lookup(tmp_path), 8)
    assert found.template == ""
    assert "sch.split(" in str(found.trace)


def test_folders_that_are_none(tmp_path):
    with pytest.raises(RecordsError, match=r"there is no folder of records at .*missing"):
        lookup(tmp_path / "missing")
    with pytest.raises(RecordsError, match="holds no records"):
        lookup(tmp_path)


def test_a_log_alone_is_a_folder_of_records(tmp_path):
    for one in kernel_trials(8, best=1e-6):
        append_trial(tmp_path, one)
    append_trial(tmp_path, trial(4, trace=None))
    assert (tmp_path / TRIALS).is_file()
    assert find(lookup(tmp_path), 8).seconds == 1e-6
    assert "no record of it can be used" in reason(lookup(tmp_path), 4)
    assert "another target" in reason(RecordLookup([tmp_path], OtherMachine()), 8)


def test_shipped_records_come_last_and_explain_nothing(tmp_path):
    (own, shipped) = (tmp_path / "own", tmp_path / "shipped")
    write_folder(own, (8,), 2e-6)
    shipped.mkdir()
    for one in [*kernel_trials(8, best=1e-6), *kernel_trials(4, best=1e-6)]:
        append_trial(shipped, one)
    found = RecordLookup([own], RecordMachine(), {"kernel16": ["MatMul_4"]}, [shipped])
    assert find(found, 8).seconds == 2e-6
    assert find(found, 4).seconds == 1e-6
    # The node of that name belongs to somebody else's model.
    found = RecordLookup([], RecordMachine(), {"kernel16": ["MatMul_4"]}, [shipped])
    assert reason(found, 16) == "it was never tuned"
    for one in kernel_trials(16, best=1e-6):
        append_trial(shipped, one)
    assert find(RecordLookup([], RecordMachine(), {}, [shipped]), 16).seconds == 1e-6


def test_a_template_that_was_decided_otherwise(tmp_path):
    traces = [decided_trace(8, rows=8), decided_trace(8, rows=1, columns=8)]
    records = [record(8, 2e-6, trace=traces[0]), record(8, 1e-6, trace=traces[1])]
    write_database(tmp_path, [stored(8)], records)
    assert dict(find(lookup(tmp_path), 8).decisions) == {"rows": 1, "columns": 8}
