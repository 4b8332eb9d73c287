"""Schedules that a tuner found: what a record says, and a kernel scheduled as it says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.configs.former_names import TEMPLATES as FORMER_NAMES
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.tvm_compat import without_scope_marks
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.apply_template import (
    ScheduledKernel,
    apply_template,
    marked_as_scheduled,
)
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tir_schedules.template import FixedDecisions

# What a kernel is: the same work has the same workload and the same hash, whatever its name.


# Attributes that change what a schedule may do. Others are notes of passes that are done by then.
_KEPT_ATTRIBUTES = ("tirx.noalias", "s_tir", CONSTANTS_ATTRIBUTE)


def workload(func: tirx.PrimFunc) -> tvm.IRModule:
    """The kernel alone, under the name "main", as MetaSchedule's databases hold it."""
    kept = {} if func.attrs is None else {k: v for k, v in func.attrs.items()}
    plain = without_scope_marks(func)
    for key in kept:
        if key not in _KEPT_ATTRIBUTES:
            plain = plain.without_attr(key)
    return tvm.IRModule({"main": plain.with_attr("global_symbol", "main")})


def kernel_hash(mod: tvm.IRModule) -> str:
    """16 hexadecimal digits that are equal for structurally equal workloads, in any process."""
    return f"{tvm_ffi.structural_hash(mod) & (2**64 - 1):016x}"


_TEMPLATE_KEY = "tvm_ext.template"
_DECISION_PREFIX = "tvm_ext.decision."


@dataclass(frozen=True)
class RecordedSchedule:
    """How a kernel is to be scheduled.

    Attributes
    ----------
    trace : s_tir.schedule.Trace
        As MetaSchedule keeps it. That of a template notes the template and its decisions on the
        kernel's root block; any other holds the primitives themselves.
    template : str
        Name of the template; empty for a trace of primitives.
    decisions : mapping of str to int
        The template's decisions.
    seconds : float
        What the kernel took when it was measured.
    """

    trace: s_tir.schedule.Trace
    template: str = ""
    decisions: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def describe(self) -> str:
        """The template with its decisions, in one line."""
        return describe_schedule(self.template, self.decisions)


def describe_schedule(template: str, decisions: Mapping[str, int]) -> str:
    """A template with its decisions, in one line; without a name, what a trace then holds."""
    if not template:
        return "primitives of MetaSchedule's own space"
    listed = ", ".join(f"{name}={value}" for name, value in decisions.items())
    return f"{template} ({listed})" if listed else template


class RecordSource(Protocol):
    """Where recorded schedules come from."""

    def find(self, name: str, func: tirx.PrimFunc) -> RecordedSchedule | NotApplicable:
        """The record for a kernel on the source's target, or why there is none.

        ``name`` is what the program calls the kernel.
        """
        ...


def template_trace(
    func: tirx.PrimFunc, template: str, chosen: FixedDecisions
) -> s_tir.schedule.Trace:
    """MetaSchedule's trace for a template with ``chosen``: each knob is a sampled category."""
    # A module that only the schedule holds would be changed in place, with what it shares.
    mod = workload(func)
    sch = s_tir.Schedule(mod)
    root = _root_block(sch)
    sch.annotate(root, _TEMPLATE_KEY, template)
    for name, value in chosen.free().items():
        options = list(chosen.knobs[name].options)
        even = [1.0 / len(options)] * len(options)
        drawn = sch.sample_categorical(options, even, options.index(value))
        sch.annotate(root, _DECISION_PREFIX + name, drawn)
    return sch.trace


def _root_block(sch: s_tir.Schedule) -> s_tir.schedule.SBlockRV:
    """The outermost block, which may be named after the operator: those of LSTM and GRU are."""
    return sch.get_sblock(sch.mod["main"].body.block.name_hint)


def recorded_schedule(
    mod: tvm.IRModule, trace: s_tir.schedule.Trace, seconds: float = 0.0
) -> RecordedSchedule:
    """Reads a trace of a workload. Raises s_tir.ScheduleError when it does not apply to ``mod``."""
    sch = s_tir.Schedule(mod)
    trace.apply_to_schedule(sch, remove_postproc=False)
    notes = {}
    if isinstance(sch.mod["main"].body, s_tir.SBlockRealize):
        notes = dict(sch.get(_root_block(sch)).annotations)
    template = str(notes.get(_TEMPLATE_KEY, ""))
    template = FORMER_NAMES.get(template, template)
    decisions = {
        str(key).removeprefix(_DECISION_PREFIX): int(value)
        for key, value in notes.items()
        if str(key).startswith(_DECISION_PREFIX)
    }
    return RecordedSchedule(trace, template, decisions, seconds)


def schedule_as_recorded(
    func: tirx.PrimFunc, machine: MachineDescription, recorded: RecordedSchedule
) -> ScheduledKernel | NotApplicable:
    """``func`` scheduled as a record says, or why it cannot be any more."""
    if not recorded.template:
        return _replayed(func, recorded)
    known = scheduling_of(machine).recordable
    template = next((one for one in known if one.name == recorded.template), None)
    if template is None:
        return NotApplicable(f"there is no template '{recorded.template}' for {machine.name}")
    chosen = FixedDecisions(recorded.decisions)
    scheduled = apply_template(template, func, machine, chosen)
    if isinstance(scheduled, ScheduledKernel) and chosen.unused():
        return NotApplicable(f"the template has no decision {', '.join(chosen.unused())}")
    return scheduled


def _replayed(func: tirx.PrimFunc, recorded: RecordedSchedule) -> ScheduledKernel | NotApplicable:
    mod = workload(func)
    sch = s_tir.Schedule(mod)
    try:
        recorded.trace.apply_to_schedule(sch, remove_postproc=False)
    except s_tir.ScheduleError:
        return NotApplicable("a primitive of the record does not apply to the kernel")
    return ScheduledKernel(marked_as_scheduled(sch.mod["main"], func))
