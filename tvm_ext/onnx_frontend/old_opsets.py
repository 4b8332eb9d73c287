"""Brings models of old opsets to one whose forms TVM's converters know."""

import onnx

from tvm_ext.onnx_frontend.batched_scans import batched_scans_to_loops

# Slice, Pad, Clip, Resize and Upsample took their last arguments for attributes, or in another
# order, before it; Softmax changed its meaning after it, which TVM's converters know about.
OLDEST_OPSET = 11
_BATCHED_SCAN = 8


def modernize(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in opset 11 when it is of an older one, else as it is.

    ONNX's own converter does it; a model that this converter cannot read stays as it is, and is
    judged node by node later on.
    """
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    too_large = model.ByteSize() >= onnx.checker.MAXIMUM_PROTOBUF
    if opset == _BATCHED_SCAN:
        batched_scans_to_loops(model)
    if not 0 < opset < OLDEST_OPSET or too_large or model.functions:
        return model
    try:
        converted = onnx.version_converter.convert_version(model, OLDEST_OPSET)
        onnx.checker.check_model(converted, full_check=True)
    except (
        RuntimeError,
        ValueError,
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
    ):
        return model
    return converted
