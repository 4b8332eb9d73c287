"""BatchNormalization in training mode, which TVM's converter takes for the other mode."""

from typing import Any

import numpy as np
from tvm import relax

from tvm_ext.hardware.tvm_compat import OnnxOpConverter, onnx_converter_map
from tvm_ext.onnx_frontend.converters.arguments import sizes_of

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
    rank, dtype = len(sizes_of(data)), str(data.ty.dtype)
    axes = [axis for axis in range(rank) if axis != 1]
    shape = [-1] + [1] * (rank - 2)

    def along_channels(value: relax.Expr) -> relax.Expr:
        return bb.emit(relax.op.reshape(bb.emit(relax.op.astype(value, dtype)), shape))

    batch_mean = bb.emit(relax.op.mean(data, axes))
    batch_variance = bb.emit(relax.op.variance(data, axes))
    epsilon = relax.const(np.array(attr.get("epsilon", 1e-5), dtype), dtype)
    deviation = bb.emit(relax.op.sqrt(relax.op.add(along_channels(batch_variance), epsilon)))
    centered = relax.op.divide(relax.op.subtract(data, along_channels(batch_mean)), deviation)
    scaled = relax.op.multiply(centered, along_channels(scale))
    outputs = [bb.emit(relax.op.add(scaled, along_channels(shift)))]
    for running, batch in ((mean, batch_mean), (variance, batch_variance)):
        kind = str(running.ty.dtype)
        share = attr.get("momentum", 0.9)
        old = relax.op.multiply(running, relax.const(share, kind))
        new = relax.op.multiply(relax.op.astype(batch, kind), relax.const(1.0 - share, kind))
        outputs.append(bb.emit(relax.op.add(old, new)))
    return relax.Tuple(outputs) if attr["tvm_custom"]["num_outputs"] > 1 else outputs[0]
