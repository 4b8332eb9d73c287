"""RoundStorage: storage whose size a run decides is allocated in few different sizes."""

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.sym import Analyzer

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.spans import relax_functions, with_functions
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent

# TVM's virtual machine keeps what a run frees in a pool, and hands it out again for the same
# number of bytes only. A text model that meets a hundred lengths would hold the storage of each,
# and every new length would begin in memory that was never touched.


# The system gives a CPU's program memory as it is touched, so that storage may be twice too large.
# On a device all of it counts.
_CPU_STEPS = 1
_DEVICE_STEPS = 4


@graph_pass
class RoundStorage:
    """Rounds the bytes of storage of symbolic size up, to a few sizes for each power of two.

    More bytes than an address reaches, which 64 bits may not hold either, become so many that no
    machine has them. With ``rounding`` false that is all that is done.

    Leaves alone: storage of known size.

    Run after: sizes that are known are filled in. Run before: VMShapeLower, which computes them.
    """

    rounding: bool = True

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns the module with rounded sizes."""
        steps = _CPU_STEPS if current_cpu() is not None else _DEVICE_STEPS
        steps = steps if self.rounding else 0
        functions = relax_functions(mod).items()
        return with_functions(mod, {var: _Rounder(steps).visit_expr(f) for var, f in functions})


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
        size = limited(size)
        shape = relax.ShapeExpr([rounded_up(size, self._steps) if self._steps else size])
        return relax.Call(op.op, [shape, *op.args[1:]], op.attrs, op.ty_args)


def limited(size: tirx.Expr) -> tirx.Expr:
    """``size``, an int64 without negative parts, or 2**48 where it is larger or overflows."""
    limit = 1 << 48
    is_far = _approximate(size) > tirx.const(float(limit), "float64")
    return tirx.Select(is_far, tirx.const(limit, "int64"), size)


def _approximate(size: tirx.Expr) -> tirx.Expr:
    """The same in floating point, which does not overflow."""
    if type(size) in (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min):
        return type(size)(_approximate(size.a), _approximate(size.b))
    return size.astype("float64")


def rounded_up(size: tirx.Expr, steps: int) -> tirx.Expr:
    """``size``, an int64, or the next of ``steps`` sizes between two powers of two; a power of two.

    Sizes of at most ``steps`` bytes become ``steps``.
    """
    at_least = tirx.max(size, tirx.const(steps, "int64"))
    # One step is the highest power of two in (size - 1), over the number of steps.
    highest = 63 - tirx.clz(tirx.max(at_least - 1, tirx.const(steps, "int64")))
    step = tirx.shift_left(tirx.const(1, "int64"), highest - (steps.bit_length() - 1))
    return tirx.bitwise_and(at_least + step - 1, -step)
