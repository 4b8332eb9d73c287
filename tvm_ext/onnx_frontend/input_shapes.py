"""Freezes dynamic dimensions of an ONNX model's inputs to the sizes a user gives."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from tvm_ext.configs.nearest import nearest_hint
from tvm_ext.errors import InputError

# Kernels count elements in 32 bits.
MAX_ELEMENTS = (1 << 31) - 1


def model_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a user feeds: graph inputs that are not initializers."""
    stored = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in stored]


def freeze_input_shapes(
    model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]], label: str
) -> None:
    """Sets the given sizes in place, and drops shapes that were inferred for other sizes.

    A symbolic dimension that is frozen in one input is frozen in all inputs that share its name.

    Raises
    ------
    InputError
        An input name is unknown, a rank differs, a size is not positive or contradicts the model,
        or an input is too large or has neither a shape in the model nor one given for it.
    """
    inputs = {value.name: value for value in model_inputs(model.graph)}
    sizes_by_symbol: dict[str, int] = {}
    for name, shape in _plain_shapes(input_shapes, label).items():
        if name not in inputs:
            raise InputError(f"{label} has no input '{name}'; {nearest_hint(name, inputs)}")
        _freeze_one(inputs[name], shape, sizes_by_symbol, label)
    for value in inputs.values():
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes_by_symbol:
                dim.dim_value = sizes_by_symbol[dim.dim_param]
        _require_shape(value, label)
    if input_shapes:
        del model.graph.value_info[:]
        _forget_output_shapes(model.graph)


def _plain_shapes(input_shapes: Mapping[str, Sequence[int]], label: str) -> dict[str, list[object]]:
    """The shapes with NumPy's integers as Python's own."""
    try:
        return {
            name: [int(size) if isinstance(size, np.integer) else size for size in shape]
            for name, shape in input_shapes.items()
        }
    except (AttributeError, TypeError) as error:
        raise InputError(
            f"{label}: input_shapes is {input_shapes!r}; expected sizes by input name: "
            "write {'x': [1, 3, 224, 224]}"
        ) from error


def _require_shape(value: onnx.ValueInfoProto, label: str) -> None:
    if not value.type.tensor_type.HasField("shape"):
        raise InputError(
            f"{label}: input '{value.name}' has no shape in the model; expected at least its "
            "number of dimensions: give its sizes in input_shapes"
        )
    elements = math.prod(max(dim.dim_value, 1) for dim in value.type.tensor_type.shape.dim)
    if elements > MAX_ELEMENTS:
        raise InputError(
            f"{label}: input '{value.name}' has {elements} elements; expected at most "
            f"{MAX_ELEMENTS}: give smaller sizes"
        )


def _freeze_one(
    value: onnx.ValueInfoProto, shape: list[object], sizes_by_symbol: dict[str, int], label: str
) -> None:
    tensor_type = value.type.tensor_type
    if not tensor_type.HasField("shape"):
        for _ in shape:
            tensor_type.shape.dim.add()
    dims = tensor_type.shape.dim
    if len(dims) != len(shape):
        raise InputError(
            f"{label}: shape {shape} was given for input '{value.name}', "
            f"which has rank {len(dims)}: give {len(dims)} sizes"
        )
    for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        if not isinstance(size, int) or size < 1:
            raise InputError(
                f"{label}: size {size!r} was given for axis {axis} of input '{value.name}'; "
                "expected a positive integer"
            )
        fixed = dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else size
        fixed = sizes_by_symbol.get(dim.dim_param, fixed) if dim.dim_param else fixed
        if fixed != size:
            raise InputError(
                f"{label}: size {size} was given for axis {axis} of input '{value.name}', "
                f"which is {fixed} in the model: give {fixed} or leave the shape out"
            )
        # "?" is what some exporters write for every unknown dimension: it names nothing.
        if dim.dim_param and dim.dim_param != "?":
            sizes_by_symbol[dim.dim_param] = size
        dim.dim_value = size


def _forget_output_shapes(graph: onnx.GraphProto) -> None:
    """Output shapes of an exporter may name other sizes than the frozen ones; inference refills."""
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
