"""Chooses a schedule for every kernel of a module: the first template that takes it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import FAILED, NotApplicable, ScheduleRefusedError, TvmExtError
from tvm_ext.configs.progress import tell
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.tvm_compat import without_scope_marks
from tvm_ext.tir_schedules.analysis.in_place import keeps_module
from tvm_ext.tir_schedules.apply_template import (
    SCHEDULED_ATTRIBUTE,
    ScheduledKernel,
    apply_template,
)
from tvm_ext.tir_schedules.backend import Scheduling, scheduling_of
from tvm_ext.tir_schedules.packing import Packed
from tvm_ext.tir_schedules.recorded_schedule import RecordSource, schedule_as_recorded
from tvm_ext.tir_schedules.template import Decisions, StatedDecisions, Template, stated_decisions


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
    machine: MachineDescription,
    records: RecordSource | None = None,
    stated: StatedDecisions | None = None,
    scheduled: Callable[[tvm.ir.GlobalVar, tirx.PrimFunc], None] | None = None,
) -> tuple[tvm.IRModule, dict[str, ScheduleChoice]]:
    """The module with all its kernels scheduled, and the choice for each by kernel name.

    A kernel that ``records`` know is scheduled as they say, unless decisions of the record's
    template are ``stated``. ``scheduled`` is told of each kernel as soon as it has its loops.
    """
    functions = dict(mod.functions.items())
    choices: dict[str, ScheduleChoice] = {}
    kernels = [(v, f) for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)]
    with without_type_checks():
        for number, (global_var, func) in enumerate(kernels, start=1):
            name = str(global_var.name_hint)
            tell(f"kernel {number} of {len(kernels)}")
            unmarked = without_scope_marks(func)
            functions[global_var], choices[name] = schedule_kernel(
                unmarked, machine, records, name, stated
            )
            if scheduled is not None:
                scheduled(global_var, functions[global_var])
    return tvm.IRModule(functions, attrs=mod.attrs), choices


def schedule_kernel(
    func: tirx.PrimFunc,
    machine: MachineDescription,
    records: RecordSource | None = None,
    name: str = "",
    stated: StatedDecisions | None = None,
) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """One kernel scheduled for ``machine``, and how; ``func`` itself stays as it is."""
    stated = stated or {}
    if keeps_module(func):
        return func, ScheduleChoice("MLIR", "user", "a pass of MLIR changed it")
    if func.attrs is not None and SCHEDULED_ATTRIBUTE in func.attrs:
        return func, ScheduleChoice("user schedule", "user", "it was scheduled before")
    if records is None:
        return _schedule_by_rule(func, machine, stated)
    found = _schedule_by_record(name, func, machine, records, stated)
    if not isinstance(found, NotApplicable):
        return found
    scheduled, choice = _schedule_by_rule(func, machine, stated)
    return scheduled, replace(choice, miss=found.reason)


def accepting_templates(func: tirx.PrimFunc, machine: MachineDescription) -> list[Template]:
    """The templates that take a kernel, the one that is used without a record first.

    The fallback of a machine that runs no other loops than bound ones is among them only where no
    other schedules the kernel; libraries come last.
    """
    scheduling = scheduling_of(machine)
    if not _has_blocks(func) or (scheduling.is_bound is not None and scheduling.is_bound(func)):
        return []

    def taking(templates: Iterable[Template]) -> list[Template]:
        return [
            template
            for template in templates
            if isinstance(apply_template(template, func, machine), ScheduledKernel)
        ]

    own = taking((*scheduling.templates, *scheduling.rules))
    if not own or scheduling.is_bound is None:
        own += taking(scheduling.fallbacks)
    return own + taking(scheduling.libraries)


def schedule_by_fallback(
    func: tirx.PrimFunc, machine: MachineDescription
) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """``func`` by the template that takes any kernel; raises ScheduleRefusedError."""
    return _by_fallback(without_scope_marks(func), machine, [], {}, {})


def _schedule_by_record(
    name: str,
    func: tirx.PrimFunc,
    machine: MachineDescription,
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
    func: tirx.PrimFunc, machine: MachineDescription, stated: StatedDecisions
) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """The first template of ours, or rule of TVM's, that takes the kernel."""
    reason = "its loops are written by hand, without blocks to reorder"
    scheduling = scheduling_of(machine)
    if scheduling.is_bound is not None and (not _has_blocks(func) or scheduling.is_bound(func)):
        return _by_fallback(func, machine, [reason], {}, stated)
    if not _has_blocks(func):
        return _by_loop_templates(func, machine, stated, reason)
    refusals: list[str] = []
    failures: dict[str, Exception] = {}
    for template in (*scheduling.templates, *scheduling.rules):
        decisions = stated_decisions(stated, template)
        scheduled = _tried(template, func, machine, failures, decisions)
        if isinstance(scheduled, NotApplicable):
            refusals.append(f"{template.name}: {scheduled.reason}")
            continue
        choice = _choice(template, scheduling, refusals, scheduled.packed)
        choice = replace(choice, unmet=tuple(decisions.unmet()))
        return scheduled.func, replace(choice, failures=failures)
    return _by_fallback(func, machine, refusals, failures, stated)


def _by_loop_templates(
    func: tirx.PrimFunc, machine: MachineDescription, stated: StatedDecisions, reason: str
) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """The first template for loops without blocks that takes the kernel; else as it is written.

    Only those are asked of which a decision is stated: what they gain depends on the loops, and
    some are slower than as they were written.
    """
    refusals: list[str] = []
    failures: dict[str, Exception] = {}
    templates = scheduling_of(machine).loop_templates
    for template in (one for one in templates if one.name in stated):
        decisions = stated_decisions(stated, template)
        found = _tried(template, func, machine, failures, decisions)
        if not isinstance(found, NotApplicable):
            choice = ScheduleChoice(template.name, "template", reason, tuple(refusals))
            return found.func, replace(choice, unmet=tuple(decisions.unmet()), failures=failures)
        refusals.append(f"{template.name}: {found.reason}")
    choice = ScheduleChoice("as written", "as written", reason, tuple(refusals))
    return func, replace(choice, failures=failures)


def _tried(
    template: Template,
    func: tirx.PrimFunc,
    machine: MachineDescription,
    failures: dict[str, Exception],
    decisions: Decisions,
) -> ScheduledKernel | NotApplicable:
    """A template applied; what it raises, which none should, goes into ``failures``."""
    try:
        return apply_template(template, func, machine, decisions)
    except TvmExtError:
        raise
    except Exception as error:  # noqa: BLE001
        failures[template.name] = error
        return NotApplicable(FAILED)


def _choice(
    template: Template, scheduling: Scheduling, refusals: list[str], packed: Packed | None
) -> ScheduleChoice:
    source, reason = "template", "first template that takes it"
    if template in scheduling.rules:
        source, reason = "tvm rule", "first rule of TVM that takes it"
    return ScheduleChoice(template.name, source, reason, tuple(refusals), packed)


def _has_blocks(func: tirx.PrimFunc) -> bool:
    return isinstance(func.body, s_tir.SBlockRealize)


def _by_fallback(
    func: tirx.PrimFunc,
    machine: MachineDescription,
    refusals: list[str],
    failures: dict[str, Exception],
    stated: StatedDecisions,
) -> tuple[tirx.PrimFunc, ScheduleChoice]:
    """The kernel by the fallback, or as it is where that can run.

    Raises
    ------
    ScheduleRefusedError
        The machine runs loops only that are bound to threads, and no thread could run the kernel.
    """
    scheduling = scheduling_of(machine)
    if scheduling.is_bound is not None and scheduling.is_bound(func):
        for step in scheduling.finishing:
            func = step(func, machine)
        reason = "it is written for threads"
        return func, ScheduleChoice("as written", "as written", reason, tuple(refusals))
    found: ScheduledKernel | NotApplicable = NotApplicable("no template takes it")
    if scheduling.fallback is not None:
        decisions = stated_decisions(stated, scheduling.fallback)
        found = (
            _tried(scheduling.fallback, func, machine, failures, decisions)
            if scheduling.is_bound is None
            else apply_template(scheduling.fallback, func, machine, decisions)
        )
    if isinstance(found, ScheduledKernel) and scheduling.fallback is not None:
        reason = f"no template{' or rule' if scheduling.rules else ''} takes it"
        choice = ScheduleChoice(scheduling.fallback.name, "generic", reason, tuple(refusals))
        return found.func, replace(choice, packed=found.packed, failures=failures)
    reason = found.reason if isinstance(found, NotApplicable) else ""
    if scheduling.is_bound is None:
        if scheduling.fallback is not None:
            reason = f"{scheduling.fallback.name}: {reason}"
        choice = ScheduleChoice("as written", "as written", reason, tuple(refusals))
        return func, replace(choice, failures=failures)
    name = func.attrs.get("global_symbol", "without a name") if func.attrs else "without a name"
    raise ScheduleRefusedError(
        f"a kernel of the model ({name}) cannot run on a GPU: {reason}; expected loops "
        "over tensors: compile for a CPU (--target cpu)"
    )


# Each step of a schedule as TVM has it, and how many are within ``without_type_checks``.
_checked: dict[str, Callable[..., object]] = {
    name: step for name, step in vars(s_tir.Schedule).items() if hasattr(step, "__wrapped__")
}
_unchecked_users = 0
_switching = Lock()


@contextmanager
def without_type_checks() -> Iterator[None]:
    """Steps of TVM's schedules take their arguments as they are.

    TVM compares these with the types in the step's signature, at 20 us a step, which is a fifth of
    the time in which templates schedule a model; what does not fit is refused by its C++ as well.
    For all threads of the process, as the steps are methods of a class.
    """
    global _unchecked_users
    with _switching:
        _unchecked_users += 1
        for name, step in _checked.items():
            setattr(s_tir.Schedule, name, getattr(step, "__wrapped__"))  # noqa: B009
    try:
        yield
    finally:
        with _switching:
            _unchecked_users -= 1
            if not _unchecked_users:
                for name, step in _checked.items():
                    setattr(s_tir.Schedule, name, step)
