"""The kernel that says what a task's results have to be: as plain as the machine can run it."""

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.s_tir.analysis import estimate_tir_flops

from tvm_ext.hardware.description import Description, GpuDescription
from tvm_ext.hardware.host import host_description
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.cuda import CUDA_LAST_RESORT
from tvm_ext.tir_schedules.cuda.tvm_rules import TVM_RULES
from tvm_ext.tuning.candidate import plain_json
from tvm_ext.tuning.task import KernelTask
from tvm_ext.tuning.wide_sums import with_wide_sums

# Operations that a CPU does within a second without a schedule, of half precision too.
_MOST_OPERATIONS = 2e8


@dataclass(frozen=True)
class PlainKernel:
    """A kernel that computes a task's results.

    Attributes
    ----------
    mod : tvm.IRModule
        The kernel, named "main".
    target : dict
        Attributes of the TVM target that it is built for.
    is_here : bool
        Whether it runs on this machine's CPU, wherever candidates run.
    """

    mod: tvm.IRModule
    target: dict[str, Any]
    is_here: bool = False


def plain_kernel(task: KernelTask, machine: Description) -> PlainKernel:
    """The kernel without a schedule; a GPU, where that does not run, gets one of two others.

    What a CPU computes within a second, this one computes, loop by loop. More than that the GPU
    computes with the simplest of schedules: one thread for each result, nothing shared. Both add up
    narrow types in float32.
    """
    if not isinstance(machine, GpuDescription):
        return PlainKernel(task.workload, _attributes(machine))
    wide = with_wide_sums(task.workload)
    if _operations(wide) > _MOST_OPERATIONS:
        for template in (TVM_RULES[-1], CUDA_LAST_RESORT):
            simple = apply_template(template, wide["main"], machine)
            if isinstance(simple, ScheduledKernel):
                func = simple.func.with_attr("global_symbol", "main")
                return PlainKernel(tvm.IRModule({"main": func}), _attributes(machine))
    return PlainKernel(wide, _attributes(host_description()), is_here=True)


def _attributes(machine: Description) -> dict[str, Any]:
    attributes: dict[str, Any] = plain_json(dict(machine.tvm_target().export()))
    return attributes


def _operations(mod: tvm.IRModule) -> float:
    """Arithmetic operations, or elements of the largest parameter; infinite if TVM cannot say."""
    sizes = [[static_extent(size) or 1 for size in param.shape] for param in mod["main"].params]
    elements = max((math.prod(shape) for shape in sizes), default=0)
    try:
        return max(float(estimate_tir_flops(mod)), float(elements))
    except (tvm.error.InternalError, RuntimeError, ValueError, TypeError):
        return math.inf
