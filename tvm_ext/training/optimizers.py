"""Optimisers: how a weight follows its gradient.

They are the formulas of PyTorch, with the learning rate as an input of the program. TVM's
optimisers write it into the program as a number, so that a schedule would compile anew each step.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol, TypeAlias

from tvm import relax

from tvm_ext.errors import InputError

Rate: TypeAlias = "float | Callable[[int], float]"
"""A learning rate, or a function of the number of the step, which begins at 0."""


class Optimizer(Protocol):
    """What the program of a step and the trainer ask of an optimiser."""

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the tensors that are kept for each weight, which begin as zeros."""

    def numbers(self, step: int) -> dict[str, float]:
        """The numbers that this step takes, by name; the same names for each step."""

    def update(
        self,
        bb: relax.BlockBuilder,
        weight: relax.Expr,
        gradient: relax.Expr,
        state: Mapping[str, relax.Expr],
        numbers: Mapping[str, relax.Expr],
    ) -> tuple[relax.Expr, dict[str, relax.Expr]]:
        """The new weight and the new state, as expressions."""


def rate_at(rate: Rate, step: int) -> float:
    """The learning rate of a step.

    Raises
    ------
    InputError
        A schedule gives something else than a number from 0 on.
    """
    value = rate(step) if callable(rate) else rate
    if not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise InputError(
            f"the learning rate of step {step} is {value!r}; expected a number from 0 on: give "
            "one, or a function from the number of the step to one"
        )
    return float(value)


@dataclass(frozen=True)
class SGD:
    """Gradient descent, with momentum if it is above 0.

    Parameters
    ----------
    lr : float or function of the step
        The learning rate.
    momentum : float
        The share of the last move that goes on.
    nesterov : bool
        Whether to look ahead by the momentum.
    weight_decay : float
        The share of the weight that is added to its gradient.
    """

    lr: Rate
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        """The sum of past gradients, with momentum."""
        return ("momentum",) if self.momentum else ()

    def numbers(self, step: int) -> dict[str, float]:
        """The learning rate."""
        return {"learning_rate": rate_at(self.lr, step)}

    def update(
        self,
        bb: relax.BlockBuilder,
        weight: relax.Expr,
        gradient: relax.Expr,
        state: Mapping[str, relax.Expr],
        numbers: Mapping[str, relax.Expr],
    ) -> tuple[relax.Expr, dict[str, relax.Expr]]:
        """``w - lr * (momentum * v + g)``."""
        ops = _Arithmetic(bb, weight)
        gradient = ops.with_decay(weight, gradient, self.weight_decay)
        made: dict[str, relax.Expr] = {}
        if self.momentum:
            moved = ops.add(ops.times(state["momentum"], self.momentum), gradient)
            made["momentum"] = moved
            ahead = ops.add(gradient, ops.times(moved, self.momentum))
            gradient = ahead if self.nesterov else moved
        return ops.moved(weight, gradient, numbers["learning_rate"]), made


@dataclass(frozen=True)
class Adam:
    """Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015.

    Parameters
    ----------
    lr : float or function of the step
        The learning rate.
    betas : tuple of float
        The shares of the running mean and of the running mean square that stay in a step.
    epsilon : float
        What is added to the root of the mean square.
    weight_decay : float
        The share of the weight that is added to its gradient.
    """

    lr: Rate = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        """The running mean of the gradient and of its square."""
        return ("mean", "square")

    def numbers(self, step: int) -> dict[str, float]:
        """The learning rate, and what makes up for means that began at zero."""
        first, second = (1 / (1 - beta ** (step + 1)) for beta in self.betas)
        rate = rate_at(self.lr, step)
        return {"learning_rate": rate, "mean_factor": first, "square_factor": second}

    def update(
        self,
        bb: relax.BlockBuilder,
        weight: relax.Expr,
        gradient: relax.Expr,
        state: Mapping[str, relax.Expr],
        numbers: Mapping[str, relax.Expr],
    ) -> tuple[relax.Expr, dict[str, relax.Expr]]:
        """``w - lr * m / (sqrt(v) + epsilon)``, with ``m`` and ``v`` made up for their start."""
        ops = _Arithmetic(bb, weight)
        gradient = ops.with_decay(weight, gradient, self.weight_decay)
        first, second = self.betas
        mean = ops.mixed(state["mean"], gradient, first)
        square = ops.mixed(state["square"], ops.multiply(gradient, gradient), second)
        root = bb.emit(relax.op.sqrt(ops.multiply(square, numbers["square_factor"])))
        below = ops.add(root, ops.number(self.epsilon))
        direction = bb.emit(relax.op.divide(ops.multiply(mean, numbers["mean_factor"]), below))
        made = {"mean": mean, "square": square}
        return ops.moved(weight, direction, numbers["learning_rate"]), made


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with the decay of weights apart from the gradient (Loshchilov and Hutter, ICLR 2019).

    The parameters are those of ``Adam``; ``weight_decay`` times the learning rate is the share
    that a weight loses in a step.
    """

    weight_decay: float = 0.01

    def update(
        self,
        bb: relax.BlockBuilder,
        weight: relax.Expr,
        gradient: relax.Expr,
        state: Mapping[str, relax.Expr],
        numbers: Mapping[str, relax.Expr],
    ) -> tuple[relax.Expr, dict[str, relax.Expr]]:
        """As of ``Adam``, from a weight that has decayed."""
        ops = _Arithmetic(bb, weight)
        lost = ops.times(numbers["learning_rate"], self.weight_decay)
        kept = ops.multiply(weight, bb.emit(relax.op.subtract(ops.number(1.0), lost)))
        plain = Adam(self.lr, self.betas, self.epsilon)
        return plain.update(bb, kept, gradient, state, numbers)


def require_optimizer(given: Any) -> Optimizer:
    """Raises InputError where ``given`` is no optimiser."""
    if isinstance(given, SGD | Adam):
        return given
    raise InputError(
        f"optimizer is {given!r}; expected SGD(...), Adam(...) or AdamW(...) of "
        "tvm_ext.training: give one of them"
    )


class _Arithmetic:
    """Operators on tensors of a weight's type, each bound to a variable."""

    def __init__(self, bb: relax.BlockBuilder, like: relax.Expr) -> None:
        self._bb = bb
        self._dtype = str(like.ty.dtype)

    def number(self, value: float) -> relax.Expr:
        return relax.const(value, self._dtype)

    def add(self, a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return self._bb.emit(relax.op.add(a, b))

    def multiply(self, a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return self._bb.emit(relax.op.multiply(a, b))

    def times(self, a: relax.Expr, factor: float) -> relax.Expr:
        return self.multiply(a, self.number(factor))

    def mixed(self, old: relax.Expr, new: relax.Expr, share: float) -> relax.Expr:
        """``share`` of the old and the rest of the new."""
        return self.add(self.times(old, share), self.times(new, 1 - share))

    def with_decay(self, weight: relax.Expr, gradient: relax.Expr, decay: float) -> relax.Expr:
        return self.add(gradient, self.times(weight, decay)) if decay else gradient

    def moved(self, weight: relax.Expr, by: relax.Expr, rate: relax.Expr) -> relax.Expr:
        return self._bb.emit(relax.op.subtract(weight, self.multiply(by, rate)))
