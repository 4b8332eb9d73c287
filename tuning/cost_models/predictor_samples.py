"""Samples for the performance predictor, made anew from the trials of a folder of records."""

from collections.abc import Iterator
from pathlib import Path

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tuning.candidate import Candidate, Finish, candidate_again
from tvm_ext.tuning.cost_models.performance_predictor import Sample
from tvm_ext.tuning.database_files import read_database
from tvm_ext.tuning.loop_features import loop_features
from tvm_ext.tuning.record_choice import standings
from tvm_ext.tuning.target_key import target_key
from tvm_ext.tuning.task import KernelTask
from tvm_ext.tuning.trial import Trial
from tvm_ext.tuning.trial_log import read_trials


def samples_of(folder: Path, machine: CpuDescription, finish: Finish) -> list[Sample]:
    """One sample for each candidate that was measured for the target of ``machine``.

    Left out are trials whose trace leads to other loops by now, or to none.
    """
    return [
        Sample(loop_features(made.mod, machine), seconds, made.task.hash, made.hash)
        for made, seconds in measured_candidates(folder, machine, finish)
    ]


def measured_candidates(
    folder: Path, machine: CpuDescription, finish: Finish
) -> Iterator[tuple[Candidate, float]]:
    """Candidates of a folder's trials, scheduled again, with their seconds; see ``samples_of``."""
    workloads = read_database(folder).workloads
    key = target_key(dict(machine.tvm_target().export()))
    trials: dict[str, list[Trial]] = {}
    for trial in read_trials(folder).trials:
        if target_key(trial.target) == key and trial.kernel in workloads:
            trials.setdefault(trial.kernel, []).append(trial)
    for kernel, own in trials.items():
        mod = workloads[kernel].mod
        task = KernelTask(own[0].kernel_name, mod["main"], mod, kernel)
        for standing in standings(own).values():
            trial = standing.trial
            made = candidate_again(task, trial.trace, trial.candidate, machine, finish)
            if made is not None:
                yield made, standing.seconds
