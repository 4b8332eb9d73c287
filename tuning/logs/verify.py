"""Builds the best records again, checks their numbers, and times them beside the defaults."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm

from tvm_ext.configs.errors import NotApplicable, TargetError
from tvm_ext.configs.progress import tell
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tuning.backend import tuning_of
from tvm_ext.tuning.candidate import Finish, candidate_of, kernel_task, refusal
from tvm_ext.tuning.jobs import TimingPlan
from tvm_ext.tuning.logs.database_files import target_key
from tvm_ext.tuning.logs.record_folder import Records
from tvm_ext.tuning.logs.summary import BestSchedule, best_schedules
from tvm_ext.tuning.measurer import Measurement, Measurer
from tvm_ext.tuning.search import TemplateSpace
from tvm_ext.tuning.session_options import Limits

OTHER_MACHINE = "not for this machine"
# A record that is slower than the default by less may be as fast.
_NOISE = 0.9


@dataclass(frozen=True)
class Verified:
    """How one record did.

    Attributes
    ----------
    best : BestSchedule
        The record.
    status : str
        "ok", "slower" (than the default, by more than noise), "wrong" (numbers), "resources" (more
        than a GPU has), "build" (no code), "run" (it failed), "timeout", or ``OTHER_MACHINE``.
    message : str
        What happened, when the status is not "ok".
    seconds, default_seconds : float or None
        Of one call with the record and with the default schedule: the median, and ``gain`` times
        as much.
    gain : float or None
        How many times as fast as the default the record is: the median over turns, in each of
        which both were timed.
    """

    best: BestSchedule
    status: str
    message: str = ""
    seconds: float | None = None
    default_seconds: float | None = None
    gain: float | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the record should work here and does not."""
        return self.status not in ("ok", OTHER_MACHINE)

    def to_json(self) -> dict[str, Any]:
        """The result as values of JSON."""
        return {
            "kernel": self.best.kernel,
            "name": self.best.name,
            "schedule": self.best.recorded.describe(),
            "status": self.status,
            "message": self.message,
            "seconds": self.seconds,
            "default_seconds": self.default_seconds,
            "gain": self.gain,
            "recorded_seconds": self.best.recorded.seconds,
            "recorded_is_modelled": self.best.is_modelled,
        }


def as_it_is(mod: tvm.IRModule) -> tvm.IRModule:
    """The finish that changes nothing."""
    return mod


def verify_records(
    records: Records,
    machine: MachineDescription,
    finish: Finish = as_it_is,
    limits: Limits | None = None,
    plan: TimingPlan | None = None,
) -> Iterator[Verified]:
    """Yields each of the best records when it has been verified.

    Parameters
    ----------
    records : Records
        The folder.
    machine : MachineDescription
        This machine. Records for other targets are only named.
    finish : Finish
        What happens to kernels between their schedule and code generation.
    limits : Limits, optional
        What one record may take.
    plan : TimingPlan, optional
        How long to time.

    Raises
    ------
    TargetError
        ``machine`` is a mesh.
    TuningError
        This machine does not run its code.
    """
    tuning = tuning_of(machine)
    if tuning.is_modelled:
        raise TargetError(
            f"records cannot be verified on target '{machine.name}', a mesh; expected a CPU or a "
            "GPU: choose this machine (--target cpu)"
        )
    wanted = target_key(dict(machine.tvm_target().export()))
    mine = []
    for one in best_schedules(records):
        if target_key(one.target) == wanted:
            mine.append(one)
        else:
            yield Verified(one, OTHER_MACHINE)
    if not mine:
        return
    tuning.check_machine(machine, ())
    with Measurer(machine, limits, plan) as measurer:
        for number, one in enumerate(mine, start=1):
            tell(f"record {number} of {len(mine)}")
            yield _verified(one, records, machine, finish, measurer)


def _verified(
    best: BestSchedule,
    records: Records,
    machine: MachineDescription,
    finish: Finish,
    measurer: Measurer,
) -> Verified:
    mod = records.files.workloads[best.kernel].mod
    if [name.name_hint for name in mod.get_global_vars()] != ["main"]:
        return Verified(best, "build", "its workload is not one kernel named 'main'")
    task = kernel_task(best.name, mod["main"], origins=best.origins, nominal=best.nominal)
    reason = refusal(task)
    if reason:
        return Verified(best, "build", reason)
    candidate = candidate_of(task, best.recorded.trace, machine, finish)
    if isinstance(candidate, NotApplicable):
        return Verified(best, "build", candidate.reason)
    default = TemplateSpace(task, machine, finish).default_candidate()
    try:
        reason = measurer.prepare([default or candidate]).get(task.hash, "")
        if reason:
            return Verified(best, "build", reason)
        (measured,) = measurer.measure([candidate])
    finally:
        measurer.forget(task)
    return judged(best, measured, default is not None)


def judged(best: BestSchedule, measured: Measurement, has_default: bool) -> Verified:
    """What a measurement says of a record."""
    if measured.status != "ok":
        return Verified(best, measured.status, measured.message)
    ours, theirs = measured.timing.seconds, measured.timing.reference_seconds
    seconds = statistics.median(ours)
    if not has_default:
        return Verified(best, "ok", seconds=seconds)
    gain = statistics.median(other / mine for mine, other in zip(ours, theirs, strict=True))
    times = (seconds, gain * seconds, gain)
    if gain < _NOISE:
        return Verified(best, "slower", "the default is faster here: tune again", *times)
    return Verified(best, "ok", "", *times)
