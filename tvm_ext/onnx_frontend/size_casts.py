"""Takes out casts of sizes to a narrower integer and back, which hide that they are sizes.

Some exporters compute shapes in int32: Shape, Cast to int32, Slice, Cast to int64, Concat. Only a
size that int32 cannot hold would come out otherwise. Without the casts the importer reads the sizes
as symbolic ones, and need not compute a shape in the run.
"""

import onnx_ir as ir

# Operators that pass some of the elements of their first input on.
_PASS_ON = ("Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze")


def widen_size_casts(node: ir.Node) -> None:
    """Changes, in place, a Cast to int32 of sizes of which every use ends in a Cast to int64."""
    source, result = node.inputs[0], node.outputs[0]
    if source is None or _target(node) != ir.DataType.INT32 or not _is_size(source):
        return
    narrow, ends = [result], []
    for value in narrow:
        if value.is_graph_output():
            return
        for user, place in value.uses():
            if user.op_type == "Cast" and _target(user) == ir.DataType.INT64:
                ends.append(user)
            elif user.op_type in _PASS_ON and place == 0 and len(user.outputs) == 1:
                narrow.append(user.outputs[0])
            else:
                return
    result.replace_all_uses_with(source)
    for value in narrow[1:]:
        value.dtype = ir.DataType.INT64
    for end in ends:
        if not end.outputs[0].is_graph_output():
            end.outputs[0].replace_all_uses_with(end.inputs[0])


def _target(node: ir.Node) -> ir.DataType | None:
    attribute = node.attributes.get("to")
    return ir.DataType(attribute.as_int()) if attribute is not None else None


def _is_size(value: ir.Value) -> bool:
    """Whether it comes from Shape or Size, by way of operators that pass elements on."""
    while (producer := value.producer()) is not None:
        if producer.op_type in ("Shape", "Size"):
            return True
        if producer.op_type not in _PASS_ON or producer.inputs[0] is None:
            return False
        value = producer.inputs[0]
    return False
