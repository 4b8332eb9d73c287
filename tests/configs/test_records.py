"""Tuned records that ship: readable, for the target that their folder names, and of use."""

from pathlib import Path

import pytest

from tvm_ext.configs.loader import config_folder
from tvm_ext.hardware.backend import get_backend
from tvm_ext.tir_schedules.backend import Scheduling
from tvm_ext.tuning.logs.trial_log import read_trials

FOLDERS = sorted(
    Path(str(one)) for one in config_folder("records").iterdir() if Path(str(one)).is_dir()
)


def test_some_ship():
    assert FOLDERS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_records_are_for_the_folder_s_target(folder):
    log = read_trials(folder)
    assert log.problems == []
    assert log.trials
    names = {template.name for template in get_backend("cpu").part(Scheduling).recordable}
    for trial in log.trials:
        assert f"{trial.target['mcpu']}-{trial.target['num-cores']}" == folder.name
        assert trial.is_measured
        assert not trial.is_default
        assert trial.template in names
        assert (trial.origins, trial.model) == ([], "")
    kernels = [trial.kernel for trial in log.trials]
    assert len(kernels) == len(set(kernels))
