"""Gives an ONNX model's inputs the sizes that a user wants: frozen, named or within a range."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx

from tvm_ext.configs.nearest import nearest_hint
from tvm_ext.errors import InputError
from tvm_ext.onnx_frontend.host.values import is_host_type, type_text
from tvm_ext.open_size import OpenSize, SizeRange, parse_size

# Kernels count elements in 32 bits.
MAX_ELEMENTS = (1 << 31) - 1


def model_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a user feeds: graph inputs that are not initializers."""
    stored = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in stored]


class SetSizes(NamedTuple):
    """What ``set_input_shapes`` found.

    Attributes
    ----------
    ranges : dict[tuple[str, int], SizeRange]
        The ranges that were given, by input and axis.
    warnings : tuple[str, ...]
        One line when a name of the model was given several sizes.
    """

    ranges: dict[tuple[str, int], SizeRange]
    warnings: tuple[str, ...]


def set_input_shapes(
    model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int | str]], label: str
) -> SetSizes:
    """Sets the given sizes in place, and drops shapes that were inferred for other sizes.

    A symbolic dimension that is frozen or named in one input is so in all inputs that share its
    name, but for those that are given another size. Exporters use one name for several things, and
    ONNX Runtime only warns when their sizes differ.

    Raises
    ------
    InputError
        An input name is unknown, a rank differs, a size is none or contradicts the model, or an
        input is too large or has neither a shape in the model nor one given for it.
    """
    inputs = {value.name: value for value in model_inputs(model.graph)}
    by_symbol: dict[str, int | OpenSize] = {}
    contradictions: list[str] = []
    ranges: dict[tuple[str, int], SizeRange] = {}
    named: dict[str, SizeRange] = {}
    for name, shape in _plain_shapes(input_shapes, label).items():
        if name not in inputs:
            raise InputError(f"{label} has no input '{name}'; {nearest_hint(name, inputs)}")
        for axis, size in enumerate(
            _set_one(inputs[name], shape, by_symbol, contradictions, label)
        ):
            if isinstance(size, OpenSize) and size.range is not None:
                ranges[name, axis] = size.range
                _require_one_range(size.name, size.range, named, label)
    for value in inputs.values():
        for dim in value.type.tensor_type.shape.dim:
            _set_size(dim, by_symbol.get(dim.dim_param))
        _require_shape(value, ranges, label)
    if input_shapes:
        del model.graph.value_info[:]
        _forget_output_shapes(model.graph)
    return SetSizes(ranges, _warnings(contradictions, label))


def _warnings(contradictions: Sequence[str], label: str) -> tuple[str, ...]:
    if not contradictions:
        return ()
    return (
        f"{label}: {'; '.join(contradictions)}: dimensions of one name with different sizes are "
        "taken for different dimensions",
    )


def _set_size(dim: onnx.TensorShapeProto.Dimension, size: int | OpenSize | None) -> None:
    if isinstance(size, int):
        dim.dim_value = size
    elif size is not None and size.name:
        dim.dim_param = size.name


def _plain_shapes(
    input_shapes: Mapping[str, Sequence[int | str]], label: str
) -> dict[str, list[object]]:
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


def _require_one_range(
    name: str, given: SizeRange, named: dict[str, SizeRange], label: str
) -> None:
    known = named.setdefault(name, given) if name else given
    if known != given:
        raise InputError(
            f"{label}: dimension '{name}' was given the ranges {known} and {given}; expected one: "
            "give the same, or two names"
        )


def _require_shape(
    value: onnx.ValueInfoProto, ranges: Mapping[tuple[str, int], SizeRange], label: str
) -> None:
    if is_host_type(value.type):
        return
    if not value.type.tensor_type.HasField("shape"):
        raise InputError(
            f"{label}: input '{value.name}' has no shape in the model; expected at least its "
            "number of dimensions: give its sizes in input_shapes"
        )
    elements = math.prod(
        ranges[value.name, axis].high if (value.name, axis) in ranges else max(dim.dim_value, 1)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
    )
    if elements > MAX_ELEMENTS:
        raise InputError(
            f"{label}: input '{value.name}' has {elements} elements; expected at most "
            f"{MAX_ELEMENTS}: give smaller sizes"
        )


def _set_one(
    value: onnx.ValueInfoProto,
    shape: list[object],
    by_symbol: dict[str, int | OpenSize],
    contradictions: list[str],
    label: str,
) -> list[int | OpenSize]:
    if value.type.WhichOneof("value") not in ("tensor_type", None):
        raise InputError(
            f"{label}: shape {shape} was given for input '{value.name}', which is of type "
            f"{type_text(value.type)}; expected shapes of tensors: leave it out"
        )
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
    sizes = []
    for axis, (dim, given) in enumerate(zip(dims, shape, strict=True)):
        where = f"axis {axis} of input '{value.name}'"
        size = _size(given, where, label)
        symbol = dim.dim_param
        _require_same(dim, size, f"{label}: size {given} was given for {where}")
        # "?" is what some exporters write for every unknown dimension: it names nothing.
        if symbol and symbol != "?" and by_symbol.setdefault(symbol, size) != size:
            contradictions.append(
                f"dimension '{symbol}' was given the size {_spelled(by_symbol[symbol])}, and "
                f"{given} on {where}"
            )
            size = _named_apart(size, f"{symbol}_of_{value.name}_{axis}")
            dim.dim_param = ""
        if isinstance(size, OpenSize) and dim.HasField("dim_value"):
            dim.ClearField("dim_value")
        _set_size(dim, size)
        sizes.append(size)
    return sizes


def _size(given: object, where: str, label: str) -> int | OpenSize:
    if isinstance(given, str):
        try:
            return parse_size(given)
        except InputError as error:
            raise InputError(f"{label}: {where}: {error}") from error
    if not isinstance(given, int) or given < 1:
        raise InputError(
            f"{label}: size {given!r} was given for {where}; expected a positive integer, or the "
            "text of a name or a range"
        )
    return given


def _require_same(dim: onnx.TensorShapeProto.Dimension, size: int | OpenSize, what: str) -> None:
    """A size that the model fixes cannot be another one; it can be left open."""
    known = int(dim.dim_value)
    if isinstance(size, int) and known > 0 and size != known:
        raise InputError(
            f"{what}, which is {known} in the model: give {known} or leave the shape out"
        )


def _spelled(size: int | OpenSize) -> str:
    if isinstance(size, int):
        return str(size)
    return f"'{size.name or '?'}'" + (f" ({size.range})" if size.range is not None else "")


def _named_apart(size: int | OpenSize, name: str) -> int | OpenSize:
    """A size that is open without a name would keep the name that it contradicts."""
    return size if isinstance(size, int) or size.name else OpenSize(name, size.range)


def _forget_output_shapes(graph: onnx.GraphProto) -> None:
    """Output shapes of an exporter may name other sizes than the frozen ones; inference refills."""
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
