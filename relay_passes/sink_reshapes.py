"""SinkReshapes: elementwise operators right behind the kernel that they can be fused into."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import is_symbolic, item_shape
from tvm_ext.relay_passes.graph_pass import graph_pass
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

# Axes of the source and of the view that cover the same elements, as positions in their shapes.
AxisGroup = tuple[list[int], list[int]]


@graph_pass
class SinkReshapes:
    """Moves the reshape behind a convolution kernel past the elementwise operators that follow.

    y = kernel(x, W); z = reshape(y, [1, 56, 56, 64]); relu(z + b)
    y = kernel(x, W); reshape(relu(y + b'), [1, 56, 56, 64])     y has shape [1, 28, 2, 28, 2, 64]

    A reshape is only another view of memory, but operator fusion stops at it. Operands of the same
    shape are reshaped as well, those that broadcast are spread out where they are constant.

    Leaves alone: reshapes behind anything but convolutions and the kernels of ConvTransposeToConv
    and GroupedConvolution; operands that broadcast along a part of an axis and are not constant.

    Run after: FlattenPointwise, GroupedConvolution, LayoutPlanning. Run before: LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        return _Sinker().run(mod)


def axis_groups(source: Sequence[int], view: Sequence[int]) -> list[AxisGroup]:
    """The smallest runs of axes of two shapes, none with an extent of 0, that hold the same."""
    groups: list[AxisGroup] = []
    i = j = 0
    while i < len(source) or j < len(view):
        left, right = [i] if i < len(source) else [], [j] if j < len(view) else []
        i, j = i + len(left), j + len(right)
        while (own := prod(source[a] for a in left)) != (other := prod(view[a] for a in right)):
            if own < other:
                left.append(i)
                i += 1
            else:
                right.append(j)
                j += 1
        groups.append((left, right))
    return groups


class _Sinker(BindingRewriter):
    pass_name = "SinkReshapes"

    def __init__(self) -> None:
        # By variable that has become a reshape: what it reshapes, a variable of the new graph.
        self._sources: dict[relax.Var, relax.Var] = {}

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
        call = self.view.call(expr, "relax.call_tir", *CONVOLUTIONS)
        if call is None or not isinstance(expr, relax.Var):
            return False
        if call.op.name != "relax.call_tir":
            return True
        attrs = self.mod[call.args[0]].attrs
        return attrs is not None and ATTRIBUTE in attrs

    def _has_other_users(self, var: relax.Var) -> bool:
        """Whether what ``var`` reads of a kernel is used elsewhere as well."""
        operands = self.view.value(var).args
        reshaped = [expr for expr in operands if self._source(expr) is not None]
        return any(self.view.uses(expr) > 1 for expr in reshaped)

    def _moved(
        self, call: relax.Call, tensors: Sequence[relax.Expr], source: relax.Var, var: relax.Var
    ) -> relax.Call | None:
        """``call`` on operands with the axes of ``source``; None where that is not possible."""
        made, wanted = item_shape(source), item_shape(var)
        is_known = made and wanted and 0 not in wanted and _same_batch(source, var)
        if not (made and wanted and is_known and prod(made) == prod(wanted)):
            self.refuse("its shape is not known, empty, or not that of the kernel's result", var)
            return None
        operands = [self._operand(tensor, made, wanted, var) for tensor in tensors]
        if any(operand is None for operand in operands):
            self.refuse(
                "an operand is not constant, and either broadcasts or meets a result that has "
                "other users",
                var,
            )
            return None
        return relax.Call(call.op, [*operands, *call.args[len(operands) :]], call.attrs)

    def _operand(
        self, expr: relax.Expr, source: list[int], view: list[int], var: relax.Var
    ) -> relax.Expr | None:
        own = self._source(expr)
        is_same = own is not None and item_shape(own) == source and item_shape(expr) == view
        if is_same and _same_batch(own, expr) and _same_batch(expr, var):
            return own
        # Another value may be waiting for this operator: a residual that is added behind the
        # next convolution belongs to that one's kernel.
        if not isinstance(expr, GenericConst) and self._has_other_users(var):
            return None
        shape, batch = item_shape(expr), expr.ty.shape[0] if expr.ty.ndim else 1
        is_other = is_symbolic(batch) and (expr.ty.ndim < len(view) or not _same_batch(expr, var))
        if shape is None or is_other:
            return None
        shape = [1] * (len(view) - len(shape)) + shape
        if is_symbolic(var.ty.shape[0]) and shape[0] != 1:
            return None
        groups = axis_groups(source, view)
        if isinstance(expr, GenericConst):
            array = _spread(expr.value.numpy().reshape(shape), groups, source, view)
            return relax.const(array, str(expr.ty.dtype))
        extents = [_extents(group, shape, source, view) for group in groups]
        known = [part for part in extents if part is not None]
        if len(known) < len(extents):
            return None
        wanted: list[Any] = [n for part in known for n in part]
        if is_symbolic(batch):
            wanted[0] = batch
        return self.bind(relax.op.reshape(expr, wanted), var)


def _same_batch(expr: relax.Expr, other: relax.Expr) -> bool:
    """Whether the first sizes of two tensors are numbers both, or the same symbolic size."""
    one, two = expr.ty.shape[0], other.ty.shape[0]
    return one.same_as(two) if is_symbolic(one) or is_symbolic(two) else True


def _extents(
    group: AxisGroup, shape: Sequence[int], source: Sequence[int], view: Sequence[int]
) -> list[int] | None:
    """Extents along the source's axes of ``group``, for an operand with ``shape`` in the view.

    None when it broadcasts along a part of the group only.
    """
    left, right = group
    extents = [shape[axis] for axis in right]
    if all(extent == 1 for extent in extents):
        return [1] * len(left)
    if extents == [view[axis] for axis in right]:
        return [source[axis] for axis in left]
    return None


def _spread(
    array: np.ndarray, groups: list[AxisGroup], source: Sequence[int], view: Sequence[int]
) -> np.ndarray:
    """``array``, of the rank of the view, with the axes of the source, as small as possible."""
    shape, wanted, spread = list(array.shape), [], []
    for group in groups:
        extents = _extents(group, shape, source, view)
        if extents is None:
            extents = [source[axis] for axis in group[0]]
            spread += group[0]
            for axis in group[1]:
                shape[axis] = view[axis]
        wanted += extents
    result = np.broadcast_to(array, shape).reshape(wanted)
    for axis in spread:
        first = result.take([0], axis)
        if np.array_equal(np.broadcast_to(first, result.shape), result, equal_nan=True):
            result = first
    return np.ascontiguousarray(result)
