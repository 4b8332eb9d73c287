"""One template applied to one kernel, with the steps that every schedule ends in."""

from dataclasses import dataclass

from tvm import s_tir, tirx

from tvm_ext.hardware.description import CpuDescription, GpuDescription
from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.block_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.cuda.finish import finished_for_gpu
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, DecisionError, Decisions
from tvm_ext.tir_schedules.llvm.masked_tails import has_masked_memory, with_masked_tails
from tvm_ext.tir_schedules.llvm.overlapping_tiles import with_overlapping_tiles
from tvm_ext.tir_schedules.packing import Packed, packed_operand, without_notes
from tvm_ext.tir_schedules.template import Machine, NotMine, Template
from tvm_ext.tir_schedules.wafer.skewed_steps import with_skewed_steps

# Set on a kernel whose loops are final; TVM's own rules use the same name.
SCHEDULED_ATTRIBUTE = "tirx.is_scheduled"


@dataclass(frozen=True)
class ScheduledKernel:
    """A kernel with its final loops.

    Attributes
    ----------
    func : tirx.PrimFunc
        The kernel.
    packed : PackedOperand, PaddedOperand or None
        The constant parameter that the kernel now expects packed.
    """

    func: tirx.PrimFunc
    packed: Packed | None = None


def apply_template(
    template: Template, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
) -> ScheduledKernel | NotMine:
    """``func`` scheduled by ``template``, or why not.

    A primitive that TVM refuses, and a decision that the template does not offer, are reasons to
    try something else, not to end.
    """
    try:
        scheduled = template.apply(func, machine, decisions)
    except DecisionError as error:
        return NotMine(str(error))
    except s_tir.ScheduleError:
        return NotMine("a step of its schedule does not apply to these loops")
    if isinstance(scheduled, NotMine):
        return scheduled
    return ScheduledKernel(finished_schedule(scheduled, func, machine), packed_operand(scheduled))


def finished_schedule(sch: s_tir.Schedule, func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """The kernel of a template's schedule, under the name of ``func``, ready to be built."""
    finished = marked_as_scheduled(sch.mod["main"], func)
    if isinstance(machine, MeshDescription):
        return with_skewed_steps(finished)
    if isinstance(machine, GpuDescription):
        return finished_for_gpu(finished)
    finished = with_overlapping_tiles(finished)
    if isinstance(machine, CpuDescription) and has_masked_memory(machine):
        finished = with_masked_tails(finished)
    return finished


def marked_as_scheduled(scheduled: tirx.PrimFunc, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``scheduled`` with the name of ``func`` and the note that its loops are final."""
    marked = without_notes(scheduled.with_attr(SCHEDULED_ATTRIBUTE, True))
    if CONSTANTS_ATTRIBUTE in marked.attrs:
        marked = marked.without_attr(CONSTANTS_ATTRIBUTE)
    symbol = func.attrs.get("global_symbol") if func.attrs is not None else None
    if symbol is not None:
        return marked.with_attr("global_symbol", symbol)
    return marked.without_attr("global_symbol") if "global_symbol" in marked.attrs else marked
