"""The templates of a machine, and one applied to a kernel, with the steps all schedules end in."""

from dataclasses import dataclass

from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.description import CpuDescription, CudaDescription
from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.cpu import CPU_TEMPLATES
from tvm_ext.tir_schedules.cpu.masked_tails import has_masked_memory, with_masked_tails
from tvm_ext.tir_schedules.cpu.overlapping_tiles import with_overlapping_tiles
from tvm_ext.tir_schedules.cuda import CUDA_FALLBACK, CUDA_LIBRARIES, CUDA_TEMPLATES
from tvm_ext.tir_schedules.cuda.dlight_rules import TVM_RULES
from tvm_ext.tir_schedules.cuda.finish import finished_for_cuda
from tvm_ext.tir_schedules.packing import Packed, packed_operand, without_notes
from tvm_ext.tir_schedules.template import (
    DEFAULT_DECISIONS,
    DecisionError,
    Decisions,
    Machine,
    Template,
)
from tvm_ext.tir_schedules.wafer import WAFER_TEMPLATES
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
    template: Template,
    func: tirx.PrimFunc,
    machine: Machine,
    decisions: Decisions = DEFAULT_DECISIONS,
) -> ScheduledKernel | NotApplicable:
    """``func`` scheduled by ``template``, or why not.

    A primitive that TVM refuses, and a decision that the template does not offer, are reasons to
    try something else, not to end.
    """
    try:
        scheduled = template.apply(func, machine, decisions)
    except DecisionError as error:
        return NotApplicable(str(error))
    except s_tir.ScheduleError:
        return NotApplicable("a step of its schedule does not apply to these loops")
    if isinstance(scheduled, NotApplicable):
        return scheduled
    return ScheduledKernel(finished_schedule(scheduled, func, machine), packed_operand(scheduled))


def finished_schedule(sch: s_tir.Schedule, func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """The kernel of a template's schedule, under the name of ``func``, ready to be built."""
    finished = marked_as_scheduled(sch.mod["main"], func)
    if isinstance(machine, WaferDescription):
        return with_skewed_steps(finished)
    if isinstance(machine, CudaDescription):
        return finished_for_cuda(finished)
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


def templates_for(machine: Machine) -> tuple[Template, ...]:
    """The templates that schedule kernels for ``machine``, in the order in which they are asked.

    Names are unique for one machine only: those for CPUs and GPUs both have an "elementwise".
    """
    if isinstance(machine, CpuDescription):
        return CPU_TEMPLATES
    if isinstance(machine, CudaDescription):
        return (*CUDA_TEMPLATES, *TVM_RULES)
    return WAFER_TEMPLATES if isinstance(machine, WaferDescription) else ()


def recordable_templates(machine: Machine) -> tuple[Template, ...]:
    """Those, libraries, and the one that a GPU's kernel gets when none of them takes it."""
    if isinstance(machine, CudaDescription):
        return (*templates_for(machine), *CUDA_LIBRARIES, CUDA_FALLBACK)
    return templates_for(machine)
