"""Templates for NVIDIA GPUs, in the order in which they are asked, ahead of TVM's dlight rules."""

from tvm_ext.tir_schedules.cuda.attention.attention import Attention
from tvm_ext.tir_schedules.cuda.cublas import CublasMatmul
from tvm_ext.tir_schedules.cuda.depthwise_convolution import (
    CudaDepthwiseConvolution,
    DirectConvolution,
)
from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise
from tvm_ext.tir_schedules.cuda.generic import Generic
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
from tvm_ext.tir_schedules.template import Template

CUDA_TEMPLATES: tuple[Template, ...] = (
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
)

# Asked when neither these nor TVM's rules take a kernel.
CUDA_FALLBACK: Template = Generic()

# Used only where a record says so.
CUDA_LIBRARIES: tuple[Template, ...] = (CublasMatmul(),)
