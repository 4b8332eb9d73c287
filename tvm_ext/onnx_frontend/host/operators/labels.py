"""Operators of ai.onnx.ml with strings or maps: labels, categories, dictionaries."""

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from onnx import numpy_helper

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.host.operators.operator import Compute, HostOperator, without_attributes

_KINDS = (("strings", object), ("int64s", np.int64), ("floats", np.float32))
_NO_LABEL = "_Unused"
_DEFAULTS: dict[str, tuple[str, Any]] = {
    "O": ("default_string", _NO_LABEL),
    "i": ("default_int64", -1),
    "f": ("default_float", -0.0),
}


def label_encoder(attributes: dict[str, Any], opset: int) -> Compute:
    """The value of the key that an element equals, or the default; the first of equal keys."""
    if "classes_strings" in attributes:
        return _category_mapper(attributes, attributes["classes_strings"], None)
    keys, values = _table(attributes, "keys"), _table(attributes, "values")
    if len(keys) != len(values) or not len(keys):
        raise FormError(f"it has {len(keys)} keys and {len(values)} values")
    return _mapper(keys, values, _default(attributes, values.dtype))


def category_mapper(attributes: dict[str, Any], opset: int) -> Compute:
    """Strings to the integers of the table, or integers to its strings."""
    return _category_mapper(attributes, attributes["cats_strings"], attributes["cats_int64s"])


def _category_mapper(
    attributes: dict[str, Any], strings: Sequence[str], integers: Sequence[int] | None
) -> Compute:
    texts = np.array(strings, object)
    numbers = np.array(range(len(texts)) if integers is None else integers, np.int64)
    to_number = _mapper(texts, numbers, np.int64(attributes.get("default_int64", -1)))
    to_text = _mapper(numbers, texts, attributes.get("default_string", _NO_LABEL))
    return lambda given: (to_number if given[0].dtype.kind in "OU" else to_text)(given)


def _mapper(keys: np.ndarray, values: np.ndarray, default: Any) -> Compute:
    found = dict(zip(reversed(keys.tolist()), reversed(values.tolist()), strict=True))
    missing = next((v for k, v in zip(keys, values.tolist(), strict=True) if k != k), default)
    plain = default.item() if isinstance(default, np.generic) else default
    get, dtype = found.get, values.dtype
    has_missing = missing is not default

    def compute(given: Sequence[Any]) -> tuple[np.ndarray]:
        x = given[0]
        if x.ndim == 1:
            result = np.array([get(one, plain) for one in x.tolist()], dtype)
        else:
            flat = [get(one, plain) for one in x.ravel().tolist()]
            result = np.array(flat, dtype).reshape(x.shape)
        if has_missing and x.dtype.kind == "f":
            result[np.isnan(x)] = missing
        return (result,)

    return compute


def _table(attributes: dict[str, Any], name: str) -> np.ndarray:
    tensor = attributes.get(f"{name}_tensor")
    if tensor is not None:
        array = numpy_helper.to_array(tensor).reshape(-1)
        return array.astype(object) if array.dtype.kind in "UO" else array
    for kind, dtype in _KINDS:
        if attributes.get(f"{name}_{kind}"):
            return np.array(attributes[f"{name}_{kind}"], dtype)
    return np.array([])


def _default(attributes: dict[str, Any], dtype: np.dtype) -> Any:
    tensor = attributes.get("default_tensor")
    if tensor is not None:
        return numpy_helper.to_array(tensor).reshape(-1).astype(dtype)[0]
    name, otherwise = _DEFAULTS[dtype.kind]
    value = attributes.get(name, otherwise)
    return value if dtype.kind == "O" else dtype.type(value)


def one_hot_encoder(attributes: dict[str, Any], opset: int) -> Compute:
    """A new last axis with 1 at an element's category; ``zeros=0`` refuses unknown elements."""
    categories = attributes.get("cats_strings") or attributes.get("cats_int64s") or ()
    if not categories:
        raise FormError("it has no categories")
    place = {category: index for index, category in enumerate(categories)}
    count, allow_unknown = len(categories), bool(attributes.get("zeros", 1))

    def compute(given: Sequence[Any]) -> tuple[np.ndarray]:
        x = given[0] if given[0].dtype.kind in "OU" else given[0].astype(np.int64)
        flat = [place.get(one, -1) for one in x.ravel().tolist()]
        if not allow_unknown and -1 in flat:
            unknown = x.ravel()[flat.index(-1)]
            raise FormError(f"{unknown!r} is none of its {count} categories")
        hot = np.zeros((len(flat), count + 1), np.float32)
        # An unknown element has place -1: the column that is cut off.
        hot[np.arange(len(flat)), flat] = 1
        return (np.ascontiguousarray(hot[:, :count]).reshape(*x.shape, count),)

    return compute


def _chosen_columns(given: Sequence[Any]) -> tuple[np.ndarray]:
    """Of the last axis; a vector counts as one row."""
    return (np.atleast_2d(given[0])[..., given[1].reshape(-1)],)


def zip_map(attributes: dict[str, Any], opset: int) -> Compute:
    """A dictionary from class to score for each row, by rising class as in ONNX Runtime."""
    labels = attributes.get("classlabels_strings") or attributes.get("classlabels_int64s") or ()
    order = sorted(range(len(labels)), key=labels.__getitem__)
    keys, is_sorted = [labels[place] for place in order], order == list(range(len(labels)))

    def compute(given: Sequence[Any]) -> tuple[list[dict[Any, float]]]:
        (scores,) = given
        rows = scores if scores.ndim == 2 else np.atleast_2d(scores)
        if rows.shape[1] != len(keys):
            raise FormError(f"it has {len(keys)} class labels for {rows.shape[1]} scores")
        listed = rows.tolist() if is_sorted else rows[:, order].tolist()
        if len(listed) == 1:
            return ([dict(zip(keys, listed[0], strict=False))],)
        # Half the time of a comprehension.
        return (list(map(dict, map(zip, repeat(keys), listed))),)

    return compute


def dict_vectorizer(attributes: dict[str, Any], opset: int) -> Compute:
    """The values of a dictionary in the order of the vocabulary, 0 where it has none."""
    keys = attributes.get("string_vocabulary") or attributes.get("int64_vocabulary") or ()

    def compute(given: Sequence[Any]) -> tuple[np.ndarray]:
        values = given[0]
        texts = any(isinstance(value, str) for value in values.values())
        row = [values.get(key, "" if texts else 0) for key in keys]
        return (np.array([row], object if texts else _number_type(values)),)

    return compute


def _number_type(values: Mapping[Any, Any]) -> type:
    """Python's floats stand for either type of ONNX: those of arrays keep theirs."""
    first = next(iter(values.values()), 0.0)
    if isinstance(first, np.generic):
        return first.dtype.type
    return np.int64 if isinstance(first, int) else np.float32


_CAST_TO: dict[str, type] = {"TO_FLOAT": np.float32, "TO_INT64": np.int64, "TO_STRING": object}


def cast_map(attributes: dict[str, Any], opset: int) -> Compute:
    """The values of a map from integers, by rising key: all of them, or placed by their key."""
    dtype = _CAST_TO[attributes.get("cast_to", "TO_FLOAT")]
    sparse = attributes.get("map_form", "DENSE") == "SPARSE"
    columns = int(attributes.get("max_map", 1))

    def compute(given: Sequence[Any]) -> tuple[np.ndarray]:
        from_map = dict(sorted(given[0].items()))
        if not sparse:
            return (np.array([[_cast(one, dtype) for one in from_map.values()]], dtype),)
        row: np.ndarray = np.full((1, columns), "" if dtype is object else 0, dtype)
        for key, value in from_map.items():
            if 0 <= key < columns:
                row[0, key] = _cast(value, dtype)
        return (row,)

    return compute


def _cast(value: Any, dtype: type) -> Any:
    if dtype is object:
        return value if isinstance(value, str) else f"{value:f}"
    return dtype(float(value)) if isinstance(value, str) else dtype(value)


LABEL_OPERATORS: dict[str, HostOperator] = {
    f"ai.onnx.ml::{name}": operator
    for name, operator in {
        "ArrayFeatureExtractor": without_attributes(_chosen_columns),
        "CastMap": cast_map,
        "CategoryMapper": category_mapper,
        "DictVectorizer": dict_vectorizer,
        "LabelEncoder": label_encoder,
        "OneHotEncoder": one_hot_encoder,
        "ZipMap": zip_map,
    }.items()
}
