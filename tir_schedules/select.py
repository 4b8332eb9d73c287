"""Chooses a schedule for every kernel of a module: the first template that takes it."""

from dataclasses import dataclass, replace

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight

from tvm_ext.configs.errors import reason_of
from tvm_ext.hardware.description import CpuDescription, GpuDescription
from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.apply_template import (
    SCHEDULED_ATTRIBUTE,
    ScheduledKernel,
    apply_template,
    marked_as_scheduled,
)
from tvm_ext.tir_schedules.cuda import CUDA_LAST_RESORT, CUDA_TEMPLATES
from tvm_ext.tir_schedules.cuda.bound_loops import is_bound
from tvm_ext.tir_schedules.cuda.finish import finished_for_gpu
from tvm_ext.tir_schedules.errors import ScheduleRefusedError
from tvm_ext.tir_schedules.llvm import CPU_TEMPLATES
from tvm_ext.tir_schedules.packing import PackedOperand
from tvm_ext.tir_schedules.recorded_schedule import RecordSource, schedule_as_recorded
from tvm_ext.tir_schedules.scope_marks import without_scope_marks
from tvm_ext.tir_schedules.template import Machine, NotMine, Template
from tvm_ext.tir_schedules.wafer import MESH_TEMPLATES

# What TVM's rules raise on kernels that they were not written for, failed assertions among it.
_RULE_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError),
    *(TypeError, ValueError, tvm.error.InternalError, s_tir.ScheduleError),
)

# Without GEMV, whose threads write behind the result where its rows are no multiple of its tile,
# and Fallback, in the place of which is our last resort.
_GPU_RULES = (
    dlight.gpu.Matmul,
    dlight.gpu.Reduction,
    dlight.gpu.GeneralReduction,
)


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
        "template: reason" for each that was asked before and declined.
    packed : PackedOperand or None
        The constant parameter that the kernel now expects packed.
    miss : str
        Why no record was used; empty when one was, or when there was none to look in.
    """

    schedule: str
    source: str
    reason: str
    refusals: tuple[str, ...] = ()
    packed: PackedOperand | None = None
    miss: str = ""


def schedule_kernels(
    mod: tvm.IRModule, machine: Machine, records: RecordSource | None = None
) -> tuple[tvm.IRModule, dict[str, ScheduleChoice]]:
    """The module with all its kernels scheduled, and the choice for each by kernel name.

    A kernel that ``records`` know is scheduled as they say.
    """
    functions = dict(mod.functions.items())
    choices: dict[str, ScheduleChoice] = {}
    for global_var, func in mod.functions.items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        name = str(global_var.name_hint)
        unmarked = without_scope_marks(func)
        functions[global_var], choices[name] = schedule_kernel(unmarked, machine, records, name)
    return tvm.IRModule(functions, attrs=mod.attrs), choices


def schedule_kernel(
    func: tirx.PrimFunc, machine: Machine, records: RecordSource | None = None, name: str = ""
) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """One kernel scheduled for ``machine``, and how; ``func`` itself stays as it is."""
    if func.attrs is not None and SCHEDULED_ATTRIBUTE in func.attrs:
        return func, ScheduleChoice("user schedule", "user", "it was scheduled before")
    if records is None:
        return _schedule_by_rule(func, machine)
    found = _schedule_by_record(name, func, machine, records)
    if not isinstance(found, NotMine):
        return found
    scheduled, choice = _schedule_by_rule(func, machine)
    return scheduled, replace(choice, miss=found.reason)


def accepting_templates(func: tirx.PrimFunc, machine: Machine) -> list[Template]:
    """The templates that take a kernel, the one that is used without a record first."""
    if not _has_blocks(func):
        return []
    return [
        template
        for template in _templates(machine)
        if isinstance(apply_template(template, func, machine), ScheduledKernel)
    ]


def schedule_by_last_resort(
    func: tirx.PrimFunc, machine: GpuDescription
) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """``func`` by the schedule for GPUs that takes any kernel; raises ScheduleRefusedError."""
    return _by_last_resort(without_scope_marks(func), machine, [])


def _schedule_by_record(
    name: str, func: tirx.PrimFunc, machine: Machine, records: RecordSource
) -> tuple[tirx.PrimFunc, ScheduleChoice] | NotMine:
    recorded = records.find(name, func)
    if isinstance(recorded, NotMine):
        return recorded
    scheduled = schedule_as_recorded(func, machine, recorded)
    if isinstance(scheduled, NotMine):
        return NotMine(f"its record does not apply any more: {scheduled.reason}")
    schedule = recorded.template or "metaschedule"
    choice = ScheduleChoice(schedule, "record", recorded.describe(), packed=scheduled.packed)
    return scheduled.func, choice


def _schedule_by_rule(
    func: tirx.PrimFunc, machine: Machine
) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """The first template of ours, or rule of TVM's, that takes the kernel."""
    reason = "its loops are written by hand, without blocks to reorder"
    if isinstance(machine, GpuDescription) and (not _has_blocks(func) or is_bound(func)):
        return _by_last_resort(func, machine, [reason])
    if not _has_blocks(func):
        return func, ScheduleChoice("as written", "as written", reason)
    refusals: list[str] = []
    for template in _templates(machine):
        scheduled = apply_template(template, func, machine)
        if isinstance(scheduled, NotMine):
            refusals.append(f"{template.name}: {scheduled.reason}")
            continue
        return scheduled.func, _choice(template, refusals, scheduled.packed)
    if isinstance(machine, GpuDescription):
        return _schedule_for_gpu(func, machine, refusals)
    return func, ScheduleChoice("as written", "as written", refusals[-1], tuple(refusals[:-1]))


def _templates(machine: Machine) -> tuple[Template, ...]:
    """Our templates for a kind of machine, in the order in which they are asked."""
    if isinstance(machine, CpuDescription):
        return CPU_TEMPLATES
    if isinstance(machine, GpuDescription):
        return CUDA_TEMPLATES
    return MESH_TEMPLATES if isinstance(machine, MeshDescription) else ()


def _choice(
    template: Template, refusals: list[str], packed: PackedOperand | None
) -> ScheduleChoice:
    last_resort = template in (CPU_TEMPLATES[-1], MESH_TEMPLATES[-1])
    source = "generic" if last_resort else "template"
    reason = "no template takes it" if last_resort else "first template that takes it"
    return ScheduleChoice(template.name, source, reason, tuple(refusals), packed)


def _has_blocks(func: tirx.PrimFunc) -> bool:
    return isinstance(func.body, s_tir.SBlockRealize)


def _schedule_for_gpu(
    func: tirx.PrimFunc, machine: GpuDescription, refusals: list[str]
) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """TVM's rules for GPUs, the first that takes the kernel; ``refusals`` are our templates'."""
    for rule_class in _GPU_RULES:
        name = f"dlight {rule_class.__name__}"
        scheduled = _by_rule_of_tvm(rule_class, func, machine)
        if isinstance(scheduled, NotMine):
            refusals.append(f"{name}: {scheduled.reason}")
            continue
        reason = "first rule of TVM that takes it"
        return scheduled, ScheduleChoice(name, "tvm rule", reason, tuple(refusals))
    return _by_last_resort(func, machine, refusals)


def _by_rule_of_tvm(
    rule_class: type, func: tirx.PrimFunc, machine: GpuDescription
) -> tirx.PrimFunc | NotMine:
    """A kernel as one of TVM's rules schedules it; a rule that fails leaves it to the next."""
    target = machine.tvm_target()
    try:
        with target:
            found = rule_class().apply(func, target, False)
    except _RULE_ERRORS as error:
        return NotMine(f"it fails with {type(error).__name__} ({reason_of(error)})")
    if found is None:
        return NotMine("not of its pattern")
    scheduled = (found[0] if isinstance(found, list) else found).mod["main"]
    if not is_bound(scheduled):
        return NotMine("it leaves loops that no thread runs")
    return finished_for_gpu(marked_as_scheduled(scheduled, func))


def _by_last_resort(
    func: tirx.PrimFunc, machine: GpuDescription, refusals: list[str]
) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """The kernel as it is if it binds its loops itself, else by the template that takes all.

    Raises
    ------
    ScheduleRefusedError
        No thread of a GPU could run the kernel.
    """
    if is_bound(func):
        reason = "it is written for threads"
        return finished_for_gpu(func), ScheduleChoice(
            "as written", "as written", reason, tuple(refusals)
        )
    found = apply_template(CUDA_LAST_RESORT, func, machine)
    if isinstance(found, NotMine):
        name = func.attrs.get("global_symbol", "without a name") if func.attrs else "without a name"
        raise ScheduleRefusedError(
            f"a kernel of the model ({name}) cannot run on a GPU: {found.reason}; expected loops "
            "over tensors: compile for a CPU (--target host)"
        )
    return found.func, ScheduleChoice(
        CUDA_LAST_RESORT.name, "generic", "no template or rule takes it", tuple(refusals)
    )
