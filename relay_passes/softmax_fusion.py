"""SoftmaxFusion: what a model spells out of exponentials and their sum, as one kernel."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import GenericConst
from tvm_ffi import structural_equal

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.relay_passes.binding_rewriter import (
    BindingRewriter,
    GraphView,
    Replacement,
    view_of,
)
from tvm_ext.relay_passes.expressions import is_symbolic
from tvm_ext.relay_passes.gemm_epilogue import FLOAT_TYPES, same_shape, scalar_value
from tvm_ext.relay_passes.graph_pass import OUT_ELEMENTWISE_FUSABLE, graph_pass
from tvm_ext.relay_passes.normalization_spellings import (
    RESHAPES,
    inner_variables,
    kept_shape,
    reduced_axes,
)

# Under this name a function that reduces carries how, as TVM's operators do not for infinities.
REDUCTION = "tvm_ext.reduction"


def reduction_attribute(combine: str, axes: Sequence[int], keepdims: bool) -> str:
    """What a function carries that combines the elements along ``axes`` by "max" or the like."""
    return json.dumps({"combine": combine, "axes": list(axes), "keepdims": keepdims})


@graph_pass
class SoftmaxFusion:
    """Makes one kernel of a softmax, its logarithm or the logarithm of its sum, written in parts.

    Before: ``e = exp(x - max(x)); e / sum(e)``
    After:  ``softmax(x)``
    Before: ``d = x - max(x); d - log(sum(exp(d)))``
    After:  ``log_softmax(x)``
    Before: ``m = max(x); log(sum(exp(x - m))) + m``
    After:  ``log_sum_exp(x)``, also where 0 takes the place of a maximum that is infinite
    Before: ``softmax(x - max(x))``, or ``log_softmax`` of it
    After:  ``softmax(x)``, which takes the maximum away itself

    Reductions may drop their axes where a reshape puts them back.

    Leaves alone: a softmax over several axes at once; exponentials without the maximum, which may
    overflow where the operator does not; parts that are used elsewhere as well; integers.

    Run after: FoldConstantCalls. Run before: AttentionFusion, LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        return _SoftmaxFuser().run(mod)


@dataclass(frozen=True)
class _Reduced:
    """What is reduced, and the axes, which the value keeps with an extent of 1 or has lost.

    TVM's operator for a maximum starts with the lowest finite number, one with ``REDUCTION`` with
    minus infinity.
    """

    of: relax.Expr
    axes: tuple[int, ...]
    is_kept: bool
    starts_infinite: bool = False


# The operators that this pass makes, which models write as well.
_NAMED = ("relax.nn.softmax", "relax.nn.log_softmax")


class _SoftmaxFuser(BindingRewriter):
    pass_name = "SoftmaxFusion"
    # Logarithms of sums whose one reader drops the axes that they keep: that one becomes a kernel.
    _squeezed: set[int]
    roots = frozenset({"relax.divide", "relax.subtract", "relax.add", "relax.squeeze", *_NAMED})

    def has_work(self, func: relax.Function) -> bool:
        is_read = {"relax.exp", *_NAMED} & view_of(func).operators
        return bool(is_read) and super().has_work(func)

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._squeezed = set()
        if "relax.squeeze" not in self.view.operators:
            return
        squeezes = [
            var for var in self.view.bindings() if self.view.operator(var) == "relax.squeeze"
        ]
        for var in squeezes:
            squeeze = self.view.value(var)
            is_only = self.view.uses(squeeze.args[0]) == 1
            if is_only and self._squeezed_log_sum_exp(squeeze) is not None:
                self._squeezed.add(hash(squeeze.args[0]))

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        is_tensor = isinstance(value, relax.Call) and isinstance(var.ty, relax.TensorType)
        if not is_tensor or str(var.ty.dtype) not in FLOAT_TYPES:
            return None
        if hash(var) in self._squeezed:
            return None
        reading = _READINGS.get(self.view.operator(var))
        found = None if reading is None else reading(self, value)
        if found is None:
            return None
        x, result, what = found
        try:
            inner = inner_variables(self.view, value, [x])
        except NotApplicable:
            self.refuse("a part of it is used elsewhere as well", var)
            return None
        return Replacement(result(), inner, what)

    def _softmax(self, divide: relax.Call) -> "_Found | None":
        exponential, total = divide.args
        found = self._reduced(total, "sum")
        inner = self.view.call(exponential, "relax.exp")
        if found is None or inner is None or not found.of.same_as(exponential):
            return None
        x = self._less_its_maximum(inner.args[0], found)
        if x is None:
            return None
        return x, lambda: relax.op.nn.softmax(x, found.axes[0]), "softmax named"

    def _log_softmax(self, subtract: relax.Call) -> "_Found | None":
        shifted, logarithm = subtract.args
        log = self.view.call(logarithm, "relax.log")
        found = None if log is None else self._reduced(log.args[0], "sum")
        inner = None if found is None else self.view.call(found.of, "relax.exp")
        if found is None or inner is None or not inner.args[0].same_as(shifted):
            return None
        x = self._less_its_maximum(shifted, found)
        if x is None:
            return None
        return x, lambda: relax.op.nn.log_softmax(x, found.axes[0]), "log_softmax named"

    def _less_twice(self, named: relax.Call) -> "_Found | None":
        """What is named already, of what its maximum was taken from before."""
        (shifted,), rank = named.args, named.ty.ndim
        axis = int(named.attrs.axis) % rank
        x = self._less_its_maximum(shifted, _Reduced(shifted, (axis,), is_kept=True))
        if x is None:
            return None
        return x, lambda: relax.Call(named.op, [x], named.attrs), "one maximum"

    def _squeezed_log_sum_exp(self, squeeze: relax.Call) -> "_Found | None":
        add = self.view.call(squeeze.args[0], "relax.add")
        return None if add is None else self._log_sum_exp(add, squeeze.ty.shape)

    def _log_sum_exp(self, add: relax.Call, shape: Any = None) -> "_Found | None":
        """With ``shape``, which the result is to have, and which has none of the reduced axes."""
        for logarithm, shift in (add.args, reversed(add.args)):
            log = self.view.call(logarithm, "relax.log")
            found = None if log is None else self._reduced(log.args[0], "sum")
            inner = None if found is None else self.view.call(found.of, "relax.exp")
            shifted = None if inner is None else self.view.call(inner.args[0], "relax.subtract")
            if found is None or shifted is None or not same_shape(logarithm, shift):
                continue
            x, maximum = shifted.args
            kernel = self._guarded_maximum(x, maximum, found)
            is_known = len(found.axes) < x.ty.ndim and _is_known(x)
            if kernel is None or not self._same_row_value(shift, maximum) or not is_known:
                continue
            left = [n for axis, n in enumerate(x.ty.shape) if axis not in found.axes]
            if shape is not None and not structural_equal(shape, relax.ShapeExpr(left)):
                continue
            kernel = replace(kernel, keepdims=found.is_kept and shape is None)
            return x, lambda k=kernel, x=x: self._call(k, x), "one kernel"
        return None

    def _call(self, kernel: "_LogSumExp", x: relax.Expr) -> relax.Call:
        return self.builder.call_te(
            kernel.compute,
            x,
            primfunc_name_hint="log_sum_exp",
            primfunc_attrs={"op_pattern": OUT_ELEMENTWISE_FUSABLE},
        )

    def _less_its_maximum(self, expr: relax.Expr, like: _Reduced) -> relax.Expr | None:
        """``x`` where ``expr`` is ``x`` less its maximum along the one axis of ``like``."""
        call = self.view.call(expr, "relax.subtract")
        if call is None or not like.is_kept or len(like.axes) != 1:
            return None
        x, maximum = call.args
        found = self._reduced(maximum, "max")
        is_its = found is not None and found.is_kept and found.of.same_as(x)
        return x if found is not None and is_its and found.axes == like.axes else None

    def _guarded_maximum(
        self, x: relax.Expr, expr: relax.Expr, summed: _Reduced
    ) -> "_LogSumExp | None":
        """The kernel where ``expr`` is the maximum of ``x`` over the axes of the sum."""
        maximum, is_guarded = expr, False
        if (where := self.view.call(expr, "relax.where")) is not None:
            maximum, is_guarded = _zero_for_infinite(self.view, where), True
        elif self.view.call(expr, "relax.add") is not None:
            maximum = _nan_for_infinite(self.view, expr)
        found = None if maximum is None else self._reduced(maximum, "max")
        if found is None or not found.is_kept or found.axes != summed.axes:
            return None
        kernel = _LogSumExp(found.axes, is_guarded, found.starts_infinite)
        return kernel if found.of.same_as(x) else None

    def _same_row_value(self, one: relax.Expr, other: relax.Expr) -> bool:
        """Whether two values of rows are the same one, which may have lost the reduced axes."""
        view = self.view.call(one, *RESHAPES, "relax.squeeze")
        return one.same_as(other) or (view is not None and view.args[0].same_as(other))

    def _reduced(self, expr: relax.Expr, combine: str) -> _Reduced | None:
        """What ``expr`` combines, over which axes, whether or not a reshape puts these back."""
        reshape = self.view.call(expr, *RESHAPES)
        found = self._reduction(expr if reshape is None else reshape.args[0], combine)
        if found is None or reshape is None:
            return found
        shape = kept_shape(found.of, found.axes)
        if found.is_kept or not structural_equal(reshape.ty.shape, shape):
            return None
        return replace(found, is_kept=True)

    def _reduction(self, expr: relax.Expr, combine: str) -> _Reduced | None:
        operator = self.view.call(expr, f"relax.{combine}")
        if operator is not None:
            axes = reduced_axes(operator)
            kept = bool(operator.attrs.keepdims)
            return None if axes is None else _Reduced(operator.args[0], axes, kept)
        call = self.view.call(expr, "relax.call_tir")
        text = None if call is None else (self.mod[call.args[0]].attrs or {}).get(REDUCTION)
        if call is None or text is None:
            return None
        how = json.loads(str(text))
        x = call.args[1].fields[0]
        if how["combine"] != combine or not isinstance(x.ty.shape, relax.ShapeExpr):
            return None
        axes = tuple(sorted(axis % x.ty.ndim for axis in how["axes"]))
        return _Reduced(x, axes, bool(how["keepdims"]), starts_infinite=True)


# What is normalised, what makes the value in its place, and what is said of it.
_Found = tuple[relax.Expr, Callable[[], relax.Expr], str]
_READINGS: dict[str, Callable[[_SoftmaxFuser, relax.Call], _Found | None]] = {
    "relax.divide": _SoftmaxFuser._softmax,
    "relax.subtract": _SoftmaxFuser._log_softmax,
    "relax.add": _SoftmaxFuser._log_sum_exp,
    "relax.squeeze": _SoftmaxFuser._squeezed_log_sum_exp,
    **dict.fromkeys(_NAMED, _SoftmaxFuser._less_twice),
}


def _is_known(x: relax.Expr) -> bool:
    """Whether TVM can fuse kernels of the shape of ``x``, which has elements."""
    return all(
        is_symbolic(extent) or (isinstance(extent, tirx.IntImm) and int(extent) > 0)
        for extent in x.ty.shape
    )


# The logarithm of a sum of exponentials.


@dataclass(frozen=True)
class _LogSumExp:
    """``log(sum(exp(x - m))) + m`` over ``axes``, ``m`` being the maximum.

    An infinite maximum makes the result NaN, or counts as 0 where it ``is_guarded``.
    """

    axes: tuple[int, ...]
    is_guarded: bool
    starts_infinite: bool
    keepdims: bool = True

    def compute(self, x: te.Tensor) -> te.Tensor:
        """The tensor expression: two reductions, and what follows from them."""
        larger = te.max
        if self.starts_infinite:
            larger = te.comm_reducer(
                lambda a, b: te.max(a, b), lambda dtype: -tirx.infinity(dtype), name="max"
            )
        maximum = self._reduce(x, x, larger, "maximum")
        limit = te.compute(maximum.shape, lambda *i: self._limited(maximum(*i)), "limit")
        total = self._reduce(
            x,
            lambda *i: te.exp(x(*i) - limit(*self._kept(i))),
            te.sum,
            "total",
        )
        ones = [tirx.const(1, "int64") if a in self.axes else n for a, n in enumerate(x.shape)]
        shape = ones if self.keepdims else list(total.shape)

        def result(*index: tirx.Var) -> Any:
            at = self._kept(index) if self.keepdims else index
            return te.log(total(*at)) + limit(*at)

        return te.compute(shape, result, "log_sum_exp")

    def _limited(self, value: Any) -> Any:
        if not self.is_guarded:
            return value
        infinity = tirx.infinity(str(value.ty))
        is_infinite = tirx.any(value == infinity, value == -infinity)
        return tirx.Select(is_infinite, tirx.const(0.0, str(value.ty)), value)

    def _kept(self, index: Sequence[tirx.Var]) -> list[tirx.Var]:
        return [i for axis, i in enumerate(index) if axis not in self.axes]

    def _reduce(self, x: te.Tensor, element: Any, combine: Any, name: str) -> te.Tensor:
        along = {axis: te.reduce_axis((0, x.shape[axis]), f"k{axis}") for axis in self.axes}
        shape = [extent for axis, extent in enumerate(x.shape) if axis not in along]

        def value(*kept: tirx.Var) -> Any:
            across = iter(kept)
            index = [along[a] if a in along else next(across) for a in range(len(x.shape))]
            return combine(element(*index), axis=list(along.values()))

        return te.compute(shape, value, name)


# How models keep an infinite maximum from making a difference of infinities.


def _zero_for_infinite(view: GraphView, where: relax.Call) -> relax.Expr | None:
    """``m`` in ``where(isinf(m), 0, m)`` or ``where(isfinite(m), m, 0)``."""
    condition, first, second = where.args
    finite = view.call(condition, "relax.logical_not", "relax.isfinite")
    if finite is None:
        zero, maximum, tested = first, second, _tested(view, condition, second)
    elif finite.op.name == "relax.isfinite":
        zero, maximum, tested = second, first, _tested(view, condition, first)
    else:
        zero, maximum, tested = second, first, _tested(view, finite.args[0], first)
    is_guard = {np.inf, -np.inf} <= tested and scalar_value(zero, maximum) == 0.0
    return maximum if is_guard else None


def _nan_for_infinite(view: GraphView, total: relax.Expr) -> relax.Expr | None:
    """``m`` in ``m * cast(not t) + 0 * cast(t)`` where ``t`` tests whether ``m`` is infinite.

    TensorFlow chooses by multiplication, so that what it leaves out is NaN: ``0 * inf``. The plain
    formula has NaN there as well.
    """
    parts = [view.call(part, "relax.multiply") for part in view.value(total).args]
    for product, nothing in (parts, parts[::-1]):
        if product is None or nothing is None:
            return None
        for maximum, chosen in (product.args, reversed(product.args)):
            finite = _cast_from(view, chosen, "relax.logical_not")
            for number, left_out in (nothing.args, reversed(nothing.args)):
                cast = view.call(left_out, "relax.astype")
                if finite is None or cast is None or scalar_value(number, left_out) != 0.0:
                    continue
                test = finite.args[0]
                if cast.args[0].same_as(test) and _tested(view, test, maximum):
                    return maximum
    return None


def _cast_from(view: GraphView, expr: relax.Expr, name: str) -> relax.Call | None:
    cast = view.call(expr, "relax.astype")
    return None if cast is None else view.call(cast.args[0], name)


def _tested(view: GraphView, test: relax.Expr, value: relax.Expr) -> set[float]:
    """Which of the infinities and NaN ``test`` is true of, and of no finite ``value``; or none."""
    call = view.value(test)
    name = str(call.op.name) if view.call(test, *_TESTS) is not None else ""
    if name == "relax.logical_or":
        sides = [_tested(view, side, value) for side in call.args]
        return sides[0] | sides[1] if all(sides) else set()
    if name == "relax.equal":
        one, number = call.args
        infinity = _infinity(number)
        size = view.call(one, "relax.abs")
        if size is not None and size.args[0].same_as(value) and infinity == np.inf:
            return {np.inf, -np.inf}
        return {infinity} if infinity is not None and one.same_as(value) else set()
    return _TESTS[name] if name and call.args[0].same_as(value) else set()


_TESTS: dict[str, set[float]] = {
    "relax.isinf": {np.inf, -np.inf},
    "relax.isnan": {np.nan},
    "relax.isfinite": {np.inf, -np.inf, np.nan},
    "relax.equal": set(),
    "relax.logical_or": set(),
}


def _infinity(expr: relax.Expr) -> float | None:
    """The infinity that a constant of one element is."""
    if not isinstance(expr, GenericConst) or expr.value.numpy().size != 1:
        return None
    number = float(expr.value.numpy().reshape(-1)[0])
    return number if np.isinf(number) else None
