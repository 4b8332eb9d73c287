"""Dropout: in inference its input, in training a random share of it set to zero.

TVM's converter makes a pair of which the second part is dropped again, whether or not there is a
mask to return, and knows no training mode.
"""

from typing import Any

from tvm import relax

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter
from tvm_ext.onnx_frontend.converters.arguments import constant_array, sizes_of
from tvm_ext.onnx_frontend.converters.random import Stream, uniform

_DEFAULT_RATIO = 0.5


class Dropout(OnnxOpConverter):
    """The input times a mask and 1 / (1 - ratio) in training, else the input and a full mask.

    Which elements go is drawn as in ``random``: every run drops the same ones.
    """

    draws = True

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x, ratio, training = [*inputs, None, None][:3]
        mode = constant_array(training, params)
        if training is None or (mode is not None and not mode.any()):
            mask = relax.op.full(x.ty.shape, relax.const(True, "bool"), "bool")
            return _outputs(bb, attr, x, mask)
        numbers = uniform(bb, sizes_of(x), Stream.of_node(attr, params), 0.0, 1.0, "float32")
        ratio = bb.emit(_ratio(ratio, params))
        kept = bb.emit(relax.op.greater_equal(numbers, ratio))
        one = relax.const(1.0, "float32")
        scale = bb.emit(relax.op.divide(one, relax.op.subtract(one, ratio)))
        if mode is None:
            training = bb.emit(relax.op.reshape(training, ()))
            kept = bb.emit(relax.op.logical_or(kept, relax.op.logical_not(training)))
            scale = bb.emit(relax.op.where(training, scale, one))
        return _outputs(bb, attr, _scaled(bb, x, kept, scale), kept)


def _outputs(bb: relax.BlockBuilder, attr: dict, y: relax.Expr, mask: relax.Expr) -> relax.Expr:
    if attr["tvm_custom"]["num_outputs"] == 1:
        return y
    return relax.Tuple([y, bb.normalize(mask)])


def _ratio(ratio: relax.Expr | None, params: Any) -> relax.Expr:
    """The share of elements that go, a scalar of float32."""
    stored = constant_array(ratio, params)
    if ratio is None or stored is not None:
        value = _DEFAULT_RATIO if stored is None else float(stored.reshape(()))
        if not 0 <= value < 1:
            raise FormError(f"its ratio is {value:g}; expected one from 0 on and below 1")
        return relax.const(value, "float32")
    return relax.op.astype(relax.op.reshape(ratio, ()), "float32")


def _scaled(
    bb: relax.BlockBuilder, x: relax.Expr, kept: relax.Expr, scale: relax.Expr
) -> relax.Expr:
    """``x`` where it is kept, scaled; what goes is multiplied by zero, as ONNX says."""
    dtype = str(x.ty.dtype)
    computed = "float64" if dtype == "float64" else "float32"
    factors = bb.emit(relax.op.multiply(relax.op.astype(kept, "float32"), scale))
    wide = [y if str(y.ty.dtype) == computed else _cast(bb, y, computed) for y in (x, factors)]
    result = bb.emit(relax.op.multiply(*wide))
    return result if dtype == computed else _cast(bb, result, dtype)


def _cast(bb: relax.BlockBuilder, x: relax.Expr, dtype: str) -> relax.Expr:
    return bb.emit(relax.op.astype(x, dtype))
