"""Templates for CPUs, in the order in which they are asked."""

from tvm_ext.tir_schedules.cpu.blockwise import Blockwise
from tvm_ext.tir_schedules.cpu.depthwise_convolution import CpuDepthwiseConvolution
from tvm_ext.tir_schedules.cpu.elementwise import CpuElementwise
from tvm_ext.tir_schedules.cpu.pooling import CpuPooling
from tvm_ext.tir_schedules.cpu.recurrent_layer import CpuRecurrentLayer
from tvm_ext.tir_schedules.cpu.reduction import Reduction
from tvm_ext.tir_schedules.cpu.register_tile import RegisterTile
from tvm_ext.tir_schedules.cpu.scan import CpuScan
from tvm_ext.tir_schedules.cpu.softmax_and_norm import SoftmaxAndNorm
from tvm_ext.tir_schedules.cpu.symbolic_tile import SymbolicTiles
from tvm_ext.tir_schedules.cpu.transpose import CpuTranspose
from tvm_ext.tir_schedules.cpu.winograd import Winograd
from tvm_ext.tir_schedules.template import Template

CPU_TEMPLATES: tuple[Template, ...] = (
    CpuTranspose(),
    CpuElementwise(),
    CpuPooling(),
    SoftmaxAndNorm(),
    Reduction(),
    CpuScan(),
    CpuRecurrentLayer(),
    Winograd(),
    CpuDepthwiseConvolution(),
    RegisterTile(),
    Reduction(products=True, name="matrix times vector"),
    SymbolicTiles(),
    Blockwise(),
)
