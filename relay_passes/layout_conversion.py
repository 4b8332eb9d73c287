"""Carries a layout plan out with ``relax.transform.ConvertLayout``.

ConvertLayout decides on the way through a graph: an operator that is no convolution takes the
layout its first input happens to have. To make it follow a plan, each input that would be in the
wrong layout gets a pin: for channels first a ``permute_dims`` that moves nothing, whose result
ConvertLayout always puts back in the original order; for channels last a convolution, the only
kind of operator that can be told its layout. The pins are taken out afterwards, and conversions
that cancel with them.
"""

from collections.abc import Mapping

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.configs.errors import TvmExtError
from tvm_ext.relay_passes.cancel_transposes import cancel_transposes
from tvm_ext.relay_passes.layout_cost import LAYOUT_NAMES, Layout
from tvm_ext.relay_passes.layout_graph import LayoutGraph, Leaves, flat
from tvm_ext.relay_passes.layout_roles import CONVOLUTIONS, canonical_call
from tvm_ext.relay_passes.operator_name import operator_name


class LayoutConversionError(TvmExtError):
    """ConvertLayout raised an error for the module."""


def convert_layouts(
    mod: tvm.IRModule, plans: Mapping[tvm.ir.GlobalVar, tuple[LayoutGraph, list[bool]]]
) -> tvm.IRModule:
    """``mod`` with the convolutions of each function in the layouts of its plan.

    A plan is a function's layout problem and, for each of its nodes, whether it has channels last.

    Raises
    ------
    LayoutConversionError
        ConvertLayout cannot handle the module.
    """
    pinner = _Pinner(mod)
    for global_var, (graph, channels_last) in plans.items():
        pinner.start(graph, channels_last)
        pinner.builder_.update_func(global_var, pinner.visit_expr(mod[global_var]))
    pinned = pinner.builder_.get()

    def desired_layouts(call: relax.Call) -> dict[str, list[str]]:
        layout = pinner.desired.get(call)
        if layout is None:
            return {}
        name = operator_name(call)
        return {name: list(LAYOUT_NAMES[CONVOLUTIONS[name]][layout])}

    try:
        converted = relax.transform.ConvertLayout({}, desired_layouts)(pinned)
    except (RuntimeError, TypeError, ValueError) as error:
        # The three that errors of TVM's C++ code arrive as; InternalError is a RuntimeError.
        raise LayoutConversionError(
            "layouts cannot be changed around it; expected operators that take either: they stay "
            "as they are"
        ) from error
    unpinner = _Unpinner(converted, pinner.pin_weights)
    for global_var in plans:
        unpinner.builder_.update_func(global_var, unpinner.visit_expr(converted[global_var]))
    unpinned = relax.transform.DeadCodeElimination()(unpinner.builder_.get())
    return cancel_transposes(unpinned)


@mutator
class _Pinner(PyExprMutator):
    """Adds the pins, and notes for each call of a convolution the layout it shall have."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.desired: dict[relax.Call, Layout] = {}
        self.pin_weights: list[GenericConst] = []
        self.graph = LayoutGraph()
        self.channels_last: list[bool] = []
        self.convolutions: dict[relax.Var, Layout] = {}

    def start(self, graph: LayoutGraph, channels_last: list[bool]) -> None:
        """Takes up the plan of the function that is visited next."""
        self.graph, self.channels_last = graph, channels_last
        self.convolutions = {
            convolution.var: Layout(channels_last[convolution.node])
            for convolution in graph.convolutions
        }

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var = binding.var
        if var in self.convolutions:
            layout = self.convolutions[var]
            call = self._emit(var, self.visit_expr(binding.value), layout)
            self.desired[call] = layout
        elif var in self.graph.wants:
            layout = Layout(self.channels_last[self.graph.wants[var]])
            call = canonical_call(binding.value)
            args = [self._pinned(arg, layout) for arg in call.args]
            self._emit(var, relax.Call(call.op, args, call.attrs, call.ty_args, call.span), layout)
        else:
            super().visit_var_binding_(binding)

    def _emit(self, var: relax.Var, call: relax.Expr, layout: Layout) -> relax.Call:
        """Binds ``var`` to ``call``; a result with channels last by way of an inner variable.

        ConvertLayout would bind the call to a variable of its own, without origin, and give
        ``var`` to the conversion.
        """
        call = self.builder_.normalize(call)
        if isinstance(var, relax.DataflowVar) or layout is Layout.CHANNELS_FIRST:
            self.builder_.emit_normalized(relax.VarBinding(var, call))
            return call
        inner = relax.DataflowVar(var.name, var.ty, var.span)
        self.builder_.emit_normalized(relax.VarBinding(inner, call))
        self.builder_.emit_normalized(relax.VarBinding(var, inner))
        return call

    def _pinned(self, arg: relax.Expr, layout: Layout) -> relax.Expr:
        """``arg`` as an operator reads it that wants its inputs in ``layout``."""
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._pinned(part, layout) for part in arg.fields])
        new_arg = self.visit_expr(arg)
        if isinstance(arg, GenericConst):
            return self._pin(new_arg, layout) if layout is Layout.CHANNELS_LAST else new_arg
        return self._pinned_leaves(new_arg, self.graph.leaves.get(arg), layout)

    def _pinned_leaves(self, value: relax.Expr, leaves: Leaves, layout: Layout) -> relax.Expr:
        if all(self._layout_held(n) == layout for n in flat(leaves)):
            return value
        if not isinstance(leaves, list):
            return self._pin(value, layout)
        parts = [self.builder_.emit(relax.TupleGetItem(value, i)) for i in range(len(leaves))]
        return relax.Tuple(
            [
                self._pinned_leaves(part, part_leaves, layout)
                for part, part_leaves in zip(parts, leaves, strict=True)
            ]
        )

    def _layout_held(self, number: int) -> Layout:
        """The layout in which ConvertLayout will have the tensor ``number``."""
        if number in self.graph.transposed:
            return Layout.CHANNELS_FIRST
        return Layout(self.channels_last[self.graph.problem.tensors[number].producer])

    def _pin(self, value: relax.Expr, layout: Layout) -> relax.Expr:
        ndim = value.ty.ndim
        if ndim not in LAYOUT_NAMES:
            return value
        if layout is Layout.CHANNELS_FIRST:
            return self.builder_.emit(relax.op.permute_dims(value, list(range(ndim))))
        channels = int(value.ty.shape[1])
        shape = (channels,) + (1,) * (ndim - 1)
        weight = GenericConst(
            tvm.runtime.empty(shape, value.ty.dtype), relax.TensorType(shape, value.ty.dtype)
        )
        self.pin_weights.append(weight)
        name = next(name for name, rank in CONVOLUTIONS.items() if rank == ndim)
        convolve = getattr(relax.op.nn, name.rsplit(".", 1)[1])
        call = self.builder_.normalize(convolve(value, weight, groups=channels))
        self.desired[call] = layout
        pin = relax.DataflowVar("pin", call.ty)
        self.builder_.emit_normalized(relax.VarBinding(pin, call))
        return pin


@mutator
class _Unpinner(PyExprMutator):
    """Replaces the convolutions that are pins by their input."""

    def __init__(self, mod: tvm.IRModule, pin_weights: list[GenericConst]) -> None:
        super().__init__(mod)
        self.pin_weights = set(pin_weights)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call = binding.value
        if operator_name(call) not in CONVOLUTIONS or not self._is_pin(call):
            super().visit_var_binding_(binding)
            return
        source = self.visit_expr(call.args[0])
        self.set_var_remap(binding.var, source)

    def _is_pin(self, call: relax.Call) -> bool:
        weight = call.args[1]
        while not isinstance(weight, GenericConst):
            value = self.lookup_binding(self.visit_expr(weight))
            if operator_name(value) != "relax.permute_dims":
                return False
            weight = value.args[0]
        return weight in self.pin_weights
