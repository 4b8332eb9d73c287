"""The pass that gives every kernel its schedule."""

import functools
from collections.abc import Mapping
from dataclasses import field

import tvm

from tvm_ext.compiler.compile_context import current_compilation
from tvm_ext.compiler.graph_analysis import kernel_calls
from tvm_ext.configs.errors import ConfigError, nearest_hint
from tvm_ext.hardware.backend import all_backends
from tvm_ext.hardware.targets import current_description
from tvm_ext.passes.pack_weights import pack_weights
from tvm_ext.relay_passes.graph_pass import graph_pass, record_applied, record_refusal
from tvm_ext.tir_schedules.backend import Scheduling
from tvm_ext.tir_schedules.recorded_schedule import describe_schedule
from tvm_ext.tir_schedules.schedule_kernels import ScheduleChoice, schedule_kernels
from tvm_ext.tir_schedules.template import StatedDecisions


@graph_pass
class ScheduleKernels:
    """Gives every kernel its final loops, from a tuned record or from the first fitting template.

    Before: ``for i, j, k in T.grid(64, 64, 64): ...``, as TVM's legalisation writes it
    After:  tiles, vectors and threads for the current target

    ``decisions`` fixes decisions of templates, such as tile sizes, pipeline stages and layouts, by
    the name of the template. They hold for every kernel that the template schedules, and override
    records. A kernel for which a value is not possible gets the template's own value, and the log
    says so.

    When the pass runs outside of ``tvm_ext.compile``, there are no records, and the pass itself
    packs the constants that kernels want packed.

    Leaves alone: kernels that were scheduled before.

    Run after: legalisation, fusion and MarkConstantParameters. Run before: PackWeights.
    """

    decisions: StatedDecisions = field(default_factory=dict)

    def __post_init__(self) -> None:
        for template, stated in self.decisions.items():
            _check_stated(template, stated)

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns the module with all kernels scheduled."""
        context = current_compilation()
        machine = current_description() if context is None else context.machine
        records = None if context is None else context.records
        begin_code = None if context is None else context.begin_code
        scheduled, choices = schedule_kernels(mod, machine, records, self.decisions, begin_code)
        if self.decisions:
            _record_stated(mod, choices, self.decisions)
        if context is None:
            return pack_weights(scheduled, choices)
        context.choices = choices
        return scheduled


def _check_stated(template: str, stated: object) -> None:
    """Raises ConfigError for a template that no machine has, and for what is no decision."""
    if template not in _template_names():
        raise ConfigError(
            f"option 'decisions' of ScheduleKernels names template '{template}', which does not "
            f"exist; {nearest_hint(template, _template_names())}"
        )
    whole = isinstance(stated, Mapping) and all(type(value) is int for value in stated.values())
    if not whole:
        raise ConfigError(
            f"option 'decisions' of ScheduleKernels has {stated!r} for template '{template}'; "
            "expected integers by name: write {'tile_rows': 4}"
        )


@functools.cache
def _template_names() -> tuple[str, ...]:
    schedulings = [backend.part(Scheduling) for backend in all_backends()]
    return tuple(dict.fromkeys(t.name for each in schedulings for t in each.recordable))


def _record_stated(
    mod: tvm.IRModule, choices: Mapping[str, ScheduleChoice], decisions: StatedDecisions
) -> None:
    """Notes for each kernel of the templates what was stated, and what it could not follow."""
    origins = {call.kernel: call.where for call in reversed(kernel_calls(mod))}
    for name, choice in choices.items():
        where = origins.get(name) or name
        for reason in choice.unmet:
            record_refusal("ScheduleKernels", where, reason)
        if choice.schedule in decisions and choice.source != "record" and not choice.unmet:
            stated = decisions[choice.schedule]
            record_applied("ScheduleKernels", where, describe_schedule(choice.schedule, stated))
