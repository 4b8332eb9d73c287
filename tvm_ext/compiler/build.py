"""Generates code for a planned module."""

from dataclasses import dataclass, replace

import tvm
from tvm import relax

from tvm_ext.cuda.device_code import making_device_code
from tvm_ext.cuda.runtime_library import runtime_problem
from tvm_ext.errors import BuildError, reason_of
from tvm_ext.hardware.description import CpuDescription, Processor
from tvm_ext.passes.cuda_graphs import captured_kernels
from tvm_ext.report.device_record import DeviceRecord
from tvm_ext.tir_schedules.cuda.pass_options import pass_options

# What code generation raises.
BUILD_ERRORS = (tvm.error.InternalError, RuntimeError, ValueError, TypeError, AttributeError)


@dataclass(frozen=True)
class Programs:
    """One program twice, to run and to save (see ``twin``), and what it holds for a GPU."""

    to_run: relax.VMExecutable
    to_save: relax.VMExecutable
    device: DeviceRecord | None = None


def build_programs(mod: tvm.IRModule, target: tvm.target.Target, machine: Processor) -> Programs:
    """The programs of a planned module; raises BuildError."""
    if isinstance(machine, CpuDescription):
        executable = build(mod, target)
        return Programs(twin(executable, mod, target), executable)
    # Where there is a GPU, the code is made for it to be loaded at once.
    runtime_problem()
    with making_device_code(machine.arch) as job:
        executable = build(mod, target)
        second = twin(executable, mod, target)
    graphs, kernels = captured_kernels(mod)
    return Programs(second, executable, replace(job.record(), graphs=graphs, graph_kernels=kernels))


def build(mod: tvm.IRModule, target: tvm.target.Target) -> relax.VMExecutable:
    """The executable of the virtual machine.

    Raises
    ------
    BuildError
        Code generation fails: the tool chain lacks something, or a kernel breaks a limit.
    """
    try:
        with tvm.transform.PassContext(opt_level=3, config=pass_options(target)):
            return relax.build(mod, target=target, relax_pipeline=None)
    except BUILD_ERRORS as error:
        raise BuildError(
            f"no code could be generated for target {target.kind.name} ({reason_of(error)}); "
            "expected a module that its tool chain accepts: try --opt-level 0 or another target"
        ) from error


def twin(
    executable: relax.VMExecutable, mod: tvm.IRModule, target: tvm.target.Target
) -> relax.VMExecutable:
    """The executable of ``mod`` once more, with the same kernels and weights in memory.

    A virtual machine writes a memory scope for each constant into the executable that it runs. When
    such a one is saved, TVM prints a warning for each, and again at every load: so one twin runs,
    the other is saved.
    """
    functions = {v: f for v, f in mod.functions.items() if isinstance(f, relax.Function)}
    second = build(tvm.IRModule(functions, attrs=mod.attrs), target)
    for kernels in executable.mod.imports:
        second.mod.import_module(kernels)
    return second
