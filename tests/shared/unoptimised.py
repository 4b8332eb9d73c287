"""This machine without LLVM's optimisations, for tests that compile a model and run it once.

They are about what is computed: the graph, its passes, and the schedules, which are the same. What
LLVM makes of the code would take half of their time. ``make test-all`` compiles as users do.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from thoroughness import LLVM_LEVEL
from tvm import relax, tirx

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.cpu.linker import Linker, find_compiler
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tir_schedules.lowering_pipeline import lowering_pipeline, pass_options


def unoptimised(machine: MachineDescription) -> MachineDescription:
    """``machine``, but for what LLVM does to code for a CPU."""
    if not isinstance(machine, CpuDescription):
        return machine
    options = {**machine.target_options, "opt-level": LLVM_LEVEL}
    return machine.model_copy(update={"target_options": options})


HOST = unoptimised(host_description())
# Any machine of this architecture: for modules that TVM itself compiles.
LLVM = tvm.target.Target({"kind": "llvm", "opt-level": LLVM_LEVEL})


def built(functions: Mapping[str, tirx.PrimFunc], machine: MachineDescription = HOST) -> Any:
    """Kernels by their names as a library, to be called with arrays that fit.

    Lowered as users' kernels are: a fifth of the time of TVM's own pipeline, and tested with it.
    Whether arrays fit is not looked at: those checks take LLVM as long as small kernels.
    """
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    target = tvm.target.Target(dict(machine.tvm_target().export()) | {"opt-level": LLVM_LEVEL})
    options = {**pass_options(target), "tirx.disable_assert": True}
    with tvm.transform.PassContext(opt_level=3, config=options):
        return linked(tirx.build(tvm.IRModule(named), target, lowering_pipeline(target)))


def machine_of(program: tvm.IRModule | relax.VMExecutable) -> relax.VirtualMachine:
    """What runs a program, or a module once TVM has compiled it as it is."""
    if isinstance(program, tvm.IRModule):
        program = tvm.compile(program, target=LLVM)
    return relax.VirtualMachine(linked(program), tvm.cpu())


def linked(code: Any) -> Any:
    """A library or a program that TVM has made, once it was written to a file and loaded.

    What is called without that is compiled in memory, where LLVM optimises whatever the target
    says: three times the time of all else.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.so"
        linker = Linker(find_compiler())
        code.export_library(str(path), fcompile=linker, workspace_dir=folder)
        return tvm_ffi.load_module(path)
