"""This machine without LLVM's optimisations, for tests that compile a model and run it once.

They are about what is computed: the graph, its passes, and the schedules, which are the same. What
LLVM makes of the code would take half of their time. ``make test-all`` compiles as users do.
"""

import os

import tvm

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.machine import MachineDescription

# 0 to 3, as of LLVM's own tools.
LLVM_LEVEL = int(os.environ.get("TEST_LLVM_LEVEL", "0"))


def unoptimised(machine: MachineDescription) -> MachineDescription:
    """``machine``, but for what LLVM does to code for a CPU."""
    if not isinstance(machine, CpuDescription):
        return machine
    options = {**machine.target_options, "opt-level": LLVM_LEVEL}
    return machine.model_copy(update={"target_options": options})


HOST = unoptimised(host_description())
# Any machine of this architecture: for modules that TVM itself compiles.
LLVM = tvm.target.Target({"kind": "llvm", "opt-level": LLVM_LEVEL})
