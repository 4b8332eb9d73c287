"""Differences of two folders: beyond noise, within it, and kernels of only one of them."""

import json

import pytest
from record_folders import OTHER_TARGET, kernel_trials, record, stored, trial, write_folder

from tvm_ext.tuning.logs.database_files import write_database
from tvm_ext.tuning.logs.diff import diff_records, difference_json
from tvm_ext.tuning.logs.record_folder import read_folder
from tvm_ext.tuning.logs.trial_log import append_trial


def with_spread(spread):
    def trials(size, best):
        return [one.model_copy(update={"spread": spread}) for one in kernel_trials(size, best)]

    return trials


def verdicts(before, after):
    found = diff_records(read_folder(before), read_folder(after))
    return {one.summary.name: one.verdict for one in found}


@pytest.mark.parametrize(
    ("seconds", "spreads", "verdict"),
    [
        (1e-6, (0, 0), "equal"),
        (1.029e-6, (0, 0), "equal"),
        (1.031e-6, (0, 0), "slower"),
        (0.971e-6, (0, 0), "equal"),
        (0.969e-6, (0, 0), "faster"),
        (1.09e-6, (0.1, 0.01), "equal"),
        (1.09e-6, (0.01, 0.1), "equal"),
        (1.11e-6, (0.01, 0.1), "slower"),
        (0.5e-6, (0.2, 0.2), "faster"),
    ],
)
def test_a_change_counts_beyond_noise(tmp_path, seconds, spreads, verdict):
    before = write_folder(tmp_path / "a", (8,), 1e-6, with_spread(spreads[0]))
    after = write_folder(tmp_path / "b", (8,), seconds, with_spread(spreads[1]))
    (found,) = diff_records(read_folder(before), read_folder(after))
    assert found.verdict == verdict
    assert found.change == pytest.approx(seconds / 1e-6 - 1)
    assert found.noise == pytest.approx(max(0.03, *spreads))
    assert json.loads(json.dumps(difference_json(found)))["verdict"] == verdict


def test_kernels_of_only_one(tmp_path):
    before = write_folder(tmp_path / "a", (8, 4))
    after = write_folder(tmp_path / "b", (4, 6))
    assert verdicts(before, after) == {
        "matmul8": "only before",
        "matmul4": "equal",
        "matmul6": "only after",
    }


def test_the_same_kernel_on_another_target_is_another_entry(tmp_path):
    before, after = write_folder(tmp_path / "a", (8,)), tmp_path / "b"
    after.mkdir()
    append_trial(after, trial(8, OTHER_TARGET))
    found = diff_records(read_folder(before), read_folder(after))
    assert [one.verdict for one in found] == ["only before", "only after"]


def test_modelled_times_are_not_compared(tmp_path):
    before, after = write_folder(tmp_path / "a", (8,)), tmp_path / "b"
    after.mkdir()
    append_trial(after, trial(8, status="modelled", seconds=1e-9))
    (found,) = diff_records(read_folder(before), read_folder(after))
    assert found.verdict == "not measured"
    assert found.change is None


def test_times_of_a_model_are_compared_with_each_other(tmp_path):
    before, after = tmp_path / "a", tmp_path / "b"
    for folder, seconds in ((before, 2e-9), (after, 1e-9)):
        folder.mkdir()
        append_trial(folder, trial(8, status="modelled", seconds=seconds, spread=0.0))
    (found,) = diff_records(read_folder(before), read_folder(after))
    assert (found.verdict, found.is_modelled) == ("faster", True)
    assert found.change == pytest.approx(-0.5)
    assert difference_json(found)["is_modelled"]


def test_folders_of_plain_metaschedule(tmp_path):
    for name, seconds in (("a", 2e-6), ("b", 1e-6)):
        (tmp_path / name).mkdir()
        write_database(tmp_path / name, [stored(8)], [record(8, seconds)])
    found = verdicts(tmp_path / "a", tmp_path / "b")
    assert list(found.values()) == ["faster"]
