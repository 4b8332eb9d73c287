"""How a gradient is written and given to TVM."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tvm
from tvm import relax
from tvm.relax.op import register_gradient
from tvm.relax.op.grad import no_grad

# TVM registers its own with level 10, and of two for an operator the higher one holds.
_LEVEL = 15

Gradient: TypeAlias = (
    "Callable[[relax.BlockBuilder, relax.Var, relax.Call, relax.Var], Sequence[relax.Expr | None]]"
)
"""From the builder, the result, its call and the gradient of the result to that of each operand.

None stands for an operand that has none, such as a size or an index.
"""


def gradient_of(*names: str) -> Callable[[Gradient], Gradient]:
    """Registers a gradient of operators by their names without ``relax.``."""

    def register(gradient: Gradient) -> Gradient:
        def handler(
            result: relax.Var, call: relax.Call, given: relax.Var, bb: relax.BlockBuilder
        ) -> list[relax.Expr]:
            made = list(gradient(bb, result, call, given))
            made += [None] * (len(call.args) - len(made))
            return [
                no_grad(_as_expression(operand)) if one is None else one
                for one, operand in zip(made, call.args, strict=True)
            ]

        for name in names:
            register_gradient(f"relax.{name}", handler, _LEVEL)
        return gradient

    return register


def _as_expression(operand: Any) -> relax.Expr:
    """The operand, or a stand-in for one that ``no_grad`` takes not: a number, or several."""
    if isinstance(operand, tvm.ir.Expr) and isinstance(
        getattr(operand, "ty", None), relax.TensorType
    ):
        return operand
    return relax.const(0.0, "float32")


def sizes(value: relax.Expr) -> list[int]:
    """The sizes of a tensor, all of which are known in training."""
    return [int(size) for size in value.ty.shape.values]


def dtype_of(value: relax.Expr) -> str:
    """The type of a tensor's elements."""
    return str(value.ty.dtype)


def number(value: float, like: relax.Expr) -> relax.Expr:
    """A number in the type of a tensor."""
    return relax.const(value, dtype_of(like))


def fitted(bb: relax.BlockBuilder, gradient: relax.Expr, operand: relax.Expr) -> relax.Expr:
    """A gradient summed over the axes along which its operand was broadcast."""
    gradient = bb.normalize(gradient)
    given, wanted = sizes(gradient), sizes(operand)
    if given == wanted:
        return gradient
    lead = len(given) - len(wanted)
    axes = list(range(lead))
    axes += [lead + n for n, size in enumerate(wanted) if size == 1 and given[lead + n] != 1]
    summed = bb.emit(relax.op.sum(bb.emit(gradient), axes, keepdims=False))
    return summed if sizes(summed) == wanted else relax.op.reshape(summed, wanted)
