"""Chooses a schedule for every kernel of a module: the first template that takes it."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable, TvmExtError
from tvm_ext.configs.progress import tell
from tvm_ext.hardware.description import CudaDescription
from tvm_ext.tir_schedules.apply_template import (
    SCHEDULED_ATTRIBUTE,
    ScheduledKernel,
    apply_template,
    templates_for,
)
from tvm_ext.tir_schedules.cpu import CPU_TEMPLATES
from tvm_ext.tir_schedules.cuda import CUDA_FALLBACK, CUDA_LIBRARIES
from tvm_ext.tir_schedules.cuda.dlight_rules import TVM_RULES
from tvm_ext.tir_schedules.cuda.finish import finished_for_cuda
from tvm_ext.tir_schedules.cuda.launch import is_bound
from tvm_ext.tir_schedules.errors import ScheduleRefusedError
from tvm_ext.tir_schedules.packing import Packed
from tvm_ext.tir_schedules.recorded_schedule import RecordSource, schedule_as_recorded
from tvm_ext.tir_schedules.statements import without_scope_marks
from tvm_ext.tir_schedules.template import FixedDecisions, Machine, StatedDecisions, Template
from tvm_ext.tir_schedules.wafer import WAFER_TEMPLATES


@dataclass(frozen=True)
class ScheduleChoice:
    """How one kernel was scheduled.

    Attributes
    ----------
    schedule : str
        Name of the template or rule.
    source : str
        "record", "template", "tvm rule", "generic", "user" (scheduled by a hook) or "as written".
    reason : str
        Why this one.
    refusals : tuple[str, ...]
        "template: reason" for each that was asked before and was not applicable.
    packed : PackedOperand, PaddedOperand or None
        The constant parameter that the kernel now expects packed.
    miss : str
        Why no record was used; empty when one was, or when there was none to look in.
    failures : dict[str, Exception]
        What templates of ours raised, by their names: defects, for which others take their place.
    unmet : tuple[str, ...]
        Decisions that were stated for the template and that it could not follow, and why.
    """

    schedule: str
    source: str
    reason: str
    refusals: tuple[str, ...] = ()
    packed: Packed | None = None
    miss: str = ""
    failures: dict[str, Exception] = field(default_factory=dict, compare=False)
    unmet: tuple[str, ...] = ()


def schedule_kernels(
    mod: tvm.IRModule,
    machine: Machine,
    records: RecordSource | None = None,
    stated: StatedDecisions | None = None,
) -> tuple[tvm.IRModule, dict[str, ScheduleChoice]]:
    """The module with all its kernels scheduled, and the choice for each by kernel name.

    A kernel that ``records`` know is scheduled as they say, unless decisions of the record's
    template are ``stated``.
    """
    functions = dict(mod.functions.items())
    choices: dict[str, ScheduleChoice] = {}
    kernels = [(v, f) for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)]
    for number, (global_var, func) in enumerate(kernels, start=1):
        name = str(global_var.name_hint)
        tell(f"schedule of kernel {number} of {len(kernels)}")
        unmarked = without_scope_marks(func)
        functions[global_var], choices[name] = schedule_kernel(
            unmarked, machine, records, name, stated
        )
    return tvm.IRModule(functions, attrs=mod.attrs), choices


def schedule_kernel(
    func: tirx.PrimFunc,
    machine: Machine,
    records: RecordSource | None = None,
    name: str = "",
    stated: StatedDecisions | None = None,
) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """One kernel scheduled for ``machine``, and how; ``func`` itself stays as it is."""
    stated = stated or {}
    if func.attrs is not None and SCHEDULED_ATTRIBUTE in func.attrs:
        return func, ScheduleChoice("user schedule", "user", "it was scheduled before")
    if records is None:
        return _schedule_by_rule(func, machine, stated)
    found = _schedule_by_record(name, func, machine, records, stated)
    if not isinstance(found, NotApplicable):
        return found
    scheduled, choice = _schedule_by_rule(func, machine, stated)
    return scheduled, replace(choice, miss=found.reason)


def accepting_templates(func: tirx.PrimFunc, machine: Machine) -> list[Template]:
    """The templates that take a kernel, the one that is used without a record first.

    CUDA's fallback is among them where no other schedules the kernel; libraries come last.
    """
    is_cuda = isinstance(machine, CudaDescription)
    if not _has_blocks(func) or (is_cuda and is_bound(func)):
        return []

    def taking(templates: Iterable[Template]) -> list[Template]:
        return [
            template
            for template in templates
            if isinstance(apply_template(template, func, machine), ScheduledKernel)
        ]

    own = taking(templates_for(machine)) or taking([CUDA_FALLBACK] if is_cuda else [])
    return own + taking(CUDA_LIBRARIES if is_cuda else [])


def schedule_by_fallback(
    func: tirx.PrimFunc, machine: CudaDescription
) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """``func`` by the schedule for GPUs that takes any kernel; raises ScheduleRefusedError."""
    return _by_fallback(without_scope_marks(func), machine, [])


def _schedule_by_record(
    name: str,
    func: tirx.PrimFunc,
    machine: Machine,
    records: RecordSource,
    stated: StatedDecisions,
) -> tuple[tirx.PrimFunc, ScheduleChoice] | NotApplicable:
    recorded = records.find(name, func)
    if isinstance(recorded, NotApplicable):
        return recorded
    if recorded.template in stated:
        return NotApplicable(f"decisions of '{recorded.template}' are stated")
    scheduled = schedule_as_recorded(func, machine, recorded)
    if isinstance(scheduled, NotApplicable):
        return NotApplicable(f"its record does not apply any more: {scheduled.reason}")
    schedule = recorded.template or "metaschedule"
    choice = ScheduleChoice(schedule, "record", recorded.describe(), packed=scheduled.packed)
    return scheduled.func, choice


def _schedule_by_rule(
    func: tirx.PrimFunc, machine: Machine, stated: StatedDecisions
) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """The first template of ours, or rule of TVM's, that takes the kernel."""
    reason = "its loops are written by hand, without blocks to reorder"
    if isinstance(machine, CudaDescription) and (not _has_blocks(func) or is_bound(func)):
        return _by_fallback(func, machine, [reason])
    if not _has_blocks(func):
        return func, ScheduleChoice("as written", "as written", reason)
    refusals: list[str] = []
    failures: dict[str, Exception] = {}
    for template in templates_for(machine):
        decisions = FixedDecisions(stated.get(template.name), lenient=True)
        scheduled = _tried(template, func, machine, failures, decisions)
        if isinstance(scheduled, NotApplicable):
            refusals.append(f"{template.name}: {scheduled.reason}")
            continue
        choice = _choice(template, refusals, scheduled.packed)
        choice = replace(choice, unmet=tuple(decisions.unmet()))
        return scheduled.func, replace(choice, failures=failures)
    if isinstance(machine, CudaDescription):
        return _by_fallback(func, machine, refusals)
    reason = refusals.pop()
    return func, ScheduleChoice(
        "as written", "as written", reason, tuple(refusals), failures=failures
    )


def _tried(
    template: Template,
    func: tirx.PrimFunc,
    machine: Machine,
    failures: dict[str, Exception],
    decisions: FixedDecisions,
) -> ScheduledKernel | NotApplicable:
    """A template applied; what it raises, which none should, goes into ``failures``."""
    try:
        return apply_template(template, func, machine, decisions)
    except TvmExtError:
        raise
    except Exception as error:  # noqa: BLE001
        failures[template.name] = error
        return NotApplicable("it failed, which is a bug in tvm-ext")


def _choice(template: Template, refusals: list[str], packed: Packed | None) -> ScheduleChoice:
    if template in TVM_RULES:
        reason = "first rule of TVM that takes it"
        return ScheduleChoice(template.name, "tvm rule", reason, tuple(refusals), packed)
    is_fallback = template in (CPU_TEMPLATES[-1], WAFER_TEMPLATES[-1])
    source = "generic" if is_fallback else "template"
    reason = "no template takes it" if is_fallback else "first template that takes it"
    return ScheduleChoice(template.name, source, reason, tuple(refusals), packed)


def _has_blocks(func: tirx.PrimFunc) -> bool:
    return isinstance(func.body, s_tir.SBlockRealize)


def _by_fallback(
    func: tirx.PrimFunc, machine: CudaDescription, refusals: list[str]
) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """The kernel as it is if it binds its loops itself, else by the template that takes all.

    Raises
    ------
    ScheduleRefusedError
        No thread of a GPU could run the kernel.
    """
    if is_bound(func):
        reason = "it is written for threads"
        return finished_for_cuda(func), ScheduleChoice(
            "as written", "as written", reason, tuple(refusals)
        )
    found = apply_template(CUDA_FALLBACK, func, machine)
    if isinstance(found, NotApplicable):
        name = func.attrs.get("global_symbol", "without a name") if func.attrs else "without a name"
        raise ScheduleRefusedError(
            f"a kernel of the model ({name}) cannot run on a GPU: {found.reason}; expected loops "
            "over tensors: compile for a CPU (--target host)"
        )
    return found.func, ScheduleChoice(
        CUDA_FALLBACK.name, "generic", "no template or rule takes it", tuple(refusals)
    )
