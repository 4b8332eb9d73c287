"""Kernels to tune, and their candidates: each is one way to schedule a kernel, with its loops."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent
from tvm_ext.tir_schedules.apply_template import ScheduledKernel
from tvm_ext.tir_schedules.packing import Packed
from tvm_ext.tir_schedules.recorded_schedule import (
    RecordedSchedule,
    kernel_hash,
    recorded_schedule,
    schedule_as_recorded,
    workload,
)
from tvm_ext.tir_schedules.statements import sizes_at, with_sizes

Arguments: TypeAlias = tuple[tuple[int, ...] | int, ...]
"""What a kernel is called with: shapes of tensors, of its results too, and numbers."""


@dataclass(frozen=True)
class NominalCall:
    """A call of a kernel of dynamic sizes as it is measured.

    Attributes
    ----------
    sizes : mapping of str to int
        The sizes of the model's dimensions, by name.
    arguments : Arguments
        What the kernel gets then.
    """

    sizes: Mapping[str, int]
    arguments: Arguments

    def as_lists(self) -> list[list[int] | int]:
        """The arguments as values of JSON."""
        return [one if isinstance(one, int) else list(one) for one in self.arguments]

    @classmethod
    def from_lists(
        cls, sizes: Mapping[str, int], arguments: Sequence[list[int] | int]
    ) -> "NominalCall":
        """The call whose arguments ``as_lists`` gave."""
        return cls(sizes, tuple(one if isinstance(one, int) else tuple(one) for one in arguments))


@dataclass(frozen=True)
class KernelTask:
    """One kernel, however often the model calls it.

    Attributes
    ----------
    name : str
        Name of the kernel in the program; of the first of several equal ones.
    func : tirx.PrimFunc
        The kernel without a schedule.
    workload : tvm.IRModule
        The same alone, under the name "main": the key of records.
    hash : str
        16 hexadecimal digits that are the same for the same workload in any process.
    calls : int
        Calls in one run of the model.
    origins : tuple[str, ...]
        The model's nodes that it computes, one text a call.
    nominal : tuple[NominalCall, ...]
        Of dynamic sizes: the calls for which it is tuned, all together. Empty for known sizes.
    """

    name: str
    func: tirx.PrimFunc
    workload: tvm.IRModule
    hash: str
    calls: int = 1
    origins: tuple[str, ...] = field(default=())
    nominal: tuple[NominalCall, ...] = field(default=())

    @property
    def sizes(self) -> list[dict[str, int]]:
        """The sizes of the model for which it is tuned; empty where they are known."""
        return [dict(call.sizes) for call in self.nominal]

    @property
    def measured_calls(self) -> list[Arguments]:
        """What it is measured with."""
        if self.nominal:
            return [call.arguments for call in self.nominal]
        return [known_arguments(self.func)]

    def with_nominal_sizes(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Its loops with the sizes of one of the calls, the one in the middle, for cost models."""
        if not self.nominal:
            return mod
        func = mod["main"]
        arguments = self.nominal[len(self.nominal) // 2].arguments
        known = with_sizes(func, sizes_at(func, arguments))
        return s_tir.transform.StmtSimplify()(tvm.IRModule({"main": known}))


def kernel_task(
    name: str,
    func: tirx.PrimFunc,
    calls: int = 1,
    origins: Iterable[str] = (),
    nominal: Iterable[NominalCall] = (),
) -> KernelTask:
    """The task for one kernel."""
    mod = workload(func)
    return KernelTask(
        name,
        func,
        mod,
        kernel_hash(mod),
        calls,
        tuple(origins),
        () if is_known(func) else tuple(nominal),
    )


def known_arguments(func: tirx.PrimFunc) -> Arguments:
    """What a kernel of known sizes is called with."""
    shapes = ([static_extent(size) or 0 for size in param.shape] for param in func.params)
    return tuple(map(tuple, shapes))


def is_known(func: tirx.PrimFunc) -> bool:
    """Whether a kernel takes tensors of known sizes and nothing else."""
    return all(
        hasattr(param, "shape") and all(static_extent(size) is not None for size in param.shape)
        for param in func.params
    )


def distinct_tasks(tasks: Iterable[KernelTask]) -> list[KernelTask]:
    """Equal kernels joined: their calls and origins are those of all of them."""
    joined: dict[str, KernelTask] = {}
    for task in tasks:
        known = joined.get(task.hash)
        if known is not None:
            calls, origins = known.calls + task.calls, known.origins + task.origins
            task = replace(known, calls=calls, origins=origins)
        joined[task.hash] = task
    return list(joined.values())


def refusal(task: KernelTask) -> str:
    """Why a kernel cannot be tuned; empty when it can."""
    if not is_known(task.func) and not task.nominal:
        return "data decide its sizes or whether it runs: freeze inputs with --input-shape"
    return next(filter(None, map(_refusal_of_call, task.measured_calls)), "")


def refusal_of_known(func: tirx.PrimFunc) -> str:
    """Why a kernel that runs with known sizes only cannot be scheduled; empty when it can."""
    if not is_known(func):
        return "a size is known only at run time: freeze it with --input-shape"
    return _refusal_of_call(known_arguments(func))


def _refusal_of_call(arguments: Arguments) -> str:
    is_empty = any(0 in given for given in arguments if isinstance(given, tuple))
    return "a tensor is empty" if is_empty else ""


def read_trace(data: Any, mod: tvm.IRModule) -> Trace:
    """A trace read back for a workload.

    Raises s_tir.ScheduleError or ValueError if it does not apply to it.
    """
    schedule = s_tir.Schedule(mod)
    Trace.apply_json_to_schedule(data, schedule)
    return schedule.trace


def trace_from_json(data: Any, mod: tvm.IRModule) -> Trace | None:
    """The same, or None when it does not apply."""
    try:
        return read_trace(data, mod)
    except (s_tir.ScheduleError, ValueError, RuntimeError, TypeError, tvm.error.InternalError):
        return None


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
    modelled : tvm.IRModule
        ``mod`` as cost models look at it, with known sizes.
    """

    task: KernelTask
    recorded: RecordedSchedule
    mod: tvm.IRModule
    packed: Packed | None
    hash: str
    modelled: tvm.IRModule

    @property
    def trace_json(self) -> Any:
        """The trace in MetaSchedule's form, as values of JSON."""
        return plain_json(self.recorded.trace.as_json())

    def measure_candidate(self) -> ms.MeasureCandidate:
        """The scheduled kernel as MetaSchedule's feature extractors and models take it."""
        # Loops that are final need not be in the form that primitives can go on from.
        return self._as_measured(s_tir.Schedule(self.modelled, enable_check=False))

    def traced(self) -> ms.MeasureCandidate:
        """The unscheduled kernel with the trace applied to it, as a database holds it."""
        sch = s_tir.Schedule(self.task.workload)
        self.recorded.trace.apply_to_schedule(sch, remove_postproc=False)
        return self._as_measured(sch)

    def _as_measured(self, sch: s_tir.Schedule) -> ms.MeasureCandidate:
        return ms.MeasureCandidate(sch, argument_infos(self.task.workload))


def argument_infos(mod: tvm.IRModule) -> list[ms.arg_info.ArgInfo]:
    """The parameters of a workload as MetaSchedule notes them; it has no sign for unknown sizes."""
    return [
        ms.arg_info.TensorInfo(
            str(param.dtype if hasattr(param, "shape") else param.ty),
            [static_extent(size) or 1 for size in getattr(param, "shape", ())],
        )
        for param in mod["main"].params
    ]


def candidate_of(
    task: KernelTask, trace: s_tir.schedule.Trace, machine: MachineDescription, finish: Finish
) -> Candidate | NotApplicable:
    """What a trace makes of the kernel, or why it makes nothing."""
    try:
        recorded = recorded_schedule(task.workload, trace)
    except s_tir.ScheduleError:
        return NotApplicable("a primitive of the trace does not apply")
    scheduled = schedule_as_recorded(task.workload["main"], machine, recorded)
    if isinstance(scheduled, NotApplicable):
        return scheduled
    return make_candidate(task, recorded, scheduled, finish)


def candidate_again(
    task: KernelTask, trace: Any, candidate: str, machine: MachineDescription, finish: Finish
) -> Candidate | None:
    """What a log's trace makes of the kernel; None where it leads to other loops by now.

    ``trace`` is as the log keeps it, ``candidate`` the hash of the loops that it led to.
    """
    read = trace_from_json(trace, task.workload)
    found = candidate_of(task, read, machine, finish) if read is not None else None
    return found if isinstance(found, Candidate) and found.hash == candidate else None


def make_candidate(
    task: KernelTask, recorded: RecordedSchedule, scheduled: ScheduledKernel, finish: Finish
) -> Candidate:
    """The candidate for a kernel that is scheduled already."""
    func = scheduled.func.with_attr("global_symbol", "main")
    mod = finish(tvm.IRModule({"main": func}))
    modelled = task.with_nominal_sizes(mod)
    return Candidate(task, recorded, mod, scheduled.packed, kernel_hash(mod), modelled)


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
