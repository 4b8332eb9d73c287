"""Gradients of operators that work on each element alone."""

import math
from collections.abc import Callable, Sequence

from tvm import relax
from tvm.relax import op

from tvm_ext.training.gradients.registration import dtype_of, fitted, gradient_of, number

# From the operand and the result to the derivative.
_Derivative = Callable[[relax.Expr, relax.Expr], relax.Expr]

_TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)


def _one_minus(square: relax.Expr, like: relax.Expr) -> relax.Expr:
    return op.subtract(number(1, like), square)


def _gelu(x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """``F(x) + x f(x)``, with the distribution and the density of the standard normal."""
    below = op.add(number(1, x), op.erf(op.multiply(x, number(math.sqrt(0.5), x))))
    half_square = op.multiply(op.multiply(x, x), number(-0.5, x))
    density = op.multiply(op.exp(half_square), number(1 / math.sqrt(2 * math.pi), x))
    return op.add(op.multiply(below, number(0.5, x)), op.multiply(x, density))


def _gelu_tanh(x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """Of ``x (1 + tanh(c (x + a x^3))) / 2``."""
    c, a = math.sqrt(2 / math.pi), 0.044715
    square = op.multiply(x, x)
    inner = op.multiply(x, op.add(number(c, x), op.multiply(square, number(c * a, x))))
    slope = op.add(number(c, x), op.multiply(square, number(3 * c * a, x)))
    tanh = op.tanh(inner)
    rest = op.multiply(op.multiply(x, slope), _one_minus(op.multiply(tanh, tanh), x))
    return op.multiply(op.add(op.add(number(1, x), tanh), rest), number(0.5, x))


def _reciprocal_root(square: relax.Expr) -> relax.Expr:
    return op.rsqrt(square)


_DERIVATIVES: dict[str, _Derivative] = {
    # 0 at 0, as in PyTorch and JAX; TVM has 1 there.
    "abs": lambda x, y: op.sign(x),
    "acos": lambda x, y: op.negative(op.rsqrt(_one_minus(op.multiply(x, x), x))),
    "acosh": lambda x, y: op.rsqrt(op.subtract(op.multiply(x, x), number(1, x))),
    "asin": lambda x, y: op.rsqrt(_one_minus(op.multiply(x, x), x)),
    "asinh": lambda x, y: op.rsqrt(op.add(op.multiply(x, x), number(1, x))),
    "atan": lambda x, y: op.divide(number(1, x), op.add(op.multiply(x, x), number(1, x))),
    "atanh": lambda x, y: op.divide(number(1, x), _one_minus(op.multiply(x, x), x)),
    "cosh": lambda x, y: op.sinh(x),
    "erf": lambda x, y: op.multiply(
        op.exp(op.negative(op.multiply(x, x))), number(_TWO_OVER_ROOT_PI, x)
    ),
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
    "rsqrt": lambda x, y: op.multiply(op.multiply(op.multiply(y, y), y), number(-0.5, x)),
    "sigmoid": lambda x, y: op.multiply(y, _one_minus(y, x)),
    "sinh": lambda x, y: op.cosh(x),
    "square": lambda x, y: op.multiply(x, number(2, x)),
    "tan": lambda x, y: op.add(op.multiply(y, y), number(1, x)),
    "tanh": lambda x, y: _one_minus(op.multiply(y, y), x),
}

# Steps: their derivative is 0 wherever there is one.
_STEPS = (
    *("ceil", "floor", "round", "sign", "trunc", "argmax", "argmin"),
    *("equal", "greater", "greater_equal", "less", "less_equal", "not_equal"),
    *("isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not", "logical_xor"),
)


def _register_derivative(name: str, derivative: _Derivative) -> None:
    @gradient_of(name)
    def gradient(
        bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
    ) -> Sequence[relax.Expr | None]:
        return [op.multiply(given, bb.emit(derivative(call.args[0], y)))]


for _name, _one in _DERIVATIVES.items():
    _register_derivative(_name, _one)


@gradient_of(*_STEPS)
def _step(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    return []


@gradient_of("astype")
def _cast(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    """In the type of the operand, where that has gradients."""
    (x,) = call.args
    return [op.astype(given, dtype_of(x))] if "float" in dtype_of(x) else []


@gradient_of("nn.relu")
def _relu(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    """0 at 0, as in PyTorch and JAX; TVM has 1 there."""
    return [op.where(op.greater(y, number(0, y)), given, number(0, y))]


@gradient_of("nn.leakyrelu")
def _leaky_relu(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    x = call.args[0]
    small = op.multiply(given, number(float(call.attrs.alpha), x))
    return [op.where(op.greater(x, number(0, x)), given, small)]


@gradient_of("nn.prelu")
def _prelu(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    x, alpha = call.args
    shape = [1] * len(x.ty.shape.values)
    axis = int(call.attrs.axis) % len(shape)
    shape[axis] = int(alpha.ty.shape.values[0])
    is_above = bb.emit(op.greater(x, number(0, x)))
    slope = bb.emit(op.reshape(alpha, shape))
    below = bb.emit(op.where(is_above, number(0, x), given))
    other = [place for place in range(len(shape)) if place != axis]
    by_alpha = op.sum(bb.emit(op.multiply(below, x)), other)
    if shape[axis] == 1:
        by_alpha = op.reshape(bb.emit(op.sum(bb.emit(op.multiply(below, x)))), [1])
    return [op.where(is_above, given, op.multiply(given, slope)), by_alpha]


@gradient_of("clip")
def _clip(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    x, low, high = call.args
    inside = op.logical_and(
        op.greater_equal(x, number(float(low.value), x)),
        op.less_equal(x, number(float(high.value), x)),
    )
    return [op.where(inside, given, number(0, x))]


@gradient_of("maximum", "minimum")
def _extreme(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    """To the operand that was taken; half to each of two that are equal, as in PyTorch and JAX."""
    a, b = call.args
    half = bb.emit(op.multiply(given, number(0.5, given)))
    is_equal = bb.emit(op.equal(a, b))
    found = []
    for operand in (a, b):
        taken = op.where(op.equal(operand, y), given, number(0, given))
        found.append(fitted(bb, bb.emit(op.where(is_equal, half, taken)), operand))
    return found


@gradient_of("where")
def _where(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    """To the operand that was taken; TVM's has the shape of the result, not that of the operand."""
    condition, a, b = call.args
    zero = number(0, given)
    by_a = bb.emit(op.where(condition, given, zero))
    by_b = bb.emit(op.where(condition, zero, given))
    return [None, fitted(bb, by_a, a), fitted(bb, by_b, b)]
