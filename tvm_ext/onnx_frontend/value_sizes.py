"""Sizes of values: refuses negative ones, and more elements than a kernel can count."""

import math
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from tvm_ext.errors import FormError, ModelError
from tvm_ext.onnx_frontend.onnx_graph import graphs_within, nodes_within
from tvm_ext.onnx_frontend.signature import MAX_ELEMENTS


def known_elements(value: ir.Value) -> int | None:
    """How many elements a value has; None where inference could not tell."""
    if value.shape is None or not all(isinstance(size, int) for size in value.shape):
        return None
    return math.prod(int(size) for size in value.shape if isinstance(size, int))


def require_countable(model: ir.Model, label: str) -> None:
    """Checks what every node computes, bodies included; shapes must have been inferred.

    Raises
    ------
    ModelError
        A value has too many elements, if only for a size of 1 on axes whose size is not known.
    """
    for node in model.graph.all_nodes():
        for output in node.outputs:
            elements = _least_elements(output)
            if elements > MAX_ELEMENTS:
                raise ModelError(
                    f"{label}: {node.op_type} node '{node.name}' makes '{output.name}' of "
                    f"{elements} elements; expected at most {MAX_ELEMENTS}: give smaller sizes, or "
                    "export the model with smaller ones"
                )


def _least_elements(value: ir.Value) -> int:
    sizes = value.shape if value.shape is not None else ()
    return math.prod(int(size) for size in sizes if isinstance(size, int))


def range_steps(start: float, limit: float, delta: float) -> int:
    """ONNX Range-11: ``max(ceil((limit - start) / delta), 0)``, exact for integers.

    ONNX's own inference and NumPy divide in float64 and take 2**63 steps for none.

    Raises
    ------
    FormError
        There are too many steps, or no number of them.
    """
    if delta == 0:
        raise FormError("the delta of a Range is 0")
    if isinstance(start, int):
        steps = -((start - limit) // delta)
    else:
        steps = math.ceil((limit - start) / delta)
    if steps > MAX_ELEMENTS:
        raise FormError(f"a Range has {steps} steps, expected at most {MAX_ELEMENTS}")
    return max(int(steps), 0)


# Refuses values of a negative size before ONNX's shape inference slices them.
#
# A window, a crop or a count out of range gives them, and ONNX's inference goes on with them. Its
# formula for Slice ends the process at a negative size (an assertion of ``std::clamp``).


# Slices are left out of the inference by this domain, until their input is known to be sound.
_LEFT_OUT = "tvm_ext.left_out"
# Stored tensors that inference may read: shapes, axes and pads, no weights.
_READ_ELEMENTS = 1024
# Slices of slices of slices.
_MOST_PASSES = 64


def forget_negative_sizes(graph: onnx.GraphProto) -> None:
    """Sizes below zero that are written in a model become unknown, in place, bodies included.

    Some exporters write -1 for a size that only the run knows.
    """
    for inner in graphs_within(graph):
        for value in (*inner.input, *inner.output, *inner.value_info):
            for dim in _dims(value.type):
                if dim.dim_value < 0:
                    dim.ClearField("dim_value")


def refuse_negative_sizes(model: onnx.ModelProto, label: str) -> None:
    """Infers shapes without weights, slice by slice.

    Raises
    ------
    ModelError
        A node gives a value of a negative size.
    """
    skeleton = _light(model)
    within = nodes_within(skeleton.graph)
    waiting = [node for node in within if node.op_type == "Slice"]
    if not waiting:
        # Converters say more of what is wrong.
        return
    sliced = {name for node in waiting for name in node.input[:1]}
    for node in waiting:
        node.domain = _LEFT_OUT
    skeleton.opset_import.add(domain=_LEFT_OUT, version=1)
    for _ in range(_MOST_PASSES):
        known = _inferred(skeleton, sliced, label)
        ready = [node for node in waiting if not node.input or node.input[0] in known]
        if not ready:
            return
        for node in ready:
            node.domain = ""
        waiting = [node for node in waiting if node.domain]


def _inferred(skeleton: onnx.ModelProto, sliced: set[str], label: str) -> set[str]:
    """Names of the values whose type is known; refuses negative sizes.

    In a body only of what is sliced: a branch that is never chosen may have them.
    """
    try:
        inferred = onnx.shape_inference.infer_shapes(skeleton)
    except (ValueError, RuntimeError, onnx.shape_inference.InferenceError):
        # The checker says what it is.
        return set()
    known: set[str] = set()
    whole, *bodies = graphs_within(inferred.graph)
    for graph in (whole, *bodies):
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.HasField("type"):
                known.add(value.name)
            sizes = [dim.dim_value for dim in _dims(value.type)]
            counts = graph is whole or value.name in sliced
            if counts and any(size < 0 for size in sizes):
                raise ModelError(
                    f"{label}: value '{value.name}' has the sizes {sizes}; expected none below 0: "
                    "give larger input shapes, or export the model again"
                )
        known.update(stored.name for stored in graph.initializer)
    return known


def _light(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which large stored tensors are inputs of their type and shape."""
    light = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph, light_graph = model.graph, light.graph
    light_graph.name = graph.name or "graph"
    light_graph.node.extend(graph.node)
    light_graph.input.extend(graph.input)
    light_graph.output.extend(graph.output)
    present = {value.name for value in graph.input}
    for tensor in graph.initializer:
        elements = 1
        for size in tensor.dims:
            elements *= size
        if 0 <= elements <= _READ_ELEMENTS:
            light_graph.initializer.add().CopyFrom(tensor)
        elif tensor.name not in present:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            light_graph.input.add().CopyFrom(info)
    return light


def _dims(type_: onnx.TypeProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    kind = type_.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        yield from getattr(type_, kind).shape.dim
    elif kind in ("sequence_type", "optional_type"):
        yield from _dims(getattr(type_, kind).elem_type)
