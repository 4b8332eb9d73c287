"""Kernels for a GPU whose code TVM refuses to generate, scheduled once more by the last resort."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import relax, tirx

from tvm_ext.compiler.build import build, can_be_built
from tvm_ext.compiler.nan_operands import with_nan_passed_on
from tvm_ext.errors import BuildError
from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.select import ScheduleChoice, schedule_by_last_resort
from tvm_ext.tir_schedules.template import Machine


@dataclass(frozen=True)
class Built:
    """An executable with the module and the schedules that it was built from."""

    executable: relax.VMExecutable
    mod: tvm.IRModule
    choices: dict[str, ScheduleChoice]


def build_with_last_resort(
    planned: tvm.IRModule,
    target: tvm.target.Target,
    machine: Machine,
    unscheduled: tvm.IRModule,
    choices: dict[str, ScheduleChoice],
    origins: Mapping[str, Sequence[str]] | None = None,
) -> Built:
    """The executable of ``planned``.

    A schedule for a GPU can break a rule that only code generation checks. Where the build fails,
    each kernel is built alone, and those that fail get the schedule that any kernel can have, from
    their form in ``unscheduled``. ``origins`` are the nodes of each kernel, for messages.

    Raises
    ------
    BuildError
        Code generation fails, and for another reason than the schedule of a kernel for a GPU.
    """
    try:
        return Built(build(planned, target, origins), planned, choices)
    except BuildError:
        if not isinstance(machine, GpuDescription):
            raise
        functions, changed = dict(planned.functions.items()), dict(choices)
        for global_var, func in planned.functions.items():
            name = str(global_var.name_hint)
            if not isinstance(func, tirx.PrimFunc) or name not in choices or choices[name].packed:
                continue
            if not can_be_built(func, target):
                again, choice = schedule_by_last_resort(unscheduled[name], machine)
                functions[global_var] = _like(func, again)
                changed[name] = _explained(choice, choices[name])
        if changed == choices:
            raise
    mod = with_nan_passed_on(tvm.IRModule(functions, attrs=planned.attrs))
    return Built(build(mod, target, origins), mod, changed)


def _like(func: tirx.PrimFunc, again: tirx.PrimFunc) -> tirx.PrimFunc:
    """``again`` under the name that ``func`` has in its module, with as many parameters.

    What ``func`` has more of are workspaces, which ``again`` does not need.
    """
    more = func.params[len(again.params) :]
    if more:
        params = [*again.params, *more]
        again = tirx.PrimFunc(params, again.body, again.ret_type, again.attrs)
    symbol = func.attrs.get("global_symbol") if func.attrs is not None else None
    if symbol is not None:
        return again.with_attr("global_symbol", symbol)
    return again.without_attr("global_symbol") if "global_symbol" in again.attrs else again


def _explained(choice: ScheduleChoice, before: ScheduleChoice) -> ScheduleChoice:
    refusal = f"{before.schedule}: no code could be generated"
    return replace(choice, refusals=(*before.refusals, refusal), miss=before.miss)
