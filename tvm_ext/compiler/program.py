"""The program of a compilation, and what it holds for a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import relax

from tvm_ext.compiler.build import build
from tvm_ext.compiler.kernel_calls import KernelCall
from tvm_ext.compiler.rescheduled_kernels import build_with_last_resort
from tvm_ext.hardware.cuda.device_code import making_device_code
from tvm_ext.hardware.cuda.runtime_library import runtime_problem
from tvm_ext.hardware.description import CpuDescription, Processor
from tvm_ext.passes.cuda_graphs import captured_kernels, launches_only, without_capture
from tvm_ext.report.device_record import DeviceRecord
from tvm_ext.tir_schedules.select import ScheduleChoice


@dataclass(frozen=True)
class Program:
    """A program with the schedules that it was built with."""

    executable: relax.VMExecutable
    choices: dict[str, ScheduleChoice]
    device: DeviceRecord | None = None


def build_program(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    machine: Processor,
    unscheduled: tvm.IRModule,
    choices: dict[str, ScheduleChoice],
    calls: Sequence[KernelCall] = (),
) -> Program:
    """The program of a planned module; see ``build_with_last_resort``. Raises BuildError.

    ``calls`` say which nodes a kernel computes, for messages.
    """
    origins = {call.kernel: call.origins for call in reversed(calls)}
    if isinstance(machine, CpuDescription):
        built = build_with_last_resort(mod, target, machine, unscheduled, choices, origins)
        return Program(built.executable, built.choices)
    # Where there is a GPU, the code is made for it to be loaded at once.
    runtime_problem()
    with making_device_code(machine.arch) as job:
        built = build_with_last_resort(mod, target, machine, unscheduled, choices, origins)
        unsafe = built.choices != choices and not launches_only(built.mod)
        if unsafe:
            # A kernel with another schedule than the graphs were planned with.
            plain = without_capture(built.mod)
            built = replace(built, executable=build(plain, target), mod=plain)
    graphs, kernels = (0, 0) if unsafe else captured_kernels(built.mod)
    reason = "a kernel allocates memory while it runs" if unsafe else ""
    device = DeviceRecord(job.arch, job.form, job.made_by, graphs, kernels, reason)
    return Program(built.executable, built.choices, device)
