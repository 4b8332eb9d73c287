"""Joined folders hold everything once, and plain TVM opens them."""

import json

import pytest
from record_folders import (
    OTHER_TARGET,
    contents,
    decided_trace,
    hash_of,
    insert_line,
    kernel_trials,
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
from tvm_ext.tuning.logs.lines import LOCK, locked
from tvm_ext.tuning.logs.merge import merge_folders
from tvm_ext.tuning.logs.record_folder import side_file
from tvm_ext.tuning.logs.trial_log import TRIALS, append_trial, read_trials


@pytest.fixture
def first(tmp_path):
    return write_folder(tmp_path / "first", (8, 4), best={8: 1e-6, 4: 2e-6})


@pytest.fixture
def second(tmp_path):
    """Kernels in another order, one new one, and other times."""

    def trials(size, best):
        return [one.model_copy(update={"run": "session2"}) for one in kernel_trials(size, best)]

    times = {6: 6e-6, 4: 4e-6, 8: 8e-6}
    return write_folder(tmp_path / "second", (6, 4, 8), times, trials)


def expected(*triples):
    return sorted((hash_of(size), seconds, "x86-64-v3") for size, seconds in triples)


# The records of 3e-6 seconds are the same in both.
JOINED = [(8, 3e-6), (8, 1e-6), (4, 3e-6), (4, 2e-6), (6, 3e-6), (6, 6e-6), (4, 4e-6), (8, 8e-6)]


@pytest.mark.extended
def test_records_follow_their_workloads(first, second, tmp_path):
    before = contents(first), contents(second)
    merged = merge_folders([first, second], tmp_path / "both")
    assert opened(tmp_path / "both") == expected(*JOINED)
    assert (merged.trials, merged.workloads, merged.records) == (20, 3, 8)
    assert (merged.repeated_trials, merged.repeated_records) == (0, 2)
    assert merged.problems == []
    assert (contents(first), contents(second)) == before


@pytest.mark.extended
@pytest.mark.parametrize("place", ["first", "second"])
def test_the_result_may_be_one_of_them(first, second, place, request):
    result = request.getfixturevalue(place)
    merged = merge_folders([first, second], result)
    assert opened(result) == expected(*JOINED)
    assert merged.trials == len(read_trials(result).trials) == 20
    # Its own workloads kept their lines.
    kept = [hash_of(size) for size in ((8, 4) if place == "first" else (6, 4, 8))]
    assert list(read_database(result).workloads)[: len(kept)] == kept


@pytest.mark.extended
def test_merging_again_changes_nothing(first, second, tmp_path):
    both = tmp_path / "both"
    merge_folders([first, second], both)
    before = contents(both)
    merged = merge_folders([both, first, second, both], both)
    assert contents(both) == before
    assert (merged.repeated_trials, merged.repeated_records) == (20, 10)


def test_a_trial_is_the_same_by_session_candidate_purpose_and_time(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        append_trial(folder, trial(8))
    # The same line with its keys in another order.
    text = json.dumps(json.loads(lines_of(one, TRIALS)[0]), sort_keys=True)
    (two / TRIALS).write_text(text + "\n")
    for changes in (
        {"run": "other"},
        {"candidate": "f" * 16},
        {"purpose": "confirm"},
        {"time": "2027-01-01T00:00:00+00:00"},
    ):
        append_trial(two, trial(8, **changes))
    merged = merge_folders([one, two], tmp_path / "both")
    assert (merged.trials, merged.repeated_trials) == (5, 1)


def test_targets_stay_apart(first, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    write_database(there, [stored(8)], [record(8, 1e-6, OTHER_TARGET)])
    merge_folders([first, there], tmp_path / "both")
    assert (hash_of(8), 1e-6, "skylake-avx512") in opened(tmp_path / "both")
    assert len(opened(tmp_path / "both")) == 5


@pytest.mark.extended
def test_records_of_a_model_do_not_come_beside_measured_ones(first, tmp_path):
    """Their trials stay in the log."""

    def trials(size, best):
        trace = plain_json(decided_trace(size, rows=4, columns=2).as_json())
        return [trial(size, status="modelled", seconds=best, run="model", trace=trace)]

    model = write_folder(tmp_path / "model", (8, 6), {8: 1e-9, 6: 2e-9}, trials)
    merged = merge_folders([first, model], tmp_path / "both")
    assert opened(tmp_path / "both") == expected(
        *((8, 3e-6), (8, 1e-6), (4, 3e-6), (4, 2e-6), (6, 3e-6)),
    )
    assert merged.modelled_records == 2
    assert merged.records == 5
    assert [t.run for t in read_trials(tmp_path / "both").trials].count("model") == 2
    # The one that MetaSchedule measured goes; the model alone stands for the kernel.
    alone = read_database(model)
    write_database(
        model, alone.workloads.values(), [one for one in alone.records if one.seconds < 1e-6]
    )
    merge_folders([first, model], tmp_path / "again")
    assert (hash_of(6), 2e-9, "x86-64-v3") in opened(tmp_path / "again")
    assert (hash_of(8), 1e-9, "x86-64-v3") not in opened(tmp_path / "again")


@pytest.mark.extended
def test_damage_is_left_out_and_named(first, second, tmp_path):
    insert_line(first, TRIALS, 2, "garbage")
    newer = json.dumps({"format": 9})
    insert_line(second, TRIALS, 1, newer)
    insert_line(second, RECORDS, 3, '[0,[[[["Juggle",[],[],[]]],[]],[1.0],{"kind":"llvm"},null]]')
    insert_line(second, WORKLOADS, 1, "")
    merged = merge_folders([first, second], tmp_path / "both")
    # The empty line moved the workloads by one: what pointed at line 1 points at nothing now, and
    # the rest at others, to which the notes of a template apply as well.
    named = {(p.file.parent.name, p.file.name, p.line) for p in merged.problems}
    assert {
        ("first", TRIALS, 2),
        ("second", TRIALS, 1),
        ("second", WORKLOADS, 1),
        ("second", RECORDS, 3),
    } <= named
    assert newer in lines_of(tmp_path / "both", TRIALS)
    assert "garbage" not in lines_of(tmp_path / "both", TRIALS)
    assert opened(tmp_path / "both")


def test_bad_lines_of_the_result_itself_go_aside(first, second):
    insert_line(first, RECORDS, 1, "garbage")
    merged = merge_folders([first, second], first)
    assert [problem.line for problem in merged.problems] == [1]
    assert "garbage" in side_file(first / RECORDS).read_text()
    assert opened(first) == expected(*JOINED)


def test_another_folder_of_records_is_not_written_over(first, second, tmp_path):
    other = write_folder(tmp_path / "other", (8,))
    before = contents(other)
    with pytest.raises(RecordsError, match="holds records already"):
        merge_folders([first, second], other)
    assert contents(other) == before


def test_a_source_without_records_is_refused_before_anything_is_written(first, tmp_path):
    with pytest.raises(RecordsError, match="does not exist"):
        merge_folders([first, tmp_path / "missing"], tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_a_folder_that_a_session_writes_to_is_left_alone(first, second):
    before = contents(first)
    with locked(first), pytest.raises(RecordsError, match="another session"):
        merge_folders([first, second], first)
    assert {k: v for k, v in contents(first).items() if k != LOCK} == before
