"""Templates for NVIDIA GPUs, in the order in which they are asked, ahead of TVM's dlight rules."""

from tvm_ext.tir_schedules.cuda.attention.attention import Attention
from tvm_ext.tir_schedules.cuda.elementwise import Elementwise
from tvm_ext.tir_schedules.cuda.generic import Generic
from tvm_ext.tir_schedules.cuda.products.contraction import Contraction
from tvm_ext.tir_schedules.cuda.products.matrix_vector import MatrixVector
from tvm_ext.tir_schedules.cuda.recurrence.recurrence import RecurrentLayer
from tvm_ext.tir_schedules.cuda.rows.row_reduction import RowReduction
from tvm_ext.tir_schedules.cuda.scan.scan import Scan
from tvm_ext.tir_schedules.cuda.transpose import Transpose
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_contraction import WarpGroupContraction
from tvm_ext.tir_schedules.cuda.windows.depthwise_convolution import (
    DepthwiseConvolution,
    DirectConvolution,
)
from tvm_ext.tir_schedules.cuda.windows.pooling import Pooling
from tvm_ext.tir_schedules.cuda.windows.window_reduction import WindowReduction
from tvm_ext.tir_schedules.template import Template

CUDA_TEMPLATES: tuple[Template, ...] = (
    Attention(),
    RecurrentLayer(),
    Scan(),
    DepthwiseConvolution(),
    WarpGroupContraction(),
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
