"""SinkTransposes: transposes moved past elementwise operators to those that cancel them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_ext.relay_passes.axis_factors import MOVEMENTS, AxisFactors, View
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement, view_of
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_roles import BROADCASTING
from tvm_ext.relay_passes.sink_reshapes import UNARY

# Operators between two transposes that cancel. Exporters write an activation in up to ten.
_MOST_OPERATORS = 24


@graph_pass
class SinkTransposes:
    """Moves elementwise operators in front of a transpose that a later one cancels or joins.

    Before: ``y = permute_dims(conv2d(x, W), [0, 3, 1, 2]); z = reshape(y + b, [n, c, h * w]);
            permute_dims(z, [0, 2, 1])``
    After:  ``reshape(conv2d(x, W) + b', [n, h * w, c])``, where no data is moved and the operators
            become part of the convolution's kernel

    If the transposes do not cancel, one remains behind the operators. Models that pass between
    images and sequences are full of these. Sizes may be those of a run. Both operands of an
    operator may come from the transposed tensor (an activation in parts), others are constants,
    whose axes are put in the order of the source.

    Leaves alone: values between the transposes that are used elsewhere as well; operands that are
    neither constant nor computed from the transposed tensor.

    Run after: LayoutPlanning. Run before: CancelTransposes.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        return _Sinker().run(mod)


@dataclass
class _Region:
    """The values between a tensor and a later view of it, each after all that it reads."""

    source: relax.Var
    factors: AxisFactors
    views: dict[relax.Var, View] = field(default_factory=dict)
    uses: Counter[relax.Var] = field(default_factory=Counter)
    last: View = ()

    @property
    def is_in_order(self) -> bool:
        """Whether the last view has the elements in the order of the source."""
        return self.factors.is_in_order(self.last)


class _Sinker(BindingRewriter):
    pass_name = "SinkTransposes"
    roots = MOVEMENTS

    def has_work(self, func: relax.Function) -> bool:
        """Whether there is a transpose."""
        return "relax.permute_dims" in view_of(func).operators

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        if operator_name(value) not in MOVEMENTS or not isinstance(var.ty.shape, relax.ShapeExpr):
            return None
        region = self._region(var, value)
        if region is None:
            return None
        result: relax.Expr = self._moved(region, value.args[0])
        if region.is_in_order:
            result = relax.op.reshape(result, var.ty.shape)
        else:
            *inner, last = region.factors.one_transpose(region.last, var.ty.shape)
            for make in inner:
                result = self.bind(make(result), var)
            result = last(result)
        return Replacement(result, (), "moved elementwise operators in front of its transposes")

    def _region(self, var: relax.Var, value: relax.Call) -> _Region | None:
        """The largest region that ends in ``var`` and needs fewer transposes than it has."""
        for source in reversed(list(self._sources(value))):
            region = _Region(source, AxisFactors(list(source.ty.shape)))
            view = self._view(region, value.args[0])
            last = region.factors.moved(view, value) if view is not None else None
            if last is None or any(self.view.uses(v) != region.uses[v] for v in region.views):
                continue
            region.last = last
            inside = Counter(operator_name(self.view.value(v)) for v in (*region.views, var))
            transposes = inside.pop("relax.permute_dims", 0)
            operators = set(inside) - MOVEMENTS
            if operators and (region.is_in_order or (transposes > 1 and _is_transpose(value))):
                return region
        return None

    def _sources(self, value: relax.Call) -> Iterator[relax.Var]:
        """What the transposes above ``value`` transpose, the nearest first."""
        expr = value.args[0]
        for _ in range(_MOST_OPERATORS):
            call = self.view.call(expr, *MOVEMENTS, *UNARY, *BROADCASTING)
            tensors = _tensors(call) if call is not None else []
            if not tensors:
                return
            expr = tensors[0]
            known = isinstance(expr, relax.Var) and isinstance(expr.ty.shape, relax.ShapeExpr)
            if _is_transpose(call) and known and self.reaches(expr):
                yield expr

    def _elementwise(self, expr: relax.Expr) -> relax.Call | None:
        call = self.view.call(expr, *UNARY, *BROADCASTING)
        return call if call is not None and _tensors(call) else None

    def _view(self, region: _Region, expr: relax.Expr) -> View | None:
        """The view that ``expr`` is of the region's source; notes the values on the way."""
        if not isinstance(expr, relax.Var) or len(region.views) > 2 * _MOST_OPERATORS:
            return None
        region.uses[expr] += 1
        if expr.same_as(region.source):
            return region.factors.source
        if expr in region.views:
            return region.views[expr]
        view = self._view_of_call(region, expr)
        if view is not None:
            region.views[expr] = view
        return view

    def _view_of_call(self, region: _Region, expr: relax.Var) -> View | None:
        call = self.view.call(expr, *MOVEMENTS)
        if call is not None:
            view = self._view(region, call.args[0])
            return region.factors.moved(view, call) if view is not None else None
        call = self._elementwise(expr)
        if call is None:
            return None
        views = [self._view(region, tensor) for tensor in _tensors(call)]
        # An operand that broadcasts has another view.
        if any(view is None or view != views[0] for view in views) or views[0] is None:
            return None
        view = views[0]
        if len(view) != expr.ty.ndim:
            return None
        constants = [arg for arg in call.args if isinstance(arg, GenericConst)]
        turned = [region.factors.constant_of_source(c.value.numpy(), view) for c in constants]
        return view if all(array is not None for array in turned) else None

    def _moved(self, region: _Region, last: relax.Expr) -> relax.Expr:
        """The value of ``last`` before all transposes and reshapes, in the source's shape."""
        made: dict[relax.Var, relax.Expr] = {region.source: region.source}
        # In the order in which views were found, operands come first.
        for var, view in region.views.items():
            call = self.view.call(var, *MOVEMENTS)
            if call is not None:
                made[var] = made[call.args[0]]
                continue
            call = self.view.value(var)
            args = [self._operand(region, arg, view, made) for arg in call.args]
            made[var] = self.bind(relax.Call(call.op, args, call.attrs, call.ty_args), var)
        return made[last]

    def _operand(
        self, region: _Region, arg: relax.Expr, view: View, made: dict[relax.Var, relax.Expr]
    ) -> relax.Expr:
        if isinstance(arg, GenericConst) and arg.ty.ndim:
            array = region.factors.constant_of_source(arg.value.numpy(), view)
            return relax.const(array, str(arg.ty.dtype))
        return made.get(arg, arg) if isinstance(arg, relax.Var) else arg


def _is_transpose(value: relax.Expr) -> bool:
    return operator_name(value) == "relax.permute_dims"


def _tensors(call: relax.Call) -> Sequence[relax.Var]:
    """The operands that are tensors and not constant."""
    return [
        arg
        for arg in call.args
        if isinstance(arg, relax.Var) and isinstance(arg.ty, relax.TensorType)
    ]
