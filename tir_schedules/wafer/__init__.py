"""Templates for wafer-scale meshes, in the order in which they are asked."""

from tvm_ext.tir_schedules.template import Template
from tvm_ext.tir_schedules.wafer.anything import MeshBlockwise
from tvm_ext.tir_schedules.wafer.convolution import MeshConvolution
from tvm_ext.tir_schedules.wafer.elementwise import MeshElementwise
from tvm_ext.tir_schedules.wafer.matmul import MeshMatmul
from tvm_ext.tir_schedules.wafer.matrix_vector import MeshMatrixVector
from tvm_ext.tir_schedules.wafer.reduction import MeshReduction
from tvm_ext.tir_schedules.wafer.stencil import MeshStencil
from tvm_ext.tir_schedules.wafer.transpose import MeshTranspose

MESH_TEMPLATES: tuple[Template, ...] = (
    MeshTranspose(),
    MeshElementwise(),
    MeshReduction(),
    MeshMatmul(),
    MeshMatrixVector(),
    MeshConvolution(),
    MeshStencil(),
    MeshBlockwise(),
)
