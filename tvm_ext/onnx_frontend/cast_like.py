"""CastLike as Cast where the type is known; onnxscript's folding does so and drops ``saturate``."""

import onnx_ir as ir


def cast_likes_to_casts(model: ir.Model) -> None:
    """Changes the model in place, bodies of If, Loop and Scan included."""
    for node in model.graph.all_nodes():
        if node.op_type != "CastLike" or node.domain not in ("", "ai.onnx"):
            continue
        like = node.inputs[1] if len(node.inputs) > 1 else None
        if like is None or like.dtype is None:
            continue
        node.op_type = "Cast"
        node.resize_inputs(1)
        node.attributes["to"] = ir.AttrInt64("to", int(like.dtype))
