"""The templates for a kind of machine."""

from tvm_ext.hardware.description import CpuDescription, GpuDescription
from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.cuda import CUDA_LAST_RESORT, CUDA_LIBRARIES, CUDA_TEMPLATES
from tvm_ext.tir_schedules.cuda.tvm_rules import TVM_RULES
from tvm_ext.tir_schedules.llvm import CPU_TEMPLATES
from tvm_ext.tir_schedules.template import Machine, Template
from tvm_ext.tir_schedules.wafer import MESH_TEMPLATES


def templates_for(machine: Machine) -> tuple[Template, ...]:
    """The templates that schedule kernels for ``machine``, in the order in which they are asked.

    Names are unique for one machine only: those for CPUs and GPUs both have an "elementwise".
    """
    if isinstance(machine, CpuDescription):
        return CPU_TEMPLATES
    if isinstance(machine, GpuDescription):
        return (*CUDA_TEMPLATES, *TVM_RULES)
    return MESH_TEMPLATES if isinstance(machine, MeshDescription) else ()


def recordable_templates(machine: Machine) -> tuple[Template, ...]:
    """Those, libraries, and the one that a GPU's kernel gets when none of them takes it."""
    if isinstance(machine, GpuDescription):
        return (*templates_for(machine), *CUDA_LIBRARIES, CUDA_LAST_RESORT)
    return templates_for(machine)
