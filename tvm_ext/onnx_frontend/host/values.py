"""Values that only the host holds: strings, sequences, maps, optionals; their types and checks."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto

from tvm_ext.errors import InputError
from tvm_ext.model_inputs import check_host_array, require_fits
from tvm_ext.onnx_frontend.narrow_types import narrow_type
from tvm_ext.tensor_spec import STRING, SizeRange, TensorSpec

Conversion: TypeAlias = Callable[[Any], Any]

_UNKNOWN = onnx.TypeProto()


def is_host_type(type_: onnx.TypeProto | None) -> bool:
    """Whether values of the type are no tensors of numbers; False for a type that is not known."""
    kind = type_.WhichOneof("value") if type_ is not None else None
    if type_ is None or kind is None:
        return False
    return kind != "tensor_type" or bool(type_.tensor_type.elem_type == TensorProto.STRING)


def type_text(type_: onnx.TypeProto) -> str:
    """A type as ONNX Runtime spells it, without sizes: ``seq(map(int64,tensor(float)))``."""
    kind = type_.WhichOneof("value")
    if kind == "sequence_type":
        return f"seq({type_text(type_.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({type_text(type_.optional_type.elem_type)})"
    if kind == "map_type":
        key = TensorProto.DataType.Name(type_.map_type.key_type).lower()
        return f"map({key},{type_text(type_.map_type.value_type)})"
    return f"tensor({TensorProto.DataType.Name(type_.tensor_type.elem_type).lower()})"


def value_spec(
    value: onnx.ValueInfoProto, ranges: dict[str, SizeRange] | None = None
) -> TensorSpec:
    """What a user is told of an input or output."""
    if value.type.WhichOneof("value") != "tensor_type":
        return TensorSpec(value.name, type_text(value.type), ())
    tensor = value.type.tensor_type
    shape = tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{value.name}_{axis}"
        for axis, dim in enumerate(tensor.shape.dim)
    )
    allowed = tuple((ranges or {}).get(str(size)) for size in shape)
    name = narrow_type(value) or _dtype_name(tensor.elem_type)
    return TensorSpec(value.name, name, shape, allowed if any(allowed) else ())


def _dtype_name(element_type: int) -> str:
    if element_type == TensorProto.STRING:
        return STRING
    return str(onnx.helper.tensor_dtype_to_np_dtype(element_type))


def checked_input(value: onnx.ValueInfoProto) -> Callable[[TensorSpec, Any, dict[str, int]], Any]:
    """The check of one input of a run, by its type; it raises InputError.

    Arrays of strings become arrays of ``str`` objects, sequences lists, as ONNX Runtime has them.
    """
    type_ = value.type
    if type_.WhichOneof("value") != "tensor_type":
        return lambda spec, given, _sizes: _checked_container(type_, given, spec)
    if type_.tensor_type.elem_type != TensorProto.STRING:
        return check_host_array
    has_shape = type_.tensor_type.HasField("shape")

    def checked(spec: TensorSpec, given: Any, sizes: dict[str, int]) -> np.ndarray:
        array = _strings(given, spec)
        if has_shape:
            require_fits(spec, array, sizes)
        return array

    return checked


def _strings(given: Any, spec: TensorSpec) -> np.ndarray:
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise _unfit(spec, "cannot be read as an array") from error
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.kind != "O" or not all(isinstance(one, str) for one in array.flat):
        raise _unfit(spec, f"is {array.dtype}{list(array.shape)} and no array of str")
    return array


def _checked_container(type_: onnx.TypeProto, given: Any, spec: TensorSpec) -> Any:
    kind = type_.WhichOneof("value")
    if kind == "optional_type":
        if given is None:
            return None
        return _checked_container(type_.optional_type.elem_type, given, spec)
    if kind == "sequence_type":
        if not isinstance(given, list | tuple):
            raise _unfit(spec, f"is a {type(given).__name__}; a sequence is a list")
        return [_checked_container(type_.sequence_type.elem_type, one, spec) for one in given]
    if kind == "map_type":
        if not isinstance(given, dict):
            raise _unfit(spec, f"has a {type(given).__name__}; a map is a dict")
        return dict(given)
    return _checked_element(type_.tensor_type.elem_type, given, spec)


def _checked_element(element_type: int, given: Any, spec: TensorSpec) -> np.ndarray:
    if element_type == TensorProto.STRING:
        return _strings(given, spec)
    array = np.asarray(given)
    wanted = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    if array.dtype != wanted:
        raise _unfit(spec, f"holds an array of {array.dtype}, not of {wanted}")
    return array


def _unfit(spec: TensorSpec, what: str) -> InputError:
    return InputError(
        f"input '{spec.name}' {what}; expected {spec.describe()}: pass such a value to run"
    )


def output_conversion(type_: onnx.TypeProto, is_fresh: bool = False) -> Conversion:
    """What makes of a computed value what ONNX Runtime returns for an output of the type.

    ``is_fresh``: whether an array is nothing else's memory.
    """
    kind = type_.WhichOneof("value")
    if kind == "tensor_type" and type_.tensor_type.elem_type == TensorProto.STRING:
        return as_strings
    if kind == "sequence_type":
        element = output_conversion(type_.sequence_type.elem_type)
        return _as_is if element is _as_is else lambda values: [element(one) for one in values]
    if kind == "optional_type":
        inner = output_conversion(type_.optional_type.elem_type)
        return lambda value: None if value is None else inner(value)
    if kind == "map_type":
        return _as_is
    # What a step or a part of the program returned may be a weight, or another output.
    return _as_is if is_fresh else np.array


def _as_is(value: Any) -> Any:
    return value


def as_strings(value: Any) -> np.ndarray:
    """An array of ``str`` objects."""
    array = np.asarray(value)
    return array if array.dtype == object else array.astype(object)
