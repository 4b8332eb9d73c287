"""Losses: what a model's outputs and the targets come to, as one number.

They are written in operators of which all have gradients. TVM's own cross entropy reads its
labels by ``nll_loss``, which no template of ours schedules, and whose gradient takes
``ignore_index`` for a class.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from tvm import relax

from tvm_ext.errors import InputError
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.tensor_spec import TensorSpec

# The name of the target of a loss that takes one.
TARGET = "target"


@dataclass(frozen=True)
class CrossEntropy:
    """The mean of ``-log(softmax(logits)[label])`` over all labels.

    A model that ends in a Softmax is trained by what that reads, which is the same loss without
    its rounding. A label that is no class, such as -100, counts for nothing.

    Parameters
    ----------
    axis : int
        The axis of the logits along which the classes are; 1 as in ONNX. It is -1 for a model that
        gives classes for each token of a sequence.
    """

    axis: int = 1

    def targets(self, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
        """The labels: integers in the shape of the logits without the axis of the classes."""
        logits = outputs[0]
        if not -len(logits.shape) <= self.axis < len(logits.shape):
            raise InputError(
                f"the loss counts classes along axis {self.axis}, and the model's output is "
                f"{logits.describe()}; expected logits with that axis: give CrossEntropy(axis=...)"
            )
        shape = list(logits.shape)
        del shape[self.axis]
        return [TensorSpec(TARGET, "int64", tuple(shape))]

    def value(
        self, bb: relax.BlockBuilder, outputs: Sequence[relax.Expr], targets: Sequence[relax.Expr]
    ) -> relax.Expr:
        """The loss, as an expression of the outputs and the labels."""
        logits, labels = _before_softmax(bb, outputs[0]), targets[0]
        shape, dtype = logits.ty.shape.values, str(logits.ty.dtype)
        axis = self.axis % len(shape)
        numbers = np.arange(int(shape[axis]), dtype="int64")
        numbers = numbers.reshape([-1 if n == axis else 1 for n in range(len(shape))])
        column = bb.emit(relax.op.expand_dims(labels, axis))
        is_label = bb.emit(relax.op.equal(column, relax.const(numbers)))
        chosen = bb.emit(relax.op.astype(is_label, dtype))
        counted = bb.emit(relax.op.sum(chosen))
        # Where no label counts the loss is 0 rather than 0 / 0.
        counted = bb.emit(relax.op.maximum(counted, relax.const(1, dtype)))
        logs = bb.emit(relax.op.nn.log_softmax(logits, axis))
        total = bb.emit(relax.op.sum(bb.emit(relax.op.multiply(logs, chosen))))
        return bb.emit(relax.op.negative(bb.emit(relax.op.divide(total, counted))))


@dataclass(frozen=True)
class MeanSquaredError:
    """The mean of the squared differences between the output and the target."""

    def targets(self, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
        """The target: what the output should be."""
        return [TensorSpec(TARGET, outputs[0].dtype, outputs[0].shape)]

    def value(
        self, bb: relax.BlockBuilder, outputs: Sequence[relax.Expr], targets: Sequence[relax.Expr]
    ) -> relax.Expr:
        """The loss, as an expression of the output and the target."""
        difference = bb.emit(relax.op.subtract(outputs[0], targets[0]))
        return bb.emit(relax.op.mean(bb.emit(relax.op.multiply(difference, difference))))


@dataclass(frozen=True)
class FunctionLoss:
    """A Relax function of the model's outputs and of targets, which returns a number.

    Its parameters behind the outputs are the targets, under their names.
    """

    function: relax.Function

    def targets(self, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
        """The parameters behind those for the outputs."""
        params = list(self.function.params)
        self._require_outputs(outputs)
        return [
            TensorSpec(
                str(param.name),
                str(param.ty.dtype),
                tuple(int(size) for size in param.ty.shape.values),
            )
            for param in params[len(outputs) :]
        ]

    def _require_outputs(self, outputs: Sequence[TensorSpec]) -> None:
        params = list(self.function.params)
        shapes = [
            tuple(int(size) for size in param.ty.shape.values) for param in params[: len(outputs)]
        ]
        if shapes != [tuple(spec.shape) for spec in outputs]:
            wanted = ", ".join(spec.describe() for spec in outputs)
            raise InputError(
                f"the loss is a function whose first parameters have the shapes {shapes}; expected "
                f"one for each output of the model, {wanted}: write the loss for these"
            )

    def value(
        self, bb: relax.BlockBuilder, outputs: Sequence[relax.Expr], targets: Sequence[relax.Expr]
    ) -> relax.Expr:
        """The function's own bindings, with the outputs and the targets in its parameters."""
        function = relax.utils.copy_with_new_vars(self.function)
        given = dict(zip(function.params, [*outputs, *targets], strict=True))
        body = (
            relax.Function(function.params, function.body, function.ret_ty)
            .bind_params({param: bb.emit(value) for param, value in given.items()})
            .body
        )
        for block in body.blocks:
            for binding in block.bindings:
                bb.emit_normalized(binding)
        return body.body


Loss: TypeAlias = "CrossEntropy | MeanSquaredError | FunctionLoss"

_BY_NAME = {"cross_entropy": CrossEntropy, "mse": MeanSquaredError}


def loss_of(given: "str | Loss | relax.Function") -> Loss:
    """The loss that ``compile_training`` was given.

    Raises
    ------
    InputError
        It is no loss.
    """
    if isinstance(given, str) and given in _BY_NAME:
        return _BY_NAME[given]()
    if isinstance(given, relax.Function):
        return FunctionLoss(given)
    if isinstance(given, CrossEntropy | MeanSquaredError | FunctionLoss):
        return given
    names = ", ".join(f"'{name}'" for name in _BY_NAME)
    raise InputError(
        f"loss is {given!r}; expected {names}, CrossEntropy(...) or a Relax function of the "
        "outputs and the targets: give one of them"
    )


def _before_softmax(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """What the model's last Softmax reads, or the value itself where there is none."""
    found = value
    while isinstance(found, relax.Var):
        bound = bb.lookup_binding(found)
        if isinstance(bound, relax.Var):
            found = bound
            continue
        return bound.args[0] if operator_name(bound) == "relax.nn.softmax" else value
    return value
