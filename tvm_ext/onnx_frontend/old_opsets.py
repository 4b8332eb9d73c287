"""Brings models of old opsets to one whose forms TVM's converters know."""

import onnx

# Slice, Pad, Clip, Resize and Upsample took their last arguments for attributes, or in another
# order, before it; Softmax changed its meaning after it, which TVM's converters know about.
OLDEST_OPSET = 11


def modernize(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in opset 11 when it is of an older one, else as it is.

    ONNX's own converter does it; a model that this converter cannot read stays as it is, and is
    judged node by node later on.
    """
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    too_large = model.ByteSize() >= onnx.checker.MAXIMUM_PROTOBUF
    # ONNX's converter drops the batch that Scan of opset 8 has.
    batched = opset < 9 and any(node.op_type == "Scan" for node in model.graph.node)
    if not 0 < opset < OLDEST_OPSET or too_large or model.functions or batched:
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
