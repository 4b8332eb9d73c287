"""Training: Adam, Adagrad and Momentum, and BatchNormalization by the statistics of the batch.

The optimisers are of ai.onnx.preview.training: arithmetic on tensors of any number. Gradient,
which differentiates a part of the graph, has no converter.
"""

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import sizes_of, text
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter, onnx_converter_map

# (rate, step, values of the tensors at one place) to the new values at that place.
_Update = Callable[[tirx.Expr, tirx.Expr, list[tirx.Expr]], list[tirx.Expr]]


def _updated(bb: relax.BlockBuilder, inputs: Any, parts: int, update: _Update) -> relax.Tuple:
    """``inputs``: rate, step, then ``parts`` groups of tensors: values, gradients, state.

    The results are the values and the groups of state, each group as long as the first.
    """
    rate, step, tensors = inputs[0], inputs[1], list(inputs)[2:]
    if len(tensors) % parts or not tensors:
        raise FormError(f"it has {len(tensors)} tensors, expected {parts} for each one optimised")
    count = len(tensors) // parts
    outputs: list[list[relax.Expr]] = [[] for _ in range(parts - 1)]
    for place in range(count):
        group = tensors[place::count]
        for slot in range(parts - 1):
            outputs[slot].append(_kernel(bb, rate, step, group, slot, update))
    return relax.Tuple([tensor for group in outputs for tensor in group])


def _kernel(
    bb: relax.BlockBuilder, rate: Any, step: Any, group: list, slot: int, update: _Update
) -> relax.Expr:
    def kernel(rate: te.Tensor, step: te.Tensor, *group: te.Tensor) -> te.Tensor:
        dtype = group[0].dtype
        factor, count = (t(*[0] * len(t.shape)).astype(dtype) for t in (rate, step))
        return te.compute(
            group[0].shape, lambda *i: update(factor, count, [t(*i) for t in group])[slot]
        )

    return bb.emit_te(kernel, rate, step, *group, primfunc_name_hint="optimizer_step")


class Adam(OnnxOpConverter):
    """Kingma and Ba, "Adam", ICLR 2015, with the regularisation terms of ONNX."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        alpha, beta = attr.get("alpha", 0.9), attr.get("beta", 0.999)
        decay, after = attr.get("norm_coefficient", 0.0), attr.get("norm_coefficient_post", 0.0)
        epsilon = attr.get("epsilon", 0.0)

        def update(rate: Any, step: Any, group: list) -> list:
            x, gradient, momentum, square = group
            gradient = gradient + x * decay
            momentum = momentum * alpha + gradient * (1 - alpha)
            square = square * beta + gradient * gradient * (1 - beta)
            one = tirx.const(1.0, x.ty.dtype)
            decayed = [tirx.power(tirx.const(c, x.ty.dtype), step) for c in (alpha, beta)]
            corrected = rate * tirx.sqrt(one - decayed[1]) / (one - decayed[0])
            rate = tirx.if_then_else(step > 0, corrected, rate)
            moved = x - rate * momentum / (tirx.sqrt(square) + epsilon)
            return [moved * (1 - after), momentum, square]

        return _updated(bb, inputs, 4, update)


class Adagrad(OnnxOpConverter):
    """Duchi, Hazan and Singer, "Adaptive Subgradient Methods", JMLR 12, 2011."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        decay, epsilon = attr.get("norm_coefficient", 0.0), attr.get("epsilon", 0.0)
        slowing = attr.get("decay_factor", 0.0)

        def update(rate: Any, step: Any, group: list) -> list:
            x, gradient, square = group
            gradient = gradient + x * decay
            square = square + gradient * gradient
            rate = rate / (step * slowing + 1.0)
            return [x - rate * gradient / (tirx.sqrt(square) + epsilon), square]

        return _updated(bb, inputs, 3, update)


class Momentum(OnnxOpConverter):
    """Stochastic gradient with momentum, standard or Nesterov's."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        mode = text(attr, "mode")
        if mode not in ("standard", "nesterov"):
            raise FormError(f"its mode '{mode}' is unknown")
        decay, alpha, beta = (attr[name] for name in ("norm_coefficient", "alpha", "beta"))

        def update(rate: Any, step: Any, group: list) -> list:
            x, gradient, momentum = group
            gradient = gradient + x * decay
            one = tirx.const(1.0, x.ty.dtype)
            first = tirx.if_then_else(step > 0, tirx.const(beta, x.ty.dtype), one)
            momentum = momentum * alpha + gradient * first
            moved = gradient + momentum * alpha if mode == "nesterov" else momentum
            return [x - rate * moved, momentum]

        return _updated(bb, inputs, 3, update)


_DOMAIN = "ai.onnx.preview.training"

TRAINING_CONVERTERS: dict[str, Any] = {
    f"{_DOMAIN}::{one.__name__}": one for one in (Adagrad, Adam, Momentum)
}


# BatchNormalization in training mode, which TVM's converter takes for the other mode.


_TvmBatchNormalization = onnx_converter_map()["BatchNormalization"]


class BatchNormalization(OnnxOpConverter):
    """TVM's converter; in training mode by the mean and variance of the batch itself.

    The further outputs are then ``running * momentum + batch * (1 - momentum)``.
    """

    @classmethod
    def get_converter(cls, opset: int) -> Any:
        stored = _TvmBatchNormalization.get_converter(opset)

        def convert(bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
            if not attr.get("training_mode", 0):
                return stored(bb, inputs, attr, params)
            return _of_the_batch(bb, inputs, attr)

        return convert


def _of_the_batch(bb: relax.BlockBuilder, inputs: Any, attr: dict) -> relax.Expr:
    data, scale, shift, mean, variance = inputs[:5]
    dtype = str(data.ty.dtype)
    axes = [axis for axis in range(len(sizes_of(data))) if axis != 1]
    batch_mean = bb.emit(relax.op.mean(data, axes))
    batch_variance = bb.emit(relax.op.variance(data, axes))
    affine = [bb.emit(relax.op.astype(one, dtype)) for one in (scale, shift)]
    # With these statistics as given ones it has a gradient by few sums.
    normalized = relax.op.nn.batch_norm(
        data,
        *affine,
        batch_mean,
        batch_variance,
        axis=1,
        epsilon=attr.get("epsilon", 1e-5),
        training=False,
    )
    outputs = [bb.emit(bb.emit(normalized)[0])]
    for running, batch in ((mean, batch_mean), (variance, batch_variance)):
        kind = str(running.ty.dtype)
        share = attr.get("momentum", 0.9)
        old = relax.op.multiply(running, relax.const(share, kind))
        new = relax.op.multiply(relax.op.astype(batch, kind), relax.const(1.0 - share, kind))
        outputs.append(bb.emit(relax.op.add(old, new)))
    return relax.Tuple(outputs) if attr["tvm_custom"]["num_outputs"] > 1 else outputs[0]
