"""Inputs and outputs as JSON, for what NumPy's formats have no place for."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.errors import InputError
from tvm_ext.narrow_dtypes import numpy_type
from tvm_ext.onnx_frontend.value_types import element_dtype
from tvm_ext.tensor_spec import STRING, TensorSpec


def read_values(path: Path, specs: Sequence[TensorSpec]) -> dict[str, Any]:
    """The inputs in a JSON file: an object of nested lists by name, objects for maps.

    Raises
    ------
    InputError
        The file cannot be read, or a value is not of its input's type.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); expected JSON: write an object of lists by name"
        ) from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no object; expected values by the names of the inputs")
    known = {spec.name: spec for spec in specs}
    return {name: _read(known.get(name), value, path) for name, value in found.items()}


def _read(spec: TensorSpec | None, value: Any, path: Path) -> Any:
    if spec is None:
        return value
    try:
        if not spec.is_tensor:
            return _of_kind(spec.dtype, value)
        return np.array(value, object if spec.dtype == STRING else numpy_type(spec.dtype))
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: the value of input '{spec.name}' cannot be read ({error}); expected "
            f"{spec.describe()}: write lists, objects for maps, null for an empty optional"
        ) from error


def _of_kind(kind: str, value: Any) -> Any:
    """A value of a type that is spelled as ONNX Runtime does."""
    name, _, rest = kind.partition("(")
    inner = rest.removesuffix(")")
    if name == "optional":
        return None if value is None else _of_kind(inner, value)
    if name == "seq":
        return [_of_kind(inner, one) for one in value]
    if name == "map":
        key, _, element = inner.partition(",")
        texts = "string" in element
        return {
            (one if key == "string" else int(one)): (number if texts else float(number))
            for one, number in value.items()
        }
    return np.array(value, element_dtype(inner))


def values_as_json(values: Mapping[str, Any]) -> str:
    """Outputs as JSON: lists for arrays, text for numbers that JSON lacks."""
    plain = {name: _plain(value) for name, value in values.items()}
    return json.dumps(plain, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _plain(
            value.astype(np.float32).tolist() if value.dtype.kind == "V" else value.tolist()
        )
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value
