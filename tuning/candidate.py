"""One way to schedule a kernel, with the loops it leads to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import meta_schedule as ms

from tvm_ext.tir_schedules.apply_template import ScheduledKernel
from tvm_ext.tir_schedules.kernel_identity import kernel_hash
from tvm_ext.tir_schedules.packing import Packed
from tvm_ext.tir_schedules.recorded_schedule import (
    RecordedSchedule,
    recorded_schedule,
    schedule_as_recorded,
)
from tvm_ext.tir_schedules.template import Machine, NotMine
from tvm_ext.tuning.search.traces import trace_from_json
from tvm_ext.tuning.task import KernelTask

Finish = Callable[[tvm.IRModule], tvm.IRModule]
"""What happens to kernels between their schedule and code generation."""


@dataclass(frozen=True)
class Candidate:
    """A kernel scheduled in one of the ways that a search proposes.

    Attributes
    ----------
    task : KernelTask
        The kernel.
    recorded : RecordedSchedule
        How it is scheduled.
    mod : tvm.IRModule
        The scheduled kernel, named "main", ready for code generation.
    packed : PackedOperand, PaddedOperand or None
        The constant parameter that it expects packed.
    hash : str
        Equal for equal loops, however they came about.
    """

    task: KernelTask
    recorded: RecordedSchedule
    mod: tvm.IRModule
    packed: Packed | None
    hash: str

    @property
    def trace_json(self) -> Any:
        """The trace in MetaSchedule's form, as values of JSON."""
        return plain_json(self.recorded.trace.as_json())

    def measure_candidate(self) -> ms.MeasureCandidate:
        """The scheduled kernel as MetaSchedule's feature extractors and models take it."""
        # Loops that are final need not be in the form that primitives can go on from.
        return self._as_measured(s_tir.Schedule(self.mod, enable_check=False))

    def traced(self) -> ms.MeasureCandidate:
        """The unscheduled kernel with the trace applied to it, as a database holds it."""
        sch = s_tir.Schedule(self.task.workload)
        self.recorded.trace.apply_to_schedule(sch, remove_postproc=False)
        return self._as_measured(sch)

    def _as_measured(self, sch: s_tir.Schedule) -> ms.MeasureCandidate:
        args = ms.arg_info.ArgInfo.from_entry_func(self.task.workload, remove_preproc=True)
        return ms.MeasureCandidate(sch, args)


def candidate_of(
    task: KernelTask,
    trace: s_tir.schedule.Trace,
    machine: Machine,
    finish: Finish,
) -> Candidate | NotMine:
    """What a trace makes of the kernel, or why it makes nothing."""
    try:
        recorded = recorded_schedule(task.workload, trace)
    except s_tir.ScheduleError:
        return NotMine("a primitive of the trace does not apply")
    scheduled = schedule_as_recorded(task.workload["main"], machine, recorded)
    if isinstance(scheduled, NotMine):
        return scheduled
    return candidate(task, recorded, scheduled, finish)


def candidate_again(
    task: KernelTask, trace: Any, candidate: str, machine: Machine, finish: Finish
) -> Candidate | None:
    """What a log's trace makes of the kernel; None where it leads to other loops by now.

    ``trace`` is as the log keeps it, ``candidate`` the hash of the loops that it led to.
    """
    read = trace_from_json(trace, task.workload)
    found = candidate_of(task, read, machine, finish) if read is not None else None
    return found if isinstance(found, Candidate) and found.hash == candidate else None


def candidate(
    task: KernelTask, recorded: RecordedSchedule, scheduled: ScheduledKernel, finish: Finish
) -> Candidate:
    """The candidate for a kernel that is scheduled already."""
    func = scheduled.func.with_attr("global_symbol", "main")
    mod = finish(tvm.IRModule({"main": func}))
    return Candidate(task, recorded, mod, scheduled.packed, kernel_hash(mod))


def plain_json(value: Any) -> Any:
    """TVM's containers as lists, dictionaries, numbers and text."""
    if isinstance(value, (str, bool, int, float)) or value is None:
        return value
    if isinstance(value, (tirx.IntImm, tirx.FloatImm)):
        return value.value
    if hasattr(value, "items"):
        return {str(key): plain_json(item) for key, item in value.items()}
    if hasattr(value, "__iter__"):
        return [plain_json(item) for item in value]
    raise TypeError(f"no JSON for a {type(value).__name__}")
