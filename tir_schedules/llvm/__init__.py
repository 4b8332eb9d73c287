"""Templates for CPUs, in the order in which they are asked."""

from tvm_ext.tir_schedules.llvm.blockwise import Blockwise
from tvm_ext.tir_schedules.llvm.depthwise_convolution import DepthwiseConvolution
from tvm_ext.tir_schedules.llvm.elementwise import Elementwise
from tvm_ext.tir_schedules.llvm.pooling import Pooling
from tvm_ext.tir_schedules.llvm.recurrence.template import RecurrentLayer
from tvm_ext.tir_schedules.llvm.reduction import Reduction
from tvm_ext.tir_schedules.llvm.register_tile import RegisterTile
from tvm_ext.tir_schedules.llvm.row_stitch import RowStitch
from tvm_ext.tir_schedules.llvm.scan import Scan
from tvm_ext.tir_schedules.llvm.symbolic_tile import SymbolicTiles
from tvm_ext.tir_schedules.llvm.transpose import Transpose
from tvm_ext.tir_schedules.llvm.winograd import Winograd
from tvm_ext.tir_schedules.template import Template

CPU_TEMPLATES: tuple[Template, ...] = (
    Transpose(),
    Elementwise(),
    Pooling(),
    RowStitch(),
    Reduction(),
    Scan(),
    RecurrentLayer(),
    Winograd(),
    DepthwiseConvolution(),
    RegisterTile(),
    Reduction(products=True, name="matrix times vector"),
    SymbolicTiles(),
    Blockwise(),
)
