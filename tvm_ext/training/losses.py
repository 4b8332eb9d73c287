"""Losses: what a model's outputs and the targets come to, as one number.

They are written in operators of which all have gradients. TVM's own cross entropy reads its
labels by ``nll_loss``, which no template of ours schedules, and whose gradient takes
``ignore_index`` for a class.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from tvm import relax

from tvm_ext.errors import InputError
from tvm_ext.relay_passes.expressions import operator_name, static_extents
from tvm_ext.tensor_spec import TensorSpec
from tvm_ext.training.function_gradients import emit_function

DeviceMean: TypeAlias = Callable[[relax.BlockBuilder, relax.Expr], relax.Expr]
"""The mean over all devices of a value that each has its own of."""


def _own(_: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    return value


# The name of the target of a loss that takes one.
TARGET = "target"


# Below the mean of one label over as many devices as can be asked for.
_LEAST_MEAN = 2.0**-10


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
        self,
        bb: relax.BlockBuilder,
        outputs: Sequence[relax.Expr],
        targets: Sequence[relax.Expr],
        over_devices: DeviceMean = _own,
    ) -> relax.Expr:
        """The loss, as an expression of the outputs and the labels.

        The labels that count are those of all devices.
        """
        shape = outputs[0].ty.shape.values
        axis = self.axis % len(shape)
        logits, labels = _exact(bb, _before_softmax(bb, outputs[0], axis)), targets[0]
        dtype = str(logits.ty.dtype)
        numbers = np.arange(int(shape[axis]), dtype="int64")
        numbers = numbers.reshape([-1 if n == axis else 1 for n in range(len(shape))])
        column = bb.emit(relax.op.expand_dims(labels, axis))
        is_label = bb.emit(relax.op.equal(column, relax.const(numbers)))
        chosen = bb.emit(relax.op.astype(is_label, dtype))
        counted = bb.emit(relax.op.sum(chosen))
        counted = over_devices(bb, counted)
        # Where no label counts the loss is 0 rather than 0 / 0.
        counted = bb.emit(relax.op.maximum(counted, relax.const(_LEAST_MEAN, dtype)))
        logs = bb.emit(relax.op.nn.log_softmax(logits, axis))
        # Not a product: classes that are masked have logits of minus infinity.
        own = bb.emit(relax.op.where(is_label, logs, relax.const(0, dtype)))
        total = bb.emit(relax.op.sum(own))
        return bb.emit(relax.op.negative(bb.emit(relax.op.divide(total, counted))))


@dataclass(frozen=True)
class MeanSquaredError:
    """The mean of the squared differences between the output and the target."""

    def targets(self, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
        """The target: what the output should be."""
        return [TensorSpec(TARGET, outputs[0].dtype, outputs[0].shape)]

    def value(
        self,
        bb: relax.BlockBuilder,
        outputs: Sequence[relax.Expr],
        targets: Sequence[relax.Expr],
        over_devices: DeviceMean = _own,
    ) -> relax.Expr:
        """The loss, as an expression of the output and the target."""
        output, target = (_exact(bb, value) for value in (outputs[0], targets[0]))
        difference = bb.emit(relax.op.subtract(output, target))
        return bb.emit(relax.op.mean(bb.emit(relax.op.multiply(difference, difference))))


@dataclass(frozen=True)
class FunctionLoss:
    """A Relax function of the model's outputs and of targets, which returns a number.

    Its parameters behind the outputs are the targets, under their names.
    """

    function: relax.Function

    def targets(self, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
        """The parameters behind those for the outputs."""
        specs = [self._spec_of(param) for param in self.function.params]
        given = [(spec.dtype, spec.shape) for spec in specs[: len(outputs)]]
        if given != [(spec.dtype, tuple(spec.shape)) for spec in outputs]:
            found = ", ".join(spec.describe() for spec in specs) or "none"
            wanted = ", ".join(spec.describe() for spec in outputs)
            raise InputError(
                f"the loss is a function of the parameters {found}; expected first one for each "
                f"output of the model, {wanted}, then the targets: write the loss for these"
            )
        self._require_number()
        return specs[len(outputs) :]

    def _spec_of(self, param: relax.Var) -> TensorSpec:
        sizes = static_extents(param.ty)
        if sizes is None:
            raise InputError(
                f"the loss has the parameter '{param.name}' of {_described(param.ty)}; expected "
                "tensors of known sizes: write the loss for those of a batch"
            )
        return TensorSpec(str(param.name), str(param.ty.dtype), tuple(sizes))

    def _require_number(self) -> None:
        ty = self.function.ret_ty
        is_number = isinstance(ty, relax.TensorType) and ty.ndim == 0
        if not is_number or str(ty.dtype) not in ("float32", "float64"):
            raise InputError(
                f"the loss is a function that returns {_described(ty)}; expected one number of "
                "float32 or float64: return a sum or a mean"
            )

    def value(
        self,
        bb: relax.BlockBuilder,
        outputs: Sequence[relax.Expr],
        targets: Sequence[relax.Expr],
        over_devices: DeviceMean = _own,
    ) -> relax.Expr:
        """The function's own bindings, with the outputs and the targets in its parameters."""
        return emit_function(bb, self.function, [*outputs, *targets])


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


def _described(ty: relax.Type) -> str:
    """A type for a message."""
    sizes = static_extents(ty)
    if sizes is not None:
        return f"{ty.dtype}{sizes}"
    return "a tensor of unknown sizes" if isinstance(ty, relax.TensorType) else "no tensor"


def _before_softmax(bb: relax.BlockBuilder, value: relax.Expr, axis: int) -> relax.Expr:
    """What the model's last Softmax along ``axis`` reads, or the value where there is none."""
    found = value
    while isinstance(found, relax.Var):
        bound = bb.lookup_binding(found)
        if isinstance(bound, relax.Var):
            found = bound
            continue
        if operator_name(bound) != "relax.nn.softmax":
            return value
        is_same = int(bound.attrs.axis) % len(value.ty.shape.values) == axis
        return bound.args[0] if is_same else value
    return value


def _exact(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """The value in a type in which sums over a batch are exact enough."""
    is_exact = str(value.ty.dtype) in ("float32", "float64")
    return value if is_exact else bb.emit(relax.op.astype(value, "float32"))
