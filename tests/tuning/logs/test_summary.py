"""What a folder says about each kernel: trials first, records where there are none."""

import pytest
from record_folders import (
    OTHER_TARGET,
    decided_trace,
    failed_trial,
    hash_of,
    kernel_trials,
    record,
    split_trace,
    stored,
    trial,
    write_folder,
)

from tvm_ext.configs.errors import RecordsError
from tvm_ext.tuning.candidate import plain_json
from tvm_ext.tuning.logs.database_files import append_record, write_database
from tvm_ext.tuning.logs.record_folder import read_folder
from tvm_ext.tuning.logs.summary import best_schedules, chosen_summaries, summaries
from tvm_ext.tuning.logs.trial_log import append_trial


def test_trials_of_a_kernel(tmp_path):
    folder = write_folder(tmp_path, (8, 4), best={8: 1e-6, 4: 2e-6})
    first, second = summaries(read_folder(folder))
    assert (first.name, second.name) == ("matmul8", "matmul4")
    assert first.origins == ["MatMul_8", "MatMul_8_again"]
    assert (first.trials, first.failed, first.records) == (4, {"wrong": 1}, 2)
    measured = second.measured
    assert (measured.default_seconds, measured.best_seconds) == (3e-6, 2e-6)
    assert measured.gain == pytest.approx(1.5)
    assert measured.schedule == "register tile (rows=4, columns=2)"
    assert measured.is_confirmed
    assert second.modelled.best_seconds is None


def test_targets_are_apart(tmp_path):
    folder = write_folder(tmp_path, (8,))
    append_trial(folder, trial(8, OTHER_TARGET, seconds=9e-6, is_default=True))
    here, there = summaries(read_folder(folder))
    assert here.measured.best_seconds == 1e-6
    assert there.measured.best_seconds == 9e-6
    assert there.measured.gain == 1.0
    assert here.key != there.key


def test_modelled_times_never_stand_for_measured_ones(tmp_path):
    folder = write_folder(tmp_path, (8,))
    append_trial(folder, trial(8, status="modelled", seconds=1e-9, candidate="f" * 16))
    append_trial(
        folder, trial(8, status="modelled", seconds=4e-9, candidate="e" * 16, is_default=True)
    )
    (found,) = summaries(read_folder(folder))
    assert found.measured.best_seconds == 1e-6
    assert (found.modelled.default_seconds, found.modelled.best_seconds) == (4e-9, 1e-9)
    assert found.modelled.gain == pytest.approx(4)
    assert found.failed == {"wrong": 1}


def modelled_folder(folder):
    """A default and a better schedule, as a model answers for them, with their records."""
    folder.mkdir()
    traces = {3e-9: split_trace(8), 2e-9: decided_trace(8, rows=4)}
    for number, (seconds, trace) in enumerate(traces.items()):
        one = trial(8, status="modelled", seconds=seconds, candidate=f"{number:016x}")
        written = {"trace": plain_json(trace.as_json()), "is_default": number == 0}
        append_trial(folder, one.model_copy(update=written))
    records = [record(8, seconds, trace=trace) for seconds, trace in traces.items()]
    write_database(folder, [stored(8)], records)
    return folder


def test_records_of_a_model_are_no_measured_times(tmp_path):
    folder = modelled_folder(tmp_path / "model")
    (found,) = summaries(read_folder(folder))
    assert found.is_modelled
    assert found.measured.best_seconds is None
    assert (found.times.default_seconds, found.times.best_seconds) == (3e-9, 2e-9)
    (best,) = best_schedules(read_folder(folder))
    assert (best.recorded.seconds, best.is_modelled) == (2e-9, True)
    # Measured by somebody else, without a log: it counts, and nothing is left of the model.
    append_record(folder, 0, record(8, 5e-3, trace=decided_trace(8, rows=2)))
    (found,) = summaries(read_folder(folder))
    assert not found.is_modelled
    assert (found.times.default_seconds, found.times.best_seconds) == (None, 5e-3)
    (best,) = best_schedules(read_folder(folder))
    assert (best.recorded.seconds, best.is_modelled) == (5e-3, False)


def test_a_kernel_that_only_failed(tmp_path):
    for number, status in enumerate(["build", "run", "timeout", "wrong", "build"]):
        append_trial(tmp_path, failed_trial(8, status, f"{number:016x}"))
    (found,) = summaries(read_folder(tmp_path))
    assert found.failed == {"build": 2, "run": 1, "timeout": 1, "wrong": 1}
    assert found.measured.best_seconds is None
    assert found.to_json()["measured"]["gain"] is None


def test_records_alone(tmp_path):
    """A folder of plain MetaSchedule."""
    body = record(8, 2e-6)
    body.body[1] = [1e-6, 2e-6, 3e-6]
    write_database(tmp_path, [stored(8)], [body])
    (found,) = summaries(read_folder(tmp_path))
    assert (found.name, found.kernel, found.trials) == (hash_of(8), hash_of(8), 0)
    assert found.measured.best_seconds == pytest.approx(2e-6)
    assert found.measured.spread == pytest.approx(0.5)
    assert found.measured.default_seconds is None


def test_a_repeated_line_counts_once(tmp_path):
    for one in [*kernel_trials(8), *kernel_trials(8)]:
        append_trial(tmp_path, one)
    (found,) = summaries(read_folder(tmp_path))
    assert found.trials == 4


def test_filters(tmp_path):
    folder = write_folder(tmp_path, (8, 4))
    append_trial(folder, trial(8, OTHER_TARGET))
    records = read_folder(folder)

    def names(**asked):
        return [one.name for one in chosen_summaries(records, **asked)]

    assert names() == ["matmul8", "matmul4", "matmul8"]
    assert names(target="skylake") == ["matmul8"]
    assert names(kernel="MATMUL4") == ["matmul4"]
    assert names(kernel="MatMul_8_again") == ["matmul8", "matmul8"]
    assert names(kernel=hash_of(4)) == ["matmul4"]
    with pytest.raises(RecordsError, match=r"target 'cray' and kernel 'x'.*x86-64-v3, 2 cores"):
        names(target="cray", kernel="x")


def test_a_missing_folder_and_one_without_records(tmp_path):
    with pytest.raises(RecordsError, match="does not exist"):
        read_folder(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(RecordsError, match="it is a file"):
        read_folder(tmp_path / "file")
    with pytest.raises(RecordsError, match=r"at least one of trials\.jsonl"):
        read_folder(tmp_path)
