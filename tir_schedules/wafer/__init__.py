"""Templates for wafer-scale meshes, in the order in which they are asked."""

from tvm_ext.tir_schedules.template import Template
from tvm_ext.tir_schedules.wafer.blockwise import WaferBlockwise
from tvm_ext.tir_schedules.wafer.convolution import WaferConvolution
from tvm_ext.tir_schedules.wafer.elementwise import WaferElementwise
from tvm_ext.tir_schedules.wafer.gemv import WaferGemv
from tvm_ext.tir_schedules.wafer.matmul import WaferMatmul
from tvm_ext.tir_schedules.wafer.reduction import WaferReduction
from tvm_ext.tir_schedules.wafer.stencil import WaferStencil
from tvm_ext.tir_schedules.wafer.transpose import WaferTranspose

WAFER_TEMPLATES: tuple[Template, ...] = (
    WaferTranspose(),
    WaferElementwise(),
    WaferReduction(),
    WaferMatmul(),
    WaferGemv(),
    WaferConvolution(),
    WaferStencil(),
    WaferBlockwise(),
)
