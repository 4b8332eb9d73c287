"""Reverse mode over an imported graph, by TVM's ``Gradient``.

TVM asks for a gradient of everything that the loss is computed from, also where no trained weight
is involved. So what no trained weight reaches is a function of its own, whose results the part
that is differentiated takes as parameters. It may then hold any operator: masks of dropout, the
layers below those that are trained, shapes and positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.relay_passes.spans import bindings_of, describe_origin
from tvm_ext.training.gradients import register_gradients

_AHEAD, _REACHED = "ahead_of_weights", "reached_by_weights"
_GRADIENT = "FPrimalGradient"


@dataclass(frozen=True)
class Differentiated:
    """A function with its gradients, in two parts that ``call`` puts together.

    Attributes
    ----------
    ahead : relax.Function or None
        What no trained weight reaches; None where that is nothing.
    adjoint : relax.Function
        The rest: from the results of ``ahead`` and parameters of the function, to a pair of its
        results and the gradients.
    taken : tuple[relax.Var, ...]
        The parameters of the function that ``adjoint`` takes behind the results of ``ahead``.
    kernels : tvm.IRModule
        What they call; ``call`` wants a builder of this module.
    """

    ahead: relax.Function | None
    adjoint: relax.Function
    taken: tuple[relax.Var, ...]
    kernels: tvm.IRModule

    def call(
        self, bb: relax.BlockBuilder, values: Mapping[relax.Var, relax.Expr]
    ) -> tuple[list[relax.Expr], list[relax.Expr]]:
        """Results and gradients for these values of the function's parameters."""
        arguments: list[relax.Expr] = []
        if self.ahead is not None:
            ahead = bb.add_func(_private(self.ahead), _AHEAD)
            made = bb.emit(relax.Call(ahead, [values[param] for param in self.ahead.params]))
            arguments = _fields(bb, made)
        adjoint = bb.add_func(_private(self.adjoint), "adjoint")
        arguments += [values[param] for param in self.taken]
        results, gradients = _fields(bb, bb.emit(relax.Call(adjoint, arguments)))
        return _fields(bb, results), _fields(bb, gradients)


def differentiate(
    mod: tvm.IRModule, function: relax.Function, weights: Sequence[relax.Var], model: str
) -> Differentiated:
    """The gradients of the first result of a function by some of its parameters.

    ``function`` is one dataflow block that returns a tuple, the loss first; ``mod`` has the kernels
    that it calls.

    Raises
    ------
    UnsupportedOperatorError
        An operator between a weight and the loss has no gradient; the message names its nodes.
    """
    register_gradients()
    bindings = bindings_of(function)
    reached = _reached(function, weights)
    inside = [binding for binding in bindings if binding.var in reached]
    outside = [binding for binding in bindings if binding.var not in reached]
    results = list(function.body.body.fields)
    _require_gradients(inside, results[0], model)
    needed = _read_from(outside, [binding.value for binding in inside] + results)
    own = set(weights)
    # A weight that nothing reads has a gradient of zeros.
    taken = [one for one in function.params if one in own or _is_read(one, inside, results)]
    adjoint, kernels = _adjoint(mod, inside, results, [*needed, *taken], weights)
    if not needed:
        return Differentiated(None, adjoint, tuple(taken), kernels)
    given = [param for param in function.params if param not in own]
    return Differentiated(_function(given, outside, needed), adjoint, tuple(taken), kernels)


def _reached(function: relax.Function, weights: Sequence[relax.Var]) -> set[relax.Var]:
    """The variables that are computed from a weight."""
    found = set(weights)
    for binding in bindings_of(function):
        if any(var in found for var in relax.analysis.free_vars(binding.value)):
            found.add(binding.var)
    return found


def _require_gradients(bindings: Sequence[relax.VarBinding], loss: relax.Expr, model: str) -> None:
    """Refuses what the loss is computed from and has no gradient."""
    needed = set(relax.analysis.free_vars(loss))
    missing: dict[str, list[str]] = {}
    for binding in reversed(bindings):
        if binding.var not in needed or not _holds_floats(binding.var.ty):
            continue
        needed.update(relax.analysis.free_vars(binding.value))
        name = _without_gradient(binding.value)
        if name:
            missing.setdefault(name, []).append(describe_origin(binding.var))
    if missing:
        listed = "; ".join(
            f"{name} (nodes: {', '.join(dict.fromkeys(reversed(nodes)))})"
            for name, nodes in missing.items()
        )
        error = UnsupportedOperatorError({name: list(nodes) for name, nodes in missing.items()})
        error.args = (
            f"{model} cannot be trained: no gradient for {listed}; expected operators with one "
            "between a trained weight and the loss: name the weights behind these nodes in train",
        )
        raise error


def _holds_floats(ty: relax.Type) -> bool:
    """Whether a value has a gradient at all: places, shapes and truth values have none."""
    if isinstance(ty, relax.TupleType):
        return any(_holds_floats(field) for field in ty.fields)
    return isinstance(ty, relax.TensorType) and "float" in str(ty.dtype)


def _without_gradient(value: relax.Expr) -> str:
    """The name of an operator without a gradient, or nothing."""
    if isinstance(value, relax.If | relax.SeqExpr):
        return "If"
    if not isinstance(value, tvm.ir.Call):
        return ""
    if not isinstance(value.op, tvm.ir.Op):
        return "a call of a function"
    if value.op.name == "relax.call_tir":
        return f"the kernel {value.args[0].name_hint}"
    known = value.op.get_attr(_GRADIENT) is not None
    return "" if known else str(value.op.name).removeprefix("relax.")


def _is_read(
    param: relax.Var, bindings: Sequence[relax.VarBinding], results: Sequence[relax.Expr]
) -> bool:
    values = [*(binding.value for binding in bindings), *results]
    return any(param in relax.analysis.free_vars(value) for value in values)


def _read_from(
    bindings: Sequence[relax.VarBinding], values: Sequence[relax.Expr]
) -> list[relax.Var]:
    """The variables of these bindings that the values read."""
    known = {binding.var for binding in bindings}
    read = (var for value in values for var in relax.analysis.free_vars(value))
    return list(dict.fromkeys(var for var in read if var in known))


def _adjoint(
    mod: tvm.IRModule,
    bindings: Sequence[relax.VarBinding],
    results: Sequence[relax.Expr],
    params: Sequence[relax.Var],
    weights: Sequence[relax.Var],
) -> tuple[relax.Function, tvm.IRModule]:
    """The function of these bindings, which also returns the gradients, and what it calls."""
    own = {param: relax.Var(param.name, param.ty) for param in params}
    renamed = _Renamed(own)
    moved = [relax.VarBinding(one.var, renamed.visit_expr(one.value)) for one in bindings]
    function = _function(
        list(own.values()), moved, [renamed.visit_expr(result) for result in results]
    )
    mod = _kernels(mod)
    mod[_REACHED] = function.with_attr("global_symbol", _REACHED)
    by = [own[weight] for weight in weights]
    mod = relax.transform.Normalize()(mod)
    function = mod[_REACHED]
    places = {param: place for place, param in enumerate(own.values())}
    wanted = [function.params[places[one]] for one in by]
    mod = relax.transform.Gradient(_REACHED, wanted, 0)(mod)
    return mod[f"{_REACHED}_adjoint"], _kernels(mod)


def _kernels(mod: tvm.IRModule) -> tvm.IRModule:
    """A module of the kernels alone."""
    functions = mod.functions.items()
    return tvm.IRModule({var: f for var, f in functions if isinstance(f, tirx.PrimFunc)})


def _function(
    params: Sequence[relax.Var],
    bindings: Sequence[relax.VarBinding],
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
    renamed = _Renamed(outputs)
    moved = [
        relax.VarBinding(outputs.get(one.var, one.var), renamed.visit_expr(one.value))
        for one in bindings
    ]
    fields = [renamed.visit_expr(result) for result in results]
    block = relax.DataflowBlock(moved)
    result = relax.BlockBuilder().normalize(relax.Tuple(fields))
    body = relax.SeqExpr([block], result)
    return relax.Function(list(params), body, result.ty)


@mutator
class _Renamed(PyExprMutator):
    """Expressions with other variables in place of some."""

    def __init__(self, names: Mapping[relax.Var, relax.Var]) -> None:
        super().__init__()
        self._names = names

    def visit_var_(self, var: relax.Var) -> relax.Expr:
        return self._names.get(var, var)

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        return self._names.get(var, var)


def _private(function: relax.Function) -> relax.Function:
    return function.without_attr("global_symbol")


def _fields(bb: relax.BlockBuilder, value: relax.Expr) -> list[relax.Expr]:
    return [bb.emit(relax.TupleGetItem(value, place)) for place in range(len(value.ty.fields))]
