"""SinkReshapes: elementwise operators right behind the kernel that they can be fused into."""

from collections.abc import Sequence

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_ext.relay_passes.axis_factors import AxisFactors, View
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement, view_of
from tvm_ext.relay_passes.gemm_epilogue import same_shape
from tvm_ext.relay_passes.graph_pass import OUT_ELEMENTWISE_FUSABLE, graph_pass
from tvm_ext.relay_passes.layout_roles import BROADCASTING, CONVOLUTIONS

# A function whose result is meant to be reshaped carries this attribute, with any text.
ATTRIBUTE = "tvm_ext.reshaped_result"

# Elementwise operators of one tensor.
UNARY = frozenset(
    f"relax.{name}"
    for name in (
        *("abs", "astype", "ceil", "clip", "cos", "erf", "exp", "floor", "log", "negative"),
        *("round", "rsqrt", "sigmoid", "sin", "sqrt", "square", "tanh"),
        *("nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.silu", "nn.softplus"),
    )
)


_KERNELS = frozenset({"relax.call_tir", "relax.matmul", *CONVOLUTIONS})


@graph_pass
class SinkReshapes:
    """Moves the reshape behind a convolution or matmul past the elementwise operators that follow.

    y = kernel(x, W); z = reshape(y, [1, 56, 56, 64]); relu(z + b)
    y = kernel(x, W); reshape(relu(y + b'), [1, 56, 56, 64])     y has shape [1, 28, 2, 28, 2, 64]

    A reshape is only another view of memory, but operator fusion stops at it. Operands of the same
    shape are reshaped as well, those that broadcast are spread out where they are constant.

    Leaves alone: reshapes behind anything but convolutions, matmuls, kernels that other passes made
    of these, and elementwise operators that follow them; operands that broadcast along a part of an
    axis and are not constant; constants along a size that is not known.

    Run after: FlattenPointwise, GroupedConvolution, LayoutPlanning. Run before: LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        return _Sinker().run(mod)


class _Sinker(BindingRewriter):
    pass_name = "SinkReshapes"
    roots = UNARY | BROADCASTING

    def __init__(self) -> None:
        # By variable that has become a reshape: what it reshapes, a variable of the new graph.
        self._sources: dict[relax.Var, relax.Var] = {}

    def has_work(self, func: relax.Function) -> bool:
        """Whether there is a reshape."""
        return "relax.reshape" in view_of(func).operators

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._sources = {}

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return None
        unary = value.op.name in UNARY
        if not unary and value.op.name not in BROADCASTING:
            return None
        tensors = value.args[:1] if unary else value.args
        source = next((s for s in map(self._source, tensors) if s is not None), None)
        if source is None:
            return None
        moved = self._moved(value, tensors, source, var)
        if moved is None:
            return None
        inner = self._sources[var] = self.bind(moved, var)
        result = relax.op.reshape(inner, var.ty.shape)
        return Replacement(result, (), "moved in front of the reshape")

    def _source(self, expr: relax.Expr) -> relax.Var | None:
        """What ``expr`` is a reshape of, if that is a kernel or what was moved behind one."""
        if not isinstance(expr, relax.Var):
            return None
        source = self._sources.get(expr)
        if source is None:
            call = self.view.call(expr, "relax.reshape")
            source = call.args[0] if call is not None else None
            if source is None or not self._is_kernel_result(source):
                return None
        return source if self.reaches(source) else None

    def _is_kernel_result(self, expr: relax.Expr) -> bool:
        """Whether elementwise operators behind ``expr`` are fused into the kernel that makes it."""
        call = self.view.call(expr, *_KERNELS, *UNARY, *BROADCASTING)
        if call is None or not isinstance(expr, relax.Var):
            return False
        if call.op.name == "relax.call_tir":
            attrs = self.mod[call.args[0]].attrs or {}
            return ATTRIBUTE in attrs or attrs.get("op_pattern") == OUT_ELEMENTWISE_FUSABLE
        # What is already behind the kernel is fused into it while nothing else reads in between.
        behind = [arg for arg in call.args if isinstance(arg, relax.Var)]
        return call.op.name in _KERNELS or (
            bool(behind) and self.view.uses(behind[0]) == 1 and self._is_kernel_result(behind[0])
        )

    def _has_other_users(self, var: relax.Var) -> bool:
        """Whether what ``var`` reads of a kernel is used elsewhere as well."""
        operands = self.view.value(var).args
        reshaped = [expr for expr in operands if self._source(expr) is not None]
        return any(self.view.uses(expr) > 1 for expr in reshaped)

    def _moved(
        self, call: relax.Call, tensors: Sequence[relax.Expr], source: relax.Var, var: relax.Var
    ) -> relax.Call | None:
        """``call`` on operands with the axes of ``source``; None where that is not possible."""
        shapes = [source.ty.shape, var.ty.shape]
        if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
            self.refuse("its shape is not known", var)
            return None
        factors = AxisFactors(list(source.ty.shape))
        view = factors.reshaped(factors.source, list(var.ty.shape))
        if view is None:
            self.refuse(
                "its axes are not made of those of the kernel's result, or it is empty", var
            )
            return None
        operands = [self._operand(tensor, source, var, factors, view) for tensor in tensors]
        if any(operand is None for operand in operands):
            self.refuse(
                "an operand is not constant, and either broadcasts or meets a result that has "
                "other users",
                var,
            )
            return None
        return relax.Call(call.op, [*operands, *call.args[len(operands) :]], call.attrs)

    def _operand(
        self,
        expr: relax.Expr,
        source: relax.Var,
        var: relax.Var,
        factors: AxisFactors,
        view: View,
    ) -> relax.Expr | None:
        own = self._source(expr)
        if own is not None and same_shape(own, source) and same_shape(expr, var):
            return own
        if isinstance(expr, GenericConst):
            array = factors.constant_of_source(expr.value.numpy(), view)
            return None if array is None else relax.const(array, str(expr.ty.dtype))
        # Another value may be waiting for this operator: a residual that is added behind the
        # next convolution belongs to that one's kernel.
        if self._has_other_users(var) or not isinstance(expr.ty.shape, relax.ShapeExpr):
            return None
        shape = factors.shape_of_source(list(expr.ty.shape), view)
        return None if shape is None else self.bind(relax.op.reshape(expr, shape), var)
