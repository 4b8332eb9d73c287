"""The programs of a compilation: one to run, one to save, and what they hold for a GPU."""

from dataclasses import dataclass, replace

import tvm
from tvm import relax

from tvm_ext.compiler.build import build, twin
from tvm_ext.compiler.rescheduled_kernels import build_with_last_resort
from tvm_ext.hardware.cuda.device_code import making_device_code
from tvm_ext.hardware.cuda.runtime_library import runtime_problem
from tvm_ext.hardware.description import CpuDescription, Processor
from tvm_ext.passes.cuda_graphs import captured_kernels, launches_only, without_capture
from tvm_ext.report.device_record import DeviceRecord
from tvm_ext.tir_schedules.select import ScheduleChoice


@dataclass(frozen=True)
class Programs:
    """One program twice (see ``twin``), with the schedules that it was built with."""

    to_run: relax.VMExecutable
    to_save: relax.VMExecutable
    choices: dict[str, ScheduleChoice]
    device: DeviceRecord | None = None


def build_programs(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    machine: Processor,
    unscheduled: tvm.IRModule,
    choices: dict[str, ScheduleChoice],
) -> Programs:
    """The programs of a planned module; see ``build_with_last_resort``. Raises BuildError."""
    if isinstance(machine, CpuDescription):
        built = build_with_last_resort(mod, target, machine, unscheduled, choices)
        return Programs(twin(built.executable, built.mod, target), built.executable, built.choices)
    # Where there is a GPU, the code is made for it to be loaded at once.
    runtime_problem()
    with making_device_code(machine.arch) as job:
        built = build_with_last_resort(mod, target, machine, unscheduled, choices)
        unsafe = built.choices != choices and not launches_only(built.mod)
        if unsafe:
            # A kernel with another schedule than the graphs were planned with.
            plain = without_capture(built.mod)
            built = replace(built, executable=build(plain, target), mod=plain)
        second = twin(built.executable, built.mod, target)
    graphs, kernels = (0, 0) if unsafe else captured_kernels(built.mod)
    reason = "a kernel allocates memory while it runs" if unsafe else ""
    device = DeviceRecord(job.arch, job.form, job.made_by, graphs, kernels, reason)
    return Programs(second, built.executable, built.choices, device)
