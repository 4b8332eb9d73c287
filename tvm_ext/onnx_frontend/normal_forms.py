"""Rewrites valid ONNX forms that TVM's converters misread into forms that they read right."""

import math
from collections.abc import Callable

import onnx_ir as ir

_WINDOW_OPERATORS = ("AveragePool", "Conv", "LpPool", "MaxPool")

# Converters that compute with a float32 constant inside and so take no other type.
_FLOAT32_OPERATORS = ("Celu", "Elu", "HardSigmoid", "Selu", "Shrink", "ThresholdedRelu")


def to_normal_forms(model: ir.Model) -> None:
    """Changes the model in place; its inputs, outputs and values stay the same.

    Shapes and types must have been inferred: a node without them is left as it is.
    """
    for node in list(model.graph.all_nodes()):
        form = _FORMS.get(node.op_type)
        if form is not None and node.domain in ("", "ai.onnx"):
            form(node)


def _explicit_padding(node: ir.Node) -> None:
    """``auto_pad`` becomes ``pads``: TVM rounds SAME_LOWER down and may pad by less than nothing.

    The numbers are those of the ONNX specification: as many outputs as strides start inside the
    input, and the odd element of the padding behind (SAME_UPPER) or in front (SAME_LOWER).
    """
    mode = _text(node, "auto_pad")
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return
    sizes, kernel = _static_shape(node.inputs[0]), _kernel(node)
    if sizes is None or kernel is None:
        return
    sizes = sizes[2:]
    strides = _integers(node, "strides") or [1] * len(sizes)
    dilations = _integers(node, "dilations") or [1] * len(sizes)
    short, long = [], []
    for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        reach = (math.ceil(size / stride) - 1) * stride + (width - 1) * dilation + 1
        total = max(reach - size, 0)
        short.append(total // 2)
        long.append(total - total // 2)
    pads = short + long if mode == "SAME_UPPER" else long + short
    del node.attributes["auto_pad"]
    # Rounding up would add a window that starts in the padding.
    node.attributes.pop("ceil_mode", None)
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)


def _kernel(node: ir.Node) -> list[int] | None:
    given = _integers(node, "kernel_shape")
    if given or node.op_type != "Conv":
        return given
    weight = _static_shape(node.inputs[1])
    return weight[2:] if weight is not None else None


def _same_type_power(node: ir.Node) -> None:
    """The exponent in the type of the base, which is the type of the result."""
    base, exponent = node.inputs[0], node.inputs[1]
    if base is None or exponent is None or None in (base.dtype, exponent.dtype):
        return
    if base.dtype != exponent.dtype:
        node.replace_input_with(1, _cast_before(node, exponent, base.dtype))


def _in_float32(node: ir.Node) -> None:
    """Float16 and float64 through a float32 node, between casts."""
    value = node.inputs[0]
    if value is None or value.dtype in (None, ir.DataType.FLOAT):
        return
    node.replace_input_with(0, _cast_before(node, value, ir.DataType.FLOAT))
    result, graph = node.outputs[0], node.graph
    if graph is None:
        return
    back = ir.node("Cast", [result], {"to": value.dtype}, name=f"{node.name}/result")
    graph.insert_after(node, back)
    restored = back.outputs[0]
    restored.shape, restored.type = result.shape, result.type
    result.replace_all_uses_with(restored, replace_graph_outputs=True)
    back.replace_input_with(0, result)
    restored.name, result.name = result.name, f"{result.name}/float32"
    result.type = ir.TensorType(ir.DataType.FLOAT)


def _cast_before(node: ir.Node, value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
    cast = ir.node("Cast", [value], {"to": dtype}, name=f"{node.name}/cast")
    result = cast.outputs[0]
    result.name = f"{node.name}/cast"
    result.shape = value.shape
    result.type = ir.TensorType(dtype) if dtype is not None else None
    if node.graph is not None:
        node.graph.insert_before(node, cast)
    return result


def _static_shape(value: ir.Value | None) -> list[int] | None:
    if value is None or value.shape is None:
        return None
    sizes = list(value.shape)
    return [int(size) for size in sizes] if all(isinstance(s, int) for s in sizes) else None


def _integers(node: ir.Node, name: str) -> list[int] | None:
    attribute = node.attributes.get(name)
    return list(attribute.as_ints()) if attribute is not None else None


def _text(node: ir.Node, name: str) -> str:
    attribute = node.attributes.get(name)
    return attribute.as_string() if attribute is not None else ""


_FORMS: dict[str, Callable[[ir.Node], None]] = {
    **dict.fromkeys(_WINDOW_OPERATORS, _explicit_padding),
    **dict.fromkeys(_FLOAT32_OPERATORS, _in_float32),
    "Pow": _same_type_power,
}
