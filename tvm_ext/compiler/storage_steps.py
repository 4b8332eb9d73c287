"""Storage whose size a run decides is allocated in few different sizes.

TVM's virtual machine keeps what a run frees in a pool, and hands it out again for the same number
of bytes only. A text model that meets a hundred lengths would hold the storage of each, and every
new length would begin in memory that was never touched.
"""

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.sym import Analyzer

from tvm_ext.hardware.targets import current_cpu
from tvm_ext.relay_passes.operator_name import operator_name
from tvm_ext.tir_schedules.block_access import static_extent

# The system gives a CPU's program memory as it is touched, so that storage may be twice too large.
# On a device all of it counts.
_CPU_STEPS = 1
_DEVICE_STEPS = 4


@relax.transform.function_pass(opt_level=0, name="RoundStorage")
class RoundStorage:
    """Rounds the bytes of storage of symbolic size up, to a few sizes for each power of two."""

    def transform_function(
        self, func: relax.Function, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> relax.Function:
        steps = _CPU_STEPS if current_cpu() is not None else _DEVICE_STEPS
        return _Rounder(steps).visit_expr(func)


@mutator
class _Rounder(PyExprMutator):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        if operator_name(op) != "relax.vm.alloc_storage":
            return super().visit_call_(op)
        # A number may be written as a product of several.
        size = Analyzer().simplify(op.args[0].values[0])
        if static_extent(size) is not None:
            return op
        shape = relax.ShapeExpr([rounded_up(size, self._steps)])
        return relax.Call(op.op, [shape, *op.args[1:]], op.attrs, op.ty_args)


def rounded_up(size: tirx.Expr, steps: int) -> tirx.Expr:
    """``size``, an int64, or the next of ``steps`` sizes between two powers of two; a power of two.

    Sizes of at most ``steps`` bytes become ``steps``.
    """
    at_least = tirx.max(size, tirx.const(steps, "int64"))
    # One step is the highest power of two in (size - 1), over the number of steps.
    highest = 63 - tirx.clz(tirx.max(at_least - 1, tirx.const(steps, "int64")))
    step = tirx.shift_left(tirx.const(1, "int64"), highest - (steps.bit_length() - 1))
    return tirx.bitwise_and(at_least + step - 1, -step)
