"""SpaceToDepth in both orders; TVM's converter ignores the mode CRD."""

from typing import Any

from tvm import relax

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter
from tvm_ext.onnx_frontend.converters.arguments import sizes_of, text


class SpaceToDepth(OnnxOpConverter):
    """Blocks of an image become channels: block by block (DCR) or channel by channel (CRD)."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        batch, channels, height, width = sizes_of(inputs[0])
        block, mode = int(attr["blocksize"]), text(attr, "mode", "DCR")
        if mode not in ("DCR", "CRD"):
            raise FormError(f"its mode is {mode}, expected DCR or CRD")
        for size in (height, width):
            if isinstance(size, int) and size % block:
                raise FormError(f"size {size} is no multiple of its block of {block}")
        rows, columns = height // block, width // block
        split = bb.emit(relax.op.reshape(inputs[0], (batch, channels, rows, block, columns, block)))
        order = [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4]
        turned = bb.emit(relax.op.permute_dims(split, order))
        return relax.op.reshape(turned, (batch, channels * block * block, rows, columns))
