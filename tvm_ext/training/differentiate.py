"""Reverse mode over an imported graph, by TVM's ``Gradient``.

TVM asks for a gradient of everything that the loss is computed from, also where no trained weight
is involved. So what no trained weight reaches is a function of its own, whose results the part
that is differentiated takes as parameters. It may then hold any operator: masks of dropout, the
layers below those that are trained, shapes and positions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax

from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.relay_passes.expressions import is_symbolic, replaced
from tvm_ext.relay_passes.spans import describe_origin
from tvm_ext.training.function_gradients import (
    FunctionGradients,
    emit_function,
    function_body,
    is_hidden,
    is_packed,
    own_bindings,
)
from tvm_ext.training.gradients import register_gradients

_REACHED = "reached_by_weights"
_GRADIENT = "FPrimalGradient"


@dataclass(frozen=True)
class Differentiated:
    """A function with its gradients, in two parts that ``body`` puts together.

    Attributes
    ----------
    ahead : relax.Function or None
        What no trained weight reaches; None where that is nothing.
    adjoint : relax.Function
        The rest: from the results of ``ahead`` and parameters of the function, to a pair of its
        results and the gradients.
    taken : tuple[relax.Var, ...]
        The parameters of the function that ``adjoint`` takes behind the results of ``ahead``.
    """

    ahead: relax.Function | None
    adjoint: relax.Function
    taken: tuple[relax.Var, ...]

    def body(
        self, bb: relax.BlockBuilder, values: Mapping[relax.Var, relax.Expr]
    ) -> tuple[list[relax.Binding], list[relax.Expr], list[relax.Expr]]:
        """Bindings, and the results and gradients for these values of the function's parameters.

        ``bb`` builds the module that was differentiated, with the gradients of what it calls. What
        the bindings read is emitted; they are not.
        """
        arguments: list[relax.Expr] = []
        if self.ahead is not None:
            made = emit_function(bb, self.ahead, [values[param] for param in self.ahead.params])
            arguments = list(made.fields)
        arguments += [values[param] for param in self.taken]
        bindings, made = function_body(bb, self.adjoint, arguments)
        results, gradients = (list(part.fields) for part in made.fields)
        return bindings, results, gradients

    def emit(
        self, bb: relax.BlockBuilder, values: Mapping[relax.Var, relax.Expr]
    ) -> tuple[list[relax.Expr], list[relax.Expr]]:
        """Emits ``body``; returns the results and the gradients."""
        bindings, results, gradients = self.body(bb, values)
        for binding in bindings:
            bb.emit_normalized(binding)
        return results, gradients


class Differentiation:
    """Differentiates functions of a module, and the private functions that they call.

    Parameters
    ----------
    mod : tvm.IRModule
        The module, of which functions of their own are differentiated one after the other.
    model : str
        The name of the model, for messages.
    """

    def __init__(self, mod: tvm.IRModule, model: str) -> None:
        register_gradients()
        self._model = model
        self._called = FunctionGradients(mod, self)

    def module(self) -> tvm.IRModule:
        """What the differentiated functions call, gradients of functions among it."""
        return self._called.module()

    def of(self, function: relax.Function, weights: Sequence[relax.Var]) -> Differentiated:
        """The gradients of the first result of a function by some of its parameters.

        ``function`` has one block and returns a tuple, the loss first.

        Raises
        ------
        UnsupportedOperatorError
            An operator between a weight and the loss has no gradient; the message names its nodes.
        """
        bindings = self._called.straight(own_bindings(function))
        reached = _reached(bindings, weights)
        inside = [self._differentiable(one, reached) for one in bindings if one.var in reached]
        outside = [binding for binding in bindings if binding.var not in reached]
        results = list(function.body.body.fields)
        self._require_gradients(inside, results[0])
        needed = _read_from(outside, [binding.value for binding in inside] + results)
        own = set(weights)
        # A weight that nothing reads has a gradient of zeros.
        taken = [one for one in function.params if one in own or _is_read(one, inside, results)]
        adjoint = self._adjoint(inside, results, [*needed, *taken], weights)
        if not needed:
            return Differentiated(None, adjoint, tuple(taken))
        given = [param for param in function.params if param not in own]
        return Differentiated(block_function(given, outside, needed), adjoint, tuple(taken))

    def _differentiable(self, binding: relax.Binding, reached: set[relax.Var]) -> relax.VarBinding:
        """The binding in a form that ``Gradient`` takes, if there is one."""
        value = binding.value
        if isinstance(binding, relax.MatchCast):
            # What has these sizes anyway needs no cast.
            return relax.VarBinding(binding.var, value)
        return relax.VarBinding(binding.var, self._called.hidden(value, reached))

    def _require_gradients(self, bindings: Sequence[relax.VarBinding], loss: relax.Expr) -> None:
        """Refuses what the loss is computed from and has no gradient."""
        needed = set(relax.analysis.free_vars(loss))
        missing: dict[str, list[str]] = {}
        for binding in reversed(bindings):
            if binding.var not in needed or not _holds_floats(binding.var.ty):
                continue
            needed.update(relax.analysis.free_vars(binding.value))
            name = _without_gradient(binding)
            if name:
                missing.setdefault(name, []).append(describe_origin(binding.var))
        if missing:
            raise _no_gradient(self._model, missing)

    def _adjoint(
        self,
        bindings: Sequence[relax.VarBinding],
        results: Sequence[relax.Expr],
        params: Sequence[relax.Var],
        weights: Sequence[relax.Var],
    ) -> relax.Function:
        """The function of these bindings, which also returns the gradients."""
        own = {param: relax.Var(param.name, param.ty) for param in params}
        moved = [relax.VarBinding(one.var, replaced(one.value, own)) for one in bindings]
        function = block_function(
            list(own.values()), moved, [replaced(result, own) for result in results]
        )
        mod = self._called.base()
        mod[_REACHED] = function.with_attr("global_symbol", _REACHED)
        mod = relax.transform.Normalize()(mod)
        function = mod[_REACHED]
        places = {param: place for place, param in enumerate(own)}
        wanted = [function.params[places[weight]] for weight in weights]
        mod = relax.transform.Gradient(_REACHED, wanted, 0)(mod)
        self._called.add_kernels(mod)
        return self._called.shown(mod[f"{_REACHED}_adjoint"])


def _reached(bindings: Iterable[relax.Binding], weights: Sequence[relax.Var]) -> set[relax.Var]:
    """The variables that are computed from a weight, and the weights."""
    found = set(weights)
    for binding in bindings:
        if any(var in found for var in relax.analysis.free_vars(binding.value)):
            found.add(binding.var)
    return found


def _no_gradient(model: str, missing: Mapping[str, Sequence[str]]) -> UnsupportedOperatorError:
    listed = "; ".join(
        f"{name} (nodes: {', '.join(dict.fromkeys(reversed(nodes)))})"
        for name, nodes in missing.items()
    )
    error = UnsupportedOperatorError({name: list(nodes) for name, nodes in missing.items()})
    error.args = (
        f"{model} cannot be trained: no gradient for {listed}; expected operators with one "
        "between a trained weight and the loss: name the weights behind these nodes in train",
    )
    return error


def _holds_floats(ty: relax.Type) -> bool:
    """Whether a value has a gradient at all: places, shapes and truth values have none."""
    if isinstance(ty, relax.TupleType):
        return any(_holds_floats(field) for field in ty.fields)
    return isinstance(ty, relax.TensorType) and "float" in str(ty.dtype)


def _without_gradient(binding: relax.VarBinding) -> str:
    """The name of an operator without a gradient, or nothing."""
    value = binding.value
    operands = [var.ty for var in relax.analysis.free_vars(value)]
    if not all(_is_sized(ty) for ty in (binding.var.ty, *operands)):
        return "a size that a run decides"
    if not isinstance(value, tvm.ir.Call) or is_hidden(value):
        return ""
    if is_packed(value):
        return f"the packed function {value.args[0].global_symbol}"
    if value.op.name == "relax.call_tir":
        return f"the kernel {value.args[0].name_hint}"
    known = value.op.get_attr(_GRADIENT) is not None
    return "" if known else str(value.op.name).removeprefix("relax.")


def _is_sized(ty: relax.Type) -> bool:
    if isinstance(ty, relax.TupleType):
        return all(_is_sized(field) for field in ty.fields)
    if not isinstance(ty, relax.TensorType):
        return True
    is_known = isinstance(ty.shape, relax.ShapeExpr)
    return is_known and not any(is_symbolic(size) for size in ty.shape.values)


def _is_read(
    param: relax.Var, bindings: Sequence[relax.VarBinding], results: Sequence[relax.Expr]
) -> bool:
    values = [*(binding.value for binding in bindings), *results]
    return any(param in relax.analysis.free_vars(value) for value in values)


def _read_from(bindings: Sequence[relax.Binding], values: Sequence[relax.Expr]) -> list[relax.Var]:
    """The variables of these bindings that the values read."""
    known = {binding.var for binding in bindings}
    read = (var for value in values for var in relax.analysis.free_vars(value))
    return list(dict.fromkeys(var for var in read if var in known))


def block_function(
    params: Sequence[relax.Var],
    bindings: Sequence[relax.Binding],
    results: Sequence[relax.Expr],
) -> relax.Function:
    """A function of one dataflow block that returns a tuple.

    Variables of the bindings that it returns are the block's outputs, as ``Gradient`` wants them.
    """
    returned = {var for result in results for var in relax.analysis.free_vars(result)}
    outputs = {
        binding.var: relax.Var(binding.var.name, binding.var.ty, binding.var.span)
        for binding in bindings
        if binding.var in returned and isinstance(binding.var, relax.DataflowVar)
    }
    moved = [_moved(one, outputs) for one in bindings]
    fields = [replaced(result, outputs) for result in results]
    block = relax.DataflowBlock(moved)
    result = relax.BlockBuilder().normalize(relax.Tuple(fields))
    body = relax.SeqExpr([block], result)
    return relax.Function(list(params), body, result.ty)


def _moved(binding: relax.Binding, outputs: Mapping[relax.Var, relax.Var]) -> relax.Binding:
    """The binding with these variables in place of others."""
    var, value = outputs.get(binding.var, binding.var), replaced(binding.value, outputs)
    if isinstance(binding, relax.MatchCast):
        return relax.MatchCast(var, value, binding.ty)
    return relax.VarBinding(var, value)
