"""The backend for wafer-scale meshes, whose times are modelled."""

from tvm_ext.hardware.backend import Backend
from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.tir_schedules.backend import Scheduling
from tvm_ext.tir_schedules.wafer.blockwise import WaferBlockwise
from tvm_ext.tir_schedules.wafer.convolution import WaferConvolution
from tvm_ext.tir_schedules.wafer.elementwise import WaferElementwise
from tvm_ext.tir_schedules.wafer.gemv import WaferGemv
from tvm_ext.tir_schedules.wafer.matmul import WaferMatmul
from tvm_ext.tir_schedules.wafer.reduction import WaferReduction
from tvm_ext.tir_schedules.wafer.skewed_steps import with_skewed_steps
from tvm_ext.tir_schedules.wafer.stencil import WaferStencil
from tvm_ext.tir_schedules.wafer.transpose import WaferTranspose

WAFER = Backend(
    name="wafer",
    machine_type=WaferDescription,
    source="built-in",
    parts=(
        Scheduling(
            templates=(
                WaferTranspose(),
                WaferElementwise(),
                WaferReduction(),
                WaferMatmul(),
                WaferGemv(),
                WaferConvolution(),
                WaferStencil(),
            ),
            fallback=WaferBlockwise(),
            finishing=(lambda func, _machine: with_skewed_steps(func),),
        ),
    ),
)
