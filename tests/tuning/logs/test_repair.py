"""Repair of damaged folders: what is usable stays, the rest is named, and plain TVM opens it."""

import base64
import json

import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from record_folders import (
    OTHER_TARGET,
    contents,
    cut_end,
    decided_trace,
    failed_trial,
    hash_of,
    insert_line,
    lines_of,
    matmul,
    opened,
    record,
    side_lines,
    split_trace,
    standard_records,
    stored,
    trial,
    write_folder,
    write_lines,
)
from tvm.s_tir import meta_schedule as ms

from tvm_ext.configs.errors import RecordsError
from tvm_ext.tuning.logs.database_files import RECORDS, WORKLOADS, read_database, write_database
from tvm_ext.tuning.logs.record_folder import repair_folder
from tvm_ext.tuning.logs.trial_log import FORMAT, TRIALS, append_trial, read_trials


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "records")


def test_nothing_bad_is_not_written_to(folder):
    before = contents(folder)
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert repair_folder(folder) == []
    assert contents(folder) == before
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == times
    assert opened(folder) == standard_records()


def test_a_folder_without_files_stays_empty(tmp_path):
    assert repair_folder(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_are_no_text_go_aside(folder):
    with (folder / RECORDS).open("ab") as file:
        file.write(b"\xff\xfe\x00\x80 \xc3\x28\n")
    (problem,) = repair_folder(folder)
    assert problem.line == 5
    assert opened(folder) == standard_records()


@pytest.mark.parametrize("name", [TRIALS, WORKLOADS, RECORDS])
def test_a_cut_last_line_is_named(folder, name):
    last = len(lines_of(folder, name))
    cut_end(folder / name)
    problems = repair_folder(folder)
    assert (problems[0].file, problems[0].line) == (folder / name, last)
    assert problems[0].reason.startswith("cut off: not JSON")
    assert side_lines(folder / name)[0]["line"] == last
    assert len(read_trials(folder).trials) == 8 - (name == TRIALS)
    assert len(opened(folder)) == {TRIALS: 4, WORKLOADS: 2, RECORDS: 3}[name]
    assert repair_folder(folder) == []


@pytest.mark.parametrize("name", [TRIALS, WORKLOADS, RECORDS])
def test_only_the_last_line_break_is_missing(folder, name):
    """TVM would join what it adds to the last line; nothing is lost yet."""
    before = contents(folder)
    cut_end(folder / name, 1)
    assert repair_folder(folder) == []
    assert contents(folder) == before


BAD_WORKLOADS = {
    "words": "no workload",
    "nothing": "",
    "another list": json.dumps([1, 2, 3]),
    "no base64": json.dumps(["1", "!!!"]),
    "no module": json.dumps(["1", base64.b64encode(b'{"nodes": []}').decode()]),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", BAD_WORKLOADS)
def test_records_of_a_bad_workload_go_and_others_follow_theirs(tmp_path, name):
    folder = write_folder(tmp_path / "records", (8, 4, 6), best={8: 1e-6, 4: 2e-6, 6: 2.5e-6})
    lines = lines_of(folder, WORKLOADS)
    write_lines(folder, WORKLOADS, [lines[0], BAD_WORKLOADS[name], lines[2]])
    problems = repair_folder(folder)
    assert [(p.file.name, p.line) for p in problems] == [
        (WORKLOADS, 2),
        (RECORDS, 3),
        (RECORDS, 4),
    ]
    assert "line 2 of database_workload.json, cannot be read" in problems[1].reason
    assert lines_of(folder, WORKLOADS) == [lines[0], lines[2]]
    assert opened(folder) == sorted(
        (hash_of(size), seconds, "x86-64-v3")
        for size, seconds in [(8, 3e-6), (8, 1e-6), (6, 3e-6), (6, 2.5e-6)]
    )


def test_a_workload_of_another_version_of_tvm_goes_aside(folder):
    name, text = json.loads(lines_of(folder, WORKLOADS)[1])
    older = base64.b64decode(text).replace(b"tirx.", b"tir.")
    lines = [
        lines_of(folder, WORKLOADS)[0],
        json.dumps([name, base64.b64encode(older).decode()]),
    ]
    write_lines(folder, WORKLOADS, lines)
    problems = repair_folder(folder)
    assert [(p.file.name, p.line) for p in problems] == [
        (WORKLOADS, 2),
        (RECORDS, 3),
        (RECORDS, 4),
    ]
    assert "no module that this TVM reads" in problems[0].reason
    assert {kernel for kernel, _, _ in opened(folder)} == {hash_of(8)}
    assert side_lines(folder / WORKLOADS)[0]["text"] == lines[1]


def test_a_workload_that_is_there_twice_is_joined(folder):
    """TVM counts different workloads to number what it adds: with a line too many it is wrong."""
    first, second = lines_of(folder, WORKLOADS)
    write_lines(folder, WORKLOADS, [first, first, second])
    bodies = [json.loads(line)[1] for line in lines_of(folder, RECORDS)]
    numbers = [0, 1, 2, 2]
    moved = zip(numbers, bodies, strict=True)
    write_lines(folder, RECORDS, [json.dumps(line) for line in moved])
    (problem,) = repair_folder(folder)
    assert (problem.line, problem.reason) == (2, "the same workload as line 1")
    assert lines_of(folder, WORKLOADS) == [first, second]
    assert opened(folder) == standard_records()
    add_with_tvm(folder, 6)
    assert (hash_of(6), 5e-6, "x86-64-v3") in opened(folder)


def add_with_tvm(folder, size):
    """A record added by plain TVM."""
    database = ms.database.JSONDatabase(work_dir=str(folder))
    kept = database.commit_workload(matmul(size))
    body = record(size, 5e-6).body
    database.commit_tuning_record(ms.database.TuningRecord.from_json(body, kept))


def test_a_missing_workload_file_makes_all_records_bad(folder):
    (folder / WORKLOADS).unlink()
    problems = repair_folder(folder)
    assert [problem.line for problem in problems] == [1, 2, 3, 4]
    assert "does not exist: there are 0" in problems[0].reason
    assert opened(folder) == []
    assert len(side_lines(folder / RECORDS)) == 4


def test_side_files_grow(folder):
    for words in ("first", "second"):
        insert_line(folder, RECORDS, 2, words)
        repair_folder(folder)
    assert [line["text"] for line in side_lines(folder / RECORDS)] == ["first", "second"]


def test_bad_lines_of_the_log(folder):
    good = lines_of(folder, TRIALS)
    newer = json.dumps({**json.loads(good[0]), "format": FORMAT + 1, "color": "blue"})
    lacking = json.dumps({"format": 1, "run": "x"})
    no_number = good[1].replace('"spread":0.01', '"spread":NaN')
    bad = ["", newer, "\x00\x01", "[1]", lacking, no_number, '{"format":"one"}']
    write_lines(folder, TRIALS, [*good[:2], *bad, *good[2:]])
    problems = repair_folder(folder)
    assert [problem.line for problem in problems] == [5, 6, 7, 8, 9]
    reasons = [problem.reason for problem in problems]
    for words, reason in zip(
        ["not JSON", "not an object", "key 'kernel'", "NaN", "format 'one'"], reasons, strict=True
    ):
        assert words in reason
    assert lines_of(folder, TRIALS) == [*good[:2], newer, *good[2:]]
    assert repair_folder(folder) == []


def test_lines_of_a_newer_version_are_reported_but_not_moved(folder):
    newer = json.dumps({"format": 3})
    insert_line(folder, TRIALS, 4, newer)
    before = contents(folder)
    assert repair_folder(folder) == []
    assert contents(folder) == before
    (problem,) = read_trials(folder).problems
    assert problem.line == 4
    assert "newer tvm-ext" in problem.reason


def test_records_of_other_targets_are_good(folder):
    files = read_database(folder)
    theirs = [record(8, 7e-6, OTHER_TARGET), record(4, 8e-6, OTHER_TARGET)]
    write_database(folder, files.workloads.values(), [*files.records, *theirs])
    insert_line(folder, RECORDS, 5, "garbage")
    assert len(repair_folder(folder)) == 1
    assert {(seconds, cpu) for _, seconds, cpu in opened(folder)} >= {
        (7e-6, "skylake-avx512"),
        (8e-6, "skylake-avx512"),
    }


def test_traces_that_change_layouts_are_good(tmp_path):
    """Their padding is a null, and TVM's own writer of records refuses their index maps."""
    sch = tvm.s_tir.Schedule(matmul(8))
    sch.transform_layout(sch.get_sblock("product"), ("write", 0), lambda i, j: (j, i))
    write_database(tmp_path, [stored(8)], [record(8, trace=sch.trace)])
    before = contents(tmp_path)
    assert repair_folder(tmp_path) == []
    assert contents(tmp_path) == before
    assert len(opened(tmp_path)) == 1


def test_what_is_no_file_is_refused(folder):
    (folder / RECORDS).unlink()
    (folder / RECORDS).mkdir()
    with pytest.raises(RecordsError, match="cannot read"):
        repair_folder(folder)


@pytest.mark.extended
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_line_may_be_cut_or_replaced(tmp_path, data):
    """Lines that were not touched are the ones that stay, of the log and of the records."""
    folder = tmp_path / "records"
    write_database(folder_made(folder), [stored(8), stored(4)], some_records())
    (folder / TRIALS).unlink(missing_ok=True)
    for number in range(4):
        append_trial(folder, failed_trial(8, "run", f"{number:016x}"))
    for name in (TRIALS, RECORDS):
        lines = (folder / name).read_bytes().split(b"\n")[:-1]
        touched = data.draw(st.sets(st.integers(0, len(lines) - 1)), label=f"touched in {name}")
        for number in touched:
            line = lines[number]
            garbage = st.binary(max_size=30).filter(lambda text: b"\n" not in text)
            lines[number] = data.draw(
                st.integers(0, len(line) - 1).map(lambda end, line=line: line[:end]) | garbage
            )
        kept = [line for number, line in enumerate(lines) if number not in touched]
        (folder / name).write_bytes(b"\n".join(lines) + b"\n" * data.draw(st.integers(0, 1)))
        problems = repair_folder(folder)
        assert {problem.line - 1 for problem in problems} <= touched
        left = (folder / name).read_bytes().split(b"\n")
        # An empty line of the log does no harm, and stays when nothing else is wrong.
        assert [line for line in left if line.decode("utf-8", "replace").strip()] == kept
    assert repair_folder(folder) == []
    assert len(opened(folder)) == len(read_database(folder).records)


def folder_made(folder):
    folder.mkdir(exist_ok=True)
    return folder


def some_records():
    return [
        record(8, 1e-6),
        record(4, 2e-6, trace=split_trace(4, 4)),
        record(8, 3e-6, OTHER_TARGET, decided_trace(8, rows=8)),
    ]


def test_a_trial_is_the_same_after_it_was_written_and_read(tmp_path):
    one = trial(8, kernel_name="größe\n\u2028 \x1b[31m", message='"quoted" \\u0041')
    append_trial(tmp_path, one)
    assert read_trials(tmp_path).trials == [one]
    assert repair_folder(tmp_path) == []
