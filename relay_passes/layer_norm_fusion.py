"""LayerNormFusion: a normalisation that a model spells out, as one kernel."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.ir import GenericConst
from tvm_ffi import structural_equal

from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, GraphView, Replacement
from tvm_ext.relay_passes.expressions import is_symbolic
from tvm_ext.relay_passes.gemm_epilogue import scalar_value
from tvm_ext.relay_passes.graph_pass import OUT_ELEMENTWISE_FUSABLE, graph_pass


@graph_pass
class LayerNormFusion:
    """Computes ``(x - mean) / sqrt(variance + eps)`` in one kernel that passes over a row in cache.

    Before: ``m = mean(x); d = x - m; v = mean(power(d, 2)); d / sqrt(v + eps)``
    After:  ``layer_norm(x)``; scale and shift that follow join it when operators are fused

    The quotient may be a product with ``rsqrt`` or a reciprocal, and the square a product. Also
    for ``relax.nn.layer_norm``, which TVM computes from the mean of the squares: that loses all
    digits when the mean is much larger than the deviations. Here deviations are squared.

    Leaves alone: other types than float32; unknown and symbolic shapes; a mean and a variance over
    different axes; scales and shifts that are not over the last axes.

    Run after: LayoutPlanning, FoldConstantCalls. Run before: LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        return _LayerNormFuser().run(mod)


@dataclass(frozen=True)
class _Norm:
    """``x`` normalised over ``axes``, with ``eps`` added to the variance."""

    x: relax.Expr
    axes: tuple[int, ...]
    eps: float

    def compute(self, x: te.Tensor) -> te.Tensor:
        """The tensor expression: two reductions and what follows from them."""
        count = prod(int(x.shape[axis]) for axis in self.axes)
        mean = self._mean(x, count, lambda index: x(*index), "mean")
        centred = te.compute(x.shape, lambda *i: x(*i) - mean(*self._kept(i)), "centred")
        variance = self._mean(x, count, lambda index: centred(*index) * centred(*index), "variance")
        eps = tirx.const(self.eps, str(x.dtype))
        return te.compute(
            x.shape,
            lambda *i: centred(*i) / te.sqrt(variance(*self._kept(i)) + eps),
            "normalised",
        )

    def _mean(self, x: te.Tensor, count: int, element: Any, name: str) -> te.Tensor:
        shape = [n for axis, n in enumerate(x.shape) if axis not in self.axes] or [1]
        reduced = [te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in self.axes]

        def total(*kept: tirx.Var) -> te.Tensor:
            along, across = iter(reduced), iter(kept)
            index = [next(along if a in self.axes else across) for a in range(len(x.shape))]
            return te.sum(element(index), axis=reduced)

        sums = te.compute(shape, total, f"{name}_sum")
        return te.compute(shape, lambda *i: sums(*i) / tirx.const(count, str(x.dtype)), name)

    def _kept(self, index: Sequence[tirx.Var]) -> Sequence[Any]:
        return [i for axis, i in enumerate(index) if axis not in self.axes] or [0]


class _LayerNormFuser(BindingRewriter):
    pass_name = "LayerNormFusion"

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        if (call := self.view.call(value, "relax.nn.layer_norm")) is not None:
            return self._operator(var, call)
        norm = _spelled_out(self.view, value)
        if norm is None or not self._is_possible(norm, var):
            return None
        return Replacement(self._kernel(norm), (), f"over {_words(norm)} of its input")

    def _operator(self, var: relax.Var, call: relax.Call) -> Replacement | None:
        attrs: Any = call.attrs
        rank = call.args[0].ty.ndim
        axes = tuple(sorted(int(axis) % rank for axis in attrs.axes))
        norm = _Norm(call.args[0], axes, float(attrs.epsilon))
        if not self._is_possible(norm, var):
            return None
        if axes != tuple(range(rank - len(axes), rank)):
            self.refuse("it is not over the last axes", var)
            return None
        result = self.bind(self._kernel(norm), var)
        if attrs.scale:
            result = self.bind(relax.op.multiply(result, call.args[1]), var)
        if attrs.center:
            result = self.bind(relax.op.add(result, call.args[2]), var)
        return Replacement(result, (), f"over {_words(norm)} of its input, deviations squared")

    def _is_possible(self, norm: _Norm, var: relax.Var) -> bool:
        shape = norm.x.ty.shape
        sizes = list(shape) if isinstance(shape, relax.ShapeExpr) else []
        known = sizes and all(
            isinstance(sizes[axis], tirx.IntImm) and int(sizes[axis]) > 0 for axis in norm.axes
        )
        # FuseTIR fails on sizes that are computed from others.
        plain = all(isinstance(n, tirx.IntImm) or is_symbolic(n) for n in sizes)
        if not known or not plain or str(norm.x.ty.dtype) != "float32":
            self.refuse("its size is not known, empty, or its type is not float32", var)
            return False
        return True

    def _kernel(self, norm: _Norm) -> relax.Call:
        return self.builder.call_te(
            norm.compute,
            norm.x,
            primfunc_name_hint="layer_norm",
            primfunc_attrs={"op_pattern": OUT_ELEMENTWISE_FUSABLE},
        )


def _words(norm: _Norm) -> str:
    return "axis " + ", ".join(str(axis) for axis in norm.axes)


def _spelled_out(view: GraphView, value: relax.Expr) -> _Norm | None:
    """The normalisation whose last operator is ``value``."""
    factors = _quotient(view, value)
    if factors is None:
        return None
    centred, deviation = factors
    subtract = view.call(centred, "relax.subtract")
    total = view.call(deviation, "relax.add")
    if subtract is None or total is None:
        return None
    x, mean = subtract.args
    constant_first = isinstance(total.args[0], GenericConst)
    variance, eps = reversed(total.args) if constant_first else total.args
    axes, number = _axes(view, mean, x), scalar_value(eps, x)
    if axes is None or number is None:
        return None
    squares = view.call(variance, "relax.mean")
    if squares is None or _axes(view, variance, squares.args[0]) != axes:
        return None
    root = _square_root(view, squares.args[0])
    return _Norm(x, axes, number) if root is not None and _same(view, root, centred) else None


def _quotient(view: GraphView, value: relax.Expr) -> tuple[relax.Expr, relax.Expr] | None:
    """(d, v) for ``d / sqrt(v)``, ``d * rsqrt(v)`` and ``d * (1 / sqrt(v))``."""
    divide = view.call(value, "relax.divide")
    if divide is not None:
        root = view.call(divide.args[1], "relax.sqrt")
        return None if root is None else (divide.args[0], root.args[0])
    multiply = view.call(value, "relax.multiply")
    if multiply is None:
        return None
    for factor, other in (multiply.args, reversed(multiply.args)):
        inverse = view.call(other, "relax.rsqrt")
        if inverse is not None:
            return factor, inverse.args[0]
        one = view.call(other, "relax.divide")
        root = view.call(one.args[1], "relax.sqrt") if one is not None else None
        if one is not None and root is not None and scalar_value(one.args[0], factor) == 1.0:
            return factor, root.args[0]
    return None


def _axes(view: GraphView, expr: relax.Expr, of: relax.Expr) -> tuple[int, ...] | None:
    """The axes over which ``expr`` is the mean of ``of``, kept with an extent of 1."""
    mean = view.call(expr, "relax.mean")
    if mean is None or not _same(view, mean.args[0], of) or mean.attrs.axis is None:
        return None
    rank = of.ty.ndim
    axes = tuple(sorted(int(axis) % rank for axis in mean.attrs.axis))
    return axes if axes and mean.attrs.keepdims else None


def _square_root(view: GraphView, expr: relax.Expr) -> relax.Expr | None:
    """What ``expr`` is the square of."""
    power = view.call(expr, "relax.power")
    if power is not None and scalar_value(power.args[1], power.args[0]) == 2.0:
        return power.args[0]
    square = view.call(expr, "relax.square")
    if square is not None:
        return square.args[0]
    product = view.call(expr, "relax.multiply")
    if product is not None and _same(view, *product.args):
        return product.args[0]
    return None


def _same(view: GraphView, a: relax.Expr, b: relax.Expr) -> bool:
    """Whether two expressions are the same value, or the same operator on the same values."""
    return a.same_as(b) or bool(structural_equal(view.value(a), view.value(b)))
