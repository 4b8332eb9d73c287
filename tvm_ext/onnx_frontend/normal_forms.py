"""Rewrites valid ONNX forms that TVM's converters misread into forms that they read right."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from tvm_ext.onnx_frontend.concat_in_groups import concat_in_groups
from tvm_ext.onnx_frontend.transposed_convolution import explicit_output_shape

# Converters that compute with a float32 constant inside and so take no other type.
_FLOAT32_OPERATORS = ("Celu", "Elu", "HardSigmoid", "Selu", "Shrink", "ThresholdedRelu")

# Those whose lowering by TVM takes no bfloat16.
_NOT_OF_BFLOAT16 = ("GlobalLpPool", "IsNaN", "LayerNormalization", "LRN")

_NARROW_FLOATS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

# Those whose axes are an input, in newer opsets at least.
_AXES_OPERATORS = (
    *("Squeeze", "Unsqueeze", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
    *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
)

_BROADCAST_OPERATORS = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub")


def to_normal_forms(model: ir.Model) -> None:
    """Changes the model in place; its inputs, outputs and values stay the same.

    Shapes and types must have been inferred: a node without them is left as it is.

    Raises
    ------
    ModelError
        An output shape is given for sizes that are not known.
    """
    for node in list(model.graph.all_nodes()):
        form = _FORMS.get(node.op_type)
        if form is not None and node.domain in ("", "ai.onnx"):
            form(node)


def _same_type_power(node: ir.Node) -> None:
    """The exponent in the type of the base, which is the type of the result."""
    base, exponent = node.inputs[0], node.inputs[1]
    if base is None or exponent is None or None in (base.dtype, exponent.dtype):
        return
    # The square root of an integer has an exponent that is none: our converter sees to it.
    if base.dtype is not None and base.dtype.is_integer():
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
    if graph is None or result.dtype == ir.DataType.BOOL:
        return
    back = ir.node("Cast", [result], {"to": value.dtype}, name=f"{node.name}/result")
    graph.insert_after(node, back)
    restored = back.outputs[0]
    restored.shape, restored.type = result.shape, result.type
    result.replace_all_uses_with(restored, replace_graph_outputs=True)
    back.replace_input_with(0, result)
    restored.name, result.name = result.name, f"{result.name}/float32"
    result.type = ir.TensorType(ir.DataType.FLOAT)


def _product(node: ir.Node) -> None:
    """Float16 and bfloat16 through a float32 node, between casts, as ONNX Runtime does.

    TVM adds up in the narrow type, and cannot generate code for it in bfloat16.
    """
    if not any(value is not None and value.dtype in _NARROW_FLOATS for value in node.inputs):
        return
    for index, value in enumerate(node.inputs):
        if index and value is not None and value.dtype in _NARROW_FLOATS:
            cast = _cast_before(node, value, ir.DataType.FLOAT, f"{node.name}/cast_{index}")
            node.replace_input_with(index, cast)
    _in_float32(node)


def _bfloat16_in_float32(node: ir.Node) -> None:
    if any(value is not None and value.dtype == ir.DataType.BFLOAT16 for value in node.inputs):
        _product(node)


def _transposed_convolution(node: ir.Node) -> None:
    explicit_output_shape(node)
    _product(node)


def _aligned_operand(node: ir.Node) -> None:
    """Opsets before 7: ``axis`` says where the second operand begins, now its last axes do."""
    axis = node.attributes.get("axis")
    first, second = (_static_shape(value) for value in node.inputs[:2])
    if axis is not None and first is not None and second is not None:
        start = axis.as_int() % max(len(first), 1)
        missing = len(first) - start - len(second)
        _reshape_operand(node, [*second, *[1] * missing])
    if node.op_type == "Pow":
        _same_type_power(node)
        _bfloat16_in_float32(node)


def _listed_axes(node: ir.Node) -> None:
    """Axes stored as a scalar, which the specification does not allow and ONNX Runtime takes."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if axes is None or axes.const_value is None or node.graph is None:
        return
    array = axes.const_value.numpy()
    if array.ndim:
        return
    listed = ir.tensor(array.reshape(1), name=f"{node.name}/axes")
    constant = ir.node("Constant", [], {"value": listed}, name=f"{node.name}/axes")
    constant.outputs[0].name = constant.name
    node.graph.insert_before(node, constant)
    node.replace_input_with(1, constant.outputs[0])


def _reshape_operand(node: ir.Node, shape: list[int]) -> None:
    graph = node.graph
    if graph is None:
        return
    array = ir.tensor(np.array(shape, np.int64), name=f"{node.name}/shape")
    constant = ir.node("Constant", [], {"value": array}, name=f"{node.name}/shape")
    reshape = ir.node("Reshape", [node.inputs[1], constant.outputs[0]], name=f"{node.name}/reshape")
    for added in (constant, reshape):
        added.outputs[0].name = added.name
    graph.insert_before(node, [constant, reshape])
    node.replace_input_with(1, reshape.outputs[0])
    for name in ("axis", "broadcast"):
        node.attributes.pop(name, None)


def _cast_before(
    node: ir.Node, value: ir.Value, dtype: ir.DataType | None, name: str = ""
) -> ir.Value:
    name = name or f"{node.name}/cast"
    cast = ir.node("Cast", [value], {"to": dtype}, name=name)
    result = cast.outputs[0]
    result.name = name
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


_FORMS: dict[str, Callable[[ir.Node], None]] = {
    **dict.fromkeys(("Conv", "Gemm", "LogSoftmax", "MatMul", "Softmax"), _product),
    "Concat": concat_in_groups,
    "ConvTranspose": _transposed_convolution,
    "LpPool": _bfloat16_in_float32,
    **dict.fromkeys(_FLOAT32_OPERATORS, _in_float32),
    **dict.fromkeys(_NOT_OF_BFLOAT16, _bfloat16_in_float32),
    **dict.fromkeys(_BROADCAST_OPERATORS, _aligned_operand),
    **dict.fromkeys(_AXES_OPERATORS, _listed_axes),
}
