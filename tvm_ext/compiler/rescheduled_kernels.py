"""Kernels for a GPU whose code TVM refuses to generate, scheduled once more by the last resort."""

from dataclasses import dataclass, replace

import tvm
from tvm import tirx

from tvm_ext.compiler.build import BUILD_ERRORS, Programs, build_programs
from tvm_ext.compiler.nan_operands import with_nan_passed_on
from tvm_ext.cuda.device_code import making_device_code
from tvm_ext.errors import BuildError, reason_of
from tvm_ext.hardware.description import GpuDescription, Processor
from tvm_ext.tir_schedules.cuda.pass_options import pass_options
from tvm_ext.tir_schedules.select import ScheduleChoice, schedule_by_last_resort


@dataclass(frozen=True)
class Built:
    """Programs with the schedules that they were built from."""

    programs: Programs
    choices: dict[str, ScheduleChoice]


def build_with_last_resort(
    planned: tvm.IRModule,
    target: tvm.target.Target,
    machine: Processor,
    unscheduled: tvm.IRModule,
    choices: dict[str, ScheduleChoice],
) -> Built:
    """The programs of ``planned``.

    A schedule for a GPU can break a rule that only code generation checks. Where the build fails,
    each kernel is built alone, and those that fail get the schedule that any kernel can have, from
    their form in ``unscheduled``.

    Raises
    ------
    BuildError
        Code generation fails, and for another reason than the schedule of a kernel for a GPU.
    """
    try:
        return Built(build_programs(planned, target, machine), choices)
    except BuildError:
        if not isinstance(machine, GpuDescription):
            raise
        functions, changed = dict(planned.functions.items()), dict(choices)
        for global_var, func in planned.functions.items():
            name = str(global_var.name_hint)
            if not isinstance(func, tirx.PrimFunc) or name not in choices or choices[name].packed:
                continue
            reason = _refusal(func, target, machine)
            if reason:
                again, choice = schedule_by_last_resort(unscheduled[name], machine)
                functions[global_var] = _like(func, again)
                changed[name] = _explained(choice, choices[name], reason)
        if changed == choices:
            raise
    mod = with_nan_passed_on(tvm.IRModule(functions, attrs=planned.attrs))
    return Built(build_programs(mod, target, machine), changed)


def _refusal(func: tirx.PrimFunc, target: tvm.target.Target, machine: GpuDescription) -> str:
    """Why no code can be generated for a kernel; empty where it can."""
    options = tvm.transform.PassContext(opt_level=3, config=pass_options(target))
    try:
        with making_device_code(machine.arch), options:
            tvm.compile(func.with_attr("global_symbol", "main"), target=target)
    except BUILD_ERRORS as error:
        return reason_of(error)
    return ""


def _like(func: tirx.PrimFunc, again: tirx.PrimFunc) -> tirx.PrimFunc:
    """``again`` under the name that ``func`` has in its module."""
    symbol = func.attrs.get("global_symbol") if func.attrs is not None else None
    if symbol is not None:
        return again.with_attr("global_symbol", symbol)
    return again.without_attr("global_symbol") if "global_symbol" in again.attrs else again


def _explained(choice: ScheduleChoice, before: ScheduleChoice, reason: str) -> ScheduleChoice:
    refusal = f"{before.schedule}: no code could be generated ({reason})"
    return replace(choice, refusals=(*before.refusals, refusal), miss=before.miss)
