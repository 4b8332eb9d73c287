"""Templates for NVIDIA GPUs, in the order in which they are asked, ahead of TVM's dlight rules."""

from tvm_ext.tir_schedules.cuda.attention import Attention
from tvm_ext.tir_schedules.cuda.contraction import Contraction
from tvm_ext.tir_schedules.cuda.elementwise import Elementwise
from tvm_ext.tir_schedules.cuda.row_reduction import RowReduction
from tvm_ext.tir_schedules.cuda.transpose import Transpose
from tvm_ext.tir_schedules.template import Template

CUDA_TEMPLATES: tuple[Template, ...] = (
    Attention(),
    Contraction(),
    Transpose(),
    Elementwise(),
    RowReduction(),
)
