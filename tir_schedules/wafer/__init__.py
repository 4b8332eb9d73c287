"""Templates for wafer-scale meshes, in the order in which they are asked."""

from tvm_ext.tir_schedules.template import Template
from tvm_ext.tir_schedules.wafer.matmul import MeshMatmul
from tvm_ext.tir_schedules.wafer.matrix_vector import MeshMatrixVector

MESH_TEMPLATES: tuple[Template, ...] = (MeshMatmul(), MeshMatrixVector())
