"""Templates for NVIDIA GPUs, in the order in which they are asked, ahead of TVM's dlight rules."""

from tvm_ext.tir_schedules.cuda.attention import Attention
from tvm_ext.tir_schedules.cuda.contraction import Contraction
from tvm_ext.tir_schedules.cuda.depthwise_convolution import (
    DepthwiseConvolution,
    DirectConvolution,
)
from tvm_ext.tir_schedules.cuda.elementwise import Elementwise
from tvm_ext.tir_schedules.cuda.generic import Generic
from tvm_ext.tir_schedules.cuda.matrix_vector import MatrixVector
from tvm_ext.tir_schedules.cuda.pooling import Pooling
from tvm_ext.tir_schedules.cuda.recurrence import RecurrentLayer
from tvm_ext.tir_schedules.cuda.row_reduction import RowReduction
from tvm_ext.tir_schedules.cuda.transpose import Transpose
from tvm_ext.tir_schedules.cuda.warp_group_contraction import WarpGroupContraction
from tvm_ext.tir_schedules.cuda.window_reduction import WindowReduction
from tvm_ext.tir_schedules.template import Template

CUDA_TEMPLATES: tuple[Template, ...] = (
    Attention(),
    RecurrentLayer(),
    WarpGroupContraction(),
    DepthwiseConvolution(),
    Contraction(),
    DirectConvolution(),
    MatrixVector(),
    Transpose(),
    Elementwise(),
    Pooling(),
    RowReduction(),
    WindowReduction(),
)

# Asked when neither these nor TVM's rules take a kernel.
CUDA_LAST_RESORT: Template = Generic()
