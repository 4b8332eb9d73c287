"""The backend for NVIDIA GPUs."""

from tvm_ext.hardware.backend import Backend
from tvm_ext.hardware.description import CudaDescription
from tvm_ext.tir_schedules.backend import Scheduling
from tvm_ext.tir_schedules.cuda.attention.attention import Attention
from tvm_ext.tir_schedules.cuda.cublas import CublasMatmul
from tvm_ext.tir_schedules.cuda.depthwise_convolution import (
    CudaDepthwiseConvolution,
    DirectConvolution,
)
from tvm_ext.tir_schedules.cuda.dlight_rules import TVM_RULES
from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise
from tvm_ext.tir_schedules.cuda.finish import finished_for_cuda
from tvm_ext.tir_schedules.cuda.generic import Generic
from tvm_ext.tir_schedules.cuda.launch import is_bound
from tvm_ext.tir_schedules.cuda.matmul.contraction import CudaContraction
from tvm_ext.tir_schedules.cuda.matmul.gemv import Gemv
from tvm_ext.tir_schedules.cuda.nms import NMS
from tvm_ext.tir_schedules.cuda.pooling import CudaPooling, WindowReduction
from tvm_ext.tir_schedules.cuda.recurrent_layer import CudaRecurrentLayer
from tvm_ext.tir_schedules.cuda.row_reduction import RowReduction
from tvm_ext.tir_schedules.cuda.scan import CudaScan
from tvm_ext.tir_schedules.cuda.sort import Sort
from tvm_ext.tir_schedules.cuda.transpose import CudaTranspose
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_attention import (
    WarpgroupAttention,
)
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_contraction import WarpgroupContraction

CUDA = Backend(
    name="cuda",
    machine_type=CudaDescription,
    source="built-in",
    parts=(
        Scheduling(
            templates=(
                WarpgroupAttention(),
                Attention(),
                CudaRecurrentLayer(),
                CudaScan(),
                Sort(),
                NMS(),
                CudaDepthwiseConvolution(),
                WarpgroupContraction(),
                CudaContraction(),
                DirectConvolution(),
                Gemv(),
                CudaTranspose(),
                CudaElementwise(),
                CudaPooling(),
                RowReduction(),
                WindowReduction(),
            ),
            rules=TVM_RULES,
            fallback=Generic(),
            libraries=(CublasMatmul(),),
            finishing=(lambda func, _machine: finished_for_cuda(func),),
            is_bound=is_bound,
        ),
    ),
)
