"""Templates for CPUs, in the order in which they are asked."""

from tvm_ext.tir_schedules.llvm.blockwise import Blockwise
from tvm_ext.tir_schedules.llvm.elementwise import Elementwise
from tvm_ext.tir_schedules.llvm.register_tile import RegisterTile
from tvm_ext.tir_schedules.llvm.winograd import Winograd
from tvm_ext.tir_schedules.template import Template

CPU_TEMPLATES: tuple[Template, ...] = (Elementwise(), Winograd(), RegisterTile(), Blockwise())
