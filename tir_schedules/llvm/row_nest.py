"""The loops of a row kernel as a decision wants them."""

from tvm import tirx

from tvm_ext.tir_schedules.llvm.row_across import AcrossRows
from tvm_ext.tir_schedules.llvm.row_along import AlongRows
from tvm_ext.tir_schedules.llvm.row_decision import RowDecision
from tvm_ext.tir_schedules.rows.row_kernel import RowKernel


def rows_nest(kernel: RowKernel, decision: RowDecision) -> tirx.Stmt:
    """All loops of ``kernel``."""
    writer = AcrossRows if decision.across else AlongRows
    return writer(kernel, decision).write()
