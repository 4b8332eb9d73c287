"""A template applied to a kernel, with the steps that all schedules end in."""

from dataclasses import dataclass

from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tir_schedules.packing import Packed, packed_operand, without_notes
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, DecisionError, Decisions, Template

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
    template: Template,
    func: tirx.PrimFunc,
    machine: MachineDescription,
    decisions: Decisions = DEFAULT_DECISIONS,
) -> ScheduledKernel | NotApplicable:
    """``func`` scheduled by ``template``, or why not.

    A reason that the template raises is returned, for the next one to be asked; so are a primitive
    that TVM refuses and a decision that the template does not offer. A template is asked for
    machines of its own type only.
    """
    if not isinstance(machine, template.machine_type):
        return NotApplicable(f"it does not schedule for a target such as '{machine.name}'")
    try:
        scheduled = template.apply(func, machine, decisions)
    except NotApplicable as refused:
        # Anew: what was raised keeps the schedule in its traceback.
        return NotApplicable(refused.reason)
    except DecisionError as error:
        return NotApplicable(str(error))
    except s_tir.ScheduleError:
        return NotApplicable("a step of its schedule does not apply to these loops")
    return ScheduledKernel(finished_schedule(scheduled, func, machine), packed_operand(scheduled))


def finished_schedule(
    sch: s_tir.Schedule, func: tirx.PrimFunc, machine: MachineDescription
) -> tirx.PrimFunc:
    """The kernel of a template's schedule, under the name of ``func``, ready to be built."""
    finished = marked_as_scheduled(sch.mod["main"], func)
    for step in scheduling_of(machine).finishing:
        finished = step(finished, machine)
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
