"""Valid ONNX forms that TVM's converters misread, in canonical forms that they read right."""

import math
from collections.abc import Callable, Iterable

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.converters.quantization import WEIGHTS_ATTRIBUTE
from tvm_ext.onnx_frontend.ir_edits import Inserter, constant_of
from tvm_ext.onnx_frontend.onnx_graph import DEFAULT_DOMAINS, subgraphs_of
from tvm_ext.onnx_frontend.signature import MAX_ELEMENTS

# ConvTranspose with ``output_shape``: the padding that gives it, as ``pads``.
#
# TVM's converter ignores the attribute.


def explicit_output_shape(node: ir.Node) -> None:
    """Replaces ``output_shape`` by the ``pads`` of ONNX's formula.

    Per axis, the padding takes away ``stride * (size - 1) + output_padding + dilation *
    (kernel - 1) + 1 - output_shape``; the odd element in front, or behind for SAME_UPPER. Where
    that is below zero, output padding makes up for it.

    Raises
    ------
    ModelError
        The input's or the weight's sizes are symbolic.
    """
    attribute = node.attributes.get("output_shape")
    if attribute is None:
        return
    shape = list(attribute.as_ints())
    data, weight = (_static_sizes(value, 2) for value in node.inputs[:2])
    if data is None or weight is None:
        raise ModelError(
            f"ConvTranspose node '{node.name}' has an output_shape and symbolic sizes; expected "
            "known ones behind the batch and the channels: give input shapes"
        )
    count = len(data)
    shape = shape[-count:]
    strides = _integers(node, "strides", count, 1)
    dilations = _integers(node, "dilations", count, 1)
    kernel = _integers(node, "kernel_shape", count, 0)
    added = _integers(node, "output_padding", count, 0)
    upper = "auto_pad" in node.attributes and (
        node.attributes["auto_pad"].as_string() == "SAME_UPPER"
    )
    front, behind = [], []
    for k in range(count):
        width = kernel[k] or weight[k]
        total = strides[k] * (data[k] - 1) + added[k] + dilations[k] * (width - 1) + 1
        total -= shape[k]
        if total < 0:
            added[k] -= total
            total = 0
        front.append(total // 2 if upper else total - total // 2)
        behind.append(total - front[-1])
    for name in ("output_shape", "auto_pad"):
        node.attributes.pop(name, None)
    node.attributes["pads"] = ir.AttrInt64s("pads", front + behind)
    node.attributes["output_padding"] = ir.AttrInt64s("output_padding", added)


def _integers(node: ir.Node, name: str, count: int, default: int) -> list[int]:
    attribute = node.attributes.get(name)
    return list(attribute.as_ints()) if attribute is not None else [default] * count


# Joins many tensors of symbolic sizes group by group.
#
# An element of a Concat finds its source by comparing its place with the sum of the sizes ahead.
# Of sizes that the run decides these sums stay expressions, and a kernel of 90 of them took
# minutes to compile. A kernel of a few is quick, and what it makes has one size again.


_GROUP = 8


def concat_in_groups(node: ir.Node) -> None:
    """Puts Concats of a few inputs in front of one of many, in place."""
    axis = node.attributes["axis"].as_int()
    parts = [value for value in node.inputs if value is not None]
    if len(parts) <= _GROUP or all(_is_known(value, axis) for value in parts):
        return
    inserter = Inserter(node, f"{node.name}/group")
    while len(parts) > _GROUP:
        groups = [parts[start : start + _GROUP] for start in range(0, len(parts), _GROUP)]
        parts = [_joined(inserter, group, axis) for group in groups]
    node.resize_inputs(len(parts))
    for place, value in enumerate(parts):
        node.replace_input_with(place, value)


def _is_known(value: ir.Value, axis: int) -> bool:
    return value.shape is not None and isinstance(value.shape[axis], int)


def _joined(inserter: Inserter, group: list[ir.Value], axis: int) -> ir.Value:
    if len(group) == 1:
        return group[0]
    joined = inserter.node("Concat", group, axis=axis)
    joined.dtype = group[0].dtype
    return joined


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


def canonicalize(model: ir.Model) -> None:
    """Changes the model in place; its inputs, outputs and values stay the same.

    Shapes and types must have been inferred: a node without them is left as it is.

    Raises
    ------
    ModelError
        An output shape is given for sizes that are not known.
    """
    for node in list(model.graph.all_nodes()):
        form = _FORMS.get(node.op_type)
        if form is not None and node.domain in DEFAULT_DOMAINS:
            form(node)


def _same_type_power(node: ir.Node) -> None:
    """The exponent in the type of the base, which is the type of the result."""
    base, exponent = node.inputs[0], node.inputs[1]
    if base is None or exponent is None or base.dtype is None or exponent.dtype is None:
        return
    # The square root of an integer has an exponent that is none: our converter sees to it.
    if not base.dtype.is_integer() and base.dtype != exponent.dtype:
        _cast_input(node, 1, base.dtype)


def _in_float32(node: ir.Node) -> None:
    """Float16 and float64 through a float32 node, between casts."""
    value = node.inputs[0]
    if value is None or value.dtype in (None, ir.DataType.FLOAT):
        return
    _cast_input(node, 0, ir.DataType.FLOAT)
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
            _cast_input(node, index, ir.DataType.FLOAT)
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
    first, second = (_static_sizes(value) for value in node.inputs[:2])
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
    if axes is None or axes.const_value is None:
        return
    array = axes.const_value.numpy()
    if not array.ndim:
        listed = Inserter(node, f"{node.name}/axes").constant(array.reshape(1))
        node.replace_input_with(1, listed)


def _reshape_operand(node: ir.Node, shape: list[int]) -> None:
    inserter = Inserter(node, f"{node.name}/operand")
    sizes = inserter.constant(np.array(shape, np.int64))
    node.replace_input_with(1, inserter.node("Reshape", [node.inputs[1], sizes]))
    for name in ("axis", "broadcast"):
        node.attributes.pop(name, None)


def _cast_input(node: ir.Node, index: int, dtype: ir.DataType | None) -> None:
    """Puts a cast in front of an input."""
    value = node.inputs[index]
    cast = Inserter(node, f"{node.name}/input_{index}").node("Cast", [value], to=dtype)
    cast.shape, cast.dtype = value.shape, dtype
    node.replace_input_with(index, cast)


def _static_sizes(value: ir.Value | None, first: int = 0) -> list[int] | None:
    """The sizes from axis ``first`` on; None where one is not known."""
    if value is None or value.shape is None:
        return None
    sizes = list(value.shape)[first:]
    return [int(size) for size in sizes] if all(isinstance(s, int) for s in sizes) else None


_WEIGHTED = ("Conv", "Gemm", "MatMul")


def _quantized_weights(node: ir.Node) -> None:
    """Marks what makes weights of matmuls and convolutions only."""
    uses = list(node.outputs[0].uses())
    while len(uses) == 1 and uses[0].node.op_type in ("Cast", "Transpose"):
        uses = list(uses[0].node.outputs[0].uses())
    if uses and all(u.node.op_type in _WEIGHTED and u.idx == 1 for u in uses):
        node.attributes[WEIGHTS_ATTRIBUTE] = ir.AttrInt64(WEIGHTS_ATTRIBUTE, 1)


_FORMS: dict[str, Callable[[ir.Node], None]] = {
    **dict.fromkeys(("Conv", "Gemm", "LogSoftmax", "MatMul", "Softmax"), _product),
    "Concat": concat_in_groups,
    "ConvTranspose": _transposed_convolution,
    "DequantizeLinear": _quantized_weights,
    "LpPool": _bfloat16_in_float32,
    **dict.fromkeys(_FLOAT32_OPERATORS, _in_float32),
    **dict.fromkeys(_NOT_OF_BFLOAT16, _bfloat16_in_float32),
    **dict.fromkeys(_BROADCAST_OPERATORS, _aligned_operand),
    **dict.fromkeys(_AXES_OPERATORS, _listed_axes),
}


# CastLike as Cast where the type is known; onnxscript's folding does so and drops ``saturate``.


def cast_likes_to_casts(model: ir.Model) -> None:
    """Changes the model in place, bodies of If, Loop and Scan included."""
    for node in model.graph.all_nodes():
        if node.op_type != "CastLike" or node.domain not in DEFAULT_DOMAINS:
            continue
        like = node.inputs[1] if len(node.inputs) > 1 else None
        if like is None or like.dtype is None:
            continue
        node.op_type = "Cast"
        node.resize_inputs(1)
        node.attributes["to"] = ir.AttrInt64("to", int(like.dtype))


# Slices of whole axes (``x[:, k]``) as Identity: shape inference gives their sizes no name.


def whole_slices_to_identities(model: ir.Model) -> bool:
    """Changes the model in place, bodies included; whether there was one."""
    found = [node for node in model.graph.all_nodes() if _is_whole_slice(node)]
    for node in found:
        node.op_type = "Identity"
        node.resize_inputs(1)
    return bool(found)


def _is_whole_slice(node: ir.Node) -> bool:
    """Whether all bounds are constants, of which the ends reach behind any tensor."""
    if node.op_type != "Slice" or node.domain not in DEFAULT_DOMAINS or len(node.inputs) < 3:
        return False
    starts, ends = constant_of(node.inputs[1]), constant_of(node.inputs[2])
    steps = constant_of(node.inputs[4]) if len(node.inputs) > 4 else np.array(1)
    if starts is None or ends is None or steps is None:
        return False
    reaches_behind = ends >= min(np.iinfo(ends.dtype).max, np.iinfo(np.int32).max)
    return bool((starts == 0).all() and reaches_behind.all() and (steps == 1).all())


# Constants in all their spellings as stored tensors: ``value`` is all that converters read.


_SINGLE = {"value_float": np.float32, "value_int": np.int64, "value_string": object}
_LISTS = {"value_floats": np.float32, "value_ints": np.int64, "value_strings": object}


def spell_constants_out(model: ir.Model) -> None:
    """``value_float``, ``value_ints`` and the like become ``value``, in place, bodies included.

    ONNX operator Constant-13: float32, int64 or strings, of rank 0, or 1 for the lists.
    """
    for node in model.graph.all_nodes():
        if node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS:
            _spell_out(node)


def _spell_out(node: ir.Node) -> None:
    for name, attribute in list(node.attributes.items()):
        if name in _SINGLE or name in _LISTS:
            dtype = _SINGLE.get(name) or _LISTS[name]
            array = np.array(attribute.value, dtype)
            del node.attributes[name]
            made = node.outputs[0].name
            tensor = (
                ir.tensor(array, name=made)
                if dtype is not object
                else ir.StringTensor(array.astype(np.bytes_), name=made)
            )
            node.attributes["value"] = ir.AttrTensor("value", tensor)


def densify_constants(model: onnx.ModelProto, label: str) -> None:
    """``sparse_value`` becomes ``value``, and sparse initializers dense ones, in place.

    ONNX, SparseTensorProto: indices are positions in the flattened tensor, or a row of coordinates
    for each value.

    Raises
    ------
    ModelError
        The dense tensor would be too large, or an index lies outside of it.
    """
    _densify(model.graph, label)
    for function in model.functions:
        _densify_nodes(function.node, label)


def _densify(graph: onnx.GraphProto, label: str) -> None:
    for stored in graph.sparse_initializer:
        graph.initializer.add().CopyFrom(_dense(stored, stored.values.name, label))
    del graph.sparse_initializer[:]
    _densify_nodes(graph.node, label)


def _densify_nodes(nodes: Iterable[onnx.NodeProto], label: str) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "sparse_value":
                tensor = _dense(attribute.sparse_tensor, node.output[0], label)
                attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
        for subgraph in subgraphs_of(node):
            _densify(subgraph, label)


def _dense(sparse: onnx.SparseTensorProto, name: str, label: str) -> onnx.TensorProto:
    count = math.prod(sparse.dims)
    if not 0 <= count <= MAX_ELEMENTS:
        raise ModelError(
            f"{label}: sparse tensor '{name}' has {count} elements; expected at most "
            f"{MAX_ELEMENTS}: export it with a smaller shape"
        )
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    array = np.zeros(tuple(sparse.dims), values.dtype)
    try:
        if indices.ndim > 1:
            array[tuple(indices.T)] = values
        else:
            array.reshape(-1)[indices] = values
    except (IndexError, ValueError) as error:
        raise ModelError(
            f"{label}: sparse tensor '{name}' has indices that do not fit its values; expected an "
            f"index inside of {list(sparse.dims)} for each value: export it again"
        ) from error
    return numpy_helper.from_array(array, name)
