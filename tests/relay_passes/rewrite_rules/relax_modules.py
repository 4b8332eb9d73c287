"""Patterns and results of rules as modules of Relax."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.relay_passes.rewrite_rules.expression import Constant, Expression, variables_of
from tvm_ext.relay_passes.rewrite_rules.matching import build_relax
from tvm_ext.relay_passes.rewrite_rules.rule import Match


def module_of(expression: Expression, match: Match) -> tvm.IRModule:
    """A function of the variables of ``expression``, with constants of a match built in."""
    parameters = {
        one.name: relax.Var(one.name, tensor_type(match, one.name))
        for one in variables_of(expression)
        if not isinstance(one, Constant)
    }
    operands: dict[str, Any] = {**parameters, **match.constants}
    result = build_relax(expression, match, operands).expr
    builder = relax.BlockBuilder()
    with builder.function("main", list(parameters.values())):
        with builder.dataflow():
            output = builder.emit_output(_bound(builder, result))
        builder.emit_func_output(output)
    return builder.get()


def tensor_type(match: Match, name: str) -> relax.TensorType:
    """The type of a variable."""
    kind = match.kinds[name]
    return relax.TensorType(list(kind.shape), kind.dtype)


def _bound(builder: relax.BlockBuilder, expr: relax.Expr) -> relax.Expr:
    """``expr`` with every call in it bound to a variable."""
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_bound(builder, one) for one in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        tuple_value = expr.tuple_value
        source = builder.emit(tuple_value) if isinstance(tuple_value, relax.Call) else tuple_value
        return builder.emit(relax.TupleGetItem(source, expr.index))
    if not isinstance(expr, relax.Call):
        return expr
    args = [_bound(builder, one) for one in expr.args]
    return builder.emit(relax.Call(expr.op, args, expr.attrs))


def operators_of(mod: tvm.IRModule) -> list[str]:
    """The operators of the function main in their order."""
    found = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call):
                found.append(str(value.op.name))
            elif isinstance(value, relax.TupleGetItem):
                found.append("part")
    return found


def arrays_of(mod: tvm.IRModule, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The arguments of the function main, by the names of its parameters."""
    return [np.array(values[str(one.name)]) for one in mod["main"].params]
