"""What each kernel of a model computes, how it is scheduled, how it walks through memory, and what
that costs. All times are modelled.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.api import TargetSource
from tvm_ext.compiler.compile_context import CompileContext, compiling
from tvm_ext.compiler.kernel_records import first_arguments, kernel_records
from tvm_ext.compiler.kernel_work import work_of_call
from tvm_ext.compiler.stages import (
    LoweredModel,
    ModelSource,
    Phases,
    lower_model,
    require_schedules,
    schedule_module,
    usual_sizes,
)
from tvm_ext.compiler.tuned_kernels import RecordsSource
from tvm_ext.configs.errors import NotApplicable
from tvm_ext.errors import InputError
from tvm_ext.hardware.cost_model import Work, cost_model
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.targets import program_target
from tvm_ext.passes.pipeline import PipelineSource, build_pipeline
from tvm_ext.passes.runner import PassRunner
from tvm_ext.report.records import KernelRecord
from tvm_ext.tir_schedules.analysis.memory_access import MemoryAccess
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tir_schedules.lowered_kernel import lowered as lowered_kernel
from tvm_ext.tir_schedules.statements import sizes_at, with_sizes
from tvm_ext.tir_schedules.template import FixedDecisions
from tvm_ext.tuning.backend import tuning_of

# The model of costs that every backend has and that learns nothing.
_ANALYTIC = "analytic"


@dataclass(frozen=True)
class KernelRoofline:
    """What a call of a kernel takes at least on its machine.

    Attributes
    ----------
    work : Work
        Operations and bytes of tensors.
    peak_flops, bandwidth : float
        Operations and bytes a second: of the type that is computed, and of the smallest memory that
        holds all of the bytes.
    seconds : float
        Modelled time of a call, whatever its schedule, with its start.
    """

    work: Work
    peak_flops: float
    bandwidth: float
    seconds: float

    @property
    def arithmetic_seconds(self) -> float:
        """Time of the operations alone."""
        return self.work.flops / self.peak_flops

    @property
    def memory_seconds(self) -> float:
        """Time of the bytes alone."""
        return self.work.bytes / self.bandwidth

    @property
    def limit(self) -> str:
        """ "arithmetic" or "memory", whichever takes longer."""
        return "arithmetic" if self.arithmetic_seconds > self.memory_seconds else "memory"


@dataclass(frozen=True)
class KernelExplanation:
    """One kernel.

    Attributes
    ----------
    record : KernelRecord
        What it computes, and how it was scheduled.
    roofline : KernelRoofline or None
        What a call takes at least; None where its sizes are not known.
    scheduled_seconds : float or None
        Modelled time of a call of the loops that it has; None where these cannot be read.
    decisions : mapping of str to int
        What its template decided.
    accesses : tuple[MemoryAccess, ...]
        Its loads and stores, those that fetch most first.
    unknown : str
        Why nothing is known of its accesses; empty where it is.
    """

    record: KernelRecord
    roofline: KernelRoofline | None = None
    scheduled_seconds: float | None = None
    decisions: Mapping[str, int] = field(default_factory=dict)
    accesses: tuple[MemoryAccess, ...] = ()
    unknown: str = ""

    @property
    def run_seconds(self) -> float:
        """Modelled time of all its calls in a run; 0 where it is not known."""
        return self.record.calls * (self.scheduled_seconds or 0.0)

    def to_dict(self) -> dict[str, Any]:
        """In values that JSON has."""
        roofline = self.roofline
        return {
            **{name: getattr(self.record, name) for name in _SHOWN_OF_RECORD},
            "decisions": dict(self.decisions),
            "modelled_seconds": self.scheduled_seconds,
            "roofline": roofline
            and {
                "flops": roofline.work.flops,
                "bytes": roofline.work.bytes,
                "dtype": roofline.work.dtype,
                "peak_flops": roofline.peak_flops,
                "bandwidth": roofline.bandwidth,
                "arithmetic_seconds": roofline.arithmetic_seconds,
                "memory_seconds": roofline.memory_seconds,
                "modelled_seconds": roofline.seconds,
                "limit": roofline.limit,
            },
            "accesses": [access.to_dict() for access in self.accesses],
            "unknown": self.unknown,
        }


_SHOWN_OF_RECORD = ("name", "calls", "origins", "schedule", "source", "reason", "refusals")


@dataclass(frozen=True)
class ModelExplanation:
    """The kernels of a model, the one with the longest modelled time of a run first.

    Attributes
    ----------
    model, opt_level : str
        Its name, and which passes ran.
    machine : MachineDescription
        What it was scheduled for.
    sizes : mapping of str to int
        Of dynamic dimensions, for which the figures hold.
    kernels : tuple[KernelExplanation, ...]
        Each once.
    """

    model: str
    opt_level: str
    machine: MachineDescription
    sizes: Mapping[str, int]
    kernels: tuple[KernelExplanation, ...]

    def matching(self, wanted: str) -> list[KernelExplanation]:
        """The kernel of this name; else those with it in their name or in that of an ONNX node.

        Raises InputError where there is none.
        """
        exact = [one for one in self.kernels if one.record.name == wanted]
        if exact:
            return exact
        found = [
            one
            for one in self.kernels
            if any(wanted in name for name in (one.record.name, *one.record.origins))
        ]
        if not found:
            raise InputError(
                f"no kernel or ONNX node of {self.model} has '{wanted}' in its name; expected a "
                "part of one: run the command without it to see the kernels"
            )
        return found

    def to_dict(self, kernels: Sequence[KernelExplanation]) -> dict[str, Any]:
        """``kernels`` of it in values that JSON has."""
        return {
            "model": self.model,
            "opt_level": self.opt_level,
            "target": self.machine.name,
            "sizes": dict(self.sizes),
            "modelled": True,
            "kernels": [one.to_dict() for one in kernels],
        }


def explain_model(
    model: ModelSource,
    target: TargetSource = "cpu",
    records: RecordsSource = (),
    *,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    opt_level: int | str = "O3",
    disabled_passes: Iterable[str] = (),
    pass_config: Mapping[str, Mapping[str, Any]] | None = None,
    pipeline: PipelineSource | None = None,
) -> ModelExplanation:
    """Schedules a model's kernels as ``compile`` does, and explains each; no code is generated.

    Parameters
    ----------
    model, target, records, input_shapes, opt_level, disabled_passes, pass_config, pipeline
        As for ``compile``. Dynamic dimensions that get no size have a usual one in the figures.

    Raises
    ------
    TvmExtError
        As ``compile``.
    """
    machine = program_target(target)
    passes = build_pipeline(opt_level, disabled_passes, pass_config, pipeline)
    require_schedules(passes, machine)
    runner, phases = PassRunner(), Phases()
    with compiling(machine) as context:
        lowered = lower_model(model, input_shapes, passes, runner, phases)
        context.ranges = lowered.imported.ranges
        scheduled = schedule_module(lowered, passes, runner, phases, context, records)
        sizes = usual_sizes(lowered.imported)
        found = _explained(lowered, scheduled, context, sizes, bool(records))
    kernels = sorted(found, key=lambda one: -one.run_seconds)
    return ModelExplanation(lowered.imported.name, passes.opt_level, machine, sizes, tuple(kernels))


def _explained(
    lowered: LoweredModel,
    scheduled: tvm.IRModule,
    context: CompileContext,
    sizes: Mapping[str, int],
    asked_records: bool,
) -> list[KernelExplanation]:
    machine = context.machine
    kernels, costs = lowered.kernels, cost_model(machine)
    records = kernel_records(kernels, lowered.calls, context.choices, costs, asked_records)
    arguments = first_arguments(kernels, sizes)
    as_scheduled = {str(var.name_hint): func for var, func in scheduled.functions_items()}
    found = []
    for record in records:
        given = arguments.get(record.name)
        one = KernelExplanation(record, decisions=_decisions(record, kernels[record.name], machine))
        if given is None:
            unknown = "the data of a run decide its sizes"
            found.append(replace(one, unknown=unknown))
            continue
        work = work_of_call(kernels[record.name], given)
        roofline = None if work is None else _roofline(work, machine)
        one = replace(one, roofline=roofline)
        found.append(_with_accesses(one, as_scheduled.get(record.name), given, machine))
    return found


def _roofline(work: Work, machine: MachineDescription) -> KernelRoofline:
    peak, bandwidth = machine.peak_flops(work.dtype), machine.bandwidth(work.bytes)
    return KernelRoofline(work, peak, bandwidth, cost_model(machine).seconds(work))


def _decisions(
    record: KernelRecord, func: tirx.PrimFunc, machine: MachineDescription
) -> dict[str, int]:
    """What the template that scheduled a kernel decides for it."""
    known = scheduling_of(machine).recordable
    template = next((one for one in known if one.name == record.schedule), None)
    if template is None or record.source == "record":
        return {}
    asked = FixedDecisions()
    applied = apply_template(template, func, machine, asked)
    return dict(asked.values) if isinstance(applied, ScheduledKernel) else {}


def _with_accesses(
    one: KernelExplanation,
    func: tirx.PrimFunc | None,
    arguments: Sequence[tuple[int, ...] | int],
    machine: MachineDescription,
) -> KernelExplanation:
    """With what is read from the loops that the kernel has."""
    read = scheduling_of(machine).memory_accesses
    if func is None or read is None:
        missing = "its code is that of another kernel" if func is None else "nobody reads its loops"
        return replace(one, unknown=missing)
    known = with_sizes(func, sizes_at(func, arguments))
    mod = tvm.IRModule({"main": known.with_attr("global_symbol", "main")})
    try:
        accesses = read(lowered_kernel(mod, machine), machine)
        seconds = tuning_of(machine).cost_models[_ANALYTIC].made(machine).modelled_seconds(mod)
    except NotApplicable:
        return replace(one, unknown="TVM does not lower its loops by themselves")
    accesses.sort(key=lambda access: (access.memory == "local", -access.fetched_bytes))
    return replace(one, accesses=tuple(accesses), scheduled_seconds=seconds)
