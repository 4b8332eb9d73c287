"""Chooses a schedule for every kernel of a module: the first template that takes it."""

from dataclasses import dataclass

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.llvm import CPU_TEMPLATES
from tvm_ext.tir_schedules.llvm.masked_tails import has_masked_memory, with_masked_tails
from tvm_ext.tir_schedules.llvm.overlapping_tiles import with_overlapping_tiles
from tvm_ext.tir_schedules.packing import PackedOperand, packed_operand
from tvm_ext.tir_schedules.scope_marks import without_scope_marks
from tvm_ext.tir_schedules.template import Machine, NotMine, Template

# Set on a kernel whose loops are final; TVM's own rules use the same name.
SCHEDULED_ATTRIBUTE = "tirx.is_scheduled"

_GPU_RULES = (
    dlight.gpu.Matmul,
    dlight.gpu.GEMV,
    dlight.gpu.Reduction,
    dlight.gpu.GeneralReduction,
    dlight.gpu.Fallback,
)


@dataclass(frozen=True)
class ScheduleChoice:
    """How one kernel was scheduled.

    Attributes
    ----------
    schedule : str
        Name of the template or rule.
    source : str
        "template", "tvm rule", "generic", "user" (scheduled by a hook) or "as written".
    reason : str
        Why this one.
    refusals : tuple[str, ...]
        "template: reason" for each that was asked before and declined.
    packed : PackedOperand or None
        The constant parameter that the kernel now expects packed.
    """

    schedule: str
    source: str
    reason: str
    refusals: tuple[str, ...] = ()
    packed: PackedOperand | None = None


def schedule_kernels(
    mod: tvm.IRModule, machine: Machine
) -> tuple[tvm.IRModule, dict[str, ScheduleChoice]]:
    """The module with all its kernels scheduled, and the choice for each by kernel name."""
    functions = dict(mod.functions.items())
    choices: dict[str, ScheduleChoice] = {}
    for global_var, func in mod.functions.items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        name = str(global_var.name_hint)
        unmarked = without_scope_marks(func)
        functions[global_var], choices[name] = schedule_kernel(unmarked, machine)
    return tvm.IRModule(functions, attrs=mod.attrs), choices


def schedule_kernel(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """One kernel scheduled for ``machine``, and how; ``func`` itself stays as it is."""
    if func.attrs is not None and SCHEDULED_ATTRIBUTE in func.attrs:
        return func, ScheduleChoice("user schedule", "user", "it was scheduled before")
    if not _has_blocks(func):
        reason = "its loops are written by hand, without blocks to reorder"
        return func, ScheduleChoice("as written", "as written", reason)
    if not isinstance(machine, CpuDescription):
        return _schedule_for_gpu(func, machine)
    refusals: list[str] = []
    for template in CPU_TEMPLATES:
        scheduled = _apply(template, func, machine)
        if isinstance(scheduled, NotMine):
            refusals.append(f"{template.name}: {scheduled.reason}")
            continue
        finished = with_overlapping_tiles(_finished(scheduled, func))
        if has_masked_memory(machine):
            finished = with_masked_tails(finished)
        return finished, _choice(template, refusals, packed_operand(scheduled))
    return func, ScheduleChoice("as written", "as written", refusals[-1], tuple(refusals[:-1]))


def _apply(template: Template, func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule | NotMine:
    """A primitive that TVM refuses is a reason to ask the next template, not to end."""
    try:
        return template.apply(func, machine)
    except s_tir.ScheduleError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in lines if line.startswith("Error message")), lines[-1])
        return NotMine(reason.removeprefix("Error message: ")[:200])


def _choice(
    template: Template, refusals: list[str], packed: PackedOperand | None
) -> ScheduleChoice:
    last_resort = template is CPU_TEMPLATES[-1]
    source = "generic" if last_resort else "template"
    reason = "no template takes it" if last_resort else "first template that takes it"
    return ScheduleChoice(template.name, source, reason, tuple(refusals), packed)


def _finished(sch: s_tir.Schedule, func: tirx.PrimFunc) -> tirx.PrimFunc:
    scheduled = sch.mod["main"].with_attr(SCHEDULED_ATTRIBUTE, True)
    if CONSTANTS_ATTRIBUTE in scheduled.attrs:
        scheduled = scheduled.without_attr(CONSTANTS_ATTRIBUTE)
    symbol = func.attrs.get("global_symbol") if func.attrs is not None else None
    return scheduled.with_attr("global_symbol", symbol) if symbol is not None else scheduled


def _has_blocks(func: tirx.PrimFunc) -> bool:
    return isinstance(func.body, s_tir.SBlockRealize)


def _schedule_for_gpu(
    func: tirx.PrimFunc, machine: Machine
) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """TVM's rules for GPUs, the first that takes the kernel."""
    target = machine.tvm_target()
    refusals: list[str] = []
    for rule_class in _GPU_RULES:
        with target:
            scheduled = rule_class().apply(func, target, False)
        if scheduled is None:
            refusals.append(f"dlight {rule_class.__name__}: not of its pattern")
            continue
        sch = scheduled[0] if isinstance(scheduled, list) else scheduled
        name = f"dlight {rule_class.__name__}"
        reason = "first rule of TVM that takes it"
        return _finished(sch, func), ScheduleChoice(name, "tvm rule", reason, tuple(refusals))
    return func, ScheduleChoice("as written", "as written", "no rule takes it", tuple(refusals))
